"""Object stores, by URL: reads, writes and lists the objects below one.

Everything goes through fsspec, which is loaded when a store is opened.  Credentials
come from where the library of that store looks for them (the environment, its files,
the machine), never from a URL: such a URL is refused.

A store may replace an object between two reads.  What tells its versions apart is in
the answer that brings the bytes, so that it costs no request.

Thread safety: all methods may be called from any thread.

Errors: StorageError of the kind ``missing``, ``denied``, ``exists``, ``io`` or
``unsupported``.  No text of one holds a credential: see ``scrub``.  Nothing is retried
here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.errors import ConfigurationError, StorageError

__all__ = ["Listed", "Store", "check_url", "is_url", "open_store", "scrub"]

CONNECT_SECONDS = 5
READ_SECONDS = 20
# As many as stores of S3 list at once.
PAGE_KEYS = 1000
# Schemes, the package that fsspec needs for each, and how it is installed.
_EXTRAS = {"s3": "tdbg[s3]", "s3a": "tdbg[s3]", "gs": "gcsfs", "gcs": "gcsfs"}
_EXTRAS |= {"az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
# Web servers, of which tdbg only reads.
WEB = ("http", "https")
_EXTRAS |= dict.fromkeys(WEB, "aiohttp")
# Where listings tell versions of objects: S3, Azure, Google, local files, memory.
_VERSIONS = ("ETag", "etag", "mtime", "created")

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
# What a store says goes into logs: nobody else may use what is in it.
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?<=\?)[^\s'\"<>]*=[^\s'\"<>]*")
_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_NAMED = re.compile(
    r"((?:signature|secret|token|password|credential|authorization)[\w-]*\W{1,4})"
    r"[\w+/=.~%-]{8,}",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|_KEY|ACCESS_KEY_ID|SAS")
# Codes by which stores and HTTP say what is wrong, by the kind of the error.
_CODES = {
    "missing": {"404", "NoSuchKey", "NoSuchBucket", "NotFound"},
    "denied": {
        *("401", "403", "AccessDenied", "ExpiredToken", "Forbidden"),
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "TokenRefreshRequired"),
    },
    "exists": {"412", "PreconditionFailed", "409", "ConditionalRequestConflict"},
}

PARTIAL_CONTENT = 206


def is_url(path: object) -> bool:
    """Whether a path is the URL of a store.

    Example:
        >>> is_url("s3://bucket/run"), is_url("runs/a")
        (True, False)
    """
    return isinstance(path, str) and bool(_URL.match(path))


def check_url(url: str) -> str:
    """The URL of a run, without a slash at its end.

    Raises:
        ConfigurationError: If it is none, names nothing, or holds credentials.  The
            message does not repeat these.

    Example:
        >>> check_url("s3://bucket/run/")
        's3://bucket/run'
    """
    match = _URL.match(url)
    if match is None:
        msg = f"{scrub(url)!r} is not a URL such as s3://bucket/run"
        raise ConfigurationError(msg)
    rest = url[match.end() :]
    if _USERINFO.search(url):
        msg = (
            f"{scrub(url)}: a URL is shown and stored, so it must not hold "
            "credentials; set them where the store's library looks for them, as in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials"
        )
        raise ConfigurationError(msg)
    if not rest.strip("/"):
        msg = f"{url}: name a bucket and a folder in it, as in s3://bucket/run"
        raise ConfigurationError(msg)
    return url.rstrip("/")


def scrub(text: object) -> str:
    """A text without anything that looks like a credential, or is one of this process.

    Example:
        >>> scrub("403 for https://user:hidden@host/run?X-Amz-Signature=0f1e2d")
        '403 for https://…@host/run?…'
    """
    found = str(text)
    for secret in _secrets():
        found = found.replace(secret, "…")
    found = _USERINFO.sub("…@", found)
    found = _QUERY.sub("…", found)
    found = _KEY_ID.sub("…", found)
    return _NAMED.sub(r"\1…", found)


def _secrets() -> list[str]:
    """Values of the environment that are secret by the names of their variables."""
    found = [
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and _SECRET_NAME.search(name.upper())
    ]
    return sorted(found, key=len, reverse=True)


class Listed(NamedTuple):
    """An object in a listing.

    Attributes:
        name: Its path below the URL of the store.
        size: In bytes.
        version: A text that differs where the object was replaced, as far as listings
            of this store tell; else "".
    """

    name: str
    size: int
    version: str = ""


class Store:
    """The objects below a URL.

    Attributes:
        url: As it is shown.
        fs: The file system of fsspec.
        root: The path of the URL in it.
        n_requests: How often it was asked for anything.
    """

    def __init__(self, url: str, fs: Any, root: str) -> None:
        self.url = url
        self.fs = fs
        self.root = root.rstrip("/")
        self.n_requests = 0
        self._lock = threading.Lock()
        self._is_local = _protocol(fs) == "file"
        self._has_prefixes = _protocol(fs) == "s3"

    def path(self, name: str) -> str:
        """The path of an object in the file system."""
        return f"{self.root}/{name}" if name else self.root

    def read(self, name: str) -> bytes:
        """An object, whole."""
        with self._errors("read", name):
            whole: bytes = self.fs.cat_file(self.path(name))
            return whole

    def read_range(self, name: str, start: int, stop: int) -> tuple[bytes, str]:
        """The bytes of an object from *start* to *stop*, and its version.

        The version is a text that differs where the object was replaced, or "" where
        the store does not tell.

        Raises:
            StorageError: Of the kind ``unsupported``: a server knows no ranges.
        """
        with self._errors("read", name):
            return read_range(self.fs, _protocol(self.fs), self.path(name), start, stop)

    def size(self, name: str) -> int:
        """How many bytes an object has, as the store says now."""
        with self._errors("look at", name):
            self.fs.invalidate_cache()
            return int(self.fs.info(self.path(name))["size"])

    def list(self, folder: str = "") -> list[Listed]:
        """All objects at any depth below a folder; none: an empty list."""
        with self._errors("list", folder):
            self.fs.invalidate_cache()
            found = self._find(folder)
            start = len(self._stripped(self.root)) + 1
            return [
                Listed(
                    self._stripped(path)[start:],
                    int(info["size"] or 0),
                    next((str(info[key]) for key in _VERSIONS if info.get(key)), ""),
                )
                for path, info in sorted(found.items())
                if "/.tmp-" not in path
            ]

    def page(self, after: str = "") -> tuple[Sequence[str], bool] | None:
        """Names of objects behind *after* in their order, and whether all are there.

        None: the store is not known to list by pages.
        """
        if not self._has_prefixes:
            return None
        with self._errors("list", ""):
            bucket, key, _ = self.fs.split_path(self.root)
            start = f"{key}/" if key else ""
            own = {"StartAfter": start + after} if after else {}
            found = self.fs.call_s3(
                "list_objects_v2",
                Bucket=bucket,
                Prefix=start,
                MaxKeys=PAGE_KEYS,
                **own,
            )
            names = [each["Key"][len(start) :] for each in found.get("Contents", ())]
            return names, not found.get("IsTruncated")

    def _find(self, folder: str) -> dict[str, Any]:
        found: dict[str, Any]
        if self._has_prefixes and folder:
            # One request; without a prefix, s3fs asks twice more about what is empty.
            found = self.fs.find(self.root, prefix=f"{folder}/", detail=True)
        else:
            found = self.fs.find(self.path(folder), detail=True)
        return found

    def entries(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Names of folders, and of objects, that are directly in a folder."""
        folders: set[str] = set()
        objects: set[str] = set()
        with self._errors("list", folder), contextlib.suppress(FileNotFoundError):
            self.fs.invalidate_cache()
            for each in self.fs.ls(self.path(folder), detail=True):
                path = each["name"].rstrip("/")
                if path == self._stripped(self.path(folder)):
                    continue
                kind = folders if each["type"] == "directory" else objects
                kind.add(path.rpartition("/")[2])
        return sorted(folders), sorted(objects)

    def write(self, name: str, content: bytes, *, is_new: bool = False) -> None:
        """Store an object, which appears whole.

        Args:
            name: Its path below the URL.
            content: Its bytes.
            is_new: Whether to refuse if there is one of this name, where the store
                can tell.

        Raises:
            StorageError: Of the kind ``exists``: there is one.
        """
        with self._errors("write", name):
            self._refuse_if_read_only()
            if self._is_local:
                _write_whole(Path(self.path(name)), content, is_new=is_new)
            else:
                self._pipe(self.path(name), content, is_new=is_new)

    def write_file(self, name: str, source: Path) -> None:
        """Store the bytes of a file; the object appears whole."""
        with self._errors("write", name):
            self._refuse_if_read_only()
            if self._is_local:
                _write_whole(Path(self.path(name)), source, is_new=False)
            elif _protocol(self.fs) == "memory":
                # What it is given in pieces, it shows in pieces.
                self._pipe(self.path(name), source.read_bytes(), is_new=False)
            else:
                self.fs.put_file(str(source), self.path(name))

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        with self._errors("remove", name), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    def _pipe(self, path: str, content: bytes, *, is_new: bool) -> None:
        if is_new:
            try:
                self.fs.pipe_file(path, content, mode="create")
            except (NotImplementedError, TypeError, ValueError):
                if self.fs.exists(path):
                    raise FileExistsError(errno.EEXIST, "exists", path) from None
                self.fs.pipe_file(path, content)
        else:
            self.fs.pipe_file(path, content)

    def _refuse_if_read_only(self) -> None:
        if _protocol(self.fs) in WEB:
            msg = "tdbg only reads from web servers"
            raise PermissionError(errno.EROFS, msg)

    def _stripped(self, path: str) -> str:
        stripped: str = self.fs._strip_protocol(path)
        return stripped.rstrip("/")

    @contextlib.contextmanager
    def _errors(self, what: str, name: str) -> Any:
        shown = scrub(f"{self.url}/{name}".rstrip("/"))
        with self._lock:
            self.n_requests += 1
        try:
            yield
        except StorageError:
            raise
        # Each library has exceptions of its own, and no base in common.
        except Exception as error:
            kind = _kind_of(error)
            text = scrub(error) or type(error).__name__
            msg = f"cannot {what} {shown}: {text}"
            # Without the cause: its text, and those below it, are not scrubbed.
            raise StorageError(msg, file=shown, kind=kind) from None


