"""A profile in memory, and rows of it as a training of known times would write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import (
    PHASE_COLUMNS,
    TABLES,
    Phase,
    ProcessKind,
    core_type,
)

__all__ = ["FakeProfile", "ProfiledTraining"]

# Tables with a column that names the device.
_WITH_INSTANCES = ("disk", "network", "gpu", "fingerprint")
SECOND = 10**9
START = 1_000 * SECOND


def type_of(table: str, n_cores: int = 4) -> np.dtype[Any]:
    """Return the type of a table as ``trial.profile`` gives it."""
    own = core_type(n_cores) if table == "core" else TABLES[table]
    renamed = {"worker": "loader_worker"}
    fields: Any = [(renamed.get(name, name), own[name]) for name in own.names or ()]
    if table in _WITH_INSTANCES:
        fields.append(("instance", "U64"))
    return np.dtype([*fields, ("worker", "<i4")])


def unmeasured(dtype: np.dtype[Any]) -> np.void:
    """Return a row in which nothing was measured."""
    row = np.zeros((), dtype)
    for name in dtype.names or ():
        kind = dtype[name].base.kind
        if kind == "f":
            row[name] = np.nan
        elif kind == "u":
            row[name] = np.iinfo(dtype[name].base).max
    return row[()]


class FakeProfile:
    """The part of ``trial.profile`` that rules read; shows rows until *shown* ns."""

    def __init__(self) -> None:
        self._rows: dict[str, list[np.void]] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._blank = {table: unmeasured(type_of(table)) for table in (*TABLES, "core")}
        self.shown: int | None = None
        self.reads = 0
        self.clock = SimpleNamespace(of_wall=int)

    def add(self, table: str, values: Mapping[str, Any]) -> None:
        row = self._blank[table].copy()
        for name, value in values.items():
            row[name] = value
        self._rows.setdefault(table, []).append(row)
        self._arrays.pop(table, None)

    def tables(self) -> list[str]:
        return sorted(self._rows)

    def seconds(self, time: np.ndarray) -> np.ndarray:
        return np.asarray(time) / SECOND

    def table(self, table: str, *, time: tuple[float, float | None]) -> np.ndarray:
        self.reads += 1
        start = time[0] * SECOND
        end = np.inf if time[1] is None else time[1] * SECOND
        if table not in self._arrays:
            self._arrays[table] = np.array(self._rows.get(table, []), type_of(table))
        rows = self._arrays[table]
        keep = (rows["time"] >= start) & (rows["time"] < end)
        if self.shown is not None:
            keep &= rows["time"] <= self.shown
        found = rows[keep]
        return found[np.argsort(found["time"], kind="stable")]

    def last_time(self) -> int:
        """Return the time of the last step."""
        return max(int(row["time"]) for row in self._rows["step"])


class ProfiledTraining:
    """Writes the profile of a training whose times are given, into a run.

    Args:
        run: A ``FakeRun``.
        n_workers: How many ranks it has.
        seed: Of the scatter of times.
    """

    def __init__(self, run: Any, *, n_workers: int = 1, seed: int = 0) -> None:
        self.run, self.profile = run, run.profile
        run.n_workers = n_workers
        self.random = np.random.default_rng(seed)
        self.now = START
        self.n_steps = 0
        self.epoch = 0
        self.totals: dict[tuple[str, Any], dict[str, float]] = {}

    def steps(
        self,
        seconds: float,
        phases: Mapping[str, float],
        *,
        loader: Mapping[str, Any] | None = None,
        scatter: float = 0.02,
        worker: int | None = None,
        mode: ModeKeys = ModeKeys.TRAIN,
        extra: Mapping[int, Mapping[str, float]] | None = None,
        **columns: Any,
    ) -> None:
        """Write steps for some time: of all ranks, or of one, which then is late.

        Args:
            seconds: For how long.
            phases: Seconds of each phase in a step, by its name.
            loader: Columns of the row of a batch, with ``fetch`` in seconds.
            scatter: Deviation of the times, as a share of them.
            worker: The rank; None: all of them, at the same times.
            mode: Mode of the steps.
            extra: Further seconds of phases, by the number of a step from here.
            columns: Other columns of the step rows.
        """
        end, number, now = self.now + int(seconds * SECOND), 0, self.now
        while now < end:
            factor = max(0.1, 1 + scatter * self.random.standard_normal())
            times = {name: value * factor for name, value in phases.items()}
            for name, value in (extra or {}).get(number, {}).items():
                times[name] = times.get(name, 0.0) + value
            ns = {name: int(value * SECOND) for name, value in times.items()}
            now += sum(ns.values())
            for rank in range(self.run.n_workers) if worker is None else (worker,):
                self.step_row(now, ns, rank, mode, **columns)
                if loader is not None:
                    self.batch(now, ns, rank, loader)
            number += 1
            self.n_steps += 1
        self.now = now

    def step_row(
        self, now: int, ns: Mapping[str, int], rank: int, mode: ModeKeys, **columns: Any
    ) -> None:
        row = dict.fromkeys(PHASE_COLUMNS.values(), 0)
        row |= {PHASE_COLUMNS[Phase[name.upper()]]: value for name, value in ns.items()}
        row |= dict.fromkeys(("samples", "tokens", "copied_bytes", "gpu_ns"), -1)
        row |= {"dry_borders": -1, "borders": -1, "micro_batches": 1}
        row |= {"time": now, "global_step": self.n_steps, "mode_step": self.n_steps}
        row |= {"mode": mode.value, "duration_ns": sum(ns.values()), "worker": rank}
        self.profile.add("step", row | columns)

    def batch(
        self, now: int, ns: Mapping[str, int], rank: int, loader: Mapping[str, Any]
    ) -> None:
        wait = ns.get("data_wait", 0)
        given = dict(loader)
        fetch = given.pop("fetch", None)
        row = {
            "time": now - sum(ns.values()) + wait,
            "loader": 0,
            "epoch": self.epoch,
            "depth": 0,
            "capacity": 2 * given.get("workers", 0),
            "workers": 0,
            "samples": -1,
            "wait_ns": wait,
            "fetch_ns": -1 if fetch is None else int(fetch * SECOND),
            "fetch_cpu_ns": -1 if fetch is None else int(fetch * SECOND),
            "bytes": -1,
            "loader_worker": self.n_steps % max(1, given.get("workers", 0)),
            "worker": rank,
        }
        self.profile.add("loader", row | given)

    def samples(
        self,
        table: str,
        since: int,
        *,
        every: float = 0.5,
        totals: Mapping[str, float] | None = None,
        **columns: Any,
    ) -> None:
        """Write samples of a table from a time until now.

        Args:
            table: The table.
            since: When the samples begin, in ns.
            every: Seconds between two.
            totals: By how much counters grow in a second; their first row has 0.
            columns: Other columns: a value, or a function of seconds since *since*.
        """
        key = (table, columns.get("pid", columns.get("instance")))
        counted = self.totals.setdefault(key, dict.fromkeys(totals or {}, 0.0))
        for at in range(since, self.now, int(every * SECOND)):
            row = {
                name: value((at - since) / SECOND) if callable(value) else value
                for name, value in columns.items()
            }
            row |= {name: int(value) for name, value in counted.items()}
            self.profile.add(table, {"time": at, "worker": 0, **row})
            for name, rate in (totals or {}).items():
                counted[name] = counted.get(name, 0.0) + rate * every

    def process(
        self,
        since: int,
        pid: int,
        *,
        kind: ProcessKind = ProcessKind.LOADER_WORKER,
        run: float = 0.0,
        queued: float = 0.0,
        state: str = "S",
        states: str = "",
        **given: Any,
    ) -> None:
        """Write samples of a process that runs and waits for these shares of time."""
        totals = {"run_ns": run * SECOND, "queued_ns": queued * SECOND}
        totals |= given.pop("totals", {})
        letters = states or state
        self.samples(
            "process",
            since,
            totals=totals,
            pid=pid,
            rank=given.pop("rank", 0),
            loader_worker=given.pop("loader_worker", 0),
            kind=int(kind),
            state=lambda s: ord(letters[int(2 * s) % len(letters)]),
            threads=given.pop("threads", 1),
            **given,
        )

    def event(self, what: str, writer: str = "train-0-0", **data: Any) -> None:
        """Report a change, as the training does."""
        content = {"what": what, **data}
        found = SimpleNamespace(writer=writer, data=content, wall_ns=self.now)
        self.run.reported.append(found)

    def window(
        self,
        host: Mapping[str, tuple[int, float]],
        kernels: Mapping[str, tuple[int, float]] | None = None,
        *,
        steps: int = 5,
        seconds: float = 0.5,
        cost: float = 0.01,
    ) -> None:
        """Report a window that ends now.

        Args:
            host: Calls and seconds of the operators of the host, by name.
            kernels: Likewise of the device; None: there is none.
            steps: How many steps it has.
            seconds: How long these took.
            cost: What it cost, in seconds.
        """
        devices = {"cpu": host} | ({} if kernels is None else {"cuda": kernels})
        for device, found in devices.items():
            rows = [
                {
                    "name": name,
                    "calls": calls,
                    "self_ns": int(spent * SECOND),
                    "total_ns": int(spent * SECOND),
                    "device_ns": 0,
                }
                for name, (calls, spent) in found.items()
            ]
            self.event("operators", window="w", device=device, operators=rows)
        self.event(
            "profile_window",
            id="w",
            state="ended",
            first_step=self.n_steps - steps,
            last_step=self.n_steps - 1,
            start_ns=self.now - int(seconds * SECOND),
            end_ns=self.now,
            cost_ns=int(cost * SECOND),
        )
