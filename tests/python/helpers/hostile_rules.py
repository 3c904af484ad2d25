"""Rules that somebody else has written, most of them badly."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tdbg.config import Needs
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.rules import Description, Evaluation, Rule, Severity, Table, Window

# However well it is contained, no test makes more processes than this.
FUSE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(Rule):
    """Reports NaN in weights, as any rule would."""

    names: tuple[str, ...] = ("weights",)
    mode: ModeKeys = ModeKeys.TRAIN
    limit: float = 0.0

    @property
    def needs(self) -> Needs:
        return Needs(collections=frozenset(self.names))

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        for table in window.tables(self.mode):
            yield self._judge(table)

    def _judge(self, table: Table) -> Evaluation:
        nan = table["nan"]
        return table.judge_bad(
            nan > self.limit,
            Severity.ERROR,
            lambda i, j: Description(message=f"{nan[i, j]:.0f} NaN", value=nan[i, j]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile(Foreign):
    """Does what it is told to from a step on."""

    what: str
    at: int = 0

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        if window.last >= self.at:
            print(f"about to {self.what}", flush=True)
            getattr(self, self.what)()
        yield from ()

    def raise_(self) -> None:
        msg = "no more"
        raise RuntimeError(msg)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def loop(self) -> None:
        while True:
            pass

    def ignore_sigterm(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
        self.loop()

    def leak(self) -> None:
        kept = []
        while True:
            kept.append(bytearray(b"x" * (8 << 20)))

    def leak_in_children(self) -> None:
        for _ in range(8):
            if not os.fork():
                kept = bytearray(b"x" * (200 << 20))
                time.sleep(60)
                del kept
        time.sleep(60)

    def fork(self) -> None:
        while True:
            # Another one beside it may have used the fuse up for a moment.
            if _n_processes() >= FUSE:
                time.sleep(0.01)
            elif not os.fork():
                os.setsid()

    def print_(self) -> None:
        while True:
            sys.stdout.write("x" * (1 << 20))

    def exit(self) -> None:
        sys.exit(7)

    def leave_a_child(self) -> None:
        if not os.fork():
            os.setsid()
            time.sleep(60)


def _n_processes() -> int:
    return sum(path.name.isdigit() for path in Path("/proc").iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusing(Foreign):
    """Cannot be made where it has been made before."""

    def __post_init__(self) -> None:
        if "tdbg.rules.engine.worker" in sys.modules:
            msg = "not here"
            raise ConfigurationError(msg)
