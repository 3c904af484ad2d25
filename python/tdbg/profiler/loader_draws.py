"""What the loaders of a training draw: random numbers, indices, and batches.

Facts that no statistic shows, of the samples of one loader: its workers, or its epochs,
draw the same random numbers; it never goes beyond its first batches, or has come to its
end; its weights are those of something else than its samples, or change nothing;
``__getitem__`` changes the dataset.

Thread safety: the thread that iterates over the loader.

Errors: none reach the program.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.modes import EVAL, TRAIN
from tdbg.profiler.random_states import (
    FETCHES,
    SOURCES,
    RandomStates,
    drawn_since,
    equal_in_all,
)
from tdbg.profiler.returning_samples import (
    MovedMasks,
    StoredSamples,
    arrays_of,
    length_of,
)
from tdbg.run.observations import Fault, Observation
from tdbg.stats.scaled_columns import Scales

__all__ = ["LoaderDraws"]

# Epochs whose draws are remembered.
_EPOCHS = 16
# Fetches with equal random states, and epochs, that are no accident.
_LEAST_EQUAL, _LEAST_EPOCHS = 3, 3
# How often a loader is begun anew, and left after the same first batches.
_LEAST_BEGUN = 20
# Stored samples that change while they are fetched again; indices that are compared.
_LEAST_CHANGED, _MOST_INDICES = 3, 1 << 17
# Samplers whose indices are known; and shared samples that are no accident.
_SAMPLERS = frozenset({"RandomSampler", "SequentialSampler", "SubsetRandomSampler"})
_LEAST_SHARED, _SHARE = 5, 0.02
# Epochs without a draw after one in which each sample drew.
_LEAST_CACHED = 2
# What programs call what changes samples; datasets inside of each other, at most.
_TRANSFORM, _MOST_SUBSETS = re.compile(r"transform|augment", re.IGNORECASE), 8
# Where datasets keep the labels of their samples; classes, at most, and by how many
# times these must differ in size; how exact their weights are.
_LABELS = ("targets", "labels", "y", "target", "label", "classes_of_samples")
_MOST_CLASSES, _UNEVEN, _EXACT = 1000, 1.5, 1e-4
# How often an iterator is asked for a batch after its last one.
_LEAST_ENDED = 3


_Fault = tuple[Fault, dict[str, float], dict[str, str]]


class _Observer(Protocol):
    @property
    def session(self) -> Session | None: ...


class _Part(NamedTuple):
    """The samples of a dataset that a loader draws from: its own indices of them."""

    dataset: weakref.ref[Any]
    indices: NDArray[np.int64]

    @classmethod
    def of(cls, loader: Any) -> _Part | None:
        """Return what a loader draws from; None: it is not known, or too large."""
        dataset, sampler = loader.dataset, loader.sampler
        is_plain = type(loader.batch_sampler).__name__ == "BatchSampler"
        is_known = type(sampler).__name__ in _SAMPLERS
        if not (is_plain and is_known) or len(dataset) > _MOST_INDICES:
            return None
        own = getattr(sampler, "indices", None)
        indices = np.arange(len(dataset)) if own is None else np.asarray(own)
        while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
            indices = np.asarray(dataset.indices)[indices]
            dataset = dataset.dataset
        return cls(weakref.ref(dataset), np.unique(indices))

    def shares(self, trained: _Part) -> int:
        """Return how many samples it shares with that of training by mistake.

        Whoever evaluates a part of the training data, or all data, means to.
        """
        if self.dataset() is None or self.dataset() is not trained.dataset():
            return 0
        n = len(np.intersect1d(self.indices, trained.indices, assume_unique=True))
        is_all = n in {len(self.indices), len(trained.indices)}
        is_some = n >= max(_LEAST_SHARED, _SHARE * len(self.indices))
        return n if is_some and not is_all else 0

    def table(self) -> NDArray[Any]:
        """Return the fractions of the dataset, a row for each sample; empty: none."""
        tables = (x for _, x in arrays_of(self.dataset()) if x.ndim == 2)
        return np.asarray(next(tables, np.empty((0, 0))))


# What each session is trained on now; and what its tables say about their scaler.
_trained: weakref.WeakKeyDictionary[Session, _Part] = weakref.WeakKeyDictionary()
_scales: weakref.WeakKeyDictionary[Session, Scales] = weakref.WeakKeyDictionary()


class _Begun(NamedTuple):
    """An iteration over the loader.

    Attributes:
        indices: A hash of the indices of its first batch.
        n_given: How many batches it gave.
        is_dropped: Whether nobody had the iterator any more before the batch was used.
    """

    indices: int
    n_given: int
    is_dropped: bool


class LoaderDraws:
    """What is known of the draws of one loader, or of those that follow each other.

    Args:
        facts: Of the loader.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._name = str(facts.get("dataset", "")).rpartition(".")[2] or "the dataset"
        self._workers = max(1, int(facts.get("workers") or 0))
        self.is_map = not facts.get("is_iterable")
        # By epoch, worker and fetch: the random states that were drawn from.
        self._drawn: dict[tuple[int, int, int], int] = {}
        # By epoch: the hashes of the indices of its first batches.
        self._orders: dict[int, list[int]] = {}
        self._epoch = -1
        self._begun: list[_Begun] = []
        self._n_given = self._drawn_here = 0
        # By epoch: the fetches in this process that were watched, and what they drew.
        self._fetches: dict[int, list[int]] = {}
        self._is_dropped = False
        self._iterator: weakref.ref[Any] | None = None
        self._session: weakref.ref[Session] | None = None
        self._latest = (-1, -1)
        self._n_trained = self._n_evaluated = 0
        self._stored: StoredSamples | None = None
        self._transform = ""
        self._n_weights = self._n_ended = 0
        self._weighed: _Fault | None = None
        self._part: _Part | None = None
        self._is_read = False
        self._masks = MovedMasks()
        self._told: set[Fault] = set()

    # ---- what happens ----------------------------------------------------------------

    def begins(self, iterator: Any, loader: Any, epoch: int) -> None:
        """Note that an iteration begins, and look at the sampler."""
        with contextlib.suppress(Exception):
            self._end()
            self._epoch, self._n_ended = epoch, 0
            self._iterator = weakref.ref(iterator, self._dies)
            if type(loader.sampler).__name__ == "WeightedRandomSampler":
                if not self._n_weights:
                    self._weighed = _or_none(_fault_of_weights, loader)
                self._n_weights = len(loader.sampler.weights)
            if epoch == 0 and self.is_map:
                self._part = _Part.of(loader)
            if self._masks.is_open:
                self._masks.begins()

    def watch(self, iterator: Any) -> None:
        """Watch the fetches of an iterator that has no workers."""
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is None or "fetch" in vars(fetcher):
            return
        if self._epoch >= _EPOCHS or not self.is_map:
            return
        with contextlib.suppress(Exception):
            fetcher.fetch = self._watched(fetcher)

    def _watched(self, fetcher: Any) -> Callable[[Any], Any]:
        # By a weak reference, so that the dataset lives no longer for this.
        fetch, own = type(fetcher).fetch, weakref.ref(fetcher)
        dataset = getattr(fetcher, "dataset", None)
        states = RandomStates(dataset)
        if self._stored is None:
            self._stored = StoredSamples(dataset)
            self._transform = _or_none(_transform_of, dataset) or ""
        stored = self._stored

        def watched(index: Any) -> Any:
            before = _or_none(states.read) if self._n_given < FETCHES else None
            row = _or_none(stored.before, index)
            data = fetch(own(), index)
            after = None if before is None else _or_none(states.read)
            if before is not None and after is not None:
                self._drawn_here = drawn_since(before, after)
                self._fetches.setdefault(self._epoch, []).append(self._drawn_here)
            if row is not None:
                _or_none(stored.after, row, data)
            return data

        return watched

    def note_indices(self, indices: Any) -> None:
        """Note the indices of a batch that will be fetched."""
        with contextlib.suppress(Exception):
            if self._masks.is_open:
                self._masks.note_indices(indices)
            order = self._orders.setdefault(self._epoch, [])
            if len(order) < FETCHES and isinstance(indices, list):
                order.append(hash(tuple(indices)))

    def note_batch(
        self,
        worker: int,
        number: int,
        drawn: int,
        observers: Sequence[_Observer],
        batch: Any = None,
    ) -> None:
        """Note a batch that was given, and tell what is known now and then.

        Args:
            worker: The worker that fetched it; -1: this process.
            number: Its number in the epoch and in its worker.
            drawn: What it drew there, as ``drawn_since`` returns it.
            observers: Have sessions that are told.
            batch: It.
        """
        if self._masks.is_open:
            _or_none(self._masks.note_batch, batch)
        with contextlib.suppress(Exception):
            if worker < 0:
                number, drawn, self._drawn_here = self._n_given, self._drawn_here, 0
            self._n_given += 1
            if drawn and number < FETCHES and self._epoch < _EPOCHS:
                self._drawn[self._epoch, worker, number] = drawn
            is_begun_anew = len(self._begun) >= _LEAST_BEGUN
            if is_begun_anew or self._n_given % (FETCHES * self._workers) == 0:
                self._tell(observers)

    def note_use(self, observers: Sequence[_Observer]) -> None:
        """Note what the program has done since it got the batch before."""
        session = observers[0].session
        if session is None:
            return
        with contextlib.suppress(Exception):
            now = session.latest_step(TRAIN)[1], session.latest_step(EVAL)[1]
            self._n_trained += now[0] > self._latest[0] >= 0
            self._n_evaluated += now[1] > self._latest[1] >= 0
            self._latest = now
            self._session = weakref.ref(session)

    def ends(self, observers: Sequence[_Observer]) -> None:
        """Note that an iteration has come to its end, and tell what is known."""
        with contextlib.suppress(Exception):
            self._n_ended += 1
            self._tell(observers)
            self._end()
            self._begun.clear()
            self._iterator = None

    def _dies(self, _: object) -> None:
        with contextlib.suppress(Exception):
            session = None if self._session is None else self._session()
            if session is not None:
                self._is_dropped = session.latest_step(TRAIN)[1] == self._latest[0]

    def _end(self) -> None:
        order = self._orders.get(self._epoch)
        is_begun = self._iterator is not None and self._n_given > 0
        if is_begun and order and len(self._begun) < _LEAST_BEGUN:
            self._begun.append(_Begun(order[0], self._n_given, self._is_dropped))
        self._n_given, self._is_dropped = 0, False
        for epoch in [*self._orders][:-_EPOCHS]:
            del self._orders[epoch]

    # ---- what it means ---------------------------------------------------------------

    def _tell(self, observers: Sequence[_Observer]) -> None:
        sessions = [each.session for each in observers]
        if self._part is not None:
            for session in filter(None, sessions):
                self._compare_parts(session, self._part)
        if self._n_trained <= self._n_evaluated:
            return
        new = [each for each in self._faults() if each[0] not in self._told]
        for fault, numbers, words in new:
            self._told.add(fault)
            for session in filter(None, sessions):
                self._observe(session, fault, numbers, words)

    def _observe(
        self,
        session: Session,
        fault: Fault,
        numbers: Mapping[str, float],
        words: Mapping[str, str],
    ) -> None:
        step = max(0, session.latest_step(TRAIN)[0])
        session.observe(Observation(fault, step, (self._name,), numbers, words))

    def _compare_parts(self, session: Session, part: _Part) -> None:
        """Compare the samples of evaluation with those of training."""
        trained = _trained.get(session)
        if self._n_trained > self._n_evaluated:
            _trained[session] = part
        elif self._n_evaluated > self._n_trained and trained is not None:
            n = part.shares(trained)
            if n:
                numbers = {"shared": float(n), "evaluated": float(len(part.indices))}
                self._observe(session, Fault.PARTS_OVERLAP, numbers, {})
            if not self._is_read:
                self._is_read = True
                self._compare_scales(session, part, trained)

    def _compare_scales(self, session: Session, part: _Part, trained: _Part) -> None:
        scales = _scales.setdefault(session, Scales(trained.table(), trained.indices))
        found = scales.compare(part.table(), part.indices)
        if found is not None:
            fault = Fault.SCALED_TOGETHER
            if found.is_anew:
                fault = Fault.SCALED_BY_ITSELF
            self._observe(session, fault, found.numbers, {"how": found.how})

    def _faults(self) -> Iterator[_Fault]:
        n = self._facts.get("samples")
        if n and 0 < self._n_weights < n:
            numbers = {"weights": float(self._n_weights), "samples": float(n)}
            yield Fault.WEIGHTS_OF_CLASSES, numbers, {}
        elif self._weighed is not None:
            yield self._weighed
        if self._n_ended >= _LEAST_ENDED:
            yield Fault.LOADER_AT_ITS_END, {"asked": float(self._n_ended)}, {}
        if len(self._begun) >= _LEAST_BEGUN and len({*self._begun}) == 1:
            (begun,) = {*self._begun}
            batches = self._facts.get("batches") or 0
            if begun.is_dropped and begun.n_given < batches:
                numbers = {"given": float(begun.n_given), "batches": float(batches)}
                yield Fault.ONLY_FIRST_BATCHES, numbers, {}
        if self._stored is not None and self._stored.n_changed >= _LEAST_CHANGED:
            yield Fault.SAMPLES_OVERWRITTEN, {}, {"attribute": self._stored.name}
        if self._masks.found is not None:
            apart, moved, image, mask = self._masks.found
            numbers = {"apart": float(apart), "moved": float(moved)}
            yield Fault.MASK_NOT_MOVED, numbers, {"image": image, "mask": mask}
        if self.is_map:
            yield from self._of_random()
            yield from self._of_cache()

    def _of_random(self) -> Iterator[_Fault]:
        of_workers = self._shared_by_workers()
        if of_workers:
            words = {"source": SOURCES[of_workers[0]]}
            yield Fault.WORKERS_DRAW_ALIKE, {"workers": float(self._workers)}, words
            return
        of_epochs = self._shared_by_epochs()
        if of_epochs:
            orders = [order[:1] for order in self._orders.values() if order]
            is_same = all(each == orders[0] for each in orders)
            numbers = {"epochs": self._epoch + 1.0, "same_order": float(is_same)}
            yield Fault.EPOCHS_DRAW_ALIKE, numbers, {"source": SOURCES[of_epochs[0]]}

    def _of_cache(self) -> Iterator[_Fault]:
        """Yield that samples are drawn in the first epoch, and then are the same."""
        first = self._fetches.get(0, [])
        later = [each for epoch, each in self._fetches.items() if epoch > 0]
        whole = [each for each in later if len(each) == len(first)]
        if len(first) < FETCHES or not all(first) or len(whole) < _LEAST_CACHED:
            return
        if not any(any(each) for each in later):
            numbers = {"epochs": float(len(whole))}
            yield Fault.AUGMENTED_ONCE, numbers, {"transform": self._transform}

    def _shared_by_workers(self) -> list[int]:
        """Return the sources from which all workers draw the same numbers."""
        if self._workers < 2:
            return []
        # Later fetches begin as the samples before have left the generator.
        fetches = {(epoch, number) for epoch, _, number in self._drawn if number}
        every = [
            [self._drawn.get((epoch, i, number), 0) for i in range(self._workers)]
            for epoch, number in sorted(fetches)
        ]
        complete = [each for each in every if all(each)]
        return equal_in_all(complete) if len(complete) >= _LEAST_EQUAL else []

    def _shared_by_epochs(self) -> list[int]:
        """Return the sources that begin each epoch in the same state."""
        workers = {worker for _, worker, number in self._drawn if number == 0}
        epochs = {epoch for epoch, _, number in self._drawn if number == 0}
        if len(epochs) < _LEAST_EPOCHS:
            return []
        every = [
            [self._drawn.get((epoch, worker, 0), 0) for epoch in sorted(epochs)]
            for worker in sorted(workers)
        ]
        return equal_in_all(every) if all(map(all, every)) else []


