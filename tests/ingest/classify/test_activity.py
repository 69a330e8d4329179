import pytest

from tracegap.ingest.classify.activity import activity, shown_name


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("aten::mm", "op", "operator"),
        ("train.py(12): step", "python", "python"),
        ("nn.Module: Linear_3", "module", "python"),
        ("forward", "annotation", "annotation"),
        ("ProfilerStep#3", "step", None),
        ("[memory]", "memory", None),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "input", "data_loading"),
        ("torch/utils/data/dataloader.py(703): __next__", "input", "data_loading"),
        ("Python GC", "other", "garbage_collection"),
        ("Python GC", "annotation", "garbage_collection"),
        ("<built-in function collect>", "python", "garbage_collection"),
        ("$gc collect", "python", "garbage_collection"),
        ("PythonRefManager::CollectGarbage", "other", "garbage_collection"),
        ("data/collector.py(9): collect", "python", "python"),
        ("cudaMalloc", "runtime", "allocation"),
        ("cudaFree_v3020", "runtime", "allocation"),
        ("cudaHostAlloc", "runtime", "allocation"),
        ("hipMalloc", "runtime", "allocation"),
        ("hipHostMalloc", "runtime", "allocation"),
        ("cuMemCreate", "runtime", "allocation"),
        ("cuMemsetD32Async", "launch", "launch"),
        ("cudaLaunchKernel", "launch", "launch"),
        ("cudaGraphLaunch", "launch", "launch"),
        ("cudaMemcpyAsync", "launch", "copy"),
        ("cudaMemcpy", "sync", "copy"),
        ("cudaStreamSynchronize", "sync", "synchronisation"),
        ("cudaEventRecord", "runtime", "runtime"),
        ("cuModuleLoadDataEx", "runtime", "compilation"),
        ("cuLibraryLoadData", "runtime", "compilation"),
        ("hipModuleLoad", "runtime", "compilation"),
        ("nvrtcCompileProgram", "other", "compilation"),
        ("compile_fx_inner (dynamo_timed)", "annotation", "compilation"),
        ("Lazy Function Loading", "overhead", "compilation"),
        ("Buffer Flush", "overhead", "profiler"),
        ("torch/_dynamo/convert_frame.py(700): _compile", "python", "compilation"),
        ("torch/_dynamo/eval_frame.py(791): compile_wrapper", "python", "python"),
        ("torch/_inductor/utils.py(20): run", "python", "python"),
        ("triton/compiler/compiler.py(226): compile", "python", "compilation"),
        ("$compiler.py:307 backend_compile", "python", "compilation"),
        ("PjRtClient::Compile", "other", "compilation"),
        ("PjitFunction(train_step)", "other", "runtime"),
        ("futex", "runtime", "thread_wait"),
        ("pthread_cond_timedwait", "runtime", "thread_wait"),
        ("threading.py(589): wait", "python", "thread_wait"),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f1>", "python", "thread_wait"),
        ("ioctl", "runtime", "system_call"),
        ("mmap64", "runtime", "system_call"),
        ("nccl:all_reduce", "collective", "communication"),
    ],
)
def test_activities(name: str, kind: str, what: str | None) -> None:
    assert activity(name, kind) == what


def test_names_are_the_same_in_every_process() -> None:
    name = "<built-in method run_backward of torch._C._EngineBase object at 0x7f12ab>"
    assert shown_name(name) == "<built-in method run_backward of torch._C._EngineBase>"
