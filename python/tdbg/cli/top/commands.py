"""What the keys of ``tdbg top`` do.

Thread safety: ``press`` and ``look`` are of the thread of the screen; rules judge in a
thread of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tdbg.cli.output import shortened
from tdbg.cli.top.board import WatchedRun
from tdbg.cli.top.screens import View
from tdbg.config.quantities import plural
from tdbg.errors import TdbgError
from tdbg.remote import asked
from tdbg.rules import check
from tdbg.run.requests import request_capture, request_stop

__all__ = ["Commands"]

# For how many steps ``a`` captures.
_CAPTURED_STEPS = 50
# Characters of a name within a sentence.
_BRIEF = 32
# The newer half of the steps can be chosen so often.
_MOST_ZOOM = 20


class Commands:
    """Obeys keys.

    Args:
        runs: The runs, a list that may grow.
        view: Is changed by keys.

    Attributes:
        has_quit: Whether the user has quit.
    """

    def __init__(self, runs: Sequence[WatchedRun], view: View) -> None:
        self.has_quit = False
        self._runs = runs
        self._view = view
        self._answer: Callable[[], None] | None = None
        self._judging: threading.Thread | None = None
        self._judged = ""

    def press(self, key: str) -> None:
        """Do what a key says; errors become the message of the view."""
        view = self._view
        view.message = ""
        answer, self._answer, view.question = self._answer, None, ""
        if answer is not None:
            if key in ("y", "Y"):
                self._try(answer)
            return
        if view.shows_keys:
            view.shows_keys = False
            return
        actions: dict[str, Callable[[], None]] = {
            "q": self._quit,
            "?": self._show_keys,
            "up": lambda: self._move(-1),
            "k": lambda: self._move(-1),
            "down": lambda: self._move(1),
            "j": lambda: self._move(1),
            "enter": self._open,
            "escape": self._close,
            "tab": self._next_collection,
            "+": lambda: self._zoom(1),
            "-": lambda: self._zoom(-1),
            "c": self._check,
            "s": self._ask_to_stop,
            "a": self._ask_to_capture,
        }
        action = actions.get(key)
        if action is not None:
            self._try(action)

    def look(self) -> bool:
        """Take in what the rules said that judge aside; return whether they did."""
        if self._judging is None or self._judging.is_alive():
            return False
        self._judging = None
        self._view.message = self._judged
        return True

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (TdbgError, OSError) as error:
            self._view.message = str(error)

    # ---- moving ----------------------------------------------------------------

    def _quit(self) -> None:
        self.has_quit = True

    def _show_keys(self) -> None:
        self._view.shows_keys = True

    def _move(self, by: int) -> None:
        view = self._view
        if view.is_open:
            last = len(self._run.findings) - 1
            view.finding = max(0, min(view.finding + by, last))
        else:
            view.selected = max(0, min(view.selected + by, len(self._runs) - 1))

    def _open(self) -> None:
        self._view.is_open, self._view.finding, self._view.zoom = True, 0, 0

    def _close(self) -> None:
        self._view.is_open = False

    def _next_collection(self) -> None:
        self._view.collection += 1

    def _zoom(self, by: int) -> None:
        self._view.zoom = max(0, min(self._view.zoom + by, _MOST_ZOOM))

    @property
    def _run(self) -> WatchedRun:
        return self._runs[self._view.selected]

    # ---- what is asked of a training -----------------------------------------------

    def _ask(self, question: str, answer: Callable[[], None]) -> None:
        run = self._run
        if run.has_ended:
            self._view.message = f"the training of {_brief(run)} has ended"
            return
        self._view.question, self._answer = question, answer

    def _ask_to_stop(self) -> None:
        run = self._run

        def stop() -> None:
            request_stop(asked(run.path), reason="tdbg top")
            self._view.message = "asked; the training stops at its next forward"

        self._ask(f"stop the training of {_brief(run)}?", stop)

    def _ask_to_capture(self) -> None:
        run, there = self._run, self._run.mapped()
        collection = there[self._view.collection % len(there)] if there else "gradients"

        def capture() -> None:
            request_capture(
                asked(run.path),
                collections=[collection],
                steps=_CAPTURED_STEPS,
                raw=True,
            )
            self._view.message = (
                f"asked; {collection} are captured for {_CAPTURED_STEPS} steps"
            )

        self._ask(
            f"capture the values of {collection} at each of {_CAPTURED_STEPS} steps?",
            capture,
        )

    def _check(self) -> None:
        if self._judging is not None:
            self._view.message = "rules are judging already"
            return
        path, name = self._run.path, _brief(self._run)

        def judge() -> None:
            try:
                report = check(path, "default")
                n = len(report.findings)
                self._judged = f"the rules have judged {name}: {plural(n, 'finding')}"
            except (TdbgError, OSError) as error:
                self._judged = str(error)

        self._view.message = f"the default rules judge {name}"
        self._judging = threading.Thread(target=judge, daemon=True)
        self._judging.start()


def _brief(run: WatchedRun) -> str:
    """The name of a run, so short that what is said of it fits a line."""
    return shortened(run.name, _BRIEF)
