"""Reads ranges of objects, and of which version of the object each is.

A store may replace an object between two reads.  What tells its versions apart is in
the answer that brings the bytes, so that it costs no request.

Thread safety: all functions may be called from any thread.

Errors: those of the library of the store; OSError for a server that knows no ranges.
"""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import Any

__all__ = ["read_range"]

PARTIAL_CONTENT = 206


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
