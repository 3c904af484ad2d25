"""MissingGradient: parameters that require a gradient and never get one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.quantities import join_names, plural
from tdbg.rules.builtin.weights.model_info_rule import (
    ModelInfoRule,
    evaluate_first,
    have_lasted,
)
from tdbg.rules.columns import GRADIENT, is_bias
from tdbg.rules.registry import register
from tdbg.rules.table import min_span
from tdbg.rules.window import Bools, Description, Evaluation, Table
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, ParameterFacts, owner_of

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["MissingGradient"]

# What programs call tables of places: ``pos_embed``, ``position_embeddings``, ``wpe``.
_OF_PLACES = re.compile(
    r"(^|[._])(pos|positions?|positional|places?|wpe)(_?(emb|enc)\w*)?([._]|$)",
    re.IGNORECASE,
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGradient(ModelInfoRule):
    """Report parameters that require a gradient and never get one, while others do.

    Where a model of an installed package leaves a small part of itself unused, the
    finding is an info.

    Args:
        patience: Recorded steps with gradients of others that must have passed.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    patience: int = 5

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            "a parameter without a gradient, while others had one at "
            f"{plural(self.patience, 'recorded step')}"
        )

    @property
    def lookback(self) -> int:
        """The rows since a parameter was thawed."""
        return self.patience

    def judge(
        self,
        table: Table,
        model_info: ModelInfo,
        thawed: Mapping[str, int],
        steps: slice,
    ) -> Iterator[Evaluation]:
        """Compare parameters that require gradients with those that have had some."""
        parameters = model_info.parameters
        # NotInOptimizer reports parameters in no optimizer.
        names = [
            name
            for name, parameter in parameters.items()
            if parameter.requires_grad
            and (parameter.optimizer is not None or not model_info.complete)
        ]
        known = table.known[:, steps].any(axis=0)
        n_rows = table.ordinal[:, steps].max(axis=0, initial=0)
        had = _had(table, names, model_info)[:, steps]
        judged = known & (n_rows >= self.patience)
        judged &= have_lasted(table, self.patience)[steps]
        if any(parameters[name].has_gradient is None for name in names):
            every = list(parameters)
            judged &= _both_kinds(every, _had(table, every, model_info)[:, steps])
        missing = ~had & judged[np.newaxis, :]
        has_rows = table.known.any(axis=0)
        for since in sorted({thawed[name] for name in names if name in thawed}):
            late = np.array([thawed.get(name) == since for name in names])
            rows_since = np.cumsum(has_rows & (table.steps >= since))
            passed = table.steps - since + 1 >= min_span(self.patience)
            missing[late] &= (passed & (rows_since >= self.patience))[steps]
        by_design = _by_design(names, had, missing, model_info)
        evaluation = evaluate_first(
            table,
            steps,
            [GRADIENT + name for name in names],
            bad=missing,
            decided=judged & (had | missing),
            severity=Severity.WARNING,
            describe=lambda j: self._describe(
                names, missing[:, j], model_info, by_design=bool(by_design[j])
            ),
        )
        found = evaluation.severities == Severity.WARNING
        evaluation.severities[found & by_design[np.newaxis, :]] = Severity.INFO
        yield evaluation

    def _describe(
        self,
        names: Sequence[str],
        missing: Bools,
        model_info: ModelInfo,
        *,
        by_design: bool,
    ) -> Description:
        found = [name for name, bad in zip(names, missing, strict=True) if bad]
        first = model_info.parameters[found[0]]
        what, why = "no gradient", ""
        advice = _find_cut
        places = next(filter(_OF_PLACES.search, found), "")
        if places:
            why = (
                f" By its name, {places} tells places, and nothing uses it: attention, "
                "sums and means do not know the order of the inputs without it."
            )
            advice = partial(_add_places, places)
        if by_design:
            why = " A model of an installed package leaves them unused."
            advice = _leave_unused
        if first.cut_by is not None:
            what = "only zero gradients"
            why = f" They lie behind {first.cut_by}, whose gradient is zero everywhere."
            advice = _pass_through
        return Description(
            message=(
                f"{len(found):,} of {plural(len(names), 'parameter')} that require a "
                f"gradient {'has' if len(found) == 1 else 'have'} had {what} for at "
                f"least {plural(self.patience, 'recorded step')}: {join_names(found)}."
                f"{why}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=partial(advice, first, found[0]),
            # The remaining parameters do not explain why the model learns no better.
            stage=Stage.SETUP if _is_most(names, found, model_info) else None,
        )


def _find_cut(first: ParameterFacts, name: str, words: Vocabulary) -> str:
    what = f"the {first.module} of {name}" if first.module else name
    return (
        f"Check that the forward pass uses {what}, and that "
        f"nothing between it and the loss cuts it off: {words.graph_cuts}, or an "
        "operation without a gradient (argmax, a comparison). If you do not want to "
        f"train these parameters, {words.freezing}."
    )


def _add_places(
    places: str, first: ParameterFacts, name: str, words: Vocabulary
) -> str:
    del first, name
    return (
        f"Add {owner_of(places) or places} to the tokens in your forward pass: x = "
        "tokens + positions. If the model needs no order, remove it, or "
        f"{words.freezing}."
    )


def _leave_unused(first: ParameterFacts, name: str, words: Vocabulary) -> str:
    del first, name
    return (
        "Nothing, if you do not need what they compute. Data-parallel training may "
        f"require that you {words.freezing}."
    )


def _pass_through(first: ParameterFacts, name: str, words: Vocabulary) -> str:
    del name, words
    return (
        f"Pass the gradient straight through {first.cut_by}, as in x + "
        f"({first.cut_by}(x) - x).detach(), or use a function with a slope instead."
    )


def _had(table: Table, names: Sequence[str], model_info: ModelInfo) -> Bools:
    """Return, names x steps, which have had a gradient so far.

    Behind an operation that cuts the gradient off, zeros do not count.
    """
    index = {name.removeprefix(GRADIENT): i for i, name in enumerate(table.names)}
    result = np.zeros((len(names), len(table.steps)), dtype=bool)
    for row, name in enumerate(names):
        parameter, i = model_info.parameters[name], index.get(name)
        if parameter.cut_by is None:
            result[row] = parameter.has_gradient is True
        if i is not None:
            is_cut = parameter.cut_by is not None
            result[row] |= table.present[i] & ((table["l2"][i] != 0.0) | (not is_cut))
    had: Bools = np.logical_or.accumulate(result, axis=1)
    return had


def _by_design(
    names: Sequence[str], had: Bools, missing: Bools, model_info: ModelInfo
) -> Bools:
    """Find the steps at which only a part is missing that a package leaves unused.

    The rest of the model must learn, and no operation of the program cut the part off.
    """
    parameters = model_info.parameters
    models = [parameters[name].package_model for name in names]
    result: Bools = 2 * np.count_nonzero(missing, axis=0) < len(names)
    learns: dict[str | None, Bools] = {
        each: np.logical_or.reduce(had[[model == each for model in models]], axis=0)
        for each in set(models)
    }
    for row, (name, model) in enumerate(zip(names, models, strict=True)):
        if model is None or parameters[name].cut_by is not None:
            result &= ~missing[row]
        else:
            result &= ~missing[row] | learns[model]
    return result


def _is_most(names: Sequence[str], found: Sequence[str], model_info: ModelInfo) -> bool:
    """Return whether half of the parameters are missing, or all of an optimizer."""
    owners = Counter(model_info.parameters[name].optimizer for name in names)
    missing = Counter(model_info.parameters[name].optimizer for name in found)
    is_all = any(missing[each] == count for each, count in owners.items())
    return is_all or 2 * len(found) >= len(names)


def _both_kinds(names: Sequence[str], had: Bools) -> Bools:
    """Find the steps by which weights and biases have had gradients, if both exist.

    Otherwise the hook does not capture the gradients of one kind.
    """
    biases = np.array([is_bias(name) for name in names], dtype=bool)
    result: Bools = np.logical_or.reduce(had, axis=0)
    for kind in (biases, ~biases):
        if kind.any():
            result &= had[kind].any(axis=0)
    return result
