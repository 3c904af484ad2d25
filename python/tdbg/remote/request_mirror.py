"""Carries requests from a store to the spool, and the answers back.

Implements docs/format.md, "A run in an object store": whoever may write to the store
owns the run.

Thread safety: none; owned by the uploader's thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from pathlib import Path

from tdbg.errors import StorageError
from tdbg.remote.attempts import Attempts
from tdbg.remote.stores import Listed
from tdbg.run.directory import MAX_JSON_BYTES, write_new_file

__all__ = ["POLL_SECONDS", "RequestMirror"]

POLL_SECONDS = 5.0
_REQUEST = re.compile(r"ctl/([0-9a-f]{32}\.json)")
_ASK = "ctl/stacks/ask"
MAX_ASK_BYTES = 64
_ANSWER = re.compile(r"[A-Za-z0-9][\w.-]{0,200}\.(json|txt)")


class RequestMirror:
    """The folder ``ctl`` of a run, here and there.

    Args:
        run: The directory of the run here.
        attempts: Asks the store.
    """

    def __init__(self, run: Path, attempts: Attempts) -> None:
        self._folder = run / "ctl"
        self._attempts = attempts
        self._seen: set[str] = set()
        self._asked = b""
        self._sent: dict[str, tuple[int, int]] = {}
        self._next = 0.0

    def step(self) -> None:
        """Carry what is new, both ways; errors wait for the next time."""
        with contextlib.suppress(StorageError, OSError):
            self._send_answers()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + POLL_SECONDS
            with contextlib.suppress(StorageError, OSError):
                self._fetch_requests()

    def _fetch_requests(self) -> None:
        for listed in self._attempts.once(lambda store: store.list("ctl")):
            match = _REQUEST.fullmatch(listed.name)
            if match and listed.name not in self._seen:
                self._fetch(listed, self._folder / match[1])
            elif listed.name == _ASK and listed.size <= MAX_ASK_BYTES:
                self._fetch_ask()

    def _fetch(self, listed: Listed, target: Path) -> None:
        if listed.size <= MAX_JSON_BYTES:
            content = self._attempts.once(lambda store: store.read(listed.name))
            with contextlib.suppress(FileExistsError):
                write_new_file(target, content)
        self._seen.add(listed.name)

    def _fetch_ask(self) -> None:
        content = self._attempts.once(lambda store: store.read(_ASK))
        if content == self._asked or len(content) > MAX_ASK_BYTES:
            return
        folder = self._folder / "stacks"
        folder.mkdir(mode=0o700, exist_ok=True)
        temporary = folder / f".tmp-{uuid.uuid4().hex}"
        temporary.touch(0o600)
        temporary.write_bytes(content)
        temporary.replace(folder / "ask")
        self._asked = content

    def _send_answers(self) -> None:
        found: dict[str, tuple[int, int]] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._folder / "stacks"):
                if _ANSWER.fullmatch(entry.name) and entry.is_file(
                    follow_symlinks=False
                ):
                    about = entry.stat(follow_symlinks=False)
                    found[entry.name] = about.st_mtime_ns, about.st_size
        for name, version in found.items():
            if self._sent.get(name) != version:
                self._send(name)
                self._sent[name] = version
        for name in [each for each in self._sent if each not in found]:
            self._remove(name)
            del self._sent[name]

    def _remove(self, name: str) -> None:
        self._attempts.once(lambda store: store.remove(f"ctl/stacks/{name}"))

    def _send(self, name: str) -> None:
        content = (self._folder / "stacks" / name).read_bytes()
        self._attempts.once(lambda store: store.write(f"ctl/stacks/{name}", content))
