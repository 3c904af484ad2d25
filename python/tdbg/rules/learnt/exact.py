"""Relations that are exact: facts, equalities, types, and what changes.

Implements docs/learnt-invariants.md, "What tdbg learns".

Thread safety: pure functions.
"""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import number, plural
from tdbg.modes import TRAINING
from tdbg.rules.columns import parameter_of, streak_of_known
from tdbg.rules.learnt.invariants import LearntInvariant
from tdbg.rules.learnt.rows import (
    FEWEST_EVALUATED,
    WHOLE,
    JudgedInvariants,
    Relation,
    Rows,
    fewest_rows,
)
from tdbg.rules.window import Bools, Floats
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts

__all__ = ["EXACT"]

# The fields that two rows of one tensor have in common.
_ALIKE = ("min", "max", "mean", "m2", "l2")
_RATE = re.compile(r"^scalar/optimizer(_\d+)?/.*/lr$")
# With fewer elements, rows are alike by chance.
FEWEST_ELEMENTS = 16
# Consecutive recorded steps at which nothing changes, or an order is broken.
STILL = 2


class _Facts(Relation):
    """Base class of statements about what a hook knows of the model at a step."""

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield the facts that were the same in all model infos."""
        if rows.mode not in TRAINING:
            return
        found: dict[tuple[str, str], set[bool]] = {}
        for info, columns in rows.infos:
            if info is None or columns.start >= columns.stop:
                continue
            for tensor, what in self._subjects(info):
                value = self._fact(tensor, what, info, rows, columns.stop - 1)
                if value is not None:
                    found.setdefault((tensor, what), set()).add(value)
        for (tensor, what), values in found.items():
            if len(values) == 1:
                yield LearntInvariant(
                    kind=self.kind,
                    tensor=tensor,
                    mode=rows.mode.name,
                    what=what,
                    value=values.pop(),
                    rows=len(rows.ages),
                )

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Compare the facts of each step."""
        shape = len(invariants), len(rows.ages)
        known, broken = np.zeros(shape, bool), np.zeros(shape, bool)
        for info, columns in rows.infos:
            if info is None or columns.start >= columns.stop:
                continue
            for i, each in enumerate(invariants):
                last = columns.stop - 1
                value = self._fact(each.tensor, each.what, info, rows, last)
                if value is None:
                    continue
                known[i, columns] = True
                broken[i, columns] = value != each.value
        known &= self._due(rows)
        return self._all(invariants, known, broken)

    def _due(self, rows: Rows) -> Bools:
        """Return the steps at which facts are judged; by default, all."""
        return np.ones(len(rows.ages), bool)

    @abstractmethod
    def _subjects(self, info: ModelInfo) -> Iterator[tuple[str, str]]:
        """Yield the tensor and name of each fact."""

    @abstractmethod
    def _fact(
        self, tensor: str, what: str, info: ModelInfo, rows: Rows, column: int
    ) -> bool | None:
        """Return a fact at a step; None: nobody knows."""


class _Training(_Facts):
    kind = "training"
    severity = Severity.ERROR

    _WORDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "has_stopped": ("The optimizers step", "The optimizers do not step any more"),
        "keeps_gradients": (
            "Gradients are cleared between steps",
            "Gradients are not cleared between steps",
        ),
        "trains_in_evaluation": (
            "The model trains in training mode",
            "The model trains in evaluation mode",
        ),
        "replicas_differ": (
            "The replicas of the model are alike",
            "The replicas of the model differ between ranks",
        ),
    }

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Compare the facts, and where replicas differ."""
        judged = super().judge(invariants, rows)
        for i, each in enumerate(invariants):
            if each.what == "replicas_differ" and rows.differ is not None:
                judged.known[i] = True
                judged.broken[i] = rows.differ != each.value
        return judged

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Say what is otherwise."""
        del rows, column
        off, on = self._WORDS[invariant.what]
        here, there = (off, on) if invariant.value else (on, off)
        there = there[:1].lower() + there[1:]
        return f"{here}. In the healthy run, {there}.", None, None

    def _subjects(self, info: ModelInfo) -> Iterator[tuple[str, str]]:
        del info
        yield from ((WHOLE, what) for what in self._WORDS)

    def _fact(
        self, tensor: str, what: str, info: ModelInfo, rows: Rows, column: int
    ) -> bool | None:
        del tensor
        if what == "keeps_gradients":
            return info.keeps_gradients if info.complete else None
        if what == "has_stopped":
            return info.has_stopped if info.complete else None
        if what == "trains_in_evaluation":
            return bool(info.evaluating)
        return None if rows.differ is None else bool(rows.differ[column])


