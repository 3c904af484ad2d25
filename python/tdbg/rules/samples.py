"""Samples as their fingerprints show them: facts for rules, batches, and what came.

Implements docs/fingerprints.md, "What rules find in them".  ``SampleFacts`` are what
rules judge; the engine folds them up from batches and the samples that it has seen.

Thread safety: facts and batches are read-only; ``SeenSamples`` belong to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bools",
    "Draws",
    "EvaluatedPasses",
    "Folds",
    "Hashes",
    "Inside",
    "Ints",
    "Leak",
    "Order",
    "Pairing",
    "Redrawn",
    "SampleBatch",
    "SampleFacts",
    "SeenSamples",
    "Shares",
    "batches_of",
    "ended_calls",
    "mixed",
]

Rows = NDArray[np.void]
Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# A batch has samples of numbers if this share of those that were looked at have 6
# different elements or more: others may be equal by chance.
VARIED = 0.9
# What ``n_varied`` says where nobody looked.
NOT_LOOKED = 255
# Labels of a pass of evaluation that tell something, at least; the longest pattern that
# a program may make up; and the share of training samples that are new if all are.
LEAST_EVALUATED, MOST_PERIOD, ALL_NEW = 64, 128, 0.99


# ---- facts ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Batches that come in one order in each round.

    Attributes:
        period: Batches in a round.
        rounds: How many rounds had this order.
        step: The first step of the second one.
        loader: What is known of the loader that all of them come from; empty: nothing.
    """

    period: int
    rounds: float
    step: int
    loader: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A pass of evaluation whose batches mix samples that were trained on with others.

    Attributes:
        trained: Different samples that were trained on in the last two rounds.
        evaluated: Different samples of the pass.
        step: Its first step.
        is_of_numbers: Whether the samples hold floating-point numbers.
    """

    trained: int
    evaluated: int
    step: int
    is_of_numbers: bool

    @property
    def share(self) -> float:
        """The share of the samples that were trained on."""
        return self.trained / self.evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Evaluations of which all but one had no samples but those of the training.

    Attributes:
        evaluated: Different samples of these.
        trained: Different samples of the training.
        passes: How many evaluations there were.
        others: Different samples that were not trained on, all of one evaluation.
        step: The first step of the first one.
    """

    evaluated: int
    trained: int
    passes: int
    others: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """Cross-validation: samples that were trained on, and are held out in their turn.

    Attributes:
        turns: How often a fold was held out after another one.
        samples: Different samples of the last fold.
        step: The first step of the evaluation of the second fold.
    """

    turns: int
    samples: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """The samples that a training drew from a loader with a dataset of known length.

    Attributes:
        drawn: How many it drew.
        distinct: How many of them are different, each with its label.
        expected: How many would be, if all in the dataset are.
        dataset: Length of the dataset; 0: unknown, and only copies are.
        copies: Batches, one after the other, that are equal; as many as the loader
            has workers.  0: they are not.
        step: The first step.
        is_stream: Whether the workers read a stream, which has no indices.
    """

    drawn: int
    distinct: int
    expected: float
    dataset: int
    copies: int
    step: int
    is_stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What ranks that average their gradients are given.

    Attributes:
        ranks: How many were compared.
        steps: At how many steps.
        equal: Of these, how many with the same batch on all ranks.
        shared: Of a rank's first samples, before the first that comes again, the share
            that another rank has, too.
        samples: How many samples that is, of all ranks.
        step: The first step.
    """

    ranks: int
    steps: int
    equal: int
    shared: float
    samples: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How samples go with each other and with their labels.

    Attributes:
        views: What is equal at each of the last steps: "inputs", "halves" or "calls";
            "": nothing.
        steps: How many steps in a row.
        view_step: The first of these.
        recurring: Samples that came often enough to tell; 0: it cannot be told.
        relabelled: Of samples that came for the second time, the share with another
            label.
        by_chance: The same share of labels that have nothing to do with them.
        later: Samples that came later with a label that they never had, as a multiple
            of those that labels at random would bring.
        label_step: The first step at which a sample came with another label.
    """

    views: str = ""
    steps: int = 0
    view_step: int = 0
    recurring: int = 0
    relabelled: float = 0.0
    by_chance: float = 0.0
    later: float = 0.0
    label_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrawn:
    """Passes of evaluation with the same labels in the same order.

    Attributes:
        passes: How many there are.
        samples: How many labels each has.
        equal: Samples that the first pass had, too, in all others.
        is_trained_so: Whether the training, too, never gets a sample twice.
        step: The first step of the first one.
    """

    passes: int
    samples: int
    equal: int
    is_trained_so: bool
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts:
    """What is known of the samples that a model was given, up to the end of a bin.

    Attributes:
        order: Of its batches, if that repeats.
        leak: The pass of evaluation with the largest leak, if there is one.
        inside: The evaluations, if samples of all but one were trained on.
        coverage: Of the loader's dataset, if its length is known.
        shares: Of the ranks, if there are several that average gradients.
        pairing: Of views and labels.
        redrawn: Passes of evaluation with the same labels, if there are some.
        folds: Of its samples, if these take turns.
        trained: How many samples it was trained on.
        evaluated: How many it was evaluated on.
    """

    order: Order | None = None
    leak: Leak | None = None
    inside: Inside | None = None
    coverage: Draws | None = None
    shares: Shares | None = None
    pairing: Pairing = field(default_factory=Pairing)
    redrawn: Redrawn | None = None
    folds: Folds | None = None
    trained: int = 0
    evaluated: int = 0


