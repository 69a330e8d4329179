"""Files of other machines and of object stores, through fsspec: listed, and fetched one at a time.

What is shown, stored or logged of a URL never has its credentials: no user and password, no query (signed URLs). Texts of
libraries' errors may quote them and are not passed on. fsspec is imported when the first URL is met.
"""

import contextlib
import errno
import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from tracegap.ingest import manifest
from tracegap.ingest.errors import InputError, Refused, SourceUnavailable, TraceError
from tracegap.ingest.files import UNPACK_LIMIT, unpack_limit_bytes
from tracegap.ingest.naming import printable, traces_among
from tracegap.models.errors import TracegapError

_URL = re.compile(r"([a-z][a-z0-9+.-]*)(::[a-z][a-z0-9+.-]*)*://", re.IGNORECASE)
_USER = re.compile(r"://(?:(?!\[)[^/:?#\s]*:(?!\d+/)[^?#\s]*|[^/?#\s]*)@")  # also where a password holds a slash
_ENCODED = re.compile("[!-~]*")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_HTTP = ("http", "https")
_MAX_LISTED = 100_000  # pages of links may lead on without an end
_MAX_NAME_CHARS = 150
_CONNECT_S, _SILENCE_S = 30, 120
_DENIED, _GONE = {401, 403, 407}, {404, 410}
# Of libraries that are there only where their kind of URL is read.
_LIBRARY_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("requests.exceptions", "RequestException"),
    ("azure.core.exceptions", "AzureError"),
)
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError"}


@dataclass(frozen=True, slots=True)
class Remote:
    """A file at a URL."""

    shown: str
    """Its URL without credentials."""
    fs: Any = field(repr=False, compare=False)
    """The fsspec filesystem."""
    path: str = field(repr=False)
    """What `fs` calls it; may hold credentials."""
    manifest: str | None = field(default=None, repr=False)
    """The manifest beside it, likewise."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return _file_name(self.shown)

    def __str__(self) -> str:
        return self.shown

    def fetch(self, folder: Path) -> Path:
        """Copies the file, and the manifest beside it, into a folder; the path of the copy.

        Raises:
            TraceError: it is missing, or access is denied.
            SourceUnavailable: the network or the server fails.
            Refused: it is larger than what may be unpacked.
        """
        if self.manifest is not None:
            _get(self.fs, self.manifest, folder / _file_name(self.manifest), self.shown)
        target = folder / self.name
        _get(self.fs, self.path, target, self.shown)
        return target


def is_url(text: str) -> bool:
    """Whether a text is a URL."""
    return _URL.match(text) is not None


def without_credentials(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment."""
    return printable(re.split(r"[?#]" if url.lower().startswith("http") else r"[?]", _USER.sub("://", url))[0])


