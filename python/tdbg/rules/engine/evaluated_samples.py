"""What evaluations of a training show: samples that were trained on, and folds.

Thread safety: none; all belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tdbg.rules.samples import Folds, Hashes, Inside, Leak, SampleBatch, SeenSamples

__all__ = [
    "LATE_NS",
    "NEARLY_ALL",
    "EvaluatedFolds",
    "EvaluatedSamples",
    "EvaluationPass",
]

# A call whose last rows are this close to the end of a bin may go on in the next one.
LATE_NS = 10**9
# How long ago a sample may have been trained on to count, in rounds of all of them:
# a round that is shuffled brings each back within two.
RECENT = 1.75
# In a mixed batch, samples that were trained on and others take turns: where two sets
# stand one behind the other, there is one turn.  And turns of a pass.
MIN_TURNS_OF_BATCH, MIN_TURNS = 2, 6
# Samples that were trained on, at the least.
MIN_LEAKED = 5
# A pass over so many of the training's samples is one over its data, on purpose.
NEARLY_ALL = 0.9
# A pass over data of the training has samples that are new as often as the training
# itself still finds new ones; one over others has so many times more.
TIMES_EXPECTED = 3
# A pass of evaluation is over if nothing came for so many times the longest pause.
PATIENCE = 5
# Evaluated samples, passes over them, and rounds of training before that tell
# something, at the least.
LEAST_INSIDE, LEAST_PASSES, LEAST_ROUNDS = 64, 3, 1.75
# Samples that were trained on so many rounds ago, and the share of them in a batch; and
# that of samples that the training has not drawn so far, though it will.
LONG_AGO, MOST_OLD, MOST_NEW = 3.0, 0.2, 0.1
# Samples of a fold, at least.
LEAST_HELD = 16
# A training whose batches are all of its data, as those of a graph, evaluates them.
LEAST_BATCHES = 3
_NONE = np.zeros(0, np.uint64)


class EvaluationPass:
    """A pass of evaluation: which of its samples were trained on."""

    def __init__(self, step: int, kind: str) -> None:
        self.step, self.kind = step, kind
        self._evaluated: list[Hashes] = []
        self._trained: list[Hashes] = []
        self._new: list[Hashes] = []
        self._switches = 0
        # When its last batch came, and the longest time between two.
        self._time = self._gap = 0

    def add(self, batch: SampleBatch, trained: SeenSamples) -> None:
        """Take a batch in, and compare it with what was trained on so far."""
        keys = batch.keys
        self._gap = max(self._gap, batch.time - self._time if self._time else 0)
        self._time = batch.time
        last, _ = trained.known(keys)
        self._evaluated.append(keys)
        is_trained = last >= trained.n_draws - RECENT * trained.n_distinct
        is_trained &= last >= 0
        is_told = is_trained | (last < 0)
        switches = int((np.diff(is_trained[is_told].astype(np.int8)) != 0).sum())
        if switches >= MIN_TURNS_OF_BATCH:
            self._switches += switches
            self._trained.append(keys[is_trained])
            self._new.append(keys[last < 0])

    def is_over(self, now: int) -> bool:
        """Whether no other batch will follow, as far as that can be told."""
        return now - self._time > max(LATE_NS, PATIENCE * self._gap)

    @property
    def evaluated(self) -> Sequence[Hashes]:
        """Its samples, batch by batch."""
        return self._evaluated

    def leak(self, trained: SeenSamples, late: int) -> Leak | None:
        """Return what the pass shows; None: nothing, or nothing that is known.

        Args:
            trained: The samples of the training.
            late: How many of the samples that were new to the training in its last
                round had been evaluated before.
        """
        n_trained, n_new = (_n_distinct(each) for each in (self._trained, self._new))
        n_known = trained.n_distinct
        enough = n_trained >= MIN_LEAKED and self._switches >= MIN_TURNS
        if not enough or late or trained.n_draws < 2 * n_known * NEARLY_ALL:
            return None
        if n_trained >= NEARLY_ALL * n_known:
            return None  # All of the training's data, on purpose.
        came = trained.n_new_since(trained.n_draws - n_known)
        expected = (n_trained + n_new) * (came + 1) / n_known
        if n_new < TIMES_EXPECTED * expected + TIMES_EXPECTED:
            return None
        return Leak(
            trained=n_trained,
            evaluated=_n_distinct(self._evaluated),
            step=self.step,
            is_of_numbers=self.kind == "f",
        )


class EvaluatedFolds:
    """Looks for cross-validation: samples that are held out in turn.

    A fold was trained on before, and is held out of the training since; that has all
    others several times, those of the last fold among them.
    """

    def __init__(self) -> None:
        # What the training has drawn since the last evaluation, and since the last
        # fold; and how many draws these were.
        self._recent: list[Hashes] = []
        self._since = self._held = self._released = _NONE
        self._n_recent = self._n_since = self._n_waiting = 0
        self._is_counted = True
        self._found: Folds | None = None

    def train(self, keys: Hashes, n_distinct: int) -> None:
        """Draw samples for the training, which has had so many different ones."""
        self._recent.append(keys)
        self._n_recent += len(keys)
        self._n_waiting += len(keys)
        if self._n_waiting > 2 * n_distinct:
            self._recent, self._n_waiting = [self._last()], 0

    def evaluate(
        self, batches: Sequence[Hashes], step: int, trained: SeenSamples
    ) -> None:
        """Take the batches of a pass of evaluation in.

        Args:
            batches: Those that the training has, too, are no fold.
            step: The first step of the pass.
            trained: The samples of the training.
        """
        last, n_recent = self._last(), self._n_recent
        self._recent, self._n_recent, self._n_waiting = [], 0, 0
        parts = [each for each in batches if not np.isin(each, last).all()]
        held = np.unique(np.concatenate([_NONE, *parts]))
        if len(held) < LEAST_HELD or np.isin(held, last).any():
            held = _NONE
        released = np.setdiff1d(self._held, held)
        if len(released) >= LEAST_HELD or not len(held):
            self._released, self._since, self._n_since = released, _NONE, 0
            self._is_counted = not len(released)
        self._held = held
        if self._is_counted or not len(held):
            return
        self._since = np.union1d(self._since, last)
        self._n_since += n_recent
        if self._is_turn(trained):
            self._is_counted = True
            known = self._found
            self._found = Folds(
                turns=1 if known is None else known.turns + 1,
                samples=len(held),
                step=step if known is None else known.step,
            )

    def found(self) -> Folds | None:
        """Return the folds that have taken turns; None: there are none."""
        return self._found

    def _last(self) -> Hashes:
        return np.unique(np.concatenate([_NONE, *self._recent]))

    def _is_turn(self, trained: SeenSamples) -> bool:
        held, since = self._held, self._since
        n_others = trained.n_distinct - len(held)
        return (
            self._n_since >= LEAST_ROUNDS * len(since) > 0
            and len(since) >= NEARLY_ALL * n_others
            and not np.isin(held, since).any()
            and (trained.known(held)[0] >= 0).mean() >= NEARLY_ALL
            and np.isin(self._released, since).mean() >= NEARLY_ALL
        )


def _n_distinct(parts: list[Hashes]) -> int:
    return len(np.unique(np.concatenate(parts))) if parts else 0


class EvaluatedSamples:
    """All samples that were evaluated, and those that were never trained on.

    Passes count as soon as each sample was trained on about twice.
    """

    def __init__(self) -> None:
        self.seen = SeenSamples()
        self._counted = SeenSamples()
        # Samples that were not trained on, of the passes that have some.
        self._unseen: dict[int, Hashes] = {}
        # Samples that were evaluated before anything was trained on.
        self._early: list[Hashes] = []
        self._is_known = True
        self._passes: set[int] = set()
        self._n_passes = 0
        self._step = -1

    def add(self, batch: SampleBatch, trained: SeenSamples) -> None:
        """Take a batch in whose samples are told apart."""
        keys = batch.keys
        self.seen.add(keys)
        if not trained.n_distinct:
            self._early.append(keys)
            return
        if not self._is_known or trained.n_draws < LEAST_ROUNDS * trained.n_distinct:
            return
        self._step = batch.step if self._step < 0 else self._step
        self._passes.add(self._n_passes)
        self._counted.add(keys)
        last, _ = trained.known(keys)
        is_new, is_old = (
            last < 0,
            last < trained.n_draws - LONG_AGO * trained.n_distinct,
        )
        if is_new.mean() > MOST_NEW:
            before = self._unseen.get(self._n_passes, keys[:0])
            self._unseen[self._n_passes] = np.union1d(before, keys[is_new])
        # In cross-validation, another fold has trained on them.
        is_foreign = (is_old & ~is_new).mean() > MOST_OLD or len(self._unseen) > 1
        self._is_known = batch.kind == "f" and not is_foreign

    def spoil(self) -> None:
        """Note that samples were evaluated of which nothing is known."""
        self._is_known = False

    def end(self) -> None:
        """Note that a pass of evaluation is over."""
        self._n_passes += 1

    def inside(self, trained: SeenSamples, batch_size: int) -> Inside | None:
        """Return that all but one pass were on samples of the training; None: not so.

        None, too, if it is too early to tell.

        Args:
            trained: The samples of the training.
            batch_size: Of the largest batch of training.
        """
        others = sum(map(len, self._unseen.values()))
        inner = self._counted.n_distinct - others
        early = self._early_others(trained)
        if early and self._unseen:
            return None  # They were evaluated twice.
        is_full_batch = trained.n_distinct < LEAST_BATCHES * batch_size
        n_passes = len(self._passes) - len(self._unseen)
        is_early = n_passes < LEAST_PASSES or inner < LEAST_INSIDE
        if not self._is_known or is_full_batch or is_early:
            return None
        return Inside(
            evaluated=inner,
            trained=trained.n_distinct,
            passes=n_passes,
            others=others + early,
            step=self._step,
        )

    def _early_others(self, trained: SeenSamples) -> int:
        """Return how many samples of a first pass were never trained on since."""
        if not self._early:
            return 0
        keys = np.unique(np.concatenate(self._early))
        n_new = int((trained.known(keys)[0] < 0).sum())
        return n_new if n_new > MOST_NEW * len(keys) else 0
