"""Folds the fingerprints of a run up, bin by bin, into what rules judge.

The rows of a run come once, in the order of their time.  What is kept of them is
bounded by what a training records: about 80 bytes for each different sample, and none
beyond the first eight ranks.

Thread safety: none; a ledger belongs to the engine's thread.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import EVALUATION, TRAINING
from tdbg.rules.engine.evaluated_samples import (
    LATE_NS,
    NEARLY_ALL,
    EvaluatedFolds,
    EvaluatedSamples,
    EvaluationPass,
)
from tdbg.rules.profile import Rows
from tdbg.rules.samples import (
    Bools,
    Draws,
    EvaluatedPasses,
    Ints,
    Leak,
    Order,
    Pairing,
    SampleBatch,
    SampleFacts,
    SeenSamples,
    Shares,
    batches_of,
    ended_calls,
    mixed,
)

__all__ = ["SampleLedger"]

Floats = NDArray[np.float64]
Loaders = Mapping[tuple[int, int], Mapping[str, Any]]

_TRAINED = frozenset(mode.value for mode in TRAINING)
_EVALUATED = frozenset(mode.value for mode in EVALUATION)
# Ranks that are compared, at how many steps, and how many samples of each.
MOST_RANKS, MOST_STEPS, MOST_SHARED = 8, 512, 4096
# Batches, and loaders of one order, that are remembered.
MOST_BATCHES, MOST_LOADERS = 1 << 17, 64
# A round has so many batches at the least, and repeats so often: a few fixed batches
# that take turns are no data set.
MIN_PERIOD, MIN_ROUNDS = 4, 2
# Batches with fewer samples are neither mixed nor pairs.
MIN_MIXED = 4
# Batches with fewer samples that are no accident are codes.
HALF = 0.5
# Samples that wait to be counted, and new ones that are remembered as evaluated before.
MOST_WAITING, MOST_LATE = 256, 4096
# Draws of a sample after which a label counts that it never had: tasks that take turns
# have no more labels for it.  Labels with too many classes say nothing.
LATER, MOST_CLASSES = (3, 4), 10_000
# Ends of epochs between two copies of a batch blur the share of copies so much.
COPIES_SLACK = 0.2


class _OrderOfRank:
    """Looks for batches that come in one order, on one rank."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._n = self._period = self._repeated = 0
        self._step = 0
        self._loaders: set[int] = set()

    def add(self, batch: SampleBatch) -> None:
        digest = hash(batch.keys.tobytes())
        before = self._at.get(digest)
        if before is not None or len(self._at) < MOST_BATCHES:
            self._at[digest] = self._n
        period = 0 if before is None else self._n - before
        if not period or period != self._period:
            self._period, self._repeated = period, 0
            self._step, self._loaders = batch.step, set()
        if len(self._loaders) < MOST_LOADERS:
            self._loaders.add(batch.loader)
        self._repeated += 1 if period else 0
        self._n += 1

    def found(self, loaders: Loaders, worker: int) -> Order | None:
        if self._period < MIN_PERIOD or self._repeated < MIN_ROUNDS * self._period:
            return None
        first, *others = (loaders.get((worker, each), {}) for each in self._loaders)
        are_alike = all(_settings(each) == _settings(first) for each in others)
        return Order(
            period=self._period,
            rounds=1 + self._repeated / self._period,
            step=self._step,
            loader=first if are_alike else {},
        )


