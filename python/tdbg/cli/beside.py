"""A run that is judged while the program that writes it runs beside."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tdbg.actions import Action
from tdbg.cli.acting import STOPPING, asked_to_stop
from tdbg.cli.findings import print_findings
from tdbg.cli.output import console, counted, plain
from tdbg.errors import NotARun, TdbgError
from tdbg.rules import Engine, Rule
from tdbg.run_directory import open_run

__all__ = ["Beside"]

LOOK_SECONDS = 0.1
# How long the engine may still judge what is there when the program has ended.
LAST_SECONDS = 10.0
# A program that was killed leaves a run that nobody ends.
SETTLE_SECONDS = 1.0


class Beside:
    """Judges a run in a thread, and tells on standard error what it finds.

    What goes wrong is told there, too, and does the program no harm.

    Args:
        run: Where the run will be.
        rules: Judged by.
        actions: Taken.
    """

    def __init__(
        self, run: str, rules: Sequence[Rule], actions: Sequence[Action]
    ) -> None:
        self._run = run
        self._rules = tuple(rules)
        self._actions = tuple(actions)
        self._out = console(stderr=True)
        self._ended = threading.Event()
        self._engine: Engine | None = None
        self._thread = threading.Thread(
            target=self._judge, name="tdbg-rules", daemon=True
        )

    def start(self) -> None:
        """Begin, as soon as there is a run."""
        self._thread.start()

    def finish(self) -> None:
        """The program has ended: judge what is left, and tell what came of it."""
        self._ended.set()
        self._thread.join(SETTLE_SECONDS)
        if self._engine is not None:
            self._engine.stop()
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            self._tell(f"not all was judged within {LAST_SECONDS:g} s: see tdbg check")

    def _judge(self) -> None:
        try:
            if not self._wait():
                self._tell("no training was captured, so there was nothing to judge")
                return
            engine = self._engine = Engine(self._run, self._rules, self._actions)
            stopping = False
            for found in engine.follow():
                print_findings([finding.to_json() for finding in found], self._out)
                if not stopping and asked_to_stop(self._actions):
                    stopping = True
                    self._tell(STOPPING)
            report = engine.finish()
        except TdbgError as error:
            self._tell(f"the run is no longer judged: {error}")
            return
        for note in report.notes:
            self._tell(note)
        found_text = counted(len(report.findings), "finding")
        self._tell(f"{counted(report.n_steps, 'step')} judged by rules: {found_text}")

    def _wait(self) -> bool:
        """Whether the run appears before the program ends."""
        while True:
            ended = self._ended.is_set()
            try:
                open_run(self._run)
            except NotARun:
                if (Path(self._run) / "RUN.json").exists():
                    raise
                if ended:
                    return False
                time.sleep(LOOK_SECONDS)
            else:
                return True

    def _tell(self, text: str) -> None:
        self._out.print(plain(f"tdbg: {text}"))
