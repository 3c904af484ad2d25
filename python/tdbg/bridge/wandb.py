"""W&B, online or offline.

The position is in W&B itself: the summary of a run has the last global step that was
logged, and the alerts.  Offline, it is in W&B's files, and for folders that were
finished and may have been removed since, in a file beside them.

Thread safety: none.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
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

__all__ = ["WandbTracker"]

# The key of the summary that has the keys of alerts.
ALERTS = "tdbg/alerts"

LEVELS = {Severity.INFO: "INFO", Severity.WARNING: "WARN", Severity.ERROR: "ERROR"}
MOST_TITLE = 63


class WandbTracker:
    """A run of W&B: see ``TrackedRun``.

    Args:
        destination: Where it goes.

    Raises:
        ConfigurationError: If wandb is not installed, or the destination has what W&B
            lacks.
    """

    def __init__(self, destination: Destination) -> None:
        if destination.uri is not None:
            msg = "W&B takes no uri: its server is in WANDB_BASE_URL"
            raise ConfigurationError(msg)
        self._wandb = library("wandb", "'tdbg[wandb]'", "W&B")
        self._to = destination
        self._run: Any = None
        self._memory: Path | None = None
        self._next, self._axis = 0, ""
        self._alerts: list[str] = []
        self._finished: list[str] = []

    replaces = False

    @property
    def where(self) -> str:
        """Its page, or how to send an offline run."""
        if self._memory is not None:
            return f"wandb sync {Path(self._run.dir).parent}"
        return str(self._run.url)

    def open(self, run: Forwarded) -> Sent:
        """Resume the run whose id follows from that of the run, or begin it."""
        to, settings = self._to, self._wandb.Settings
        with refusals("W&B"):
            self._run = self._wandb.init(
                project=to.project or os.environ.get("WANDB_PROJECT") or "tdbg",
                name=None if to.join else to.name or run.name,
                id=to.join or f"tdbg-{run.uuid[:16]}",
                resume="must" if to.join and not to.offline else "allow",
                mode="offline" if to.offline else None,
                # Nothing of this process belongs to the training.
                settings=settings(
                    console="off", silent=True, x_disable_stats=True, save_code=False
                ),
            )
            self._axis = f"{to.prefix}{run.axis}"
            for mode in run.modes:
                names = f"{to.prefix}{mode}/*"
                self._run.define_metric(names, step_metric=self._axis)
            own = {} if to.join else run.hyperparameters
            config = {**own, "tdbg": run.identity}
            self._run.config.update(config, allow_val_change=True)
        sent = self._sent()
        self._next, self._alerts = sent.next_step, sorted(sent.alerts)
        return sent

    def _sent(self) -> Sent:
        if not self._run.offline:
            last = self._run.summary.get(POSITION)
            alerts = self._run.summary.get(ALERTS)
            return Sent(0 if last is None else int(last) + 1, frozenset(alerts or ()))
        folder = Path(self._run.dir).parents[1]
        self._memory = folder / f"tdbg-bridge-{self._run.id}.json"
        told = _remembered(self._memory)
        self._finished = told.pop("finished", [])
        found = [Sent(told.get("next_step", 0), frozenset(told.get("alerts", ())))]
        message = library("wandb.proto.wandb_internal_pb2", "wandb").Record
        files = sorted(folder.glob(f"offline-run-*-{self._run.id}/*.wandb"))
        found += [
            _sent_in(file, message)
            for file in files
            if file.parent.name not in self._finished
        ]
        alerts = frozenset(key for each in found for key in each.alerts)
        return Sent(max(each.next_step for each in found), alerts)

    def send(self, rows: Sequence[StepRow]) -> None:
        """Log a row of W&B for each."""
        prefix = self._to.prefix
        with refusals("W&B"):
            for row in rows:
                values = {f"{prefix}{k}": v for k, v in row.values.items()}
                values[self._axis] = row.step
                values[POSITION] = row.global_step
                self._run.log({**values, "_timestamp": row.wall})
        self._next = rows[-1].global_step + 1

    def alert(self, alert: Alert) -> None:
        """Alert, at once."""
        with refusals("W&B"):
            self._run.alert(
                title=alert.title[:MOST_TITLE],
                text=alert.text,
                level=LEVELS[alert.severity],
                # Its shortest time between two: each of ours is another.
                wait_duration=dt.timedelta(milliseconds=1),
            )
            self._alerts.append(alert.key)
            self._run.summary[ALERTS] = self._alerts

    def judge(self, outcome: RunOutcome) -> None:
        """Log the table of findings; the verdict is in the summary."""
        verdict = outcome.verdict
        rows = [[each[name] for name in FINDING_COLUMNS] for each in outcome.findings()]
        with refusals("W&B"):
            table = self._wandb.Table(columns=list(FINDING_COLUMNS), data=rows)
            self._run.log({"tdbg/findings": table})
            self._run.summary.update(
                {
                    "tdbg/verdict": verdict.sentence,
                    "tdbg/tone": verdict.tone,
                    "tdbg/wrong": verdict.wrong,
                }
            )

    def close(self, state: str) -> None:
        """Finish the run; as crashed, if the training was killed."""
        if self._run is not None:
            with refusals("W&B"):
                self._run.finish(exit_code=int(state == "dead"))
            self._remember()

    def _remember(self) -> None:
        """Write down what is in the offline files now, which may be removed."""
        if self._memory is None:
            return
        finished = [*self._finished, Path(self._run.dir).parent.name]
        told = {"next_step": self._next, "alerts": self._alerts, "finished": finished}
        temporary = self._memory.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(told), encoding="utf-8")
            temporary.replace(self._memory)
        except OSError as error:
            raise StorageError.of(error, "write", self._memory) from error


def _remembered(memory: Path) -> dict[str, Any]:
    """Return what an earlier bridge wrote down; nothing, if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(memory.read_bytes())
        if isinstance(told, dict):
            return told
    return {}


# An offline file is a log of LevelDB behind 7 bytes: blocks of 32 KiB of fragments with
# a head of 7 bytes (checksum, length, kind); a record is a message of W&B.
BLOCK, HEAD = 32768, 7
WHOLE, FIRST, LAST = 1, 2, 4


def _sent_in(file: Path, message: Any) -> Sent:
    """Return what an offline file has of a run, as far as it can be read.

    W&B's process keeps rows in memory and goes when the bridge is killed, so that only
    its files say what was not lost.

    Args:
        file: The file, ``run-ID.wandb``.
        message: W&B's class of records.
    """
    last, alerts = -1, frozenset[str]()
    for payload in _payloads(file.read_bytes()):
        try:
            record = message.FromString(payload)
        except Exception:  # Of protobuf: a crash has torn the record.
            break
        for item in record.history.item:
            if _key(item) == POSITION:
                last = int(json.loads(item.value_json))
        for item in record.summary.update:
            if _key(item) == ALERTS:
                alerts = frozenset(json.loads(item.value_json))
    return Sent(last + 1, alerts)


def _key(item: Any) -> str:
    return "/".join(item.nested_key) or str(item.key)


def _payloads(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of a file."""
    at, parts = HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # No head fits: zeros up to the next block.
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        end = at + HEAD + length
        if end > len(data) or not WHOLE <= kind <= LAST:
            return
        parts = (b"" if kind in (WHOLE, FIRST) else parts) + data[at + HEAD : end]
        at = end
        if kind in (WHOLE, LAST):
            yield parts
