"""What a silent fault does, measured at the end of a training.

No loss of the training shows it.  So a case measures the fault by itself (do outputs
depend on what comes later?), and what a user would get (the accuracy on data that
nothing was trained on), by the right procedure for the sick training as for its twin.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.detection.kit.training import Training

__all__ = ["conclude", "held_out", "in_evaluation", "right"]


def conclude(
    t: Training, *, fault: object, reached: object, harms: bool = True
) -> None:
    """Say after the last step what came of a training.

    Args:
        t: The run of the case.
        fault: Whether the fault was measured.
        reached: Whether the model is as good as a healthy one must be.
        harms: Whether the fault shows only in a model that is not; False if on so
            small a task it does no harm.
    """
    t.note(fault=bool(fault), reached=bool(reached))
    t.visible(fault and not (harms and reached))
    t.learned(reached)


def in_evaluation(model: nn.Module, measure: Callable[[], Tensor]) -> Tensor:
    """Measure in evaluation mode, without gradients, and go back."""
    was = model.training
    model.eval()
    with torch.no_grad():
        measured = measure()
    model.train(was)
    return measured


def right(outputs: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest output is that of the label."""
    return float((outputs.argmax(-1) == labels).float().mean())


def held_out(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """The accuracy on these data, in evaluation mode."""
    return right(in_evaluation(model, lambda: model(inputs)), labels)