class _Parameter(_Facts):
    kind = "parameter"
    severity = Severity.ERROR

    _FACTS: ClassVar[Mapping[str, Callable[[ParameterFacts], bool | None]]] = {
        "requires_grad": lambda facts: facts.requires_grad,
        "has_optimizer": lambda facts: facts.optimizer is not None,
        "has_gradient": lambda facts: facts.has_gradient,
    }
    _WORDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "requires_grad": ("It is frozen", "It requires a gradient"),
        "has_optimizer": ("No optimizer has it", "An optimizer has it"),
        "has_gradient": ("It gets no gradient", "It gets a gradient"),
    }

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Say what is otherwise."""
        del rows, column
        off, on = self._WORDS[invariant.what]
        here, there = (off, on) if invariant.value else (on, off)
        there = there[:1].lower() + there[1:]
        return f"{here}. In the healthy run, {there}.", None, None

    def _due(self, rows: Rows) -> Bools:
        """Return the steps that record parameters: others say nothing of them."""
        of_parameters = [role in {"weight", "bias"} for role in rows.roles]
        if not any(of_parameters):
            return super()._due(rows)
        due: Bools = rows.known[np.array(of_parameters)].any(axis=0)
        return due

    def _subjects(self, info: ModelInfo) -> Iterator[tuple[str, str]]:
        for name in info.parameters:
            yield from ((name, what) for what in self._FACTS)

    def _fact(
        self, tensor: str, what: str, info: ModelInfo, rows: Rows, column: int
    ) -> bool | None:
        del rows, column
        facts = parameter_of(info, tensor)
        if facts is None or (what == "has_optimizer" and not info.complete):
            return None
        return self._FACTS[what](facts)


class _Changes(Relation):
    """Parameters and inputs that change from step to step, or never do."""

    kind = "changes"
    severity = Severity.ERROR

    # The smallest usual change that rounding does not swallow, as a share.
    SMALLEST = 1e-6

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield what changed at every step, and parameters that never changed."""
        if rows.mode not in TRAINING:
            return
        compared, same = _unchanged(rows)
        moved = _moved(rows)
        streaks = streak_of_known(same, compared)
        still = np.any(streaks >= STILL, axis=1, keepdims=True)[:, 0]
        for i, name in enumerate(rows.names):
            is_parameter = rows.roles[i] in {"weight", "bias"}
            n = int(np.count_nonzero(compared[i]))
            if not (is_parameter or rows.roles[i] == "model_input") or n < fewest_rows(
                rows.mode
            ):
                continue
            n_same = int(np.count_nonzero(same[i]))
            moves = np.median(moved[i][compared[i]]) >= self.SMALLEST and not still[i]
            if moves or (n_same == n and is_parameter):
                yield LearntInvariant(
                    kind=self.kind,
                    tensor=name,
                    mode=rows.mode.name,
                    value=bool(moves),
                    rows=n,
                )

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Find what stands still for some rows, or changes at all."""
        at = rows.at(invariants)
        compared, same = (each[at] for each in _unchanged(rows))
        changes = np.array([each.value is True for each in invariants])[:, np.newaxis]
        still = streak_of_known(same & compared, compared) >= STILL
        broken = np.where(changes, still, compared & ~same)
        return self._all(invariants, compared & (broken | ~(changes & same)), broken)

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Say whether it changed."""
        del rows, column
        if invariant.value:
            said = "It no longer changes from step to step"
            return f"{said}. In the healthy run, it always did.", None, None
        said = "It changed. In the healthy run, it was the same at all"
        return f"{said} {plural(invariant.rows, 'recorded step')}.", None, None


