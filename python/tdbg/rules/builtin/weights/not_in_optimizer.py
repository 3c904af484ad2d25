"""NotInOptimizer: parameters that no optimizer trains."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import join_names, lowered, plural
from tdbg.rules.builtin.weights.first_weights import (
    NewLayer,
    new_last_layer,
    new_weights,
    untrained,
)
from tdbg.rules.builtin.weights.model_info_rule import (
    ModelInfoRule,
    evaluate_first,
    have_lasted,
)
from tdbg.rules.columns import GRADIENT, held_before
from tdbg.rules.registry import register
from tdbg.rules.window import Bools, Description, Evaluation, Table, TensorInfo
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, owner_of

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["NotInOptimizer"]

# Largest relative distance of a moving average from its source at the first step.
COPIED = 1e-3
# One frozen layer with its initial weights may be deliberate, as random features are;
# more were forgotten, or not loaded.
SEVERAL = 2
# After this many steps, the program will not unfreeze parameters of an optimizer.
SOON = 100


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class NotInOptimizer(ModelInfoRule):
    """Report parameters that get gradients but are in no optimizer.

    The finding is a warning only if something shows that they were meant to learn: they
    are as they were drawn, the program has unfrozen them, or an optimizer has the other
    parameters of their layers.  What the program changes without an optimizer (master
    weights, a step by hand) is not reported.  The rule also reports frozen layers that
    have never learned anything.

    Args:
        patience: Recorded steps that must have passed: the hook may not know an
            optimizer before its first step.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP

    patience: int = 2

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            "a parameter in no optimizer, at more than "
            f"{plural(self.patience, 'recorded step')}"
        )

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of gradients and weights, and the first row of biases."""
        moving = Needs(collections=frozenset({"gradients", "weights"}))
        biases = Needs(collections=frozenset({"biases"}), first_steps=1)
        return *with_beginning(moving), biases

    @property
    def lookback(self) -> int:
        """The last weights, which may be recorded more seldom than gradients."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select gradients, weights and biases."""
        return tensor.role in {"gradient", "weight", "bias"}

    def judge(
        self,
        table: Table,
        model_info: ModelInfo,
        thawed: Mapping[str, int],
        steps: slice,
    ) -> Iterator[Evaluation]:
        """Compare gradients with the parameters of the optimizers."""
        if not model_info.complete:
            return
        whole = table
        table = whole.select(
            [i for i, role in enumerate(whole.roles) if role == "gradient"]
        )
        if not table.names:
            return
        names = [name.removeprefix(GRADIENT) for name in table.names]
        known = [model_info.parameters.get(name) for name in names]
        # A frozen parameter may hold an old gradient, and gets no new one.
        absent = np.array(
            [p is not None and p.requires_grad and p.optimizer is None for p in known]
        )
        held = [p.optimizer is not None for p in model_info.parameters.values()]
        decided = table.known[:, steps] & (table.ordinal[:, steps] >= self.patience)
        decided &= have_lasted(table, self.patience)[np.newaxis, steps]
        decided &= np.array([p is not None for p in known])[:, np.newaxis] & any(held)
        bad = decided & absent[:, np.newaxis]
        left = [n for n, is_absent in zip(names, absent, strict=True) if is_absent]
        bad &= ~_moved_by_program(whole, names, left)[:, steps]
        on_purpose = not (
            thawed.keys() & {*left} or _meant_to_learn(whole, model_info, left, held)
        )
        yield evaluate_first(
            table,
            steps,
            table.names,
            bad=bad,
            decided=decided,
            severity=Severity.INFO if on_purpose else Severity.WARNING,
            describe=lambda j: self._describe(names, bad[:, j], on_purpose, held),
        )
        judged = decided.any(axis=0) & ~bad.any(axis=0)
        if judged.any():
            yield from self._judge_frozen(whole, model_info, steps, judged)

    def _judge_frozen(
        self, table: Table, model_info: ModelInfo, steps: slice, judged: Bools
    ) -> Iterator[Evaluation]:
        """Judge whether frozen layers have learned anything, and where they are."""
        parameters = model_info.parameters
        frozen = [
            name
            for name, p in parameters.items()
            # What gets a gradient is judged above.
            if not p.requires_grad
            or (p.optimizer is None and GRADIENT + name not in table.names)
        ]
        trained = parameters.keys() - frozen
        found = _never_learned(table, model_info, frozen, trained)
        description = self._describe_frozen(found, len(frozen), model_info)
        if not found:
            last = new_last_layer(table, model_info, frozen)
            if last is None or _has_copy(table, last.weight, trained):
                return
            found, description = [last.weight], _describe_last(last)
        is_last = frozen[-1:] == list(parameters)[-1:] and _is_of(frozen[-1], found)
        is_mistake = len(found) >= SEVERAL or is_last
        is_out = all(parameters[name].optimizer is None for name in found)
        late = steps.start
        if not is_out:
            first = table.steps[np.argmax(table.present.any(axis=0))]
            soon = table.steps < first + SOON
            late = min(max(int(np.count_nonzero(soon)), steps.start), steps.stop)
        for part in (slice(steps.start, late), slice(late, steps.stop)):
            some = judged[part.start - steps.start : part.stop - steps.start]
            is_warning = is_mistake and part.start >= late
            if some.any():
                yield evaluate_first(
                    table,
                    part,
                    found[:1],
                    bad=some[np.newaxis],
                    decided=some[np.newaxis],
                    severity=Severity.WARNING if is_warning else Severity.INFO,
                    describe=lambda _: description,
                )

    def _describe_frozen(
        self, found: Sequence[str], n_frozen: int, model_info: ModelInfo
    ) -> Description:
        is_trainable = all(model_info.parameters[each].requires_grad for each in found)
        state = "in no optimizer and" if is_trainable else "frozen although they"

        def advice(words: Vocabulary) -> str:
            fix = f"To train them, {words.thawing}."
            if is_trainable:
                fix = (
                    "If the optimizer leaves them out since they get no gradient, look "
                    f"for what cuts them off from the loss: {words.graph_cuts}. If "
                    f"not: {lowered(words.adding_parameters)}"
                )
            return (
                f"{fix} If you meant to load pretrained weights: "
                f"{lowered(words.partial_loading)} If you want random features, "
                "ignore this."
            )

        return Description(
            message=(
                f"{n_frozen:,} of {plural(len(model_info.parameters), 'parameter')} "
                f"{'is' if n_frozen == 1 else 'are'} {state} have never "
                f"learned: {join_names(found)} still "
                f"{'has its' if len(found) == 1 else 'have their'} initial values, and "
                "the rule cannot judge the others."
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=advice,
        )

    def _describe(
        self, names: Sequence[str], bad: Bools, on_purpose: bool, held: list[bool]
    ) -> Description:
        found = [name for name, is_bad in zip(names, bad, strict=True) if is_bad]
        return Description(
            message=(
                f"{plural(len(found), 'parameter')} "
                f"{'gets' if len(found) == 1 else 'get'} gradients but "
                f"{'is' if len(found) == 1 else 'are'} in no optimizer, which has "
                f"{sum(held):,} others: {join_names(found)}."
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=lambda words: (
                "If you want to leave them as they are, "
                f"{words.freezing} to save part of the backward pass. If not: "
                f"{lowered(words.adding_parameters)}"
                if on_purpose
                else words.adding_parameters
            ),
        )


def _never_learned(
    table: Table,
    model_info: ModelInfo,
    frozen: Sequence[str],
    trained: Collection[str],
) -> list[str]:
    """Return the frozen weights with their initial values, but for adversaries'."""
    return [
        name
        for name in untrained(table, model_info, frozen)
        # An adversary is frozen while the other one learns.
        if GRADIENT + name not in table.names and not _has_copy(table, name, trained)
    ]


def _describe_last(last: NewLayer) -> Description:
    bias = ", and its bias is exactly zero" if last.has_zero_bias else ""
    return Description(
        message=(
            f"The last layer, {owner_of(last.weight)}, is frozen although it has never "
            f"learned: its weights are as they were drawn{bias}."
        ),
        value=1.0,
        threshold=0.0,
        advice=lambda words: (
            f"To train it, {words.thawing}{words.thawing_beside_adapters}. If you "
            "meant to load it from a checkpoint, check its name there."
        ),
    )


def _only_last_layers(held: Sequence[bool]) -> bool:
    """Return whether the trained part is the end, and less than half, of the model."""
    if not any(held):
        return False
    first = held.index(True)
    return all(held[first:]) and 0 < len(held) - first < first


def _moved_by_program(
    table: Table, names: Sequence[str], left: Collection[str]
) -> Bools:
    """Find, names x steps, parameters whose last row by then differs from the first.

    No optimizer has those that are *left*, so the program itself updates them.  A bias
    has one row, and moves if a weight of its layer that is left does.
    """
    index = {name: i for i, name in enumerate(table.names)}
    result = np.zeros((len(names), len(table.steps)), dtype=bool)
    for k, name in enumerate(names):
        i = index.get(name)
        if i is None:
            continue
        for j in np.flatnonzero(table.ordinal[i] == 1)[:1].tolist():
            differs = np.zeros(len(table.steps), dtype=bool)
            for field in ("l2", "mean", "min", "max"):
                row = table[field][i]
                differs |= row != row[j]
            known = table.known[i]
            result[k] = np.where(
                known, differs, held_before(differs[None], known[None])
            )
    owners = [owner_of(name) if name in left else None for name in names]
    for k, name in enumerate(names):
        is_bias = name in index and table.roles[index[name]] == "bias"
        if is_bias and owners[k] is not None:
            mates = [i for i, owner in enumerate(owners) if owner == owners[k]]
            result[k] = result[mates].any(axis=0)
    return result


def _forgotten_mates(model_info: ModelInfo, left: Sequence[str]) -> bool:
    """Return whether an optimizer has the matrix of a layer, and not its bias."""
    trained = {
        owner_of(name)
        for name, p in model_info.parameters.items()
        if p.optimizer is not None and len(p.shape) > 1
    }
    vectors = [name for name in left if len(model_info.parameters[name].shape) == 1]
    return any(owner_of(name) in trained for name in vectors)


def _meant_to_learn(
    table: Table, model_info: ModelInfo, left: Sequence[str], held: Sequence[bool]
) -> bool:
    """Return whether parameters are forgotten biases, or new and no features."""
    if _forgotten_mates(model_info, left):
        return True
    new = new_weights(table, model_info, left)
    return len(new) >= SEVERAL or bool(new and not _only_last_layers(held))


def _is_of(name: str, found: Sequence[str]) -> bool:
    """Return whether a parameter belongs to the same layer as one of these."""
    owner = owner_of(name)
    return any(owner_of(each) == owner for each in found)


def _has_copy(table: Table, name: str, trained: Collection[str]) -> bool:
    """Return whether a trained parameter started with the same weights.

    A network that follows another one (a target, a moving average) is not frozen by
    mistake.
    """
    index = {each: i for i, each in enumerate(table.names)}
    own = _first_row(table, index[name])
    return any(
        np.allclose(_first_row(table, index[each]), own, rtol=COPIED, atol=0.0)
        for each in trained
        if each in index
    )


def _first_row(table: Table, i: int) -> list[float]:
    j = int(np.argmax(table.ordinal[i] == 1))
    fields = ("count", "l2", "mean", "min", "max")
    return [float(table[field][i, j]) for field in fields]