def _fault_of_weights(loader: Any) -> _Fault | None:
    """Return what is wrong with the weights that samples are drawn by, if anything."""
    sampler = loader.sampler
    weights = np.asarray(sampler.weights, dtype=np.float64)
    is_even = not len(weights) or float(np.ptp(weights)) == 0.0
    if is_even or len(weights) != len(loader.dataset):
        return None
    if not sampler.replacement and sampler.num_samples >= np.count_nonzero(weights):
        return Fault.WEIGHTS_CHANGE_NOTHING, {"samples": float(len(weights))}, {}
    labels = _labels_of(loader.dataset)
    if labels is None or len(labels) != len(weights) or weights.min() <= 0:
        return None
    return _fault_by_labels(weights, labels)


def _fault_by_labels(
    weights: NDArray[np.float64], labels: NDArray[np.int64]
) -> _Fault | None:
    """Return what is wrong with weights of samples, by the classes of these."""
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if not (2 <= len(counts) <= _MOST_CLASSES) or counts.max() < _UNEVEN * counts.min():
        return None
    means = np.bincount(places, weights) / counts
    numbers = {
        "classes": float(len(counts)),
        "share": float(counts.min() / counts.sum()),
        "drawn": float((means * counts)[counts.argmin()] / weights.sum()),
    }
    if not np.allclose(weights, means[places], rtol=_EXACT, atol=0.0):
        found = np.unique(weights, return_counts=True)[1]
        is_of_classes = len(found) == len(counts) and len(weights) > 4 * len(counts)
        if is_of_classes and np.array_equal(np.sort(found), np.sort(counts)):
            return Fault.WEIGHTS_OF_OTHER_SAMPLES, numbers, {}
        return None
    if _are_equal(means * counts):
        return None
    how = ""
    if _are_equal(means / counts):
        how = "counts"
    elif _are_equal(np.sort(means) * np.sort(counts)[::-1]):
        how = "order"
    return (Fault.WEIGHTS_OF_OTHER_CLASSES, numbers, {"how": how}) if how else None


