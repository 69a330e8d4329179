import pytest

from tracegap.ingest.classify.host import host_kind


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("aten::mm", "cpu_op", "op"),
        ("aten::mm", "Operator", "op"),
        ("ProfilerStep#12", "user_annotation", "step"),
        ("ProfilerStep#12", "Operator", "step"),
        ("forward", "user_annotation", "annotation"),
        ("my range", "nvtx", "annotation"),
        ("train.py(12): step", "python_function", "python"),
        ("dataloader.py(700): __next__", "python_function", "python"),
        ("my/dataset.py(12): get_batch", "python_function", "python"),
        ("torch/utils/data/dataloader.py(703): __next__", "python_function", "input"),
        ("torch/utils/data/dataloader.py(671): __iter__", "python_function", "python"),
        ("grain/_src/python/dataset/dataset.py(88): __next__", "python_function", "input"),
        ("torch_xla/distributed/parallel_loader.py(47): __next__", "python_function", "input"),
        ("nn.Module: Linear_3", "python_function", "module"),
        ("record_param_comms", "cpu_op", "collective"),
        ("c10d::allreduce_", "cpu_op", "collective"),
        ("nccl:all_reduce", "user_annotation", "collective"),
        ("ncclAllReduce", "nvtx", "collective"),
        ("Buffer Flush", "overhead", "overhead"),
        ("[memory]", "cpu_instant_event", "memory"),
        ("Event Sync", "cuda_sync", "sync"),
        ("Stream Wait Event", "cuda_sync", "runtime"),
        ("poll", "osrt", "runtime"),
        ("PyTorch Profiler (0)", "Trace", "other"),
        ("something", "unheard_of", "other"),
    ],
)
def test_by_category(name: str, category: str, kind: str) -> None:
    assert host_kind(name, category) == kind


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel", "cudaLaunchKernel_v7000", "cudaLaunchKernelExC_v11060", "cudaLaunchKernel_ptsz_v7000",
        "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchCooperativeKernel", "cudaGraphLaunch_v10000", "hipGraphLaunch",
        "hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "cudaMemcpyAsync",
        "cudaMemcpyAsync_v3020", "cuMemcpyDtoHAsync_v2", "cudaMemcpy2DAsync", "cudaMemsetAsync", "cuMemsetD32Async",
        "hipMemcpyAsync", "cudaMemset",
    ],
)  # fmt: skip
def test_launches(name: str) -> None:
    assert host_kind(name, "cuda_runtime") == "launch"


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize", "cudaDeviceSynchronize_v3020", "cudaStreamSynchronize", "cudaEventSynchronize",
        "cuCtxSynchronize", "hipStreamSynchronize", "hipDeviceSynchronize", "cudaMemcpy", "cudaMemcpy_v3020",
        "cuMemcpyDtoH_v2", "hipMemcpyWithStream", "cudaMemcpy2D",
    ],
)  # fmt: skip
def test_waits(name: str) -> None:
    assert host_kind(name, "cuda_runtime") == "sync"


@pytest.mark.parametrize(
    "name",
    ["cudaMalloc", "cudaEventRecord", "cudaEventQuery", "cudaStreamWaitEvent", "hipGetDevicePropertiesR0600",
     "cudaStreamIsCapturing", "cudaFuncSetAttribute", "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
     "cudaPeekAtLastError", "hipModuleLoadData"],
)  # fmt: skip
def test_other_calls_do_neither(name: str) -> None:
    assert host_kind(name, "cuda_runtime") == "runtime"


@pytest.mark.parametrize(
    "name",
    ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "load_batch", "## load_batch ##", "data_loading",
     "next_batch", "get_batch", "dataloader", "DataLoader", "## data_load ##", "## wait_for_batch ##", "my_next_batch",
     "train/load_data", "IteratorGetNext",
     # names of frameworks
     "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "enumerate(DataPipe)#BatcherIterDataPipe",
     "[pl][profile][_TrainingEpochLoop].train_dataloader_next", "[pl][profile][_EvaluationLoop].val_next",
     "train.next(data_iter)", "TimingAutoUnit.train.next(data_iter)", "batch-generator", "dataloader_next", "data_fetch",
     "IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute", "Iterator::Prefetch",
     "DeviceInputPipelineSecondIterator", "InfeedEnqueueTuple"],
)  # fmt: skip
def test_input_ranges(name: str) -> None:
    assert host_kind(name, "user_annotation") == "input"
    assert host_kind(name, "nvtx") == "input"


@pytest.mark.parametrize(
    "name",
    [
        "get_batch_norm_params",
        "get_batch_size",
        "forward",
        "upload_data_loaders_done_x",
        "batch",
        "dataloader.to(device)",
        "eval_next_token",
        "data transfer",
    ],
)
def test_ranges_that_are_not_input(name: str) -> None:
    assert host_kind(name, "user_annotation") == "annotation"


def test_jax_waits() -> None:
    assert host_kind("block_until_ready", "annotation") == "sync"
    assert host_kind("PjRtStreamExecutorBuffer::BlockHostUntilReady", "other") == "sync"


def test_an_old_loader_range_is_an_operator_by_category() -> None:
    assert host_kind("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Operator") == "input"
