"""What a model is given in the first steps: do other ranks, or the labels, have it?

Ranks compare a few numbers.  A column of the inputs that is the label itself leaves
nothing to learn.  A target that fits its image mirrored was flipped apart from it.  And
a model of transformers with one output takes two classes for numbers.

Thread safety: the training's thread.  Errors: none; what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.device.bits import first_sum, has_bits
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.call_context import is_in_transform, is_traced
from tdbg.hooks.pytorch.model.module_tree import IS_REPLICA, class_name
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["INPUTS_LOOK", "FirstInputs", "LabelsBesideInputs"]

# The look that has the inputs of the steps before, and the elements that are read.
INPUTS_LOOK, _MOST_OF_INPUT = 16, 1 << 18
# Samples that are compared with their labels, steps in which they are taken, and
# numbers of each, at most; samples, and labels of the rarest class, at least.
_MOST_SAMPLES, _MOST_STEPS, _MOST_COLUMNS = 256, 8, 4096
_LEAST_SAMPLES, _LEAST_OF_CLASS, _LEAST_VALUES = 64, 8, 16
_OWN = "transformers."
# Images: their dimensions, least side, and side when they are compared; those of a
# batch, and their elements, at most; how they may be mirrored.
_IMAGE_DIMENSIONS, _LEAST_SIDE, _SMALL_SIDE = 4, 6, 32
_MOST_IMAGES, _MOST_PIXELS = 64, 1 << 21
_MIRRORS: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (1, 2))
# A correlation that shows that a target fits, and by how much it is higher than others;
# samples that are decided, and the share of those that are mirrored, or are not.
_LIKE, _MORE_LIKE = 0.5, 0.2
_LEAST_IMAGES, _LEAST_APART = 16, 0.2
# How far from one the correlation of a column with the label may be, by rounding.
_ROUNDED = 1e-5


class FirstInputs:
    """Sums of the bits of what a model is given in the first steps: a few numbers.

    One of the checks of ``FirstBatches``.

    Attributes:
        is_open: Whether it must still hear of calls and steps.
    """

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._n = 0
        self._sums: dict[int, torch.Tensor] = {}

    def note_call(self, model: nn.Module, _: str, args: Any, kwargs: Any) -> None:
        """Note the first call of a registered module in a step of training."""
        is_training = model.training and torch.is_grad_enabled()
        if not is_training or self._n in self._sums or IS_REPLICA in vars(model):
            return
        if is_in_transform() or is_traced() or is_recording():
            return
        with contextlib.suppress(Exception), torch.no_grad():
            for each in pytree.tree_leaves((args, dict(kwargs or {}))):
                if has_bits(each) and each.dim() > 0:
                    self._sums[self._n] = first_sum(each.flatten()[:_MOST_OF_INPUT])
                    break

    def note_loss(self, _: Any) -> None:
        """Ignore what a loss is given."""

    def step_ends(self) -> None:
        """Note that an optimizer has stepped."""
        self._n += 1
        self.is_open &= self._n < INPUTS_LOOK

    def take(self) -> dict[int, torch.Tensor]:
        """Return the sums by step, which are on one device; look at no more inputs."""
        self.remove()
        sums, self._sums = self._sums, {}
        devices = {each.device for each in sums.values()}
        return sums if len(devices) == 1 else {}

    def remove(self) -> None:
        """Look at no more inputs."""
        self.is_open = False


class LabelsBesideInputs:
    """Finds a column of the inputs that is the label.  One of the checks of batches.

    Args:
        session: Receives observations.

    Attributes:
        is_open: Whether it must still hear of calls, losses and steps.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._given: torch.Tensor | None = None
        self._name = "model"
        self._n_steps = 0
        self._rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._shape: tuple[int, ...] = ()
        # Labels that a model with one output was given for its own loss.
        self._numbers: list[torch.Tensor] = []
        self._regression = ""
        self._flips = _Flips()
        self.is_open = True

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Note the inputs of a registered module."""
        is_training = model.training and torch.is_grad_enabled()
        if not is_training or IS_REPLICA in vars(model) or is_traced():
            return
        given: Any = next(iter((*args, *(kwargs or {}).values())), None)
        is_kept = _is_table(given) or _is_of_images(given)
        self._given, self._name = (given if is_kept else None), name
        if kwargs and "labels" in kwargs and self.is_open:
            self._note_own_loss(model, kwargs["labels"])

    def _note_own_loss(self, model: nn.Module, labels: Any) -> None:
        """Note labels that transformers takes for numbers, which nobody asked it to."""
        config: Any = getattr(model, "config", None)
        is_of_one = getattr(config, "num_labels", 0) == 1
        is_theirs = any(each.__module__.startswith(_OWN) for each in type(model).mro())
        if is_theirs and is_of_one and getattr(config, "problem_type", "") is None:
            self._regression = class_name(model)
        if self._regression and isinstance(labels, torch.Tensor):
            self._numbers.append(labels.detach().flatten()[:_MOST_SAMPLES])

    def note_loss(self, value: Any) -> None:
        """Note the labels of a loss, which belong to the latest inputs."""
        given, self._given = self._given, None
        if given is None or not self.is_open or is_traced() or is_recording():
            return
        with contextlib.suppress(Exception), torch.no_grad():
            args = value[0] if type(value) is tuple and len(value) == 2 else value
            outputs, labels = args[0], args[1]
            if given.dim() == _IMAGE_DIMENSIONS:
                self._flips.add(given.detach(), labels.detach())
                return
            n, shape = len(given), tuple(given.shape[1:])
            is_of_samples = (
                labels.numel() == n == len(outputs) and outputs.requires_grad
            )
            if is_of_samples and shape == (self._shape or shape):
                self._shape = shape
                columns = given.detach()[:_MOST_SAMPLES].flatten(1).double().cpu()
                few = labels.detach().flatten()[:_MOST_SAMPLES].double().cpu()
                self._rows.append((columns, few))

    def step_ends(self) -> None:
        """Compare if enough was seen; an optimizer has stepped."""
        if not self.is_open:
            return
        self._n_steps += 1
        is_enough = sum(len(labels) for _, labels in self._rows) >= _MOST_SAMPLES
        if is_enough or self._n_steps >= _MOST_STEPS:
            if self._numbers and not is_recording():
                with contextlib.suppress(Exception):
                    self._look_at_numbers(torch.cat(self._numbers))
            with contextlib.suppress(Exception), torch.no_grad():
                self._compare()
            self._look_at_flips()
            self.remove()

    def _look_at_flips(self) -> None:
        found, step = self._flips, max(0, self._session.latest_step(TRAIN)[0])
        if found.are_apart:
            n = found.n_as_is + found.n_mirrored
            numbers = {"mirrored": float(found.n_mirrored), "samples": float(n)}
            seen = Observation(Fault.FLIPPED_APART, step, (self._name,), numbers)
            self._session.run(self._session.observe, seen)

    def _look_at_numbers(self, labels: torch.Tensor) -> None:
        counts = [int((labels == each).sum()) for each in (0, 1)]
        if min(counts) < _LEAST_OF_CLASS or sum(counts) < len(labels):
            return
        step = max(0, self._session.latest_step(TRAIN)[0])
        fault, names = Fault.CLASSES_AS_NUMBERS, (self._regression,)
        seen = Observation(fault, step, names, {"samples": float(len(labels))})
        self._session.run(self._session.observe, seen)

    def _compare(self) -> None:
        columns = torch.cat([each for each, _ in self._rows])
        labels = torch.cat([each for _, each in self._rows])
        values, counts = torch.unique(labels, return_counts=True)
        is_varied = len(values) >= _LEAST_VALUES
        is_varied |= len(values) > 1 and int(counts.min()) >= _LEAST_OF_CLASS
        if len(labels) < _LEAST_SAMPLES or not is_varied:
            return
        equal = (columns == labels[:, None]).all(0)
        found, is_equal = equal.nonzero().flatten().tolist(), True
        if not found and len(self._shape) == 1:
            found, is_equal = _proportional(columns, labels), False
        if len(self._shape) == 2:
            # To remember what came earlier may be the task.
            last = (self._shape[0] - 1) * self._shape[1]
            found = [each for each in found if each >= last]
        if not found or 2 * len(found) > columns.shape[1]:
            return
        numbers = {"column": float(found[0]), "samples": float(len(labels))}
        place = f"[:, {found[0]}]"
        if len(self._shape) == 2:
            place = f"[:, -1, {found[0] % self._shape[1]}]"
        words = {"place": place, "how": "equal" if is_equal else "scaled"}
        fault, step = Fault.LABEL_AMONG_INPUTS, self._session.latest_step(TRAIN)[0]
        seen = Observation(fault, max(0, step), (self._name,), numbers, words)
        self._session.run(self._session.observe, seen)

    def remove(self) -> None:
        """Look at no more."""
        self.is_open = False
        self._given = None
        self._rows.clear()
        self._numbers.clear()


class _Flips:
    """Counts samples whose target fits their image as it is, and mirrored."""

    def __init__(self) -> None:
        self.n_as_is = self.n_mirrored = 0

    @property
    def are_apart(self) -> bool:
        """Whether many targets were flipped without their images, and many were not."""
        fewer, more = sorted((self.n_as_is, self.n_mirrored))
        return fewer + more >= _LEAST_IMAGES and fewer >= _LEAST_APART * (fewer + more)

    def add(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        """Compare images with targets of their size, by absolute correlations.

        Args:
            images: Samples x channels x height x width.
            targets: The same, or without channels.
        """
        size = images.shape[-2:]
        if targets.shape[-2:] != size or len(targets) != len(images):
            return
        of_one = images[0].numel() + targets[0].numel()
        n = max(1, min(_MOST_IMAGES, _MOST_PIXELS // of_one))
        one, other = (_small(each[:n], size) for each in (images, targets))
        like = [(one * other.flip(axes)).sum((1, 2)).abs() for axes in _MIRRORS]
        as_is, mirrored = like[0], torch.stack(like[1:]).amax(0)
        is_like = torch.maximum(as_is, mirrored) >= _LIKE
        self.n_as_is += int((is_like & (as_is >= mirrored + _MORE_LIKE)).sum())
        self.n_mirrored += int((is_like & (mirrored >= as_is + _MORE_LIKE)).sum())


def _small(images: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Return small images without channels, with mean 0 and norm 1."""
    gray = images.float().reshape(len(images), -1, *size).mean(1)
    height, width = (min(each, _SMALL_SIDE) for each in size)
    pooled = functional.adaptive_avg_pool2d(gray, (height, width)).double()
    centered: torch.Tensor = pooled - pooled.mean((1, 2), keepdim=True)
    norms: torch.Tensor = centered.square().sum((1, 2), keepdim=True).sqrt()
    return centered / norms.clamp_min(1e-12)


def _is_of_images(given: Any) -> bool:
    return (
        isinstance(given, torch.Tensor)
        and given.dim() == _IMAGE_DIMENSIONS
        and given.is_floating_point()
        and min(given.shape[-2:]) >= _LEAST_SIDE
    )


def _is_table(given: Any) -> bool:
    """Return whether inputs are rows of a table, or of steps, with several columns."""
    return (
        type(given) is torch.Tensor
        and given.is_floating_point()
        and given.dim() in {2, 3}
        and len(given) > 0
        and 1 < given.numel() // len(given) <= _MOST_COLUMNS
        and given.numel() <= _MOST_OF_INPUT
    )


def _proportional(columns: torch.Tensor, labels: torch.Tensor) -> list[int]:
    """Return the columns that are the labels on another scale."""
    x, y = columns - columns.mean(0), labels - labels.mean()
    sizes = x.square().sum(0).sqrt() * y.square().sum().sqrt()
    likeness = (x * y[:, None]).sum(0).abs() / sizes.clamp(min=1e-300)
    found: list[int] = (likeness > 1 - _ROUNDED).nonzero().flatten().tolist()
    return found