def _are_equal(values: NDArray[np.float64]) -> bool:
    return bool(np.ptp(values) <= _EXACT * values.max())


def _labels_of(dataset: Any) -> NDArray[np.int64] | None:
    """Return the class of each sample, as a dataset keeps it; None: it is not known."""
    indices: Any = None
    for _ in range(_MOST_SUBSETS):
        if not (hasattr(dataset, "indices") and hasattr(dataset, "dataset")):
            break
        own = np.asarray(dataset.indices)
        indices = own if indices is None else own[indices]
        dataset = dataset.dataset
    tensors = getattr(dataset, "tensors", None)
    every = [tensors[-1]] if isinstance(tensors, tuple) and tensors else []
    every += [getattr(dataset, name, None) for name in _LABELS]
    for each in every:
        if each is None or length_of(each) != len(dataset):
            continue
        labels = np.asarray(each)
        if labels.ndim == 1 and labels.dtype.kind in "biu":
            return labels if indices is None else labels[indices]
    return None


def _transform_of(dataset: Any) -> str:
    """Return the attribute that has the transforms of a dataset; empty: none does."""
    for _ in range(_MOST_SUBSETS):
        for name, value in vars(dataset).items():
            if _TRANSFORM.search(name) and callable(value):
                return f"{type(dataset).__name__}.{name}"
        dataset = getattr(dataset, "dataset", None)
        if dataset is None:
            break
    return ""


def _or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        return None
