"""Errors of files and of the store. Each says what, where and what to do."""

from tracegap.models.errors import TracegapError


class TraceError(TracegapError):
    """A file that could not be read as a trace at all. Nothing of it is stored."""

    def __init__(self, path: str, what: str, *, code: str = "unreadable", todo: str = "") -> None:
        self.path, self.what, self.code, self.todo = str(path), what, code, todo
        super().__init__(f"{path}: {what}" + (f"; {todo}" if todo else ""))


class UnknownFormat(TraceError):
    """A file that no reader knows."""


class StoreError(TracegapError):
    """The store cannot be opened, is of another version, or has no such run."""
