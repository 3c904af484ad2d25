"""Profile: where the time of a run went, as tables.

Thread safety: may be used from any thread.

Errors: damage never fails a question; records that cannot be read are missing, and
``trial.problems()`` has them.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.messages import check_choice, nearest_recorded
from tdbg.config.quantities import plural
from tdbg.errors import NoMoreData, QueryError, StepNotYetAvailable
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import COLLECTIVE_KINDS
from tdbg.trial.profile import analysis
from tdbg.trial.profile.clock import TimeRange
from tdbg.trial.profile.queries import SPAN_DTYPE, ProfileQueries, Rows, Steps
from tdbg.trial.profile.tables import joined
from tdbg.trial.profile.windows import (
    RecordedWindow,
    collective_words_of,
    functions_of,
    operators_of,
    python_lines_of,
    windows_of,
)
from tdbg.trial.selection import mode_key

__all__ = ["Profile"]

_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 1.0


class Profile(ProfileQueries):
    """Where the time of a run went; ``trial.profile``.

    Each method returns a structured array: the columns of a table of
    ``tdbg.run.profile_tables``, then ``worker``, the index of its worker in
    ``trial.workers()`` (-1: of none).  It is empty if the run has no rows of the table.
    Rows are sorted by ``time``, which is on one clock for all workers: the monotonic
    clock of the first worker's host, in ns.  ``seconds`` and ``wall_ns`` convert it.

    Arguments that the methods share:

    - *time*: ``(start, end)``: only what overlaps this time.  In seconds since the run
      began, or as ``datetime``; None: no bound.
    - *steps*: ``(first, last)``: only what overlaps these global steps, both included;
      None: no bound.
    - *node*: only this host; a number, in the order of the workers.
    - *worker*: only this worker; its name, or its index.

    Example:
        steps = trial.profile.steps(mode="TRAIN")
        print(steps["data_wait_ns"].sum() / steps["duration_ns"].sum())
    """

    def __repr__(self) -> str:
        tables = ", ".join(self.tables()) or "empty"
        return f"Profile({tables})"

    # --- What there is --------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the run has no profile."""
        return not self.tables() and not self.windows()

    @property
    def statement(self) -> str:
        """A sentence on what there is, or why there is nothing."""
        tables = self.tables()
        if tables:
            n = len(self.steps())
            return f"profile of {plural(n, 'step')}: {', '.join(tables)}"
        return (
            "this run has no profile: it was recorded with the profiler switched off, "
            "or by a tdbg that had none"
        )

    # --- Tables ---------------------------------------------------------------

    def system(
        self,
        node: int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return samples of the hosts: type ``SYSTEM``."""
        return self.table("system", node=node, time=time, steps=steps)

    def cores(
        self,
        node: int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return how busy each core was: ``core_type`` of the widest host."""
        return self.table("core", node=node, time=time, steps=steps)

    def disks(
        self,
        node: int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return samples of block devices: type ``DISK``, and ``instance``."""
        return self.table("disk", node=node, time=time, steps=steps)

    def networks(
        self,
        node: int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return samples of network interfaces: ``NETWORK``, and ``instance``."""
        return self.table("network", node=node, time=time, steps=steps)

    def gpus(
        self,
        node: int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return samples of GPUs: type ``GPU``, and ``instance``, its UUID."""
        return self.table("gpu", node=node, time=time, steps=steps)

    def processes(
        self,
        node: int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return samples of the training's processes: type ``PROCESS``."""
        return self.table("process", node=node, time=time, steps=steps)

    def steps(
        self,
        mode: ModeKeys | str | None = None,
        worker: str | int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return a row for each step and worker: type ``STEP``.

        Args:
            mode: Only steps of this mode.
            worker: As above.
            time: As above.
            steps: As above.
        """
        found = self.table("step", worker=worker, time=time, steps=steps)
        key = mode_key(mode)
        return found if key is ModeKeys.GLOBAL else found[found["mode"] == key.value]

    def workers(
        self,
        worker: str | int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return a row for each batch of a data loader: type ``LOADER``.

        The column of the loader's own worker process is ``loader_worker`` here.
        """
        return self.table("loader", worker=worker, time=time, steps=steps)

    def collectives(
        self,
        worker: str | int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
        kind: str | None = None,
    ) -> Rows:
        """Return a row for each collective operation of a rank: ``COLLECTIVE``.

        Args:
            worker: As above.
            time: As above.
            steps: As above.
            kind: Only operations of this kind, as PyTorch names them: "all_reduce",
                "all_gather", "broadcast", ...; "ddp_all_reduce" are the gradients of
                DistributedDataParallel.

        Raises:
            ConfigurationError: If there is no *kind* of this name.
        """
        found = self.table("collective", worker=worker, time=time, steps=steps)
        if kind is None:
            return found
        names = self.collective_kinds(found)
        check_choice("kind", kind, sorted({*COLLECTIVE_KINDS, *names.tolist()} - {""}))
        chosen: Rows = found[names == kind]
        return chosen

    def collective_kinds(self, rows: Rows) -> NDArray[np.object_]:
        """Return the kind of each row of ``collectives()``, as text; "": unknown."""
        with self._run.fresh() as run:
            words = collective_words_of(self._placed(run))
        names = np.full(len(rows), "", object)
        for worker, known in words.items():
            for number, word in enumerate(known):
                of_kind = (rows["worker"] == worker) & (rows["kind"] == number)
                names[of_kind] = word
        return names

    def spans(
        self,
        worker: str | int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return named spans of time: type ``SPAN_DTYPE``."""
        with self._run.fresh() as run:
            parts = [
                self._with_worker(run, "span", part)
                for part in self._span_parts(run, worker)
                if len(part.rows)
            ]
            return self._chosen("span", joined(parts, SPAN_DTYPE), time, steps)

    # --- What events say ------------------------------------------------------

    def machine(self, node: int = 0) -> dict[str, Any]:
        """Return what was written down about a host; empty if nothing was.

        Cores, quota, memory and its limit, GPUs, disks, networks: see
        docs/profiler-reading.md.
        """
        with self._run.fresh() as run:
            found: dict[str, Any] = {}
            for source in self._sources(run, node, None):
                for event in source.writer.events:
                    if event.data.get("what") == "machine":
                        found = event.data
            return dict(found)

    def windows(self) -> list[RecordedWindow]:
        """Return the windows in which more was measured, by their beginning."""
        with self._run.fresh() as run:
            return windows_of(self._placed(run))

    def operators(self, window: str | None = None) -> Rows:
        """Return operators and kernels of windows: type ``OPERATOR_DTYPE``.

        Args:
            window: Only of the window of this ``id``.

        Raises:
            QueryError: If there is no such window.
        """
        with self._run.fresh() as run:
            placed = self._placed(run)
            _check_window(windows_of(placed), window)
            return operators_of(placed, window)

    def functions(self, window: str | None = None) -> list[dict[str, Any]]:
        """Return Python functions of windows: a dictionary for each.

        Args:
            window: Only of the window of this ``id``.

        Returns:
            ``window``, ``worker``, ``profiler``, ``phase`` and what the profiler says.

        Raises:
            QueryError: If there is no such window.
        """
        with self._run.fresh() as run:
            placed = self._placed(run)
            _check_window(windows_of(placed), window)
            return functions_of(placed, window)

    def python_lines(self, time: TimeRange | None = None) -> Rows:
        """Return samples of Python stacks, counted: type ``PYTHON_LINE_DTYPE``.

        Args:
            time: Only what was counted in periods that overlap this time.
        """
        with self._run.fresh() as run:
            found = python_lines_of(self._placed(run))
            start, stop = self._times_of("", time, None)
            chosen = np.ones(len(found), np.bool_)
            if start is not None:
                chosen &= found["end_ns"] > start
            if stop is not None:
                chosen &= found["start_ns"] < stop
            return found[chosen]

    def wait(
        self, system: int = 0, steps: int = 0, timeout: float | None = None
    ) -> None:
        """Block until there is a profile.

        Args:
            system: How many samples of the hosts there are to be.
            steps: How many rows of steps.
            timeout: How many seconds to wait; None: no limit.

        Raises:
            NoMoreData: If the training ended before.
            StepNotYetAvailable: If *timeout* seconds have passed.
        """
        deadline = None if timeout is None else clocks.monotonic() + timeout
        pause = _SHORTEST_WAIT
        while True:
            with self._run.fresh() as run:
                ended = run.ended
                n_system, n_steps = len(self.system()), len(self.steps())
            if n_system >= system and n_steps >= steps:
                return
            come = (
                f"{plural(n_system, 'sample')} of the hosts and rows of "
                f"{plural(n_steps, 'step')}, not {system} and {steps}"
            )
            if ended:
                msg = f"the training ended after {come}"
                raise NoMoreData(msg)
            left = np.inf if deadline is None else deadline - clocks.monotonic()
            if left <= 0:
                msg = f"in {timeout:g} s came {come}"
                raise StepNotYetAvailable(msg)
            clocks.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_WAIT)

    # --- Analyses -------------------------------------------------------------

    def get_job_statistics(self) -> dict[str, Any]:
        """Return when the training began and ended, and how it spent its time.

        Returns:
            ``start_time`` and ``end_time`` (``datetime``, UTC), ``job_duration``,
            ``initialization``, ``training_loop`` and ``finalization`` (seconds), and
            the share of the job of each: ``initialization_share``, ...  The loop goes
            from the beginning of the first step to the end of the last.
        """
        return analysis.job_statistics(self)

    def get_step_statistics(self, by: str = "training_phase") -> Rows:
        """Return how long steps, or parts of them, took: ``analysis.DURATION_DTYPE``.

        Args:
            by: "training_phase": steps by mode; "framework_metric": the parts of a
                training step (waiting for data, forward, ...); "process": training
                steps by worker.

        Raises:
            ConfigurationError: If *by* is none of these.
        """
        return analysis.step_statistics(self, by)

    def get_utilization_stats(
        self,
        resource: str | None = None,
        by: str | None = None,
        phase: str | None = None,
    ) -> Rows:
        """Return how much the hosts were used: ``analysis.UTILIZATION_DTYPE``.

        Args:
            resource: "cpu", "gpu", "memory", "gpu_memory", "i/o" or "network"; None:
                all.
            by: "training_phase": a row for each phase; None: over the whole run.
            phase: Only samples of this phase, as ``get_training_phase_intervals``.

        Raises:
            ConfigurationError: If an argument is none of these.
        """
        return analysis.utilization(self, resource, by, phase)

    def device_uses(self) -> list[analysis.DeviceUse]:
        """Return how much each device was used over time, as ratios of its columns."""
        return list(analysis.device_uses(self))

    def get_device_usage_stats(
        self,
        device: str | None = None,
        utilization_ranges: analysis.Ranges | None = None,
    ) -> Rows:
        """Return for how long devices were used how much: ``analysis.USAGE_DTYPE``.

        Args:
            device: "cpu" (each core) or "gpu"; None: both.
            utilization_ranges: ``(low, high)`` in per cent; by default (90, 100),
                (10, 90) and (0, 10).  A range holds its low end; the highest also its
                high end.

        Raises:
            ConfigurationError: If the device or a range is none.
        """
        return analysis.device_usage(self, device, utilization_ranges)

    def get_training_phase_intervals(self, phase: str) -> Rows:
        """Return when a phase went on: ``analysis.INTERVAL_DTYPE``, by time.

        Args:
            phase: A mode ("TRAIN", "EVAL", "PREDICT", "GLOBAL"), "initialization",
                "training_loop" or "finalization".

        Raises:
            ConfigurationError: If it is none of these.
        """
        return analysis.phase_intervals(self, phase)


def _check_window(windows: Sequence[RecordedWindow], asked: str | None) -> None:
    """Refuse a window that was never measured.

    Raises:
        QueryError: If it is not there.
    """
    known = [each.id for each in windows]
    if asked is None or asked in known:
        return
    there = nearest_recorded(asked, known) if known else "there is none in this run"
    msg = f"no window {asked!r} was measured; {there}"
    raise QueryError(msg)