class _Equal(Relation):
    """Tensors whose rows are the same at every step: tied, or passed on unchanged."""

    kind = "equal"
    severity = Severity.ERROR

    ROLES = frozenset(
        {"weight", "bias", "output", "input", "model_input", "prediction"}
    )
    # How far apart rows of what is equal may be: another order of summation.
    TOLERANCE = 1e-5

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield the pairs; the first of several in the order of execution is named."""
        fewest = fewest_rows(rows.mode)
        columns = [rows.fields(name) for name in (*_ALIKE, "count")]
        first: dict[bytes, str] = {}
        for i, name in enumerate(rows.names):
            known = rows.known[i]
            n = int(np.count_nonzero(known))
            if rows.roles[i] not in self.ROLES or n < fewest:
                continue
            values = np.stack([column[i][known] for column in columns])
            is_plain = (
                values[-1].min() < FEWEST_ELEMENTS or not np.isfinite(values).all()
            )
            if is_plain or not np.ptp(values[-2]):
                continue
            key = known.tobytes() + values.tobytes()
            if key in first:
                yield LearntInvariant(
                    kind=self.kind,
                    tensor=name,
                    mode=rows.mode.name,
                    other=first[key],
                    rows=n,
                )
            else:
                first[key] = name

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Find where two rows differ by more than rounding."""
        place = rows.places()
        a = [place[each.tensor] for each in invariants]
        b = [place[each.other] for each in invariants]
        known = rows.known[a] & rows.known[b]
        broken = np.zeros(known.shape, bool)
        scale = np.maximum(rows.rms()[a], rows.rms()[b])
        with np.errstate(invalid="ignore"):
            for name in ("mean", "min", "max"):
                apart = np.abs(rows.fields(name)[a] - rows.fields(name)[b])
                broken |= apart > self.TOLERANCE * scale
            apart = np.abs(rows.rms()[a] - rows.rms()[b])
            broken |= apart > self.TOLERANCE * scale
        return self._all(invariants, known, broken)

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Say how far the two are apart."""
        place, rms = rows.places(), rows.rms()
        here, there = (
            float(rms[place[name], column])
            for name in (invariant.tensor, invariant.other)
        )
        said = (
            f"It differs from {invariant.other}: the root mean squares are "
            f"{number(here)} and {number(there)}. In the healthy run, both were equal "
            f"at all {plural(invariant.rows, 'recorded step')}."
        )
        return said, here, there


class _Dtype(Relation):
    """The element types of tensors."""

    kind = "dtype"
    ROLES = frozenset({"weight", "bias", "gradient", "output", "loss"})

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield the type of each tensor that has rows."""
        counts = rows.known.sum(axis=1)
        for i, name in enumerate(rows.names):
            if rows.roles[i] in self.ROLES and rows.dtypes[i] and counts[i]:
                yield LearntInvariant(
                    kind=self.kind,
                    tensor=name,
                    mode=rows.mode.name,
                    value=rows.dtypes[i],
                    rows=int(counts[i]),
                )

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Compare the types."""
        at = rows.at(invariants)
        differs = [
            rows.dtypes[i] != each.value for i, each in zip(at, invariants, strict=True)
        ]
        known = rows.known[at]
        return self._all(invariants, known, known & np.array(differs)[:, np.newaxis])

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Name both types."""
        del column
        dtype = rows.dtypes[rows.names.index(invariant.tensor)]
        said = f"Its element type is {dtype}, and {invariant.value} in the healthy run."
        return said, None, None


class _Rate(Relation):
    """Learning rates that never rise, or never fall."""

    kind = "rate"
    # Changes that are no rounding.
    LEAST_CHANGE = 1e-3

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield the directions that a rate never took, and those that it took."""
        if rows.mode not in TRAINING:
            return
        rises, falls, known = self._moves(rows)
        for i, name in enumerate(rows.names):
            n = int(np.count_nonzero(known[i]))
            if not _RATE.match(name) or n < fewest_rows(rows.mode):
                continue
            for what, moves in (("rises", rises), ("falls", falls)):
                if not moves[i].any():
                    yield LearntInvariant(
                        kind=self.kind,
                        tensor=name,
                        mode=rows.mode.name,
                        what=what,
                        value=False,
                        rows=n,
                    )

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Find where a rate goes the other way."""
        at = rows.at(invariants)
        rises, falls, known = (each[at] for each in self._moves(rows))
        is_rise = np.array([each.what == "rises" for each in invariants])
        moves = np.where(is_rise[:, np.newaxis], rises, falls)
        return self._all(invariants, known, moves)

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Name both rates."""
        i = rows.names.index(invariant.tensor)
        rates = rows.fields("mean")[i]
        value, before = float(rates[column]), float(rates[rows.before()[i, column]])
        said = (
            f"This rate {invariant.what}, from {number(before)} to {number(value)}. In "
            f"the healthy run, it never {invariant.what}."
        )
        return said, value, before

    def _moves(self, rows: Rows) -> tuple[Bools, Bools, Bools]:
        """Return where values rise, where they fall, and where both are known."""
        values, before = rows.fields("mean"), rows.before()
        old = np.take_along_axis(values, np.maximum(before, 0), axis=1)
        with np.errstate(invalid="ignore"):
            change = (values - old) > self.LEAST_CHANGE * np.abs(old)
            fall = (old - values) > self.LEAST_CHANGE * np.abs(old)
        return change, fall, rows.known & (before >= 0)


class _Order(Relation):
    """Learning rates one of which is below another at every step."""

    kind = "order"
    # Times that the upper rate is the lower one, at least, in a healthy run.
    LEAST = 1.5

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield each rate with the next above it, if the two are always apart."""
        if rows.mode not in TRAINING:
            return
        rates = rows.fields("mean")
        every = [i for i, name in enumerate(rows.names) if _RATE.match(name)]
        usual = {i: float(np.sum(rates[i][rows.known[i]])) for i in every}
        for low, high in itertools.pairwise(sorted(every, key=usual.__getitem__)):
            both = rows.known[low] & rows.known[high] & (rates[high] > 0)
            is_apart = rates[high] >= self.LEAST * rates[low]
            n = int(np.count_nonzero(both))
            if n >= fewest_rows(rows.mode) and is_apart[both].all():
                yield LearntInvariant(
                    kind=self.kind,
                    tensor=rows.names[low],
                    mode=rows.mode.name,
                    other=rows.names[high],
                    rows=n,
                )

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Find where the lower rate is not the lower one, for some rows in a row."""
        place, rates = rows.places(), rows.fields("mean")
        low = [place[each.tensor] for each in invariants]
        high = [place[each.other] for each in invariants]
        known = rows.known[low] & rows.known[high] & (rates[high] > 0)
        is_over = known & (rates[low] >= rates[high])
        lasts = streak_of_known(is_over, known) >= STILL
        return self._all(invariants, known & (lasts | ~is_over), lasts)

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Name both rates."""
        place, rates = rows.places(), rows.fields("mean")
        here, there = (
            float(rates[place[name], column])
            for name in (invariant.tensor, invariant.other)
        )
        said = (
            f"This rate is {number(here)}, and {invariant.other} is {number(there)}. "
            f"In the healthy run, the second was always at least {self.LEAST:g} times "
            "as high."
        )
        return said, here, there


