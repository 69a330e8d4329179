"""What a host thread does in a span: the `activity` of `idle_causes`. Pure, by the span's name and kind."""

import re

_FROM_KIND = {
    "input": "data_loading",
    "sync": "synchronisation",
    "launch": "launch",
    "collective": "communication",
    "overhead": "profiler",
    "op": "operator",
    "python": "python",
    "module": "python",
    "annotation": "annotation",
    "runtime": "runtime",
    "other": "runtime",
}
"""Where the name says nothing. Step marks and samples of memory are no activity."""

_RULES = tuple(
    (activity, re.compile(pattern))
    for activity, pattern in (
        (
            "garbage_collection",
            r"(?i:^python.?gc$|^gc$|garbage.?collect|collect.?garbage|(?<![a-z])gc[.: ]+collect|gc_collect)"
            r"|<built-in (?:function|method) collect\b",
        ),
        (
            "allocation",
            r"^(?:cuda|hip)(?:(?:Ext)?Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister)|MemPool|MemAdvise)"
            r"|^(?:cu|hip)Mem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address|Host|Pool|ExportTo|ImportFrom)"
            r"|empty_cache|MemAllocator::Alloc|TpuAllocator::Allocate",
        ),
        (
            "copy",
            r"^(?:cuda|cu|hip)Memcpy|BufferFrom(?:Host|PyVal)|^DevicePut|^device_put|TransferToDevice|CopyToDevice",
        ),
        (
            "compilation",
            r"\(dynamo_timed\)$|^(?:cu|hip)(?:Module|Library|Link|Kernel)(?:Load|Unload|Get|Create|Add|Complete)"
            r"|^(?:nvrtc|hiprtc)|^(?:cuda|hip)(?:GraphInstantiate|Library)|Lazy Function Loading|Module Loading|\bJIT\b"
            r"|torch/_(?:dynamo/(?!eval_frame)|inductor/)\S*\.py\(\d+\): "
            r"\w*(?:compile|codegen|convert_frame|transform|lower|benchmark)"
            r"|triton/\S*\.py\(\d+\): \w*(?:compile|autotune|bench|_init_handles)"
            r"|^\$(?:compiler|pxla|mlir|pjit|stages)\.py:\d+ \w*(?:compile|lower|trace)"
            r"|PjRt\w*Client::Compile|PJRT_Client_Compile|XlaCompile|backend_compile|^LoadProgram|HloPassPipeline|^HLO passes?\b",
        ),
        (
            "thread_wait",
            r"^(?:pthread_(?:cond|mutex|rwlock|join|barrier)|sem_|futex|p?poll|p?select|epoll_|u?sleep|(?:clock_)?nanosleep"
            r"|wait(?:pid|4)|sig(?:timed)?wait)"
            r"|threading\.py\S* (?:wait|join|acquire|_wait_for_tstate_lock)$|queue\.py\S* get$|futures/_base\.py\S* result$"
            r"|selectors\.py\S* select$|multiprocessing/connection\.py\S* _?(?:wait|poll)$|time\.sleep|<built-in function sleep>"
            r"|of '_?thread\.\w*lock'|<built-in method (?:acquire|run_backward)|_engine_run_backward$"
            r"|^Wait\b|[Ss]emaphoreAcquire|^Acquire semaphore",
        ),
        (
            "system_call",
            r"^(?:p?read(?:v|64)?|p?write(?:v|64)?|open(?:at|64)?|f(?:open|read|write|close|gets)|close|mmap(?:64)?|munmap"
            r"|ioctl|recv(?:from|msg)?|send(?:to|msg)?|connect|accept4?|fsync|pthread_create|fork|execve|l?stat|madvise)$",
        ),
    )
)
"""First match wins. Only kinds in _NAMED are looked at: others say all."""

_NAMED = frozenset({"op", "python", "annotation", "runtime", "launch", "sync", "other", "overhead"})

TELLING = frozenset(
    {
        "data_loading", "synchronisation", "garbage_collection", "allocation", "copy", "compilation", "system_call",
        "communication", "launch",
    }
)  # fmt: skip
"""Activities that say more than what runs inside them: the innermost span of one of these names the time. (A thread may
work inside a call in which others wait: backward passes of the CPU run in the caller of `run_backward`.)"""

WEAK = frozenset({None, "annotation", "thread_wait"})
"""Activities that do not tell what kept the thread: another one may."""

_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")


def activity(name: str, kind: str) -> str | None:
    """Activity of a span of `host_events`; None where the span says nothing (step marks)."""
    if kind in _NAMED:
        found = next((word for word, pattern in _RULES if pattern.search(name)), None)
        if found and not (kind == "launch" and found == "allocation"):
            return found
    return _FROM_KIND.get(kind)


def shown_name(name: str) -> str:
    """A span's name as it is equal in all processes: without addresses of objects."""
    return _ADDRESS.sub("", name)
