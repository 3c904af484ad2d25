"""What a comparison of two runs says, as values that a program can read.

Thread safety: values that never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tdbg.compare.pairing import MissingName
from tdbg.compare.setup import Value
from tdbg.config.quantities import plural, reach

__all__ = ["ComparedSteps", "DiffEvidence", "RunDiff", "TensorDifference"]


@dataclass(frozen=True, slots=True)
class DiffEvidence:
    """One number of a tensor in both runs.

    Attributes:
        what: What the number is: "rms", or "element [0, 7]".
        first: In the first run.
        second: In the second.
    """

    what: str
    first: float
    second: float

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {"what": self.what, "values": [self.first, self.second]}


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """The first step at which a tensor or number of two runs differs.

    Attributes:
        name: Its name in the first run.
        other_name: Its name in the second one.
        role: What it is: weight, gradient, output, loss, ...
        module: The module that makes or holds it; empty if none is known.
        module_class: The class of that module; likewise.
        mode: The mode of the step.
        step: Where the step stands in the training, or as the caller counts it.
        by: "values", "statistics", "number" or "shape": what was compared.
        deviation: How far the runs are apart, relative to the tensor's size.
        tolerance: The deviation that is still no difference.
        note: What else is known of it, such as that it matches transposed.
        evidence: Numbers of both runs; only for the first difference.
    """

    name: str
    other_name: str
    role: str
    module: str
    module_class: str
    mode: str
    step: int
    by: str
    deviation: float
    tolerance: float
    note: str = ""
    evidence: tuple[DiffEvidence, ...] = ()

    @property
    def excess(self) -> float:
        """How many times the tolerance the deviation is; infinite for no tolerance."""
        return self.deviation / self.tolerance if self.tolerance else float("inf")

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        names = ("name", "other_name", "role", "module", "module_class", "mode", "step")
        numbers = ("by", "deviation", "tolerance", "excess", "note")
        document = {name: getattr(self, name) for name in (*names, *numbers)}
        return document | {"evidence": [each.to_json() for each in self.evidence]}


@dataclass(frozen=True, slots=True)
class ComparedSteps:
    """How many steps of a mode were compared.

    Attributes:
        modes: The mode, as each run has it.
        n: How many steps both recorded.
        recorded: How many each recorded.
        n_judged: At how many of them a deviation would have been a difference.
        n_not_judged: At how many of them none would have been, because what the
            tolerance comes from says nothing there.  Data, and settings of optimizers,
            are judged all the same.
        not_judged: The first and the last of these; None if there is none.
    """

    modes: tuple[str, str]
    n: int
    recorded: tuple[int, int]
    n_judged: int
    n_not_judged: int
    not_judged: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """What is different in two runs; made by ``tdbg.diff``.

    Attributes:
        runs: What the runs are called.
        differences: One for each tensor or number that differs, by step, and at one
            step in the order of execution.
        missing: Parameters and gradients that only one run has, though the other
            records their kind: they count as differences.
        not_compared: Other tensors that only one run has, as of another schedule or
            another way to capture.
        settings: Configuration and hyperparameters that are not the same, with what
            each run says.  They do not count as differences.
        dtypes: Element types that differ, and how many tensors have them.
        layouts: Tensors whose dimensions stand in another order, or are joined, and
            that were compared all the same: what each is.
        without_effect: Parameters that differ after an update, while nothing that is
            computed of them does.
        steps: The steps that were compared, by mode.
        n_names: How many tensors and numbers were compared.
        n_by_values: How many of them by their values at one step at least.
        roundoff: The coarsest unit roundoff of any tensor.
        reduction: The longest sum that was found in the model.
        layers: How many outputs of modules were found in a forward.
        n_updates: After more updates than these, rounding judges nothing.
        has_samples: Whether both recorded what they computed of all samples; otherwise
            inputs, outputs and losses are not compared.
        tolerance: What tolerances come from: "rounding", "noise" or "given".
    """

    runs: tuple[str, str]
    differences: tuple[TensorDifference, ...]
    missing: tuple[MissingName, ...]
    not_compared: tuple[MissingName, ...]
    settings: tuple[tuple[str, tuple[Value | None, ...]], ...]
    dtypes: tuple[tuple[str, str, int], ...]
    layouts: tuple[tuple[str, str], ...]
    without_effect: tuple[str, ...]
    steps: tuple[ComparedSteps, ...]
    n_names: int
    n_by_values: int
    roundoff: float
    reduction: int
    layers: int
    n_updates: int
    has_samples: bool
    tolerance: str

    @property
    def first(self) -> TensorDifference | None:
        """The first tensor in execution order at the first step that differs."""
        return self.differences[0] if self.differences else None

    @property
    def is_same(self) -> bool:
        """Whether nothing differs that counts."""
        return not self.differences and not self.missing

    @property
    def n_steps(self) -> int:
        """How many steps were compared."""
        return sum(each.n for each in self.steps)

    @property
    def n_judged(self) -> int:
        """At how many of them a deviation would have been a difference."""
        return sum(each.n_judged for each in self.steps)

    @property
    def caveat(self) -> str:
        """Which steps were not judged, why, and what to do; empty if all were."""
        told = [
            f"{each.n_not_judged:,} of {each.n:,} {each.modes[0]} steps "
            f"({reach(*each.not_judged)})"
            for each in self.steps
            if each.not_judged
        ]
        if not told:
            return ""
        why = (
            "the noise runs are as far apart as their tensors are large"
            if self.tolerance == "noise"
            else f"after {plural(self.n_updates, 'update')}, healthy runs part by more "
            "than rounding can be held to"
        )
        advice = (
            "noise measured between longer or other runs may judge them"
            if self.tolerance == "noise"
            else "--noise with a second run of the same program judges them"
        )
        return f"not judged: {' and '.join(told)}: {why}; {advice}"

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "runs": list(self.runs),
            "same": self.is_same,
            "first": None if self.first is None else self.first.to_json(),
            "differences": [each.to_json() for each in self.differences],
            "missing": _missing(self.missing),
            "not_compared": _missing(self.not_compared),
            "settings": [
                {"name": name, "values": list(values)} for name, values in self.settings
            ],
            "dtypes": [
                {"dtypes": [one, other], "tensors": n} for one, other, n in self.dtypes
            ],
            "layouts": [{"name": name, "layout": how} for name, how in self.layouts],
            "without_effect": list(self.without_effect),
            "steps": [
                {
                    "modes": list(s.modes),
                    "recorded": list(s.recorded),
                    "compared": s.n,
                    "judged": s.n_judged,
                    "not_judged": s.not_judged and list(s.not_judged),
                }
                for s in self.steps
            ],
            "caveat": self.caveat,
            "samples": self.has_samples,
            "tensors": self.n_names,
            "tensors_by_values": self.n_by_values,
            "tolerance": {
                "from": self.tolerance,
                "roundoff": self.roundoff,
                "reduction": self.reduction,
                "layers": self.layers,
                "updates": self.n_updates,
            },
        }


def _missing(names: Sequence[MissingName]) -> list[dict[str, Any]]:
    return [
        {"name": e.name, "role": e.role, "run": e.run, "hint": e.hint} for e in names
    ]