# ---- batches ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class SampleBatch:
    """One call of a model, on a rank.

    Attributes:
        model: Its name.
        inputs: The hashes of each input that has as many samples as the first.
        labels: Those of its labels by loss; a loss that was called twice has none.
        samples: How many samples the call had, of which the first are hashed.
        is_aligned: Whether all inputs have as many samples.
        is_varied: Whether its samples are unlikely to be equal by chance.
        is_whole: Whether all of their bytes are hashed.
        kind: Of the first input's elements, as NumPy's letter.
        loader: Number of the loader that the batch is from; -1: unknown.
        varied: The share of samples that are no accident, if one input has such.
    """

    worker: int
    step: int
    mode: int
    call: int
    time: int
    model: str
    inputs: list[Hashes]
    labels: dict[str, Hashes]
    has_labels: bool
    classes: frozenset[str]
    samples: int
    is_aligned: bool
    is_varied: bool
    is_whole: bool
    kind: str
    loader: int = -1
    varied: float = 1.0
    keys: Hashes = field(init=False)

    def __post_init__(self) -> None:
        keys = self.inputs[0]
        for more in self.inputs[1:]:
            keys = mixed(keys, more)
        self.keys = keys

    @property
    def labelled(self) -> Hashes:
        """The samples, each with its labels."""
        keys = self.keys
        for name in sorted(self.labels):
            if len(self.labels[name]) == len(keys):
                keys = mixed(keys, self.labels[name])
        return keys


def mixed(one: Hashes, other: Hashes) -> Hashes:
    """Return a hash of each pair of hashes."""
    found: Hashes = one * np.uint64(0x9E3779B97F4A7C15) + (other ^ (other >> 29))
    return found


def ended_calls(rows: Rows, until: int) -> tuple[Rows, Rows]:
    """Return the rows of calls that have ended, and those of a rank's last call.

    That of a rank may go on after *until*, if it has rows from then on.
    """
    goes_on = np.zeros(len(rows), np.bool_)
    for worker in np.unique(rows["worker"]).tolist():
        own = np.flatnonzero(rows["worker"] == worker)
        last = rows[own[rows["time"][own].argmax()]]
        if last["time"] >= until:
            is_last = rows["worker"] == worker
            for column in ("global_step", "mode", "call"):
                is_last &= rows[column] == last[column]
            goes_on |= is_last
    return rows[~goes_on], rows[goes_on]