class _Evaluation(Relation):
    """How many training steps pass without an evaluation."""

    kind = "evaluation"
    severity = Severity.INFO
    # Times the longest pause that was seen.
    LONGER = 5

    def learn(self, rows: Rows) -> Iterator[LearntInvariant]:
        """Yield the longest pause between evaluations."""
        places = np.unique(rows.evaluated)
        if rows.mode not in TRAINING or len(places) < FEWEST_EVALUATED:
            return
        longest = int(np.diff(np.concatenate([[0], places])).max())
        if longest:
            yield LearntInvariant(
                kind=self.kind,
                tensor=WHOLE,
                mode=rows.mode.name,
                value=longest,
                rows=len(places),
            )

    def join(self, found: Sequence[LearntInvariant]) -> LearntInvariant | None:
        """Return the longest pause in all runs."""
        longest = max(int(each.value or 0) for each in found)
        return replace(found[0], value=longest, rows=sum(e.rows for e in found))

    def judge(
        self, invariants: Sequence[LearntInvariant], rows: Rows
    ) -> JudgedInvariants:
        """Find where the pause is several times as long."""
        known = np.ones((len(invariants), len(rows.ages)), bool)
        pauses = self._pauses(rows)
        most = np.array([self.LONGER * int(each.value or 0) for each in invariants])
        return self._all(invariants, known, pauses > most[:, np.newaxis])

    def describe(
        self, invariant: LearntInvariant, rows: Rows, column: int
    ) -> tuple[str, float | None, float | None]:
        """Name both pauses."""
        pause, usual = int(self._pauses(rows)[column]), int(invariant.value or 0)
        said = (
            f"The last {plural(pause, 'training step')} passed without an evaluation. "
            f"In the healthy run, at most {usual:,} did."
        )
        return said, float(pause), float(self.LONGER * usual)

    @staticmethod
    def _pauses(rows: Rows) -> NDArray[np.int64]:
        """Return how many training steps each step is behind the last evaluation."""
        places = np.concatenate([[0], np.sort(rows.evaluated)])
        last = places[np.searchsorted(places, rows.ages, side="right") - 1]
        return np.asarray(rows.ages - last, np.int64)


#: The relations, those first whose findings are the most certain.
EXACT: tuple[Relation, ...] = (
    _Training(),
    _Parameter(),
    _Changes(),
    _Equal(),
    _Dtype(),
    _Rate(),
    _Order(),
    _Evaluation(),
)


def _unchanged(rows: Rows) -> tuple[Bools, Bools]:
    """Return where a row has one before it, and where both are the same."""
    before = rows.before()
    compared = rows.known & (before >= 0)
    same = compared.copy()
    for name in _ALIKE:
        values = rows.fields(name)
        old = np.take_along_axis(values, np.maximum(before, 0), axis=1)
        same &= (values == old) | (np.isnan(values) & np.isnan(old))
    return compared, same


def _moved(rows: Rows) -> Floats:
    """Return how far each row is from the one before it, as a share of its scale."""
    before, rms = np.maximum(rows.before(), 0), rows.rms()
    with np.errstate(invalid="ignore", divide="ignore"):
        change = np.zeros(rms.shape)
        for values in (rows.fields("mean"), rms):
            old = np.take_along_axis(values, before, axis=1)
            change = np.fmax(change, np.abs(values - old))
        return np.asarray(change / rms)
