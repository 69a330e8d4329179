"""tracegap accounts for every nanosecond between a measured training step and what physics allows."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracegap.reports.notebook import open_store

__version__ = "0.1.0"
__all__ = ["__version__", "open_store"]


def __getattr__(name: str) -> Any:
    """`open_store`, imported when it is asked for: the command line starts faster without it."""
    if name != "open_store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tracegap.reports.notebook import open_store

    return open_store