def find(url: str) -> list[Remote]:
    """The files of a URL: the one that it names; or those that may be traces in a folder, or where it matches (`*`).

    Of http only a URL that ends in `/` is a folder: its pages link to what is in it.

    Raises:
        TracegapError: what reads such URLs is not installed.
        TraceError: nothing is there, or access is denied.
        SourceUnavailable: the network or the server fails.
    """
    shown = without_credentials(url)
    http = url.lower().startswith(_HTTP)
    with _told(shown):
        fs, path, prefix = _connect(url, shown)
        if "*" in path:
            folder = path.partition("*")[0].rpartition("/")[0] + "/"
            pattern = path.removeprefix(folder)
        elif url.endswith("/") or (not http and fs.isdir(path)):
            folder, pattern = path.rstrip("/") + "/", "**"
        else:
            beside = path.rpartition("/")[0] + "/"
            described = None if http else next((f for name in manifest.NAMES if fs.exists(f := beside + name)), None)
            return [Remote(shown, fs, path, described)]
        files = set(_links_below(fs, folder, shown) if http else _objects_below(fs, folder, pattern))
        matches = _matcher(pattern)
    below = {PurePosixPath(name): f for f in files if matches(name := f.removeprefix(folder))}
    found = []
    for place in traces_among(sorted(below)):
        file = below[place]
        beside = file.removesuffix(place.name)
        described = next((f for n in manifest.NAMES if (f := beside + n) in files), None)
        found.append(Remote(without_credentials(prefix + file), fs, file, described))
    if not found:
        raise TraceError(shown, "no file is there that may be a trace", code="missing")
    return found


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches a pattern, or lies in a folder that does."""
    from fsspec.utils import glob_translate

    either = [re.compile(glob_translate(p)) for p in (pattern, pattern.rstrip("/") + "/**")]
    return lambda name: any(r.match(name) for r in either)


def _objects_below(fs: Any, folder: str, pattern: str) -> list[str]:
    """All files below a folder; of object stores only those that begin as the pattern does."""
    start = pattern.partition("*")[0]
    narrowed = {"prefix": start} if start and not set(_EXTRAS).isdisjoint(fs.protocol) else {}
    return [str(f) for f in fs.find(folder.rstrip("/"), **narrowed)]


def _links_below(fs: Any, folder: str, shown: str) -> list[str]:
    """URLs that the pages of a folder link to, and those of the folders below; never one outside."""
    seen, todo = {folder}, [folder]
    found: list[str] = []
    while todo:
        for entry in fs.ls(todo.pop(), detail=True):
            url = re.split(r"[?#]", entry["name"])[0]
            if url in seen or not url.startswith(folder) or "/../" in url:
                continue
            seen.add(url)
            (todo if url.endswith("/") else found).append(url)
            if len(seen) > _MAX_LISTED:
                raise Refused(shown, f"more than {_MAX_LISTED:,} links", code="members", todo="name a folder below")
    return found


def _connect(url: str, shown: str) -> tuple[Any, str, str]:
    """The fsspec filesystem, what it calls the URL, and what stands before that in the URL."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    options: dict[str, Any] = {}
    if scheme in _HTTP:
        import aiohttp

        # As the bytes lie on the server: compression is ours to undo. Large files take their time, silence does not.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        headers = {"Accept-Encoding": "identity"}
        options["client_kwargs"] = {"headers": headers, "timeout": timeout, "trust_env": True}
        options["encoded"] = _ENCODED.fullmatch(url) is not None  # then nothing is quoted anew: signatures cover it
    elif scheme in ("s3", "s3a") and "@" in rest.partition("/")[0]:
        user, _, rest = rest.partition("@")
        options["key"], options["secret"] = (unquote(part) for part in (user.partition(":")[::2]))
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # else it prints tracebacks of what is raised anyway
    from fsspec.core import url_to_fs

    url = f"{scheme}://{rest}"
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as e:
        extra = _EXTRAS.get(scheme)
        todo = f"pip install 'tracegap[{extra}]'" if extra else printable(str(e))
        raise TracegapError(f"{shown}: what reads {scheme}:// is not installed: {todo}") from None
    except ValueError:
        raise TracegapError(f"{shown}: nothing is known that reads {scheme}://") from None
    fs.invalidate_cache()
    known = path.rstrip("/")
    prefix = url.rstrip("/").removesuffix(known) if url.rstrip("/").endswith(known) else f"{scheme}://"
    return fs, str(path), prefix


def _get(fs: Any, path: str, target: Path, shown: str) -> None:
    from fsspec.callbacks import Callback

    limit_bytes = unpack_limit_bytes()

    class Limit(Callback):  # type: ignore[misc]
        """Ends a transfer without an end."""

        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            if self.value > limit_bytes:
                what = f"is larger than {limit_bytes / 2**30:g} GiB"
                raise Refused(shown, what, code="bomb", todo=f"if you trust it, set {UNPACK_LIMIT} higher")

    with _told(shown):
        fs.get_file(path, str(target), callback=Limit())


@contextlib.contextmanager
def _told(shown: str) -> Iterator[None]:
    """Turns errors of fsspec and the libraries below it into ours, in words of our own."""
    loaded = ((sys.modules.get(module), name) for module, name in _LIBRARY_ERRORS)
    theirs = tuple(getattr(module, name) for module, name in loaded if module)
    try:
        yield
    except TracegapError:
        raise
    except (OSError, ValueError, *theirs) as e:
        raise _error(shown, e) from None


def _error(shown: str, e: Exception) -> InputError:
    kind = type(e).__name__
    status = next((s for a in ("status", "code") if isinstance(s := getattr(e, a, None), int)), None)
    if isinstance(e, FileNotFoundError) or status in _GONE:
        return TraceError(shown, "no such file", code="missing")
    # gcsfs says 403 by its first word
    if isinstance(e, PermissionError) or status in _DENIED or kind in _NO_CREDENTIALS or str(e).startswith("Forbidden"):
        why = f"status {status}" if status else kind
        return TraceError(
            shown, f"access is denied ({why})", code="denied", todo="docs/sources.md says where credentials go"
        )
    if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"there is no room for a copy ({e.strerror})"
        return TraceError(shown, what, code="no_room", todo="TMPDIR names the folder for it")
    if isinstance(e, ValueError) and not isinstance(e, OSError):
        return TraceError(shown, f"not a URL that can be read ({kind})", code="bad_url")
    why = f"status {status}" if status else kind
    return SourceUnavailable(shown, f"the network or the server failed ({why})", code="unavailable", todo="try again")


def _file_name(shown: str) -> str:
    """The last part of a URL, as a name that any file system takes."""
    name = printable(unquote(shown.rstrip("/").rpartition("/")[2])).replace("/", "_")[-_MAX_NAME_CHARS:]
    return "trace" if name in ("", ".", "..") else name
