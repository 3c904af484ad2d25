"""Trackio's local store.

The position is in Trackio itself: each of its rows has the global step.

Thread safety: none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tdbg.bridge.rows import StepRow
from tdbg.bridge.tracker import (
    POSITION,
    Destination,
    Forwarded,
    Sent,
    refusals,
)
from tdbg.bridge.verdicts import FINDING_COLUMNS, Alert, RunOutcome
from tdbg.config.libraries import library
from tdbg.errors import ConfigurationError, StorageError
from tdbg.run.findings import Severity

__all__ = ["TrackioTracker"]

LEVELS = {Severity.INFO: "info", Severity.WARNING: "warn", Severity.ERROR: "error"}
# Variables with which Trackio sends to a machine whose rows cannot be read back.
ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
# Its own thread writes twice a second.
MOST_SECONDS, LOOK_SECONDS = 60.0, 0.1


class TrackioTracker:
    """A run of Trackio: see ``TrackedRun``.

    Args:
        destination: Where it goes.

    Raises:
        ConfigurationError: If trackio is not installed, sends elsewhere, or the
            destination has what Trackio lacks.
    """

    def __init__(self, destination: Destination) -> None:
        if destination.uri is not None or destination.offline:
            msg = "Trackio takes neither a uri nor offline: its folder is TRACKIO_DIR"
            raise ConfigurationError(msg)
        for name in ELSEWHERE:
            if os.environ.get(name):
                msg = (
                    f"tdbg forwards to Trackio's local store: unset {name}, and send "
                    "the project with 'trackio sync' afterwards"
                )
                raise ConfigurationError(msg)
        self._trackio = library("trackio", "'tdbg[trackio]'", "Trackio")
        self._to = destination
        self._project = destination.project or os.environ.get("TRACKIO_PROJECT", "tdbg")
        self._run: Any = None
        self._step = 0

    replaces = False

    @property
    def where(self) -> str:
        """The command that shows it."""
        return f"trackio show --project {self._project}"

    def open(self, run: Forwarded) -> Sent:
        """Resume the run that has this run in its configuration, or begin it."""
        to = self._to
        config = {f"tdbg.{k}": v for k, v in run.identity.items()}
        name = to.join or self._known(run) or to.name or run.name
        with _told_apart(), refusals("Trackio"):
            self._run = self._trackio.init(
                project=self._project,
                name=name,
                resume="must" if to.join else "allow",
                config={**run.hyperparameters, **config},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            last = self._last()
            told = self._trackio.Api().runs(self._project) if last >= 0 else ()
            alerts = [each.alerts() for each in told if each.name == name]
        keys = frozenset(_key(each) for some in alerts for each in some)
        return Sent(last + 1, keys)

    def _known(self, run: Forwarded) -> str | None:
        """Return the name of the run that an earlier bridge began.

        Raises:
            ConfigurationError: If another run has the name that this one would get.
        """
        name = self._to.name or run.name
        with refusals("Trackio"):
            try:
                runs = list(self._trackio.Api().runs(self._project))
            except ValueError:  # No such project yet.
                return None
            for each in runs:
                if (each.config or {}).get("tdbg.run") == run.uuid:
                    return str(each.name)
        if self._to.join is None and name in {each.name for each in runs}:
            msg = (
                f"project {self._project} has a run {name!r} that tdbg did not begin: "
                "give this one another name, or join that one"
            )
            raise ConfigurationError(msg)
        return None

    def _last(self) -> int:
        """Return the last global step in the store; -1: there is none."""
        from trackio.sqlite_storage import SQLiteStorage

        name = self._run.name.replace("'", "''")
        last = f"max(json_extract(metrics, '$.\"{POSITION}\"')) as last"
        asked = f"select {last} from metrics where run_name = '{name}'"  # noqa: S608
        try:
            (found,) = SQLiteStorage.query_project(self._project, asked)["rows"]
        except (FileNotFoundError, ValueError):
            return -1  # No table before the first row.
        return -1 if found["last"] is None else int(found["last"])

    def send(self, rows: Sequence[StepRow]) -> None:
        """Log a row of Trackio for each; wait until its thread has written them."""
        prefix = self._to.prefix
        self._step = rows[-1].step
        with _told_apart(), refusals("Trackio"):
            for row in rows:
                values = {f"{prefix}{k}": v for k, v in row.values.items()}
                self._run.log({**values, POSITION: row.global_step}, step=row.step)
            deadline = time.monotonic() + MOST_SECONDS
            while self._last() < rows[-1].global_step:
                if time.monotonic() > deadline:
                    msg = f"Trackio has not stored its rows in {MOST_SECONDS:g} s"
                    raise StorageError(msg, kind="io")
                time.sleep(LOOK_SECONDS)

    def alert(self, alert: Alert) -> None:
        """Alert."""
        with _told_apart(), refusals("Trackio"):
            level = self._trackio.AlertLevel(LEVELS[alert.severity])
            text = f"{alert.text}\n[{alert.key}]"
            self._run.alert(alert.title, text, level, step=alert.step)

    def judge(self, outcome: RunOutcome) -> None:
        """Log the table of findings, and how many problems there are."""
        with _told_apart(), refusals("Trackio"):
            table = self._trackio.Table(
                columns=list(FINDING_COLUMNS),
                data=[
                    [each[name] for name in FINDING_COLUMNS]
                    for each in outcome.findings()
                ],
            )
            wrong = outcome.verdict.wrong
            told = {"tdbg/findings": table, "tdbg/wrong": wrong}
            self._run.log(told, step=self._step)

    def close(self, state: str) -> None:  # noqa: ARG002 - Trackio has no states
        """Finish the run."""
        if self._run is not None:
            with _told_apart(), refusals("Trackio"):
                self._trackio.finish()


def _key(alert: dict[str, Any]) -> str:
    """Return the key that stands at the end of the text of an alert."""
    return str(alert.get("text") or "").rpartition("[")[2].removesuffix("]")


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    """Print to standard error what the library prints: standard output is ours."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
