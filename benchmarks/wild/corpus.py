r"""The programs, the mistakes beside each, and what has to be said of a mistake.

A program is a file of ``programs/`` that anybody could have written.  The table beside
it, of the same name, says what it should print and which edits are mistakes:

    kind = "regression"
    style = "argparse main"
    seed = '"--seed", type=int, default=0'     # the one place of the seed
    steps = 880                                # of its optimizers
    metric = 'r2 (-?[\d.]+)'                  # printed; the last one counts
    healthy = ">= 0.38"

    [[mistake]]
    kind = "shapes that broadcast"             # of KINDS
    edit = [["return self.net(x).squeeze(-1)", "return self.net(x)"]]
    silent = "why the metric does not show it" # only if it does not

Mistakes are made, and seeds set, by replacing text which stands in the program once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["KINDS", "PROGRAMS", "Kind", "Mistake", "Program", "load", "replaced"]

PROGRAMS = Path(__file__).with_name("programs")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of mistake.

    Attributes:
        cause: What a finding says that names it, in its rule, message or advice.
        fix: What its advice says if it is how the mistake is mended.
    """

    cause: str
    fix: str


#: Kinds of mistakes, and what has to be said of each.
KINDS = {
    "gradients not cleared": Kind("not clear gradients", "zero_grad"),
    "learning rate too high": Kind(
        r"as large as the weight itself|gradient has exploded|not finite|has jumped",
        r"lower(ing)? the (learning )?rate|learning rate is too high",
    ),
    "learning rate too low": Kind("updates? (is|are) too small", "raise the learning"),
    "sum for mean in the loss": Kind(
        r"as large as the weight itself|gradient has exploded|not finite"
        r"|sum over the batch",
        r"scale of the loss|reduction|lower the learning rate|rate is too high",
    ),
    "frozen by mistake": Kind(
        "frozen|NotInOptimizer", "pretrained|thaw|requires_grad|optimizer"
    ),
    "not in the optimizer": Kind("in no optimizer", "optimizer"),
    "layers in a plain list": Kind(
        "in no optimizer|plain list|not registered", "ModuleList|register|optimizer"
    ),
    "steps are skipped": Kind("UnchangedTensor|not stepped|do not change", "step"),
    "the schedule ran out": Kind("ZeroLearningRate", "schedule"),
    "probabilities for scores": Kind(
        "(what|result of) a (softmax|sigmoid)", "softmax|sigmoid"
    ),
    "scores for probabilities": Kind(
        "(instead of|needs) (their )?logarithms", "softmax"
    ),
    "shapes that broadcast": Kind("broadcast", "shape"),
    "NaN in the data": Kind(
        "this (model )?(input|label).* is the first tensor", "leave out"
    ),
    "data in order": Kind("shuffl|sorted|all of the last .* are class", "shuffle"),
    "trained in eval()": Kind(r"trained in eval\(\)", r"model\.train\(\)"),
    "labels of other samples": Kind("labels", "labels"),
    "inputs not normalized": Kind("NotNormalizedData", "subtract|normalize|divide"),
    "targets not normalized": Kind("NotNormalizedData", "subtract|normalize|divide"),
    "bad initial weights": Kind("PoorWeightInitialization", "initial|draw"),
    "dead units": Kind("DeadRelu|AllZero", "bias|initial|dead ReLU"),
    "saturated units": Kind("SaturatedActivation", "normalize|initialize"),
    "classes out of balance": Kind("ClassImbalance", "more often|weight"),
    "learned by heart": Kind("Overfit|Overtraining", "more data|stop"),
    "vanishing gradient": Kind(
        "VanishingGradient|gradients shrink|outputs shrink", "ReLU|initial|normaliz"
    ),
    "cut out of the graph": Kind(
        "MissingGradient|VanishingGradient|UnchangedTensor|NotInOptimizer"
        "|without a graph",
        "detach",
    ),
    "wrong sign of the loss": Kind(
        "rose|rises|is the negative|without end", "sign|minus"
    ),
    "padding counts": Kind("NLPSequenceRatio", "padding|ignore"),
    "low precision": Kind("PrecisionLoss", "float32|autocast|GradScaler"),
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One edit of a program, and what is to be said of it.

    Attributes:
        name: What was done, if that is more than the kind.
        kind: Of ``KINDS``.
        edits: What is replaced, by what.
        cause: As of the kind, unless the table says another.
        fix: Likewise.
        silent: Why the metric does not show it; empty: it does.
    """

    name: str
    kind: str
    edits: tuple[tuple[str, str], ...]
    cause: str
    fix: str
    silent: str


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its table.

    Attributes:
        path: The file.
        kind: What it trains.
        style: Whose style it has.
        seed: The text with the seed, in which the last number is the seed.
        steps: How often its optimizers step; of several that take turns, one.
        metric: A pattern with one group, the figure that it prints.
        healthy: What the last figure is: ``>= 0.9`` or ``<= 1.5``.
        mistakes: Those that can be made in it.
    """

    path: Path
    kind: str
    style: str
    seed: str
    steps: int
    metric: str
    healthy: str
    mistakes: tuple[Mistake, ...]

    @property
    def name(self) -> str:
        """That of the file."""
        return self.path.stem

    def source(self, seed: int | None = None, mistake: Mistake | None = None) -> str:
        """The text of the program.

        Args:
            seed: The seed in place of its own; None: its own.
            mistake: One to make.

        Raises:
            ValueError: If a text that is to be replaced does not stand there once.
        """
        text = self.path.read_text(encoding="utf-8")
        if seed is not None:
            (*_, number) = _NUMBER.finditer(self.seed)
            other = f"{self.seed[: number.start()]}{seed}{self.seed[number.end() :]}"
            text = replaced(text, self.seed, other)
        elif text.count(self.seed) != 1:
            replaced(text, self.seed, self.seed)
        for old, new in mistake.edits if mistake else ():
            text = replaced(text, old, new)
        return text

    def is_well(self, figure: float | None) -> bool:
        """Whether a printed figure is that of a healthy training."""
        if figure is None:
            return False
        relation, limit = self.healthy.split()
        return figure >= float(limit) if relation == ">=" else figure <= float(limit)

    def figure(self, printed: str) -> float | None:
        """The last figure among what it printed; None if there is none."""
        found = re.findall(self.metric, printed)
        return float(found[-1]) if found else None


def replaced(text: str, old: str, new: str) -> str:
    """Replace a text that stands there exactly once.

    Raises:
        ValueError: If it does not.
    """
    count = text.count(old)
    if count != 1:
        msg = f"{old!r} stands there {count} times, not once"
        raise ValueError(msg)
    return text.replace(old, new)


def load(only: Sequence[str] = ()) -> list[Program]:
    """All programs, by name; with *only*, those whose names begin so."""
    tables = sorted(PROGRAMS.glob("*.toml"))
    return [
        _program(path) for path in tables if not only or path.stem.startswith((*only,))
    ]


def _program(path: Path) -> Program:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    mistakes = tuple(_mistake(one) for one in table.pop("mistake"))
    return Program(path=path.with_suffix(".py"), mistakes=mistakes, **table)


def _mistake(table: dict[str, Any]) -> Mistake:
    kind = KINDS[table["kind"]]
    return Mistake(
        name=table.get("name", table["kind"]),
        kind=table["kind"],
        edits=tuple((old, new) for old, new in table["edit"]),
        cause=table.get("cause", kind.cause),
        fix=table.get("fix", kind.fix),
        silent=table.get("silent", ""),
    )
