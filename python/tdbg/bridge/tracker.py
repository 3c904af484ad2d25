"""``TrackedRun``: what a bridge asks of an experiment tracker.

Thread safety: none; one thread forwards a run.

Errors: a tracker that is not installed, or a name that it refuses, is a
ConfigurationError; one that cannot be reached or written is a StorageError.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tdbg.bridge.rows import StepRow
from tdbg.bridge.verdicts import Alert, RunOutcome
from tdbg.errors import StorageError, TdbgError

__all__ = [
    "POSITION",
    "TRACKERS",
    "Destination",
    "DryRun",
    "Forwarded",
    "Sent",
    "TrackedRun",
    "fitting",
    "refusals",
    "tracker_of",
]

#: The metric in which a tracker itself has how far a run was forwarded.
POSITION = "tdbg/global_step"
# Each in a module of that name.
_CLASSES = {
    "wandb": "WandbTracker",
    "mlflow": "MlflowTracker",
    "trackio": "TrackioTracker",
}
#: Names of the trackers.
TRACKERS = tuple(_CLASSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where in a tracker a run goes.

    Args:
        project: W&B's or Trackio's project, MLflow's experiment; None: what the
            tracker's environment variable says, and else "tdbg".
        name: Name of the tracker's run; None: that of the run's directory.
        join: The tracker's run to add to, which somebody else has begun: its id, in
            Trackio its name; None: a run of its own.
        uri: MLflow's tracking server or store; None: what MLflow's environment says.
        offline: Whether W&B only writes files, which ``wandb sync`` sends later.
    """

    project: str | None = None
    name: str | None = None
    join: str | None = None
    uri: str | None = None
    offline: bool = False

    @property
    def prefix(self) -> str:
        """The beginning of names that are not to be those of somebody else."""
        return "" if self.join is None else "tdbg/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """The run that is forwarded.

    Attributes:
        uuid: Its identity, in hex.
        name: The name of its directory.
        path: Its directory, or URL.
        created: When it was made, as ISO 8601 text.
        axis: The name of the steps that charts have as their axis.
        modes: Names of all modes, which begin the names of metrics.
        hyperparameters: What the training saved as such.
    """

    uuid: str
    name: str
    path: str
    created: str
    axis: str
    modes: tuple[str, ...]
    hyperparameters: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, str]:
        """The origin of the numbers, for the tracker."""
        return {"run": self.uuid, "path": self.path, "created": self.created}


@dataclass(frozen=True, slots=True)
class Sent:
    """What a tracker has of a run already.

    Attributes:
        next_step: The first global step that it lacks.
        alerts: Keys of its alerts.
    """

    next_step: int = 0
    alerts: frozenset[str] = frozenset()


class TrackedRun(Protocol):
    """Where a run goes.  Made, opened, sent to, and closed, in this order.

    Attributes:
        replaces: Whether ``judge`` leaves nothing of what it showed before.
    """

    replaces: bool

    @property
    def where(self) -> str:
        """The page, or the command, that shows the run there."""

    def open(self, run: Forwarded) -> Sent:
        """Find the tracker's run of this run, or begin one; return what it has."""

    def send(self, rows: Sequence[StepRow]) -> None:
        """Send rows; what is lost by a crash afterwards, ``open`` says it has not."""

    def alert(self, alert: Alert) -> None:
        """Tell somebody."""

    def judge(self, outcome: RunOutcome) -> None:
        """Show what rules say now, instead of what they said before."""

    def close(self, state: str) -> None:
        """End, whatever happened before.

        Args:
            state: State of the training: see ``Trial.status``.
        """


def tracker_of(name: str, destination: Destination) -> TrackedRun:
    """Return the tracker of that name, which is one of ``TRACKERS``.

    Raises:
        ConfigurationError: If its library is not installed, or it lacks something that
            the destination has.
    """
    module = importlib.import_module(f"tdbg.bridge.{name}")
    made: TrackedRun = getattr(module, _CLASSES[name])(destination)
    return made


@contextlib.contextmanager
def refusals(tracker: str) -> Iterator[None]:
    """Raise what a tracker's library raises as StorageErrors that name the tracker."""
    try:
        yield
    except TdbgError:
        raise
    except Exception as error:  # Any library of theirs may have raised it.
        what = str(error).strip() or type(error).__name__
        msg = f"{tracker} refuses: {what}"
        raise StorageError(msg, kind="io") from error


def fitting(name: str, refused: str, longest: int) -> str:
    """Return a name that a tracker takes, and that no other name becomes.

    Args:
        name: The name.
        refused: Characters that the tracker refuses, as a regular expression.
        longest: How many characters the tracker takes.

    Example:
        fitting("fc_output_0@2", "[^a-z0-9_]", 250)  # "fc_output_0_2-" and eight digits
    """
    found = re.sub(refused, "_", name)
    if found == name and len(name) <= longest:
        return name
    mark = f"-{zlib.crc32(name.encode()):08x}"
    return found[: longest - len(mark)] + mark


class DryRun:
    """A tracker that has nothing and takes everything: see ``TrackedRun``."""

    replaces = True

    @property
    def where(self) -> str:
        """Nowhere."""
        return ""

    def open(self, run: Forwarded) -> Sent:  # noqa: ARG002
        """Begin with the first step."""
        return Sent()

    def send(self, rows: Sequence[StepRow]) -> None:
        """Send nothing."""

    def alert(self, alert: Alert) -> None:
        """Alert nobody."""

    def judge(self, outcome: RunOutcome) -> None:
        """Show nothing."""

    def close(self, state: str) -> None:
        """Do nothing."""