def open_store(url: str) -> Store:
    """The store at a URL; nothing is asked of it yet.

    Raises:
        ConfigurationError: If the URL is bad, or what reads such URLs is missing.
    """
    url = check_url(url)
    scheme = url.partition("://")[0].lower()
    try:
        fsspec = import_module("fsspec")
        fs, root = fsspec.core.url_to_fs(url, **_options(scheme))
    except ImportError as error:
        known = "tdbg[remote]" if error.name == "fsspec" else _EXTRAS.get(scheme)
        how = f": pip install '{known}'" if known else ""
        msg = f"{scrub(url)}: runs at {scheme}:// need another package{how}"
        raise ConfigurationError(msg) from None
    except Exception as error:
        msg = f"{scrub(url)} cannot be opened: {scrub(error)}"
        raise ConfigurationError(msg) from None
    if hasattr(fs, "retries"):
        fs.retries = 1  # Whoever asks a store retries, counts, and waits in between.
    return Store(scrub(url), fs, str(root))


def _options(scheme: str) -> dict[str, Any]:
    """What is asked of the library of a store.

    An instance of its own, so that credentials that were renewed are read again.
    """
    own: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
        once = {"retries": {"total_max_attempts": 1}, **_single_tries()}
        # With more, it asks for the size of what it is to read as a whole.
        own["max_concurrency"] = 1
        return {**own, "config_kwargs": {**limits, **once}}
    if scheme in WEB:
        timeout = import_module("aiohttp").ClientTimeout
        limits = timeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        return {**own, "client_kwargs": {"timeout": limits}}
    return own


