"""Trial: what a training has written so far, read while it goes on.

Every question first takes in what has been written meanwhile, which is cheap, and
none waits for data but ``wait_for_steps``.

Thread safety: may be used from any thread.

Errors: damage in the files never fails a question about something else; it is
listed by ``problems()``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import QueryError, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding
from tdbg.run.model_info import ModelInfo
from tdbg.run.observations import Observation
from tdbg.shown import Shown, drawn_by
from tdbg.trial import reports, selection, told_reductions
from tdbg.trial.losses import LossSeries, losses_of
from tdbg.trial.lost_records import LostRecords, lost_records
from tdbg.trial.opening import open_place, reader_options
from tdbg.trial.profile import Profile
from tdbg.trial.removed import Removed, removed
from tdbg.trial.reports import RunOverhead, ScalarSeries
from tdbg.trial.run import RunState
from tdbg.trial.selection import StepState, mode_key, state_of, wait
from tdbg.trial.table_queries import TableQueries
from tdbg.trial.tables.conversions import Conversions
from tdbg.trial.tensor import TensorHandle
from tdbg.trial.writers import Attempt, EventRecord, FileProblem

if TYPE_CHECKING:
    from tdbg.remote import Uploads

__all__ = ["Trial", "create_trial"]


class Trial(TableQueries, Conversions, Shown):
    """A run as a reader sees it; made by ``create_trial``."""

    def __init__(self, run: RunState, name: str) -> None:
        super().__init__(run)
        self.name = name
        self._profile = Profile(run)

    def __repr__(self) -> str:
        return f"Trial({self.path!r}, status={self.status!r})"

    @property
    def plot(self) -> Any:
        """Plots with matplotlib, for papers: series, layer map, ridgeline.

        Example:
            trial.plot.series("gradient/fc.weight").figure.savefig("gradient.pdf")
        """
        return drawn_by(self, "plot")

    @property
    def profile(self) -> Profile:
        """Where the time of the run went: step times, hosts, loaders, spans."""
        return self._profile

    # --- The run ------------------------------------------------------------

    @property
    def path(self) -> str:
        """Its directory, or its URL."""
        return self._run.place.path

    @property
    def uuid(self) -> str:
        """Its identity, in hex."""
        return self._run.place.uuid.hex()

    @property
    def created(self) -> str:
        """When it was made, as ISO 8601 text in UTC."""
        return self._run.place.created

    @property
    def status(self) -> str:
        """State of the training.

        "running"; "stalled": its process shows no life; "closed": it ended in order;
        "dead": it is gone; "unknown": its commit page is missing or another machine's.
        """
        with self._run.fresh() as run:
            return run.status

    @property
    def loaded_all_steps(self) -> bool:
        """Whether the training has ended: no further step will come."""
        with self._run.fresh() as run:
            return run.ended

    @property
    def last_complete_step(self) -> int:
        """Global step up to which nothing more will come; -1 if there is none."""
        with self._run.fresh() as run:
            return run.table.last_complete()

    @property
    def epoch(self) -> int:
        """A number that changes when recorded steps are replaced.

        A training that starts again from an earlier step replaces those after it.
        """
        with self._run.fresh() as run:
            return run.epoch

    @property
    def n_bytes(self) -> int:
        """Size of the writers' files."""
        with self._run.fresh() as run:
            return sum(writer.reader.n_bytes for writer in run.everyone)

    def uploads(self) -> Uploads | None:
        """How its upload to a store is; None: it is in a directory."""
        return self._run.place.uploads()

    def refresh(self) -> bool:
        """Take in what was written since; True if anything was."""
        return self._run.poll()

    @contextlib.contextmanager
    def no_refresh(self) -> Iterator[Trial]:
        """Within the block, answers stay as they are now, in all threads."""
        with self._run.frozen():
            yield self

    def attempts(self) -> list[Attempt]:
        """Starts of the training, oldest first."""
        with self._run.fresh() as run:
            return run.attempts

    def workers(self) -> list[str]:
        """Names of the workers, by rank."""
        with self._run.fresh() as run:
            return run.workers

    def worker_states(self) -> dict[str, str]:
        """State of each worker of the newest attempt, by name: words as ``status``."""
        with self._run.fresh() as run:
            return {f"worker_{each.rank}": each.liveness for each in run.newest}

    def problems(self) -> list[FileProblem]:
        """Return the problems in the files: damage, torn tails, foreign shards, ..."""
        with self._run.fresh() as run:
            return run.problems()

    def verify(self) -> list[FileProblem]:
        """Read every byte, and return all that is wrong with the files.

        It takes about a second for each GB; ``problems`` has what opening them found.
        """
        with self._run.fresh() as run:
            return run.verify()

    def configuration(self) -> dict[str, Any]:
        """How capture was configured, as the training wrote it down."""
        with self._run.fresh() as run:
            return reports.configuration(run)

    def counters(self) -> dict[str, int]:
        """Records offered, written, dropped and failed over all recorded steps."""
        with self._run.fresh() as run:
            return reports.counters(run)

    def lost_records(self) -> LostRecords:
        """Return how many records were lost or cannot be read, and why.

        ``step_table()`` has the losses of each step.  The sum also counts records that
        no step reports, because the disk never took anything again.

        Example:
            if not trial.lost_records().in_order:
                print(trial.lost_records())
        """
        with self._run.fresh() as run:
            return lost_records(run)

    def removed(self) -> list[Removed]:
        """Return what retention removed on purpose, by writer: docs/retention.md."""
        with self._run.fresh() as run:
            return removed(run)

    def overhead(self, mode: ModeKeys | str | None = None) -> RunOverhead:
        """What capture cost the training thread, as measured there.

        Example:
            print(trial.overhead())  # measured cost: steps take 1.3 % longer
        """
        with self._run.fresh() as run:
            return reports.overhead(run, mode_key(mode))

    def events(self, kind: str | None = None) -> list[EventRecord]:
        """What the training, the engine and the profiler reported, by time.

        Args:
            kind: configuration, collections, change, finding, status or message.
        """
        with self._run.fresh() as run:
            return reports.events(run, kind)

    def model_info(self) -> tuple[ModelInfo, ...]:
        """Return the reported model infos, by the step from which each holds."""
        with self._run.fresh() as run:
            return reports.model_info(run)

    def observations(self) -> tuple[Observation, ...]:
        """Return what hooks saw once in the training, by step."""
        with self._run.fresh() as run:
            return reports.observations(run)

    def findings(self) -> list[Finding]:
        """Return the findings of rules that judged the run, by step."""
        with self._run.fresh() as run:
            return reports.findings(run)

    def rule_statuses(self) -> dict[str, dict[str, Any]]:
        """Return the latest status of each rule that judged the run."""
        with self._run.fresh() as run:
            return reports.rule_statuses(run)

    # --- Steps --------------------------------------------------------------

    def steps(
        self,
        mode: ModeKeys | str | None = None,
        what: str | None = None,
        show_incomplete_steps: bool = False,
    ) -> list[int]:
        """Return the steps at which something was saved, ascending.

        These are the steps at which tensors were saved: with raw values or, where there
        are none, with statistics.  Losses and scalars, which are recorded more often,
        count only where there is nothing else.

        Args:
            mode: In the count of this mode; None: steps of training, or of evaluation
                if nothing was trained; GLOBAL: those of all modes, as global steps.
            what: "values" for raw values and scalars, "statistics" for rows, "any" for
                both, "tensors" for both without scalars, "histograms"; None: as above.
            show_incomplete_steps: Also those for which more may come.

        Example:
            for step in trial.steps():
                print(step, trial.tensor("fc.weight").value(step).mean())
        """
        with self._run.fresh() as run:
            key = selection.count_of(run, None, mode)
            return selection.steps_of(run, None, key, what, show_incomplete_steps)

    def count_steps(
        self,
        mode: ModeKeys | str | None = None,
        what: str = "any",
        show_incomplete_steps: bool = False,
    ) -> int:
        """How many steps ``steps`` would list: by default, those with anything."""
        with self._run.fresh() as run:
            key = selection.count_of(run, None, mode)
            found = selection.saved_in(run, None, key, what, show_incomplete_steps)
            return len(found)

    def modes(self) -> list[ModeKeys]:
        """Modes that have steps; never GLOBAL, unless a step was recorded as such."""
        with self._run.fresh() as run:
            # By far quicker than unique(): there are few modes and many steps.
            counts = np.bincount(run.table.column("mode"), minlength=len(ModeKeys) + 1)
            return [mode for mode in ModeKeys if counts[mode.value]]

    def mode(self, global_step: int) -> ModeKeys | None:
        """The mode of a global step; None if it was not recorded."""
        return self.mode_modestep(global_step)[0]

    def mode_step(self, global_step: int) -> int | None:
        """The step in its own mode's count; None if it was not recorded."""
        return self.mode_modestep(global_step)[1]

    def mode_modestep(self, global_step: int) -> tuple[ModeKeys | None, int | None]:
        """Mode and mode step of a global step; (None, None) if not recorded."""
        with self._run.fresh() as run:
            i = run.table.index(global_step)
            if i is None:
                return None, None
            row = run.table.row(i)
            known = {mode.value: mode for mode in ModeKeys}
            return known.get(int(row["mode"])), int(row["mode_step"])

    def steps_made(self) -> dict[ModeKeys, tuple[int, int]]:
        """Return the steps that were made, recorded or not, by mode.

        Returns:
            The number of the first step, and of the one after the last, in the count of
            the mode.  A training that has ended in order says them; of one that goes on
            or was killed they are those of the recorded steps.

        Example:
            >>> trial.steps_made()  # The last 7 of 600 steps have no record.
            {<ModeKeys.TRAIN: 1>: (0, 600)}
        """
        with self._run.fresh() as run:
            return reports.steps_made(run)

    def training_steps_at(self, global_steps: Sequence[int]) -> list[int]:
        """Return where global steps stand in the training, recorded or not.

        A training step stands at its number among those, counted from 0, and a step of
        evaluation at the number of training steps before it.

        Example:
            >>> trial.training_steps_at([1718])  # 17 steps of evaluation came before
            [1701]
        """
        with self._run.fresh() as run:
            return run.training_steps_at(global_steps)

    def global_step(self, mode: ModeKeys | str | None, mode_step: int) -> int | None:
        """The global step of a step of *mode*; None if it was not recorded.

        Args:
            mode: The mode; None: as of ``steps``.
            mode_step: The step, in the count of the mode.
        """
        with self._run.fresh() as run:
            key = selection.count_of(run, None, mode)
            return selection.global_step_of(run, mode_step, key)

    def step_numbers(self, global_step: int) -> dict[str, Any]:
        """Return all numbers of a recorded step, as documents of tdbg name them.

        Returns:
            ``step``: where it stands in the training, as of ``training_steps_at``;
            ``mode``; ``mode_step``: its number in that mode; ``global_step``.
        """
        with self._run.fresh() as run:
            (step,) = run.training_steps_at([global_step])
            mode, mode_step = self.mode_modestep(global_step)
            return {
                "step": step,
                "mode": None if mode is None else mode.name,
                "mode_step": mode_step,
                "global_step": global_step,
            }

    def has_passed_step(
        self, step: int, mode: ModeKeys | str | None = None
    ) -> StepState:
        """Whether *step* is there, may still come, or never will.

        Args:
            step: The step.
            mode: Whose count it is in, as of ``steps``.
        """
        with self._run.fresh() as run:
            return state_of(run, step, selection.count_of(run, None, mode))

    def wait_for_steps(
        self,
        required_steps: Iterable[int],
        mode: ModeKeys | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Block until all *required_steps* are available.

        Args:
            required_steps: The steps.
            mode: Whose count they are in, as of ``steps``.
            timeout: How many seconds to wait.

        Raises:
            StepUnavailable: If one of them was not saved and never will be.
            NoMoreData: If the training ended before one of them.
            StepNotYetAvailable: If *timeout* seconds (None: no limit) have passed.
        """
        with self._run.fresh() as run:
            key = selection.count_of(run, None, mode)
        wait(self._run, required_steps, key, timeout)

    def step_table(
        self, start: int | None = None, *, limit: int | None = None
    ) -> NDArray[np.void]:
        """Recorded steps from the global step *start* on, a row each.

        Args:
            start: First global step; None: from the beginning.
            limit: How many rows at most; a row takes 109 bytes.

        Fields: step (the global one), mode, mode_step, training_step (see
        ``training_steps_at``), wall_ns, complete (all workers have it),
        lossless (and nothing of it was lost but values that were left out on
        purpose, overflow="sample"), settled (nothing more will come),
        skipped, duration_ns, capture_ns, offered, written, dropped, failed,
        micro_batches, workers, generation (it changes where the training was
        started again).
        """
        with self._run.fresh() as run:
            table = run.table
            first = 0 if start is None else int(np.searchsorted(table.steps, start))
            return table.rows(first, None if limit is None else first + limit)

    # --- Tensors ------------------------------------------------------------

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: ModeKeys | str | None = None,
        regex: str | Iterable[str] | None = None,
        collection: str | Collection | None = None,
    ) -> list[str]:
        """Names of tensors and scalars, sorted; all conditions given must hold.

        Args:
            step: Saved at this step, in the count of *mode*, as of ``steps``.
            mode: Saved in this mode.
            regex: One of these expressions is found in the name.
            collection: In this collection of the run, or of the caller. Of a caller's
                own they are those that it selects, and those of a collection of the
                run of that name.

        Raises:
            ConfigurationError: If an expression is none.
            QueryError: If there is no collection of that name.
        """
        with self._run.fresh() as run:
            key = mode_key(mode)
            if step is not None:
                count = selection.count_of(run, None, mode)
                at = selection.global_step_of(run, step, count)
                names = set() if at is None else run.names_at(at)
            elif key is not ModeKeys.GLOBAL:
                names = run.names_of_mode(key)
            else:
                names = run.names()
            if collection is not None:
                names &= self._names_in(collection)
            return sorted(selection.matching(names, regex))

    def _names_in(self, collection: str | Collection) -> set[str]:
        """The names of the tensors of a collection, or of the one of that name."""
        if isinstance(collection, str):
            return self.collection(collection).tensor_names
        own = reports.selected(self._run, collection)
        of_run = self.collections(collection.name)
        return own.union(*(each.tensor_names for each in of_run.values()))

    def tensor(self, name: str) -> TensorHandle:
        """The tensor of that name or alias.

        Raises:
            TensorUnavailable: If there is none so far.
        """
        with self._run.fresh() as run:
            found = self._named(run, name)
            if found is None:
                msg = f"no tensor {short(name)}; {nearest_recorded(name, run.names())}"
                raise TensorUnavailable(msg)
            return TensorHandle(run, found)

    def positions(self, names: Iterable[str]) -> list[int]:
        """Return the place of each tensor in the order in which they first came.

        Args:
            names: Names of tensors; one that was never saved has place 0.
        """
        with self._run.fresh() as run:
            return run.positions(list(names))

    def has_tensor(self, name: str) -> bool:
        """Whether there is a tensor of that name or alias."""
        with self._run.fresh() as run:
            return self._named(run, name) is not None

    @staticmethod
    def _named(run: RunState, name: str) -> str | None:
        """The tensor of that name or alias, which may be empty."""
        found = run.resolve(name)
        return told_reductions.tensor_named(run, name) if found is None else found

    def collections(self, *names: str) -> dict[str, Collection]:
        """The collections, each with the names of its tensors.

        Args:
            names: Only these, as far as the run has them; none: all.
        """
        with self._run.fresh() as run:
            return reports.collections(run, *names)

    def collection(self, name: str) -> Collection:
        """The collection of that name.

        Raises:
            QueryError: If there is none.
        """
        found = self.collections(name)
        if name not in found:
            msg = (
                f"no collection {name!r}; {nearest_recorded(name, self.collections())}"
            )
            raise QueryError(msg)
        return found[name]

    def scalars(
        self,
        mode: ModeKeys | str | None = None,
        *,
        start: int | None = None,
        end: int | None = None,
    ) -> dict[str, ScalarSeries]:
        """The scalars by name; with a mode only its steps, in its count.

        Args:
            mode: The mode; None: all steps, in the global count.
            start: Only from this global step on.
            end: Global step before which to end.
        """
        with self._run.fresh() as run:
            return reports.scalars(run, mode_key(mode), start, end)

    def losses(self, mode: ModeKeys | str | None = None) -> list[LossSeries]:
        """Return the losses of training and evaluation, a series for each mode.

        Args:
            mode: Only this mode; None: all modes, in the order of ``modes()``.

        Returns:
            The tensors of the collection ``losses`` that have statistics, by name.  It
            is empty if the run recorded no loss.

        Example:
            for loss in trial.losses():
                plt.plot(loss.steps, loss.values, label=f"{loss.name} {loss.mode.name}")
        """
        asked = mode_key(mode)
        found: list[LossSeries] = []
        with self.no_refresh():
            for one in self.modes() if asked is ModeKeys.GLOBAL else [asked]:
                names = self.tensor_names(
                    mode=one, collection=CollectionKeys.LOSSES.value
                )
                recorded = self.statistics(names, mode=one)
                found += losses_of(recorded, self.step_table(), one)
        return found


def create_trial(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    range_steps: tuple[int, int | None] | None = None,
    attempt: int | None = None,
    wait: float = 0.0,
    map_files: bool = False,
    max_tensor_bytes: int | None = None,
) -> Trial:
    """Open the run at *path*, finished or not; also what smdebug wrote.

    Args:
        path: Directory of the run, smdebug's output directory, or the URL of either in
            an object store, as ``s3://bucket/run`` (docs/reading.md).
        name: What to call the trial; the directory's name by default.
        range_steps: Global steps to look at: first, and the one after the last
            (None: no end).
        attempt: Look at one attempt of a training that was resumed: 0 for the
            first, -1 for the last. By default a later attempt replaces the steps
            of earlier ones from its first step on.
        wait: Seconds to wait for the run to come into being.
        map_files: Map finished files, so that uncompressed values are views of them
            without a copy. If somebody truncates a mapped file, the system kills
            the process that reads it. By default files are read, and a truncated
            one raises an error.
        max_tensor_bytes: The most memory that a tensor may decode to which the bytes
            it has on the disk do not justify; 2 GiB by default.

    Raises:
        NotARun: If there is no run; the message says what is there instead.
        UnsupportedFeature: If a later tdbg made it.
        StorageError: If it cannot be read.
        QueryError: If it has no such attempt.
        ConfigurationError: If an argument can never work.
    """
    steps = selection.step_range(range_steps)
    options = reader_options(map_files, max_tensor_bytes)
    place = open_place(path, wait)
    run = RunState(place, steps, attempt, options)
    return Trial(run, place.name if name is None else name)
