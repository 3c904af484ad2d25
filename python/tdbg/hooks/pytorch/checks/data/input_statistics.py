"""Compare what a model is given in evaluation with what it is trained on.

Means and deviations of each channel, of the first batches of both modes.  The batches
of training tell by how much batches differ, so that a small batch of evaluation, or
data of another kind, is no fault.  Three differences have only one explanation: the
channels have changed places, all are larger by one factor, or each batch of evaluation
was standardized by its own statistics.

Windows that are cut from a series overlap.  Split at random, a window of evaluation
stands between two of training that share nearly all of its values, also those that it
is to predict.  Split by time, it has training windows on one side only, and few do.  A
window is looked for by hashes of parts of it, at all shifts.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._C import _current_graph_task_id

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.data.scrambled_layouts import (
    ImageLayout,
    image_layout_of,
    mixed_layout,
)
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.call_context import NOT_IN_BACKWARD, is_traced
from tdbg.hooks.pytorch.model.variables import name_of_validation
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation
from tdbg.stats.windows import (
    LEAST_VALUES,
    Overlap,
    are_in,
    hashes_of,
    is_varied,
    overlap_between,
)

__all__ = ["InputStatistics", "WindowOverlap"]

# Batches of training and of evaluation, at most; of training at least.
_MOST_TRAINED, _MOST_EVALUATED, _LEAST_TRAINED = 32, 64, 8
# Batches of training whose layout is looked at.
_MOST_LAYOUTS = 2
# Elements of a batch that are read, and channels.
_MOST_ELEMENTS, _MOST_CHANNELS = 1 << 18, 64
# Batches with so few elements are kept until there is something to compare them with.
_FEW_ELEMENTS = 1 << 12
# Channels of images, whose places may be exchanged.
_IMAGE = {3, 4}
# Standard errors: of what differs, and of what is the same.
_FAR, _NEAR = 6.0, 3.0
# Share of a deviation by which means must differ to matter.
_MATTERS = 0.1
# Factors between evaluation and training that are no chance.
_SCALED, _ALIKE = 3.0, 0.1
# Samples of a batch that was standardized by itself, and how exact it then is.
_LEAST_SAMPLES, _EXACT = 4, 1e-3
# Evaluations at which names are read.
_MOST_NAMED = 2
# Time steps of a window, and windows of evaluation, at least.
_LEAST_STEPS, _LEAST_WINDOWS = 8, 32
# Time steps of a window, and elements in each, at most.
_MOST_STEPS, _MOST_WIDTH = 512, 64
# What is kept of training and of evaluation: elements and batches.
_MOST_KEPT, _MOST_BATCHES, _MOST_COMPARED = 1 << 20, 1024, 1 << 17
# The share of windows that were trained on themselves.
_OWN = 0.02
# By how much chance is excluded: that a window would never be drawn in training, while
# its neighbours are.
_CERTAIN = math.log(1e-6)

# Batches of training that must overlap somewhere, elements of these, and shifts.
_FIRST_BATCHES, _MOST_FIRST, _SHIFTS = 32, 1 << 17, 8


class _Batch(NamedTuple):
    """Statistics of a batch by channel.

    Attributes:
        n: Its samples.
        n_channels: Its channels.
        numbers: The means, the deviations, and some elements; on the batch's device.
        is_whole: Whether all elements were read.
    """

    n: int
    n_channels: int
    numbers: torch.Tensor
    is_whole: bool

    @property
    def mean(self) -> torch.Tensor:
        """The means."""
        return self.numbers[: self.n_channels]

    @property
    def deviation(self) -> torch.Tensor:
        """The deviations."""
        return self.numbers[self.n_channels : 2 * self.n_channels]

    @property
    def key(self) -> bytes:
        """Bytes that tell the batch from others, if it is here."""
        return self.numbers[2 * self.n_channels :].numpy().tobytes()

    def here(self) -> _Batch:
        """Return the batch in memory of the host, for which a device may be awaited."""
        return self._replace(numbers=self.numbers.cpu())


class InputStatistics:
    """Compare the inputs of a root in evaluation with those in training.

    Args:
        session: Writes what is seen.
        name: The beginning of the names of the root's inputs.

    Attributes:
        takes: Whether to call ``take`` as a call of the root begins: in evaluation
            mode, and in training mode.
    """

    __slots__ = (
        "_compares",
        "_evaluated",
        "_layouts",
        "_n_unnamed",
        "_name",
        "_session",
        "_trained",
        "_windows",
        "takes",
    )

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = f"{name}_input_0"
        self._trained: list[_Batch | torch.Tensor] = []
        self._evaluated: list[_Batch] = []
        self._layouts: list[ImageLayout] = []
        self._windows = WindowOverlap()
        # Evaluations whose variables are still to be read.
        self._n_unnamed = _MOST_NAMED
        # Whether statistics are compared, as for *takes*.
        self._compares = [True, True]
        self.takes = [True, True]

    def take(self, module: nn.Module, args: Sequence[Any]) -> None:
        """Take the inputs of a call that begins."""
        if _current_graph_task_id() != NOT_IN_BACKWARD:
            return
        if is_traced():
            return  # These are no numbers of a batch.
        given = next(iter(args), None)
        is_training = module.training and torch.is_grad_enabled()
        if is_training != module.training or type(given) is not torch.Tensor:
            return
        if not is_training and self._n_unnamed:
            self._look_at_names(sys._getframe(1), given)
        if self._compares[is_training]:
            self._take(given, is_training=is_training)
        if not is_recording():
            self._take_windows(given, is_training=is_training)
        windows = self._windows
        self.takes = [
            self._compares[False] or not windows.is_over or self._n_unnamed > 0,
            self._compares[True] or windows.needs_training,
        ]

    def _take(self, given: torch.Tensor, *, is_training: bool) -> None:
        if is_training and given.dim() == 4 and len(self._layouts) < _MOST_LAYOUTS:
            self._look_at_layout(given)
        found = _by_channel(given)
        if found is None:
            self._compares = [False, False]
        elif is_training:
            is_small = found.numel() <= _FEW_ELEMENTS
            self._trained.append(found.clone() if is_small else _batch_of(found))
            self._compares[True] = len(self._trained) < _MOST_TRAINED
        else:
            self._evaluated.append(_batch_of(found))
            n = len(self._evaluated)
            if n & (n - 1) == 0:
                self._judge()
            if n >= _MOST_EVALUATED:
                self._compares = [False, False]

    def _look_at_names(self, frame: FrameType, given: torch.Tensor) -> None:
        """Note what the program calls validation, where it evaluates."""
        self._n_unnamed -= 1
        name, certainty = name_of_validation(frame, given)
        if name:
            self._n_unnamed = 0
            numbers = {"certain": certainty}
            self._tell(Fault.VALIDATION_NAMED, numbers, {"name": name})

    def _look_at_layout(self, given: torch.Tensor) -> None:
        layout = None if is_recording() else image_layout_of(given)
        if layout is None:
            return
        self._layouts.append(layout)
        if len(self._layouts) == _MOST_LAYOUTS and (
            kind := mixed_layout(self._layouts)
        ):
            words = {"kind": kind, "shape": str(layout.shape)}
            self._tell(Fault.IMAGES_MIXED, {}, words)

    def _take_windows(self, given: torch.Tensor, *, is_training: bool) -> None:
        if is_training:
            if self._windows.needs_training:
                self._windows.train(given)
        elif not self._windows.is_over:
            found = self._windows.evaluate(given)
            if found is not None:
                numbers = {key: float(each) for key, each in found._asdict().items()}
                self._tell(Fault.WINDOWS_OVERLAP, numbers, {})

    def _judge(self) -> None:
        if len(self._trained) < _LEAST_TRAINED:
            return
        trained = [
            (_batch_of(each) if isinstance(each, torch.Tensor) else each).here()
            for each in self._trained
        ]
        evaluated = self._evaluated = [each.here() for each in self._evaluated]
        self._trained = [*trained]
        if len({each.n_channels for each in (*trained, *evaluated)}) > 1:
            return
        if _are_standardized(evaluated) and not _are_standardized(trained):
            self._observe(Fault.SCALED_BY_BATCH, {"batches": len(evaluated)})
            return
        order = _other_order(trained, evaluated)
        if order is not None:
            words = {"order": ", ".join(map(str, order))}
            self._observe(Fault.CHANNELS_EXCHANGED, {}, words)
        elif (factor := _factor(trained, evaluated)) is not None:
            self._observe(Fault.INPUTS_SCALED, {"factor": factor})

    def _observe(
        self,
        fault: Fault,
        numbers: dict[str, float],
        words: dict[str, str] | None = None,
    ) -> None:
        self._tell(fault, numbers, words or {})
        self._compares = [False, False]

    def _tell(
        self, fault: Fault, numbers: dict[str, float], words: dict[str, str]
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        names = (self._name,)
        self._session.observe(Observation(fault, step, names, numbers, words))


def _by_channel(given: torch.Tensor) -> torch.Tensor | None:
    """Return a batch with the channels in its second dimension; None: it has none."""
    sizes = given.shape
    if not given.is_floating_point() or len(sizes) not in {2, 4, 5}:
        return None
    if len(sizes) > 2 and sizes[-1] in _IMAGE and sizes[1] not in _IMAGE:
        given = given.movedim(-1, 1)
    has_channels = 0 < given.shape[1] <= _MOST_CHANNELS and given.numel()
    return given.detach() if has_channels else None


def _batch_of(given: torch.Tensor) -> _Batch:
    """Return the statistics of a batch with channels."""
    sizes, n_elements = given.shape, given.numel()
    with torch.no_grad():
        if n_elements > _MOST_ELEMENTS:
            every = math.ceil(n_elements / _MOST_ELEMENTS)
            given = given[::every] if len(sizes) == 2 else given[..., ::every]
        values = given.double().movedim(1, 0).flatten(1)
        deviation, mean = torch.std_mean(values, 1, correction=0)
        numbers = torch.cat([mean, deviation, values[:, :8].flatten()])
        is_whole = n_elements <= _MOST_ELEMENTS
        return _Batch(sizes[0], sizes[1], numbers, is_whole)


def _are_standardized(batches: Sequence[_Batch]) -> bool:
    """Return whether each batch has mean 0 and deviation 1, by its own statistics."""
    of_batches = [
        each for each in batches if each.n >= _LEAST_SAMPLES and each.is_whole
    ]
    return len({each.key for each in of_batches}) > 1 and all(
        bool((each.mean.abs() < _EXACT).all())
        and any(
            bool(((each.deviation * scale - 1).abs() < _EXACT).all())
            # Of samples, or of the population.
            for scale in (1.0, (each.n / (each.n - 1)) ** 0.5)
        )
        for each in of_batches
    )


def _other_order(
    trained: Sequence[_Batch], evaluated: Sequence[_Batch]
) -> tuple[int, ...] | None:
    """Return where the channels of evaluation are in training, if elsewhere."""
    n_channels = len(trained[0].mean)
    if n_channels not in _IMAGE:
        return None
    known = torch.stack([torch.stack([b.mean, b.deviation]) for b in trained])
    expected = known.mean(0)
    seen = torch.stack([torch.stack([b.mean, b.deviation]) for b in evaluated]).mean(0)
    # The same samples may be evaluated many times: count one batch.
    usual = sum(each.n for each in trained) / len(trained)
    share = usual / max(each.n for each in evaluated) + 1 / len(trained)
    errors = known.std(0) * share**0.5 + 1e-9
    places = {
        order: float(((seen - expected[:, order]).abs() / errors[:, order]).max())
        for order in itertools.permutations(range(n_channels))
    }
    same = tuple(range(n_channels))
    best = min(places, key=places.__getitem__)
    apart = float(((seen - expected)[0].abs() / expected[1].clamp(min=1e-9)).max())
    is_clear = places[same] > max(_FAR, 3 * places[best]) and places[best] < _NEAR
    return best if is_clear and apart > _MATTERS else None


def _factor(trained: Sequence[_Batch], evaluated: Sequence[_Batch]) -> float | None:
    """Return how many times as large all channels are in evaluation, if much so."""
    before, now = (
        torch.stack([each.deviation for each in batches])
        for batches in (trained, evaluated)
    )
    usual = before.mean(0)
    is_steady = bool((before.std(0) < 0.2 * usual).all())
    if not is_steady or bool((usual <= 0).any()):
        return None
    ratios = now.mean(0) / usual
    factor = float(ratios.median())
    if factor <= 0 or 1 / _SCALED < factor < _SCALED:
        return None
    is_one = bool(((ratios / factor - 1).abs() < _ALIKE).all())
    means = torch.stack([each.mean for each in trained]).mean(0)
    shift = (torch.stack([each.mean for each in evaluated]).mean(0) / factor) - means
    is_pure = bool((shift.abs() < 0.5 * usual).all())
    return factor if is_one and is_pure else None


# ---- windows of a series ------------------------------------------------------------


class WindowOverlap:
    """The windows that a model is given, in training and evaluation.

    Attributes:
        is_over: Whether it needs no more of them.
    """

    __slots__ = ("_evaluated", "_kept", "_n_kept", "_trained", "is_over")

    def __init__(self) -> None:
        self._trained: list[torch.Tensor] = []
        self._evaluated: list[torch.Tensor] = []
        self._n_kept = 0
        self.is_over = False

    @property
    def needs_training(self) -> bool:
        """Whether to call ``train``."""
        is_full = self._n_kept > _MOST_KEPT or len(self._trained) > _MOST_BATCHES
        return not (self.is_over or is_full)

    def train(self, given: torch.Tensor) -> None:
        """Keep a batch of training."""
        if not _has_windows(given):
            self._end()
            return
        self._trained.append(given.detach().clone())
        self._n_kept += given.numel()
        if len(self._trained) == _FIRST_BATCHES and not self._are_of_series():
            self._end()

    def _are_of_series(self) -> bool:
        """Return whether windows of training overlap: rows of a table do not."""
        shape = self._trained[0].shape[1:]
        rows = torch.cat(
            [each.cpu() for each in self._trained if each.shape[1:] == shape]
        )
        rows = rows[: max(1, _MOST_FIRST // rows[0].numel())]
        return any(_overlaps_itself(rows.movedim(i, 1)) for i in range(1, rows.dim()))

    def evaluate(self, given: torch.Tensor) -> Overlap | None:
        """Keep a batch of evaluation; return what overlaps, now and then."""
        if not self._trained:
            return None
        if not _has_windows(given) or given.shape[1:] != self._trained[0].shape[1:]:
            self._end()
            return None
        self._evaluated.append(given.detach().clone())
        n = len(self._evaluated)
        n_elements = sum(each.numel() for each in self._evaluated)
        is_full = n_elements > _MOST_COMPARED
        found = self._judge() if is_full or n & (n - 1) == 0 else None
        if is_full or found is not None:
            self._end()
        return found

    def _end(self) -> None:
        self.is_over = True
        self._trained.clear()
        self._evaluated.clear()

    def _judge(self) -> Overlap | None:
        shape = self._trained[0].shape[1:]
        before = torch.cat(
            [each.cpu() for each in self._trained if each.shape[1:] == shape]
        )
        now = [each.cpu() for each in self._evaluated]
        found = (_overlap_along(before, now, i) for i in range(1, before.dim()))
        return next((each for each in found if each is not None), None)


def _overlap_along(
    trained: torch.Tensor, evaluated: list[torch.Tensor], dim: int
) -> Overlap | None:
    """Return what overlaps, if time is a dimension.

    Whoever evaluates windows that were trained on means to: such a batch does not
    count.  Among windows that are drawn at random, it must be no chance that a batch
    has none.
    """
    before = trained.movedim(dim, 1)
    own = np.sort(hashes_of(before.numpy()))
    others = [
        each.movedim(dim, 1)
        for each in evaluated
        if are_in(hashes_of(each.movedim(dim, 1).numpy()), own).mean() <= _OWN
    ]
    if not others:
        return None
    now = torch.unique(torch.cat(others), dim=0)
    n, n_steps = now.shape[:2]
    if not _LEAST_STEPS <= n_steps <= _MOST_STEPS or n < _LEAST_WINDOWS:
        return None
    is_mixed = len(others) < len(evaluated)
    return overlap_between(before.numpy(), now.numpy(), _CERTAIN, 0.5 * is_mixed)


def _has_windows(given: torch.Tensor) -> bool:
    return (
        given.dim() in {2, 3}
        and given.is_floating_point()
        and given.dtype in {torch.float32, torch.float64}
        and max(given.shape[1:]) >= _LEAST_STEPS
        and given[:1].numel() <= _MOST_STEPS * _MOST_WIDTH
    )


def _overlaps_itself(windows: torch.Tensor) -> bool:
    """Return whether a window begins a few steps later than another one."""
    n_steps = windows.shape[1]
    if n_steps < _LEAST_STEPS:
        return False
    size, rows = max(LEAST_VALUES, n_steps // 2), windows.numpy()
    first = np.sort(hashes_of(rows[:, :size]))
    for i in range(1, min(_SHIFTS, n_steps - size) + 1):
        part = rows[:, i : i + size]
        equal = are_in(hashes_of(part), first)
        if equal.any() and bool(is_varied(part[equal]).any()):
            return True
    return False
