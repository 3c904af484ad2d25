"""The usual training loop, for the cases whose mistake is not in the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.data import Split
from benchmarks.detection.corpus.training import Shadow, Training

__all__ = ["Batches", "Predicate", "Probe", "fit", "never", "share_right"]


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


def share_right(outputs: Tensor, targets: Tensor) -> float:
    """Accuracy; of outputs with a single column, by their sign."""
    if outputs.shape[1] == 1:
        return float(((outputs > 0) == (targets > 0.5)).float().mean())
    return float((outputs.argmax(1) == targets).float().mean())


def never(_: Probe) -> bool:
    """The predicate of a healthy training."""
    return False


def fit(
    t: Training,
    model: nn.Module,
    split: Split,
    optimizer: torch.optim.Optimizer,
    criterion: nn.Module | None = None,
    *,
    n_steps: int = 200,
    batch_size: int = 64,
    batches: Batches | None = None,
    visible: Predicate = never,
    learned: float | Predicate = 0.0,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    clip: float | None = None,
    zero_grad: bool = True,
    validate_every: int = 0,
    stop: Predicate = never,
    before_step: Callable[[int], None] | None = None,
) -> Probe:
    """Train, watched, and look at every step whether the fault is visible.

    Args:
        t: The run of the case.
        model: Trained.
        split: Data.
        optimizer: Of the model.
        criterion: Cross entropy, if it is not given.
        n_steps: How many steps.
        batch_size: Of random batches.
        batches: Other batches.
        visible: Whether the fault can be seen.
        learned: The accuracy on all training data that a healthy run must have at
            the end, or another condition.
        schedule: Stepped after each step.
        clip: Largest norm of all gradients together.
        zero_grad: False: gradients of all steps add up.
        validate_every: How often the model is evaluated on the validation data.
        stop: Whether to stop, asked after evaluations.
        before_step: Called between backward and step.
    """
    criterion = criterion or nn.CrossEntropyLoss()
    probe = Probe(0, model, Shadow(model), split)
    t.watch(model, criterion)
    for step in t.steps(n_steps):
        probe.step = step
        if batches is None:
            chosen = t.draw(len(split.x), min(batch_size, len(split.x)))
            inputs, targets = split.x[chosen], split.y[chosen]
        else:
            inputs, targets = batches(step)
        if zero_grad:
            optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if before_step is not None:
            before_step(step)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        probe.losses.append(float(loss.detach()))
        validated = validate_every and step % validate_every == validate_every - 1
        if validated:
            validate(t, probe, criterion)
        t.visible(visible(probe))
        if validated and stop(probe):
            break
    conclude(t, probe, learned)
    return probe


def validate(t: Training, probe: Probe, criterion: nn.Module) -> None:
    """A step of evaluation on the validation data."""
    loss, outputs = t.evaluate(
        probe.model, criterion, probe.split.x_val, probe.split.y_val
    )
    classes = probe.split.y_val.dtype == torch.int64
    right = share_right(outputs, probe.split.y_val) if classes else 0.0
    probe.validation.append((probe.step, loss, right))


def conclude(t: Training, probe: Probe, learned: float | Predicate) -> None:
    """Say whether a healthy run has learned, and note what it reached."""
    if probe.split.y.dtype == torch.int64:
        t.note(accuracy=probe.accuracy())
    if probe.losses:
        last = probe.losses[-10:]
        t.note(first_loss=probe.losses[0], last_loss=sum(last) / len(last))
    if probe.validation:
        t.note(validation=probe.validation[-1][1])
    if callable(learned):
        t.learned(learned(probe))
    elif learned > 0:
        t.learned(probe.accuracy() >= learned)
