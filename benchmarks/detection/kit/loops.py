"""Training loops, for the cases whose mistake is not in the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from benchmarks.detection.kit.data import Split
from benchmarks.detection.kit.training import Shadow, Training


@dataclass(slots=True)
class Probe:
    """What a predicate may look at, at the end of a step.

    Gradients are still those that the step used; weights are those after it.

    Attributes:
        step: Training step, from 0.
        model: What is trained.
        shadow: Gives a copy of it in evaluation mode that nobody watches.
        split: The data.
        losses: Of all batches so far.
        validation: (training step, loss, accuracy) of all evaluations so far.
    """

    step: int
    model: nn.Module
    shadow: Shadow
    split: Split
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float, float]] = field(default_factory=list)

    def outputs(self) -> Tensor:
        """What the model says to all data it is trained on."""
        with torch.no_grad():
            out: Tensor = self.shadow()(self.split.x)
        return out

    def accuracy(self) -> float:
        """Share of all data it is trained on that is classified rightly."""
        return share_right(self.outputs(), self.split.y)


Predicate = Callable[[Probe], bool]
#: Makes a batch of inputs and targets for a step.
Batches = Callable[[int], tuple[Tensor, Tensor]]
#: Makes an optimizer of parameters.
Descent = Callable[[Iterable[nn.Parameter]], Optimizer]


def never(_: object) -> bool:
    """The predicate of a healthy training."""
    return False


def adam(rate: float = 1e-3, **more: object) -> Descent:
    """Adam, of all parameters of what is trained."""
    return lambda parameters: Adam(parameters, rate, **more)  # type: ignore[arg-type]


def adamw(rate: float, **more: object) -> Descent:
    """Likewise AdamW."""
    return lambda parameters: AdamW(parameters, rate, **more)  # type: ignore[arg-type]


def sgd(rate: float, momentum: float = 0.0, **more: object) -> Descent:
    """Likewise gradient descent."""
    return lambda parameters: SGD(parameters, rate, momentum, **more)  # type: ignore[arg-type]


@dataclass(slots=True)
class Loop:
    """The usual training of a model: random batches, and a step down for each.

    Attributes:
        t: The run of the case.
        model: Trained.
        split: Data.
        optimizer: Of the model, or what makes it.
        criterion: The loss.
        batch_size: Of random batches.
        batches: Other batches.
        epochs: Whether batches are of shuffled epochs.
        schedule: Stepped after each step.
        clip: Largest norm of all gradients together.
        zero_grad: False: gradients of all steps add up.
        validate_every: How often the model is evaluated on the validation data.
        before_step: Called between backward and step.
    """

    t: Training
    model: nn.Module
    split: Split
    optimizer: Optimizer | Descent
    criterion: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    _: KW_ONLY
    batch_size: int = 64
    batches: Batches | None = None
    epochs: bool = False
    schedule: LRScheduler | None = None
    clip: float | None = None
    zero_grad: bool = True
    validate_every: int = 0
    before_step: Callable[[int], object] | None = None

    def run(
        self,
        n_steps: int,
        *,
        visible: Predicate = never,
        learned: float | Predicate = 0.0,
        stop: Predicate = never,
    ) -> Probe:
        """Train, watched, and look at every step whether the fault is visible.

        Args:
            n_steps: How many steps.
            visible: Whether the fault can be seen.
            learned: The accuracy on all training data that a healthy run must have at
                the end, or another condition.
            stop: Whether to stop, asked after evaluations.
        """
        t, model = self.t, self.model
        made = self.optimizer
        optimizer = made if isinstance(made, Optimizer) else made(model.parameters())
        probe = Probe(0, model, Shadow(model), self.split)
        t.watch(model, self.criterion)
        rows = self._rows()
        for step in t.steps(n_steps):
            probe.step = step
            inputs, targets = self._batch(step, rows)
            if self.zero_grad:
                optimizer.zero_grad()
            loss = self.criterion(model(inputs), targets)
            loss.backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            if self.before_step is not None:
                self.before_step(step)
            optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            probe.losses.append(float(loss.detach()))
            validated = (
                bool(self.validate_every) and not (step + 1) % self.validate_every
            )
            if validated:
                self._validate(probe)
            t.visible(visible(probe))
            if validated and stop(probe):
                break
        self._conclude(probe, learned)
        return probe

    def _batch(self, step: int, rows: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
        if self.batches is not None:
            return self.batches(step)
        chosen = next(rows)
        return self.split.x[chosen], self.split.y[chosen]

    def _rows(self) -> Iterator[Tensor]:
        n = len(self.split.x)
        if self.epochs:
            yield from self.t.epochs(n, self.batch_size)
        while True:
            yield self.t.draw(n, min(self.batch_size, n))

    def _validate(self, probe: Probe) -> None:
        """A step of evaluation on the validation data."""
        x, y = self.split.x_val, self.split.y_val
        loss, outputs = self.t.evaluate(self.model, self.criterion, x, y)
        right = share_right(outputs, y) if y.dtype == torch.int64 else 0.0
        probe.validation.append((probe.step, loss, right))

    def _conclude(self, probe: Probe, learned: float | Predicate) -> None:
        """Say whether a healthy run has learned, and note what it reached."""
        if self.split.y.dtype == torch.int64:
            self.t.note(accuracy=probe.accuracy())
        if probe.losses:
            last = mean(probe.losses[-10:])
            self.t.note(first_loss=probe.losses[0], last_loss=last)
        if probe.validation:
            self.t.note(validation=probe.validation[-1][1])
        if callable(learned):
            self.t.learned(learned(probe))
        elif learned > 0:
            self.t.learned(probe.accuracy() >= learned)


def train(
    t: Training,
    loss_of: Callable[[int], Tensor],
    optimizer: Optimizer,
    *,
    n_steps: int,
    visible: Callable[[list[float]], object] = never,
    after_backward: Callable[[], object] | None = None,
    after_step: Callable[[int], object] | None = None,
) -> list[float]:
    """Step down losses of any form; the model is watched already.

    Args:
        t: The run of the case.
        loss_of: Gives the loss of a step.
        optimizer: Of what is trained.
        n_steps: How many steps.
        visible: Whether the fault can be seen by the losses so far.
        after_backward: Called between backward and step.
        after_step: Called after the step.

    Returns:
        The losses.
    """
    losses: list[float] = []
    for step in t.steps(n_steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        if after_backward is not None:
            after_backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if after_step is not None:
            after_step(step)
        t.visible(visible(losses))
    t.note(first_loss=losses[0], last_loss=mean(losses[-10:]))
    return losses


def descend(
    optimizer: Optimizer, loss: Tensor, schedule: LRScheduler | None = None
) -> float:
    """The usual end of a step; the loss as a number."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if schedule is not None:
        schedule.step()
    return float(loss.detach())


