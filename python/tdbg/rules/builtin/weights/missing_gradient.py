"""MissingGradient: parameters that require a gradient and never get one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.rules.builtin.weights.model_info_rule import (
    ModelInfoRule,
    evaluate_first,
    have_lasted,
)
from tdbg.rules.columns import GRADIENT, is_bias, join_names
from tdbg.rules.registry import register
from tdbg.rules.table import min_span
from tdbg.rules.window import Bools, Description, Evaluation, Table
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["MissingGradient"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGradient(ModelInfoRule):
    """Report parameters that require a gradient and never get one, while others do.

    Information, where a model of an installed package leaves a small part of itself
    unused.

    Args:
        patience: Recorded steps with gradients of others that must have passed.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    patience: int = 5

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return (
            f"a parameter without a gradient, while others had one at {self.patience} "
            "recorded steps"
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
        """Compare parameters that require gradients with those that had some so far."""
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
        what, why = "none", ""
        advice = (
            f"see whether the {first.module} of {found[0]} is used in the forward, and "
            "whether a detach(), .data, .item(), a conversion to NumPy, no_grad() or "
            "an operation without a gradient (argmax, a comparison) between it and "
            "the loss cuts it off; what is not to be trained needs no gradient: "
            "requires_grad_(False)"
        )
        if by_design:
            why = ", which a model of an installed package leaves unused"
            advice = (
                "nothing, if what they compute is not what you want of this model; "
                "what is not to be trained needs no gradient: requires_grad_(False), "
                "which data-parallel training may ask for"
            )
        if first.cut_by is not None:
            what, why = "none but zeros", f", behind {first.cut_by}"
            advice = (
                f"the gradient of {first.cut_by} is zero everywhere: let it pass "
                f"straight through, as x + ({first.cut_by}(x) - x).detach() does, or "
                "take a function with a slope in its place"
            )
        return Description(
            message=(
                f"{len(found)} of {len(names)} parameters that require a gradient "
                f"have had {what} at {self.patience} recorded steps and more: "
                f"{join_names(found)}{why}"
            ),
            value=float(len(found)),
            threshold=0.0,
            advice=advice,
            # What is left of the model does not say why it learns no better.
            stage=Stage.SETUP if _is_most(names, found, model_info) else None,
        )


def _had(table: Table, names: Sequence[str], model_info: ModelInfo) -> Bools:
    """Names x steps: which have had a gradient until then.

    One that is cut off by an operation has zeros, which are none.
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
    """The steps at which all that is missing is a part that a package leaves unused.

    Of a model that learns otherwise; what is cut off by a program is all of it.
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
    """Whether half of all parameters are missing, or all that an optimizer has."""
    owners = Counter(model_info.parameters[name].optimizer for name in names)
    missing = Counter(model_info.parameters[name].optimizer for name in found)
    is_all = any(missing[each] == count for each, count in owners.items())
    return is_all or 2 * len(found) >= len(names)


def _both_kinds(names: Sequence[str], had: Bools) -> Bools:
    """The steps at which both weights and biases have had gradients, if there are both.

    Otherwise the gradients of one kind are not captured.
    """
    biases = np.array([is_bias(name) for name in names], dtype=bool)
    result: Bools = np.logical_or.reduce(had, axis=0)
    for kind in (biases, ~biases):
        if kind.any():
            result &= had[kind].any(axis=0)
    return result
