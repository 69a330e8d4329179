"""Errors of files and of the store. Each says what, where and what to do."""

from collections.abc import Callable
from functools import partial
from typing import Self

from tracegap.models.errors import TracegapError


class InputError(TracegapError):
    """Something given as input that could not be taken. Nothing of it is stored; other inputs are, all the same."""

    def __init__(self, path: str, what: str, *, code: str = "unreadable", todo: str = "") -> None:
        self.path, self.what, self.code, self.todo = str(path), what, code, todo
        super().__init__(f"{path}: {what}" + (f"; {todo}" if todo else ""))

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """Errors of other processes arrive as they were."""
        return partial(type(self), self.path, self.what, code=self.code, todo=self.todo), ()


class TraceError(InputError):
    """A file that could not be read as a trace at all."""


class UnknownFormat(TraceError):
    """A file that no reader knows."""


class Refused(InputError):
    """A file or archive that may do harm: unpacks beyond all bounds, points outside. Never taken for mere damage."""


class SourceUnavailable(InputError):
    """A server that cannot be reached or failed."""

    retryable = True


class StoreError(TracegapError):
    """The store cannot be opened, is of another version, or has no such run."""


class StoreBusy(StoreError):
    """Another process holds the store."""

    retryable = True