def pretrain(model: nn.Module, split: Split, n_steps: int, rate: float = 3e-3) -> None:
    """Train as somebody else has done before; nobody watches."""
    optimizer = Adam(model.parameters(), rate)
    luck = torch.Generator().manual_seed(7)
    for _ in range(n_steps):
        chosen = torch.randint(len(split.x), (64,), generator=luck)
        outputs = model(split.x[chosen])
        descend(optimizer, nn.functional.cross_entropy(outputs, split.y[chosen]))
    optimizer.zero_grad()


def shuffled(t: Training, split: Split, size: int) -> Batches:
    """Batches without replacement, one epoch after the other."""
    left: list[Tensor] = []

    def batch(_: int) -> tuple[Tensor, Tensor]:
        if not left:
            order = torch.randperm(len(split.x), generator=t.order)
            left.extend(torch.split(order, size)[: len(order) // size])
        chosen = left.pop()
        return split.x[chosen], split.y[chosen]

    return batch


def mean(values: Sequence[float]) -> float:
    """Of a list that is not empty."""
    return sum(values) / len(values)


def fell(t: Training, losses: Sequence[float], to: float, over: int = 10) -> bool:
    """Whether the loss has come to a share *to* of what it was in the beginning."""
    begin, end = mean(losses[:over]), mean(losses[-over:])
    t.note(begin=begin, end=end)
    return end <= to * begin


def share_right(outputs: Tensor, targets: Tensor) -> float:
    """Accuracy; of outputs with a single column, by their sign."""
    if outputs.shape[1] == 1:
        return float(((outputs > 0) == (targets > 0.5)).float().mean())
    return float((outputs.argmax(1) == targets).float().mean())


def accuracy(model: nn.Module, split: Split) -> float:
    """On the validation data, in evaluation mode and back, as people do it."""
    model.eval()
    with torch.no_grad():
        right = (model(split.x_val).argmax(1) == split.y_val).float().mean()
    model.train()
    return float(right)


def noted_accuracy(t: Training, model: nn.Module, split: Split) -> float:
    """Likewise, and noted."""
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    return right
