"""What a span on a host thread is: the `kind` of `host_events`. Pure, by name and category."""

import re

_KIND_OF_CATEGORY = {
    "cpu_op": "op",
    "operator": "op",
    "op": "op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "annotation",
    "annotation": "annotation",
    "nvtx": "annotation",
    "python_function": "python",
    "python": "python",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "hip_runtime": "runtime",
    "hip_driver": "runtime",
    "runtime": "runtime",
    "driver": "runtime",
    "osrt": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "mtia_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "cuda_sync": "runtime",
    "xpu_sync": "runtime",
    "overhead": "overhead",
    "cpu_instant_event": "memory",
    "memory": "memory",
}
"""Categories of Kineto (any case; 1.8 writes Operator, Runtime) and the words that our other readers use."""

INPUT = (
    r"^enumerate\(Data(?:Loader|Pipe)\)#",  # torch.utils.data, torchdata
    r"train_dataloader_next|(?<![a-z])(?:val|test|predict)_next(?![a-z])",  # Lightning
    r"next\(data_iter\)",  # TorchTNT: train.next(data_iter), <unit>.train.next(data_iter)
    r"IteratorGetNext|Iterator::(?:Prefetch|Batch|Map|Root)|DeviceInputPipelineSecondIterator",  # tf.data under TF and JAX
    r"InfeedEnqueue|TransferToInfeed|TransferLiteralToInfeed",  # XLA: the host feeds a device
    r"(?i:(?<![a-z])batch[-_]generator(?![a-z]))",  # Megatron-LM's timer
    r"(?i:(?<![a-z])(?:load|next|get|fetch|read|prepare|wait_?for(?:_?training)?)_?batch(?![a-z]|_norm|_size))",
    r"(?i:(?<![a-z])data_?load(?:ing|er)?(?![a-z])(?![._ ]*to\())",  # `dataloader.to(device)` is a copy
    r"(?i:(?<![a-z])data_(?:fetch|wait|io)(?![a-z])|(?<![a-z])(?:load|fetch|next|get|read)_?data(?![a-z]|_ptr))",
    r"(?i:input_?pipeline|dataset_?(?:next|read))",
)
"""Ranges in which a thread waits for data: names that frameworks give them, then those that people write.

Sources: torch/utils/data/dataloader.py and _utils of DataPipes (`_profile_name`); pytorch_lightning's profiler actions
`[_TrainingEpochLoop].train_dataloader_next`, `[_EvaluationLoop].val_next`; torchtnt/framework/train.py; TensorFlow and
xprof's xplane_schema.cc (IteratorGetNextOp, IteratorGetNextAsOptionalOp, DeviceInputPipelineSecondIterator) and the
operators InfeedEnqueue, InfeedEnqueueTuple; megatron/training (`batch-generator`); NVIDIA's StyleGAN trainers
(`data_fetch`)."""

INPUT_FRAME = re.compile(
    r"torch/utils/data/dataloader\.py\(\d+\): __next__$|torchdata/\S*\.py\(\d+\): __next__$"
    r"|(?:^|/)grain/\S*\.py\(\d+\): __next__$|torch_xla/\S*parallel_loader\.py\(\d+\): (?:__next__|next)$"
    r"|tensorflow/python/data/\S*\.py\(\d+\): __next__$|^\$(?:parallel_loader|dataset_iterator|iterator_ops)\.py:\d+ __next__$"
)
"""Python frames that fetch a batch, by file and function, as Kineto (`file(line): function`) and XLA (`$file:line
function`) write them. The file tells them from functions of users: whatever those are called, they are Python frames."""

RECEIVE = r"^(?:gloo|ucc|mpi|nccl|xccl|oneccl):recv|^c10d::recv(?:_any_source)?_?$|^MPI_M?[Rr]ecv|^MPI_Sendrecv"
"""Collective spans in which a thread receives from another rank, as pipelines do (torch's process groups, MPI)."""

_API = r"^(?:cuda|cu|hip)"
_RULES = [
    ("step", re.compile(r"^ProfilerStep#\d+")),
    (
        "launch",
        re.compile(
            _API + r"(?:\w*Launch(?:Cooperative)?Kernel\w*|GraphLaunch|LaunchHostFunc|Launch(?:Grid)?(?:Async)?|"
            r"LaunchByPtr|Memcpy\w*Async|Memset\w*)$|^urEnqueue\w*Launch\w*$|^zeCommandListAppendLaunchKernel$"
        ),
    ),
    (
        "sync",
        re.compile(
            _API + r"(?:(?:Device|Stream|Event|Ctx|Thread)Synchronize|Memcpy(?!\w*Async$)\w*)$"
            r"|^(?:Context|Stream|Event) Sync$|(?i:block_?until_?ready|block_?host_?until_?(?:done|ready))"
            r"|^zeCommandQueueSynchronize$|^urQueueFinish$"
        ),
    ),
    ("collective", re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|oneccl|xccl):|^c10d::|^record_param_comms$|^nccl[A-Z]")),
    ("input", re.compile("|".join(f"(?:{pattern})" for pattern in INPUT))),
]
"""First match wins."""

_NAMED_IN = {
    "op": frozenset({"step", "collective", "input"}),
    "annotation": frozenset({"step", "sync", "collective", "input"}),
    "runtime": frozenset({"launch", "sync"}),
    "other": frozenset({"step", "launch", "sync", "collective", "input"}),
}
"""The kinds that a name may give to a span of a category; a Python frame stays one whatever its function is called."""

_VERSION = re.compile(r"(?:_ptsz|_ptds)?(?:_v\d+)?(?:_ptsz|_ptds)?$")


def host_kind(name: str, category: str) -> str:
    """Kind of a host span, a word of `ingest.trace.HOST_EVENTS`.

    `name` is as the trace has it; version suffixes of API calls (`_v7000`, `_ptsz`) do not matter. `category` is
    Kineto's `cat` or one of the words annotation, nvtx, op, python, runtime, osrt, memory, overhead; another one leaves
    it to the name, and then to "other".

    `launch` are calls that put work on a device and return: kernels, graphs, asynchronous copies and fills. `sync` are
    calls in which the host waits for a device, blocking copies (`cudaMemcpy`, `hipMemcpyWithStream`) among them.
    """
    kind = _KIND_OF_CATEGORY.get(category.lower(), "other")
    if kind == "python":
        return "module" if name.startswith("nn.Module: ") else "input" if INPUT_FRAME.search(name) else "python"
    allowed = _NAMED_IN.get(kind)
    if allowed is None:
        return kind
    bare = _VERSION.sub("", name)
    return next((found for found, pattern in _RULES if found in allowed and pattern.search(bare)), kind)
