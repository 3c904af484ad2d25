"""What an action is, and what all of them share.

Thread safety: an action belongs to the engine's thread, unless its file says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tdbg.errors import TdbgError
from tdbg.findings import Finding

__all__ = ["Action", "close_all", "message_of", "trouble_of"]


class Action(Protocol):
    """Something that is done about findings.

    May also have ``close(seconds)``, which finishes what was begun within so many
    seconds and returns what went wrong, a line each; and ``begin()``, which of
    an action asked for by name is called before the first finding, but in a dry run.
    """

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def __call__(self, finding: Finding) -> None:
        """Act, or decide not to.  What it raises is reported and does no harm."""
        ...


def close_all(actions: Iterable[Action], seconds: float = 10.0) -> list[str]:
    """Finish all actions; what went wrong, a line each.  Never raises."""
    troubles: list[str] = []
    for action in actions:
        close: Any = getattr(action, "close", None)
        if close is None:
            continue
        try:
            troubles += close(seconds) or ()
        except Exception as error:  # An action may be anybody's.
            troubles.append(trouble_of(action, error))
    return troubles


def trouble_of(action: Action, error: Exception) -> str:
    """That an action failed, in a line.

    Example:
        action webhook: hooks.example.com answered 404
    """
    # Ours say all themselves; of others the class is half of what there is to know.
    kind = "" if isinstance(error, TdbgError) else f"{type(error).__name__}: "
    return f"action {action.name}: {kind}{error}"


def message_of(finding: Finding, run: str) -> str:
    """A finding in words, for people.

    Example:
        error in runs/digits: DeadRelu at step 120: fc1.act_output_0: 60 of 64 units ...
        -> restart with a lower learning rate
    """
    gone = " is over" if finding.is_over else ""
    head = f"{finding.severity.label}{gone} in {run}: {finding.rule} at step "
    text = f"{head}{finding.step}: {finding.tensor}: {finding.message}"
    return f"{text}\n-> {finding.advice}" if finding.advice and not gone else text
