"""What a case's program is given: the switch, the seed, and whom to tell what.

A program builds a model, tells ``watch`` about it, and loops over ``steps``.  In the
loop it tells ``visible`` whether the fault can be seen now, by a measurement of its
own on the model's tensors, and at the end ``learned`` whether the training has reached
what a healthy one must reach.  Nothing here knows tdbg: whoever wants to watch passes
an observer.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Hooks", "Observer", "Outcome", "Shadow", "Training"]

#: Given a framework's name, returns what is passed to its callbacks; None: nothing.
Hooks = Callable[[str], Any]
#: Given the name of the run, the model, its losses, and the optimizer that steps.
Observer = Callable[
    [str, nn.Module, list[nn.Module], torch.optim.Optimizer | None], None
]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of running a case.

    Attributes:
        visible_at: The first training step at which the fault can be seen, from 0.
        global_steps: Of each training step, its number with steps of evaluation
            counted too.
        learned: Whether it reached what a healthy training must; None: not said.
        figures: What was measured, for people.
        hangs: (training step after which nothing comes, for how many seconds).
        seconds: How long it took.
    """

    visible_at: int | None = None
    global_steps: list[int] = field(default_factory=list)
    learned: bool | None = None
    figures: dict[str, float] = field(default_factory=dict)
    hangs: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def n_steps(self) -> int:
        """How many training steps there were."""
        return len(self.global_steps)


class Training:
    """One run of one case.

    Attributes:
        sick: Whether to make the mistake.
        seed: Of the initial weights and the order of the data.
        outcome: What has come of it so far.
    """

    def __init__(
        self,
        *,
        sick: bool,
        seed: int,
        observer: Observer | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.sick = sick
        self.seed = seed
        self.outcome = Outcome()
        self._observer = observer
        self._hooks = hooks
        self._next_global = 0
        self._run = "run"
        self._began = time.perf_counter()
        torch.manual_seed(seed)
        #: For the order of data, apart from weights and dropout.
        self.order = torch.Generator().manual_seed(seed + 1000)

    def watch(
        self,
        model: nn.Module,
        *losses: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Have the model watched, if anybody wants to."""
        if self._observer is not None:
            self._observer(self._run, model, list(losses), optimizer)

    def callbacks(self, framework: str) -> list[Any]:
        """What to pass to the callbacks of Keras, XGBoost or LightGBM, if anything."""
        return [] if self._hooks is None else [self._hooks(framework)]

    def jit(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a step of JAX, watched if anybody wants to."""
        import jax

        if self._hooks is None:
            return jax.jit(step)
        compiled: Callable[..., Any] = self._hooks("jax").jit(step)
        return compiled

    def counted(self, n: int) -> None:
        """Count so many training steps, which a framework's own loop does."""
        for _ in self.steps(n):
            pass

    def steps(self, n: int) -> Iterator[int]:
        """Count *n* training steps; the body must step the optimizer once."""
        for step in range(n):
            if self._run == "run":
                self.outcome.global_steps.append(self._next_global)
                self._next_global += 1
            yield step
        self.outcome.seconds = time.perf_counter() - self._began

    def evaluate(
        self, model: nn.Module, criterion: nn.Module, inputs: Tensor, targets: Tensor
    ) -> tuple[float, Tensor]:
        """One step of evaluation on the watched model; its loss and outputs."""
        model.eval()
        with torch.no_grad():
            outputs = model(inputs)
            loss = criterion(outputs, targets)
        model.train()
        if self._run == "run":
            self._next_global += 1
        return float(loss), outputs

    def visible(self, holds: object) -> None:
        """Say at the end of a step whether the fault can be seen now."""
        if bool(holds) and self._run == "run" and self.outcome.visible_at is None:
            self.outcome.visible_at = self.outcome.n_steps - 1

    def learned(self, holds: object) -> None:
        """Say at the end whether it is as good as a healthy training must be."""
        self.outcome.learned = bool(holds) and self.outcome.learned is not False

    def note(self, **figures: float) -> None:
        """Remember figures for those who verify the corpus."""
        self.outcome.figures.update({k: float(v) for k, v in figures.items()})

    def hang(self, seconds: float) -> None:
        """Say that a real training would do nothing for so long now."""
        self.outcome.hangs.append((self.outcome.n_steps - 1, seconds))

    @contextmanager
    def other_run(self) -> Iterator[None]:
        """Train something else that is to be compared with the run of the case."""
        self._run = "other"
        try:
            yield
        finally:
            self._run = "run"

    def draw(self, n: int, size: int) -> Tensor:
        """Indices of a random batch, with replacement."""
        return torch.randint(n, (size,), generator=self.order)

    def epochs(
        self, n_rows: int, size: int, *, drop_last: bool = False
    ) -> Iterator[Tensor]:
        """Indices of batches, epoch after epoch, shuffled like a DataLoader."""
        while True:
            for batch in torch.randperm(n_rows, generator=self.order).split(size):
                if not drop_last or len(batch) == size:
                    yield batch

    def batches(
        self, n: int, n_rows: int, size: int, *, drop_last: bool = False
    ) -> Iterator[tuple[int, Tensor]]:
        """Count *n* training steps, each with the rows of a shuffled batch."""
        drawn = self.epochs(n_rows, size, drop_last=drop_last)
        for step in self.steps(n):
            yield step, next(drawn)


class Shadow:
    """A copy of a model that nobody watches, to measure on.

    Must be made before the model is watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copy = copy.deepcopy(model)

    def __call__(self) -> nn.Module:
        """The copy with the model's present parameters and buffers, for evaluation."""
        with torch.no_grad():
            for into, of in (
                (self._copy.parameters(), self._model.parameters()),
                (self._copy.buffers(), self._model.buffers()),
            ):
                for mine, theirs in zip(into, of, strict=True):
                    mine.copy_(theirs)
        return self._copy.eval()
