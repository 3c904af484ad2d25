"""A plugin of pytest: a test that hangs is named, and the run ends.

pytest-timeout fails a test by a signal, which Python handles between two of its
instructions: code that never comes back to the interpreter is not stopped so, nor is
a fixture that hangs after its test has failed.  So ``hang_watcher``, a process outside,
sends that signal, and ends a process of pytest in which a test still runs some time
after it.  Its clock stands still while the test waits for a processor.

The watcher is nobody's child, and needs no thread here: tests fork, and count their
children.  (faulthandler's own timer is a thread, and a forked child of a process that
has set it waits for ever when it exits.)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WATCHER = Path(__file__).with_name("hang_watcher.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Seconds after its timeout at which a test that still hangs is killed"
    parser.addini("hang_grace", text, type="string", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Guard(config))


class Guard:
    """Tells the watcher of this process what runs, and until when."""

    def __init__(self, config: pytest.Config) -> None:
        self._grace = float(config.getini("hang_grace"))
        self._timeout = float(config.getoption("timeout") or config.getini("timeout"))
        self._is_worker = hasattr(config, "workerinput")
        reads, self._pipe = os.pipe()
        # Forks, so that nobody is its parent: done at once.
        program = [sys.executable, "-I", "-S", str(WATCHER.absolute())]
        subprocess.run(
            [*program, str(os.getpid())],
            stdin=reads,
            stdout=subprocess.DEVNULL,
            check=True,
            start_new_session=True,
        )
        os.close(reads)

    def _expect(self, what: str, seconds: float, alarm: float | None = None) -> None:
        """Be ended if neither this nor ``_done`` is called again in time."""
        line = json.dumps([what, seconds if alarm is None else alarm, seconds])
        with contextlib.suppress(BrokenPipeError):  # Somebody killed it.
            os.write(self._pipe, line.encode() + b"\n")

    def _done(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"null\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[object]:
        """A module may hang when it is imported."""
        _ignore_alarm()
        self._expect("the collection of tests", self._timeout + self._grace)
        try:
            return (yield)
        finally:
            self._done()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """A test begins: in the place of pytest-timeout's own timer of signals."""
        limit = settings.timeout + self._grace
        if settings.method != "signal":
            self._expect(item.nodeid, limit)
            return None
        from pytest_timeout import timeout_sigalrm

        signal.signal(signal.SIGALRM, lambda *_: timeout_sigalrm(item, settings))
        item.cancel_timeout = _ignore_alarm  # type: ignore[attr-defined]
        self._expect(item.nodeid, limit, settings.timeout)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[object]:
        """A test has ended only when its fixtures have."""
        try:
            return (yield)
        finally:
            self._done()

    def pytest_enter_pdb(self) -> None:
        """Somebody looks, for as long as they like."""
        self._done()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """A thread that a test has left may keep the process from ending.

        Workers are ended by the process that has started them.
        """
        if not self._is_worker:
            _ignore_alarm()
            self._expect("the end of the process: a thread goes on", self._grace)


def _ignore_alarm() -> None:
    # One may be on its way.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