def _single_tries() -> dict[str, Any]:
    """Keep aiohttp from repeating a request by itself, which nobody would count."""
    try:
        session: Any = import_module("aiobotocore.httpsession").AIOHTTPSession
    except (ImportError, AttributeError):
        return {}

    class SingleTries(session):  # type: ignore[misc]
        async def _get_session(self, *args: Any) -> Any:
            found = await super()._get_session(*args)
            found._retry_connection = False
            return found

    return {"http_session_cls": SingleTries}


def _protocol(fs: Any) -> str:
    names = fs.protocol
    return names if isinstance(names, str) else str(names[0])


def _write_whole(path: Path, content: bytes | Path, *, is_new: bool) -> None:
    """Write a file under another name, then give it its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            if isinstance(content, Path):
                with content.open("rb") as source:
                    while piece := source.read(1 << 20):
                        file.write(piece)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _kind_of(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, FileExistsError):
        return "exists"
    if isinstance(error, PermissionError):
        return "denied"
    if isinstance(error, OSError) and error.errno == errno.ENOTSUP:
        return "unsupported"
    code = _code_of(error) or _code_of(error.__cause__)
    for kind, codes in _CODES.items():
        if code in codes:
            return kind
    no_credentials = type(error).__name__ in ("NoCredentialsError", "RefreshError")
    return "denied" if no_credentials else "io"


def _code_of(error: BaseException | None) -> str:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "status", "") or getattr(error, "code", ""))


# ---- ranges of objects ---------------------------------------------------------------


def read_range(
    fs: Any, protocol: str, path: str, start: int, stop: int
) -> tuple[bytes, str]:
    """The bytes of an object from *start* to *stop*, and its version.

    Args:
        fs: The file system of fsspec.
        protocol: Of the store, by which it is known how versions are told.
        path: Of the object in it.
        start: The first byte.
        stop: Behind the last byte.

    Returns:
        The bytes, fewer at the end of the object, and a text that differs between two
        objects of this name; "" where the store does not tell.
    """
    if protocol == "file":
        return _of_file(path, start, stop)
    reads = {"s3": _of_s3, "http": _of_http, "https": _of_http}.get(protocol)
    if reads is None:
        return fs.cat_file(path, start=start, end=stop), ""
    sync = import_module("fsspec.asyn").sync
    content, version = sync(fs.loop, reads, fs, path, start, stop)
    return content, version


def _of_file(path: str, start: int, stop: int) -> tuple[bytes, str]:
    with open(path, "rb") as file:  # noqa: PTH123 - a path of fsspec
        file.seek(start)
        content = file.read(stop - start)
        about = os.fstat(file.fileno())
    return content, f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}"


async def _of_s3(fs: Any, path: str, start: int, stop: int) -> tuple[bytes, str]:
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}"
    )
    async with answer["Body"] as body:
        return await body.read(), str(answer.get("ETag", ""))


async def _of_http(fs: Any, path: str, start: int, stop: int) -> tuple[bytes, str]:
    session = await fs.set_session()
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    async with session.get(fs.encode_url(path), headers=headers) as answer:
        fs._raise_not_found_for_status(answer, path)
        if answer.status != PARTIAL_CONTENT:
            msg = (
                "the server does not know ranges (it ignores the header Range): use "
                "one that does, as nginx, or copy the run to this machine"
            )
            raise OSError(errno.ENOTSUP, msg)
        told = answer.headers
        return await answer.read(), told.get("ETag") or told.get("Last-Modified", "")
