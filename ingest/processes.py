"""Further processes of ours: each runs one module of the package.

They are started anew and not by `multiprocessing`: that would run the caller's main module again in each of them, and a
fork would take the locks of the threads of polars and DuckDB with it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(commands: list[list[str]], **pipes: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes, each with a module's name and its arguments; they are gone when the block ends.

    Fewer where the system starts no more of them. `pipes` are those of `subprocess.Popen`. What a process writes to its
    standard error is lost.
    """
    # Threads for linear algebra, of which there is none here, would cost a fifth of the start.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            # -P: a file beside the user's traces must not pass for one of our modules
            words = [sys.executable, "-P", "-m", *command]
            try:
                started.append(subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL, **pipes))  # noqa: S603 (ours)
            except OSError:
                break
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