def batches_of(rows: Rows) -> Iterator[SampleBatch]:
    """Yield the calls, rank by rank, in the order in which they began."""
    names, numbers = np.unique(rows["instance"], return_inverse=True)
    instances = [str(name) for name in names]
    order = np.lexsort(
        [
            *(rows["first"], rows["time"], numbers),
            *(rows["call"], rows["mode"], rows["global_step"], rows["worker"]),
        ]
    )
    rows, numbers = rows[order], numbers[order]
    key = rows[["worker", "global_step", "mode", "call"]]
    begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]][: len(rows)]).tolist()
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        batch = _batch(rows[begin:end], numbers[begin:end], instances)
        if batch is not None:
            yield batch


def _batch(rows: Rows, numbers: Ints, instances: list[str]) -> SampleBatch | None:
    inputs: list[tuple[str, Rows]] = []
    labels: dict[str, Rows] = {}
    begins = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]).tolist()
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        name, own = instances[numbers[begin]], rows[begin:end]
        if name.startswith("label/"):
            labels[name] = own
        elif "_input_" in name:
            inputs.append((name, own))
    if not inputs or not inputs[0][0].endswith("_input_0"):
        return None
    first = inputs[0][1]
    n = int(first["samples"][0])
    model = inputs[0][0].removeprefix("input/").rpartition("_input_")[0]
    same = [own for _, own in inputs if int(own["samples"][0]) == n]
    hashes = [_hashes(own) for own in same if _comes_once(own)]
    lengths = {len(each) for each in hashes}
    if len(lengths) != 1 or not hashes:
        return None
    once = {name: own for name, own in labels.items() if _comes_once(own)}
    return SampleBatch(
        worker=int(first["worker"][0]),
        step=int(first["global_step"][0]),
        mode=int(first["mode"][0]),
        call=int(first["call"][0]),
        time=int(first["time"][0]),
        model=model,
        inputs=hashes,
        labels={name: _hashes(own) for name, own in once.items()},
        has_labels=bool(labels),
        classes=frozenset(name for name, own in once.items() if _is_class(own)),
        samples=n,
        is_aligned=len(same) == len(inputs) and len(hashes) == len(inputs),
        is_varied=max(map(_varied, same)) >= VARIED,
        varied=max(map(_varied, same)),
        is_whole=bool(first["is_whole"][0]),
        kind=chr(int(first["kind"][0])),
    )


def _hashes(rows: Rows) -> Hashes:
    held = np.arange(rows["hashes"].shape[1]) < rows["n"][:, np.newaxis]
    found: Hashes = rows["hashes"][held]
    return found


def _comes_once(rows: Rows) -> bool:
    """Whether a tensor was hashed once in its call; a loss may be called twice."""
    return int((rows["first"] == 0).sum()) == 1


def _is_class(rows: Rows) -> bool:
    return int(rows["row_bytes"][0]) <= 8 and chr(int(rows["kind"][0])) in "iu"


def _varied(rows: Rows) -> float:
    varied = int(rows["n_varied"][0])
    return 0.0 if varied == NOT_LOOKED else varied / max(1, int(rows["n"][0]))


# ---- passes of evaluation ---------------------------------------------------------


class EvaluatedPasses:
    """Compares passes of evaluation with the same labels in the same order."""

    def __init__(self) -> None:
        self._labels: list[Hashes] = []
        self._keys: list[Hashes] = []
        self._first: tuple[Hashes, Hashes] | None = None
        self._step = -1
        self._is_usable = True
        self._passes = self._equal = 0

    def add(self, batch: SampleBatch) -> None:
        """Take a batch of the present pass in."""
        names = set(batch.labels)
        is_of_classes = len(names) == 1 and names <= batch.classes
        if not (is_of_classes and batch.is_varied and batch.kind == "f"):
            self._is_usable = False
            return
        (labels,) = batch.labels.values()
        n = min(len(labels), len(batch.keys))
        self._labels.append(labels[:n])
        self._keys.append(batch.keys[:n])
        if self._step < 0:
            self._step = batch.step

    def end(self) -> None:
        """End the present pass, and compare it with the first one."""
        labels, keys, is_usable = self._labels, self._keys, self._is_usable
        self._labels, self._keys, self._is_usable = [], [], True
        if not labels or not is_usable:
            return
        every = np.concatenate(labels), np.concatenate(keys)
        if self._first is None:
            if _is_irregular(every[0]):
                self._first, self._passes = every, 1
        elif np.array_equal(every[0], self._first[0]):
            self._passes += 1
            self._equal += int(np.isin(every[1], self._first[1]).sum())

    def found(self, trained: SeenSamples) -> Redrawn | None:
        """Return what the passes show; None: there are no two with the same labels."""
        if self._first is None or self._passes < 2:
            return None
        return Redrawn(
            passes=self._passes,
            samples=len(self._first[0]),
            equal=self._equal,
            is_trained_so=trained.n_distinct >= ALL_NEW * trained.n_draws > 0,
            step=self._step,
        )