def _settings(loader: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a loader but its number."""
    return {key: each for key, each in loader.items() if key != "loader"}


class _Labels:
    """Looks for samples that come again with labels that have nothing to do with them.

    Two questions, so that noise and tasks that take turns are none: how many have
    another label the second time, and how many have one later that they never had.
    """

    def __init__(self) -> None:
        self._pairs = SeenSamples()
        self._classes: Counter[int] = Counter()
        self._vectors: set[int] = set()
        self._n_batches = 0
        # Of the second draws of samples, and of later ones: how many, how many of them
        # with a new label, and how many of labels at random would be.
        self._second, self._later = np.zeros(3), np.zeros(3)
        self._step = 0

    def add(self, batch: SampleBatch, count: Ints) -> None:
        """Take a batch in whose samples were drawn before as often as *count* says."""
        (labels,) = batch.labels.values()
        self._n_batches += 1
        self._vectors.add(hash(labels.tobytes()))
        self._classes.update(labels.tolist())
        pairs = mixed(batch.keys, labels)
        if len(self._classes) <= MOST_CLASSES and (count > 0).any():
            is_new = self._pairs.known(pairs)[1] == 0
            if not self._second[1] and (is_new & (count > 0)).any():
                self._step = batch.step
            shares = np.array(list(self._classes.values())) / self._classes.total()
            self._count(self._second, count == 1, is_new, shares)
            for n in LATER:
                self._count(self._later, count == n, is_new, shares, n)
        self._pairs.add(pairs)

    def _count(
        self, counts: Floats, asked: Bools, is_new: Bools, shares: Floats, n: int = 1
    ) -> None:
        by_chance = float((shares * (1 - shares) ** n).sum())
        n_asked = int(asked.sum())
        counts += (n_asked, int((asked & is_new).sum()), n_asked * by_chance)

    def pairing(self, views: _Views, *, are_even: bool) -> Pairing:
        """Return what is known of labels and views.

        Args:
            views: Of the same model.
            are_even: Whether each sample comes once in a round.
        """
        # Labels that are places in the batch are the same in each.
        are_places = 2 * len(self._vectors) <= self._n_batches
        is_told = are_even and not are_places and len(self._classes) <= MOST_CLASSES
        n, n_new, by_chance = self._second.tolist()
        n_later, n_new_later, later_by_chance = self._later.tolist()
        return Pairing(
            views=views.what,
            steps=views.steps,
            view_step=views.step,
            recurring=int(min(n, n_later)) if is_told else 0,
            relabelled=n_new / max(1.0, n),
            by_chance=by_chance / max(1.0, n),
            later=n_new_later / max(1e-9, later_by_chance),
            label_step=self._step,
        )


class _Views:
    """Looks for pairs of samples, two views of one thing, that are equal."""

    def __init__(self) -> None:
        self.what = ""
        self.steps = self.step = 0
        self._before: SampleBatch | None = None
        self._differed: set[str] = set()

    def add(self, batch: SampleBatch) -> None:
        before, self._before = self._before, batch
        found = self._found(batch, before)
        if found == "wait":
            return
        if found and found == self.what:
            self.steps += 1
        else:
            self.what, self.steps, self.step = found, 1 if found else 0, batch.step

    def _found(self, batch: SampleBatch, before: SampleBatch | None) -> str:
        keys, n = batch.keys, len(batch.keys)
        if not batch.is_varied or n < MIN_MIXED or len(np.unique(keys)) < n // 2:
            return ""
        inputs = batch.inputs
        if (
            len(inputs) > 1
            and batch.kind == "f"
            and np.array_equal(inputs[0], inputs[1])
        ):
            return "inputs"
        is_second = (
            before is not None
            and batch.call > 0
            and (before.worker, before.step, before.call + 1)
            == (batch.worker, batch.step, batch.call)
        )
        if is_second and before is not None:
            # A step that calls the model again for another loss has labels for both.
            is_pair = batch.has_labels and not before.has_labels
            return "calls" if is_pair and np.array_equal(keys, before.keys) else ""
        half = n // 2
        is_even = n == batch.samples and n == 2 * half and n >= 2 * MIN_MIXED
        if (
            is_even
            and len(np.unique(keys)) <= half
            and np.array_equal(keys[:half], keys[half:])
        ):
            return "halves"
        return "" if batch.has_labels else "wait"


class _Sources:
    """Which loaders the batches of a model come from."""

    def __init__(self) -> None:
        self._n_own: Counter[int] = Counter()
        self._begins: dict[int, int] = {}
        self._n = self._n_unvaried = 0
        # Of the first rank: batches that equal the one before, and all.
        self._last = self._n_equal = self._n_first = 0
        self._different: set[int] = set()

    def add(self, batch: SampleBatch) -> None:
        self._n += 1
        self._n_unvaried += not batch.is_varied
        if batch.loader < 0:
            return
        self._n_own[batch.loader] += 1
        self._begins.setdefault(batch.loader, batch.step)
        if batch.worker == 0:
            digest = hash(batch.labelled.tobytes())
            self._n_first += 1
            self._n_equal += digest == self._last
            self._last = digest
            if len(self._different) < MOST_BATCHES:
                self._different.add(digest)

    def draws(self, labelled: SeenSamples, loaders: Loaders) -> Draws | None:
        """Compare the samples with the dataset of the loader that they come from.

        Returns:
            None: where not all are of one loader, its dataset has no known length, or
            samples may be equal by chance.
        """
        if not self._n_own or self._n_unvaried:
            return None
        ((number, n_own),) = self._n_own.most_common(1)
        known = loaders.get((0, number), {})
        length, in_epoch = known.get("samples"), known.get("draws")
        copies = self._copies(known.get("workers"))
        if copies and known.get("is_iterable"):
            length = 0
        if n_own < NEARLY_ALL * self._n or not isinstance(length, int):
            return None
        if length < 2 and not copies:
            return None
        drawn = labelled.n_draws
        most = min(length, in_epoch) if isinstance(in_epoch, int) else length
        expected = float(min(drawn, most))
        if known.get("replaces") and length:
            expected = length * -math.expm1(drawn * math.log1p(-1 / length))
        return Draws(
            drawn=drawn,
            distinct=labelled.n_distinct,
            expected=expected,
            dataset=length,
            copies=copies,
            is_stream=bool(known.get("is_iterable")),
            step=self._begins[number],
        )

    def _copies(self, workers: object) -> int:
        """Return how many workers a loader has if each delivers the same; else 0."""
        if not isinstance(workers, int) or workers < 2 or len(self._different) < 3:
            return 0
        is_long = self._n_first >= 4 * workers
        different = 1 - self._n_equal / max(1, self._n_first)
        are_copies = is_long and abs(different * workers - 1) <= COPIES_SLACK
        return workers if are_copies else 0


class _Model:
    """The samples of one model, as far as they are remembered."""

    def __init__(self) -> None:
        self.trained, self._evaluated = SeenSamples(), EvaluatedSamples()
        self._folds = EvaluatedFolds()
        self._batch_size = 0
        self._labelled = SeenSamples()
        self._labels, self._views = _Labels(), _Views()
        self._orders: dict[int, _OrderOfRank] = {}
        self._waiting: list[SampleBatch] = []
        self._n_waiting = 0
        # The draws that brought a sample that had been evaluated before.
        self._late: list[int] = []
        self._pass: EvaluationPass | None = None
        self._leak: Leak | None = None
        self._needs_labels = False
        self._sources, self._passes = _Sources(), EvaluatedPasses()

    def add(self, batch: SampleBatch) -> None:
        if batch.mode in _EVALUATED:
            self._evaluate(batch)
        elif batch.mode in _TRAINED:
            self._train(batch)

    def _train(self, batch: SampleBatch) -> None:
        self._passes.end()
        self._orders.setdefault(batch.worker, _OrderOfRank()).add(batch)
        if batch.worker == 0:
            self._views.add(batch)
        # Where there are losses, what has none is not trained on.
        self._needs_labels |= batch.has_labels
        if self._needs_labels and not batch.has_labels:
            return
        self._batch_size = max(self._batch_size, batch.samples)
        self._sources.add(batch)
        self._waiting.append(batch)
        self._n_waiting += len(batch.keys)
        if self._n_waiting >= max(MOST_WAITING, self.trained.n_distinct // 4):
            self.flush()

    def _evaluate(self, batch: SampleBatch) -> None:
        self.flush()
        self._passes.add(batch)
        is_usable = batch.is_aligned and batch.is_whole and batch.varied >= HALF
        if not is_usable or len(batch.keys) < MIN_MIXED:
            self._evaluated.spoil()
            return
        if not batch.is_varied:
            return  # Some of its samples are plain: the next batch may have none.
        if self._pass is None:
            self._pass = EvaluationPass(batch.step, batch.kind)
        self._pass.add(batch, self.trained)
        self._evaluated.add(batch, self.trained)

    def _judge(self) -> None:
        if self._pass is None:
            return
        round_began = self.trained.n_draws - self.trained.n_distinct
        late = sum(draw >= round_began for draw in self._late[-MOST_LATE:])
        leak = self._pass.leak(self.trained, late)
        known = self._leak
        if leak is not None and (known is None or leak.trained > known.trained):
            self._leak = leak

    def _end_pass(self, ended: EvaluationPass) -> None:
        self._evaluated.end()
        if ended.kind == "f":
            self._folds.evaluate(ended.evaluated, ended.step, self.trained)

    def flush(self) -> None:
        """Count the batches of training that wait."""
        batches, self._waiting = self._waiting, []
        if not batches:
            return
        self._judge()
        if self._pass is not None:
            self._end_pass(self._pass)
        self._n_waiting, self._pass = 0, None
        keys = np.concatenate([batch.keys for batch in batches])
        _, counts = self.trained.known(keys)
        begins = np.cumsum([0, *(len(batch.keys) for batch in batches)])
        for batch, begin in zip(batches, begins[:-1].tolist(), strict=True):
            names = set(batch.labels)
            is_told = len(names) == 1 and names <= batch.classes and batch.is_varied
            if is_told and all(
                len(x) == len(batch.keys) for x in batch.labels.values()
            ):
                self._labels.add(batch, counts[begin : begin + len(batch.keys)])
        first = self.trained.n_draws
        is_new = self.trained.add(keys)
        self._folds.train(keys, self.trained.n_distinct)
        self._labelled.add(np.concatenate([batch.labelled for batch in batches]))
        evaluated = self._evaluated.seen
        if evaluated.n_draws and is_new.any():
            at = np.flatnonzero(is_new)
            was_evaluated = evaluated.known(keys[at])[0] >= 0
            self._late += (first + at[was_evaluated]).tolist()
            self._late = self._late[-MOST_LATE:]

    def facts(self, now: int, loaders: Loaders, shares: Shares | None) -> SampleFacts:
        """Return what is known at a time."""
        self.flush()
        if self._pass is not None and self._pass.is_over(now):
            self._judge()
        worker = min(self._orders, default=-1)
        order = self._orders[worker].found(loaders, worker) if worker >= 0 else None
        return SampleFacts(
            order=order,
            leak=self._leak,
            coverage=self._sources.draws(self._labelled, loaders),
            shares=shares,
            pairing=self._labels.pairing(
                self._views, are_even=self._come_equally_often()
            ),
            redrawn=self._passes.found(self.trained),
            folds=self._folds.found(),
            trained=self.trained.n_draws,
            evaluated=self._evaluated.seen.n_draws,
            inside=self._evaluated.inside(self.trained, self._batch_size),
        )

    def _come_equally_often(self) -> bool:
        """Whether each sample comes once in a round, as those of a data set do."""
        counts = self.trained.counts()
        if not len(counts):
            return False
        few, many = np.quantile(counts, [0.05, 0.95]).tolist()
        return bool(many - few <= 2)


class _Ranks:
    """Compares what the ranks are given."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[int, int]] = {}
        self._first: dict[int, dict[int, None]] = {}
        self._ended: set[int] = set()
        self._begin = -1

    def add(self, batch: SampleBatch) -> None:
        if batch.mode not in _TRAINED or not batch.is_varied:
            return
        if self._begin < 0:
            self._begin = batch.step
        if batch.step in self._steps or len(self._steps) < MOST_STEPS:
            own = self._steps.setdefault(batch.step, {})
            digest = hash(batch.keys.tobytes())
            own[batch.worker] = hash((own.get(batch.worker, 0), digest))
        if batch.worker in self._ended:
            return
        first = self._first.setdefault(batch.worker, {})
        keys = batch.keys.tolist()
        comes_again = any(key in first for key in keys)
        if comes_again or len(first) >= MOST_SHARED:
            self._ended.add(batch.worker)
        else:
            first.update(dict.fromkeys(keys))

    def found(self, n_workers: int) -> Shares | None:
        """Return the comparison; None: not all ranks have told of theirs."""
        ranks = min(n_workers, MOST_RANKS)
        if ranks < 2 or len(self._first) < ranks:
            return None
        of_all = [own for own in self._steps.values() if len(own) == ranks]
        n = min(map(len, self._first.values()))
        firsts = [np.array([*first][:n], np.uint64) for first in self._first.values()]
        _, times = np.unique(
            np.concatenate([np.unique(first) for first in firsts]), return_counts=True
        )
        total = int(times.sum())
        return Shares(
            ranks=ranks,
            steps=len(of_all),
            equal=sum(len(set(own.values())) == 1 for own in of_all),
            shared=float(times[times > 1].sum()) / max(1, total),
            samples=total,
            step=self._begin,
        )


class SampleLedger:
    """Folds the fingerprints of a run up, bin by bin."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._ranks: dict[str, _Ranks] = {}
        self._waiting: Rows | None = None
        # Of each rank: batches that loaders gave, and that no call has taken yet.
        self._given: dict[int, deque[tuple[int, int, int]]] = {}
        self._averages = False
        self._facts: Mapping[str, SampleFacts] = {}

    def add(
        self,
        rows: Rows,
        batches: Rows,
        end_ns: int,
        loaders: Loaders,
        *,
        n_workers: int,
        averages: bool,
    ) -> Mapping[str, SampleFacts]:
        """Take the rows of the next bin in; return the facts as of its end, by model.

        Args:
            rows: Of the table ``fingerprint``, from this bin.
            batches: Of the table ``loader``, from this bin.
            end_ns: When the bin ends.
            loaders: The settings of each loader, by worker and its number there.
            n_workers: How many workers the training has.
            averages: Whether ranks have averaged gradients in the bin.
        """
        self._averages |= averages
        for row in batches[batches["worker"] < MOST_RANKS]:
            given = int(row["time"]), int(row["loader"]), int(row["samples"])
            self._given.setdefault(int(row["worker"]), deque()).append(given)
        rows = rows[rows["worker"] < MOST_RANKS]
        if self._waiting is not None and len(self._waiting):
            rows = np.concatenate([self._waiting, rows])
        rows, self._waiting = ended_calls(rows, end_ns - LATE_NS)
        if not len(rows):
            return self._facts
        found = sorted(batches_of(rows), key=lambda each: (each.time, each.worker))
        for batch in found:
            if batch.mode in _TRAINED:
                batch.loader = self._loader_of(batch)
            self._models.setdefault(batch.model, _Model()).add(batch)
            self._ranks.setdefault(batch.model, _Ranks()).add(batch)
        self._facts = {
            name: model.facts(
                end_ns,
                loaders,
                self._ranks[name].found(n_workers) if self._averages else None,
            )
            for name, model in self._models.items()
        }
        return self._facts

    def _loader_of(self, batch: SampleBatch) -> int:
        """Return the loader that gave a batch since the one before; -1: none."""
        given, found = self._given.get(batch.worker), -1
        while given and given[0][0] <= batch.time:
            _, loader, samples = given.popleft()
            if samples == batch.samples:
                found = loader
        return found
