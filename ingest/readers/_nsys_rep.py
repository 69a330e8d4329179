"""Turns a closed `.nsys-rep` (or older `.qdrep`) report into SQLite with the installed Nsight Systems."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracegap.ingest.errors import TraceError

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
_TIME_LIMIT_S = 3600
_ERROR = re.compile(r"error: ([^\r\n]+)", re.IGNORECASE)
"""In what nsys prints among its progress bars."""


@contextmanager
def exported(path: Path, shown: str) -> Iterator[Path]:
    """A temporary SQLite export of a report, made by the `nsys` on PATH or the one that NSYS names.

    Raises:
        TraceError: there is no nsys (no_nsys), it is older than the report (needs_newer_nsys), or it fails (malformed).

    """
    nsys = shutil.which(os.environ.get("NSYS") or "nsys")
    name = Path(shown).name
    if nsys is None:
        raise TraceError(
            shown,
            "a .nsys-rep report can only be read by NVIDIA's nsys, which is not installed here",
            code="no_nsys",
            todo=f"install Nsight Systems (or set NSYS to it), or where it was recorded run "
            f"`nsys export --type sqlite -o {Path(name).stem}.sqlite {name}` and ingest the .sqlite",
        )
    with tempfile.TemporaryDirectory(prefix="tracegap-") as folder:
        out = Path(folder) / "report.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(out), str(path)]
        try:
            done = subprocess.run(  # noqa: S603  (the user's own nsys; no shell)
                command, capture_output=True, text=True, errors="replace", timeout=_TIME_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise TraceError(shown, f"`nsys export` could not be run: {e}", code="no_nsys", todo="check NSYS") from e
        said = f"{done.stdout}\n{done.stderr}"
        if "Version number is invalid" in said:
            raise TraceError(
                shown,
                "the report was made by a newer Nsight Systems than the one installed here",
                code="needs_newer_nsys",
                todo="install the one that recorded it or a newer one, or there run `nsys export --type sqlite`",
            )
        if done.returncode != 0 or not out.is_file():
            words = _ERROR.findall(said) or said.split("\n")[-1:]
            raise TraceError(
                shown, f"`nsys export` failed (status {done.returncode}): {' '.join(words)[:300]}", code="malformed"
            )
        yield out