def _is_irregular(labels: Hashes) -> bool:
    """Return whether nobody would make up labels in this order for new samples."""
    _, counts = np.unique(labels, return_counts=True)
    if len(labels) < LEAST_EVALUATED or len(counts) < 2:
        return False
    n_changes = int(np.count_nonzero(labels[1:] != labels[:-1]))
    if n_changes < len(counts) and len(set(counts.tolist())) == 1:
        return False  # As many of each class, one class after the other.
    periods = range(1, min(len(labels) // 2, MOST_PERIOD))
    return not any(np.array_equal(labels[p:], labels[:-p]) for p in periods)


# ---- samples that were seen -------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Run:
    """Different samples, sorted, with what is known of their draws."""

    keys: Hashes
    last: Ints
    count: Ints


class SeenSamples:
    """The draws of samples: when each was drawn last, and how often.

    Sorted runs, of which neighbours that are about as long are merged.
    """

    def __init__(self) -> None:
        self.n_draws = 0
        self._runs: list[_Run] = []
        # The draws that brought a new sample, ascending.
        self._firsts: list[Ints] = []
        self.n_distinct = 0

    def add(self, keys: Hashes) -> Bools:
        """Draw samples; return which of them come for the first time."""
        if not len(keys):
            return np.zeros(0, np.bool_)
        draws = self.n_draws + np.arange(len(keys))
        self.n_draws += len(keys)
        known, begins, count = np.unique(keys, return_index=True, return_counts=True)
        backwards = np.unique(keys[::-1], return_index=True)[1]
        is_new = np.zeros(len(keys), np.bool_)
        is_new[begins[self.known(known)[0] < 0]] = True
        self.n_distinct += int(is_new.sum())
        self._firsts.append(draws[is_new])
        self._runs.append(_Run(known, draws[len(keys) - 1 - backwards], count))
        while len(self._runs) > 1 and 2 * len(self._runs[-1].keys) >= len(
            self._runs[-2].keys
        ):
            late, early = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(early, late))
        return is_new

    def known(self, keys: Hashes) -> tuple[Ints, Ints]:
        """Return when each of some samples was drawn last, and how often.

        One that was never drawn: -1 and 0.
        """
        last, count = np.full(len(keys), -1, np.int64), np.zeros(len(keys), np.int64)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run.keys, keys), len(run.keys) - 1)
            is_here = run.keys[at] == keys
            last = np.maximum(last, np.where(is_here, run.last[at], -1))
            count += np.where(is_here, run.count[at], 0)
        return last, count

    def n_new_since(self, draw: int) -> int:
        """Return how many samples came for the first time from one draw on."""
        if len(self._firsts) > 1:
            self._firsts = [np.concatenate(self._firsts)]
        firsts = self._firsts[0] if self._firsts else np.zeros(0, np.int64)
        return len(firsts) - int(np.searchsorted(firsts, draw))

    def counts(self) -> Ints:
        """Return how often each sample was drawn."""
        while len(self._runs) > 1:
            late, early = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged(early, late))
        return self._runs[0].count if self._runs else np.zeros(0, np.int64)


def _merged(early: _Run, late: _Run) -> _Run:
    keys = np.concatenate([early.keys, late.keys])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    last = np.concatenate([early.last, late.last])[order]
    count = np.concatenate([early.count, late.count])[order]
    return _Run(
        keys[begins],
        np.maximum.reduceat(last, begins),
        np.add.reduceat(count, begins),
    )
