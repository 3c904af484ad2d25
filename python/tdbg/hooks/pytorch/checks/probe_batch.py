"""The first batch of a training, as far as a probe of the model needs it.

Some samples of all inputs are copied; from then on nothing of the batch is kept alive.

Thread safety: the training's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

__all__ = [
    "LEAST_ROWS",
    "FirstBatch",
    "GivenLoss",
    "ModelCall",
    "TokenLabels",
    "Unsuitable",
    "is_array",
    "is_whole",
    "shift_of",
]

# Samples that are taken, and the bytes of all inputs together.
LEAST_ROWS, _MOST_ROWS, _MOST_BYTES = 4, 16, 4 << 20
# Elements of inputs and of labels that are compared.
_MOST_TOKENS = 1 << 16
# The least of places that are compared, and the share that is equal at the right shift
# and at most equal at any other.
_LEAST, _EQUAL, _OTHERWISE = 64, 0.98, 0.7
_SHIFTS = (0, 1, 2)
_PLAIN = (torch.Tensor, type(None), bool, int, float, str)


class Unsuitable(Exception):
    """Why a model is left alone; completes "The model was not probed: "."""


class ModelCall(NamedTuple):
    """The arguments of a call, flat.

    Attributes:
        leaves: Tensors and plain values.
        spec: How they are nested.
    """

    leaves: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> ModelCall:
        """Return the arguments of a call."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs or {})))
        return cls(tuple(leaves), spec)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that have a dimension."""
        return [each for each in self.leaves if is_array(each)]

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> ModelCall:
        """Return a call with other tensors."""
        leaves = [function(each) if is_array(each) else each for each in self.leaves]
        return self._replace(leaves=tuple(leaves))

    def replace(self, index: int, tensor: torch.Tensor) -> ModelCall:
        """Return a call with another tensor in one place."""
        leaves = self.leaves[:index], (tensor,), self.leaves[index + 1 :]
        return self._replace(leaves=sum(leaves, ()))

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with tensors that the model may change."""
        leaves = [
            each.clone() if isinstance(each, torch.Tensor) else each
            for each in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs


class GivenLoss(NamedTuple):
    """What a loss was given.

    Attributes:
        outputs: The shape of the predictions.
        shape: The shape of the labels.
        labels: Labels that are whole numbers; None: they are not, or too many.
        ignored: The label that counts as none.
    """

    outputs: torch.Size
    shape: torch.Size
    labels: torch.Tensor | None
    ignored: int

    @classmethod
    def of(cls, value: Any) -> GivenLoss | None:
        """Return what a loss was given; None without predictions and labels.

        Args:
            value: Its arguments, or a pair of these and of those by name.
        """
        found = [each for each in pytree.tree_leaves(value) if is_array(each)]
        if len(found) < 2 or not found[0].is_floating_point():
            return None
        labels, ignored = found[1].detach(), -100
        if type(value) is tuple and len(value) == 2 and isinstance(value[1], dict):
            ignored = int(value[1].get("ignore_index", ignored))
        is_kept = is_whole(labels) and labels.numel() <= _MOST_TOKENS
        kept = labels.clone() if is_kept else None
        return cls(found[0].shape, labels.shape, kept, ignored)

    def is_of_rows(self, n: int) -> bool:
        """Return whether there is one label, or one row of labels, for each sample.

        As many classes as samples may be the samples: they are compared on purpose.
        """
        if not self.outputs or self.outputs[0] != n or self.shape[0] != n:
            return False
        is_of_classes = len(self.shape) == 1 and len(self.outputs) == 2
        is_of_classes &= self.outputs[-1] != n
        return is_of_classes or self.outputs == self.shape


class FirstBatch:
    """The first batch of a training.

    Args:
        call: The call of the model with this batch; not kept alive.

    Attributes:
        call: The call with some of the samples.
        n: Samples in the whole batch, if dimension 0 of all inputs counts them; else 0.
        tokens: All tokens of the inputs that are some, by the index of the leaf.
        widths: How many places the first of these had in the batches so far.
        losses: What the losses of this batch were given.

    Raises:
        Unsuitable: If the inputs are none that can be kept.
    """

    def __init__(self, call: ModelCall) -> None:
        for each in call.leaves:
            if not isinstance(each, _PLAIN):
                msg = f"its inputs hold a {type(each).__name__}"
                raise Unsuitable(msg)
            if isinstance(each, torch.Tensor) and _is_odd(each):
                msg = "its inputs hold a sparse or a nested tensor"
                raise Unsuitable(msg)
        if not call.tensors():
            msg = "its inputs hold no tensors"
            raise Unsuitable(msg)
        sizes = {each.shape[0] for each in call.tensors()}
        self.n = sizes.pop() if len(sizes) == 1 else 0
        self.call = _some(call, self.n)
        self.tokens = {
            i: each.detach().clone()
            for i, each in enumerate(call.leaves)
            if is_array(each)
            and is_whole(each)
            and each.dim() == 2
            and each.numel() <= _MOST_TOKENS
        }
        self.widths = {each.shape[1] for each in [*self.tokens.values()][:1]}
        self.losses: list[GivenLoss] = []
        self._next: torch.Tensor | None = None
        self._is_same_size = False
        self._autocast = {
            device: torch.get_autocast_dtype(device)
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        }

    def note_next(self, call: ModelCall) -> None:
        """Note a later batch."""
        for i in [*self.tokens][:1]:
            if i < len(call.leaves) and is_array(call.leaves[i]):
                self.widths.add(int(call.leaves[i].shape[-1]))
        tensors = call.tensors()
        if self._next is None and tensors:
            first = self.call.tensors()[0]
            self._is_same_size = tensors[0].shape[0] == self.n
            self._next = tensors[0].detach()[: first.shape[0]].clone()

    @property
    def is_one_of_many(self) -> bool:
        """Whether another batch came next, with as many samples.

        The nodes of a graph come as the same batch each time, and the places of a
        sequence as another number.
        """
        first, other = self.call.tensors()[0], self._next
        if other is None or not self._is_same_size or other.shape != first.shape:
            return False
        return not torch.equal(other, first)

    @property
    def is_narrow(self) -> bool:
        """Whether the model computes with fewer digits than float32 has."""
        return bool(self._autocast)

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Compute in the number formats in which this batch was computed."""
        with contextlib.ExitStack() as stack:
            for device, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(device, dtype))
            yield

    def token_labels(self) -> tuple[int, TokenLabels] | None:
        """Return the input whose tokens are the labels, as its index, and how.

        Of several losses the one with the labels that are nearest to the next token
        counts: a model may guess the next but one, too.
        """
        found = [
            (i, shift)
            for i, tokens in self.tokens.items()
            for loss in self.losses
            if loss.labels is not None
            and (shift := shift_of(tokens, loss.labels, loss.ignored)) is not None
        ]
        return min(found, key=lambda each: abs(each[1].shift - 1), default=None)


def is_array(value: object) -> bool:
    """Return whether a value is a tensor that has a dimension."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has whole numbers."""
    return tensor.dtype in {torch.int64, torch.int32, torch.int16, torch.uint8}


def _is_odd(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no elements that can be taken by their places."""
    return tensor.layout is not torch.strided or bool(tensor.is_nested)


def _some(call: ModelCall, n: int) -> ModelCall:
    """Return a call with some samples, or with all if inputs do not say what these are.

    Raises:
        Unsuitable: If they are too large.
    """
    size = sum(each.numel() * each.element_size() for each in call.tensors())
    rows = n
    if n > LEAST_ROWS:
        fitting = _MOST_BYTES * n // max(1, size)
        rows = min(n, max(LEAST_ROWS, min(_MOST_ROWS, fitting)))
        size = size * rows // n
    if size > 4 * _MOST_BYTES:
        msg = f"its inputs are larger than {4 * _MOST_BYTES >> 20} MiB"
        raise Unsuitable(msg)
    return call.map(lambda each: (each[:rows] if n else each).detach().clone())


class TokenLabels(NamedTuple):
    """How labels follow from the tokens of an input.

    Attributes:
        shift: The label at a place is the token so many places later.
        is_batch_first: Whether the input has the shape (batch, place); else it is
            (place, batch).
        first: The first place of each sequence whose label counts.
        last: The last one.
    """

    shift: int
    is_batch_first: bool
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()


def shift_of(
    tokens: torch.Tensor, labels: torch.Tensor, ignored: int = -100
) -> TokenLabels | None:
    """Return how labels follow from tokens; None if they do not.

    Args:
        tokens: Whole numbers with two dimensions.
        labels: Whole numbers, as many, or fewer by up to two places of each sequence.
        ignored: The label that counts as none.

    Example:
        >>> tokens = torch.arange(100).reshape(2, 50)
        >>> shift_of(tokens[:, :-1], tokens[:, 1:])
        TokenLabels(shift=1, is_batch_first=True, first=(0, 0), last=(48, 48))
    """
    for is_batch_first in (True, False):
        rows = tokens if is_batch_first else tokens.t()
        for length in range(rows.shape[1], max(0, rows.shape[1] - 3), -1):
            if labels.numel() != rows.shape[0] * length:
                continue
            shape = rows.shape[0], length
            labelled = labels.reshape(shape if is_batch_first else shape[::-1])
            labelled = labelled if is_batch_first else labelled.t()
            found = _shift(rows, labelled, ignored)
            if found is not None:
                ends = _ends((labelled >= 0) & (labelled != ignored))
                return TokenLabels(found, is_batch_first, *ends)
    return None


def _ends(counts: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the last place of each sequence that counts."""
    n = counts.shape[1]
    first = counts.int().argmax(1)
    last = n - 1 - counts.flip(1).int().argmax(1)
    return tuple(map(int, first)), tuple(map(int, last))


def _shift(tokens: torch.Tensor, labels: torch.Tensor, ignored: int) -> int | None:
    shares = [_share_equal(tokens, labels, each, ignored) for each in _SHIFTS]
    best = max(shares)
    if best < _EQUAL or sorted(shares)[-2] > _OTHERWISE:
        return None
    return _SHIFTS[shares.index(best)]


def _share_equal(
    tokens: torch.Tensor, labels: torch.Tensor, shift: int, ignored: int
) -> float:
    """Return the share of labels that are the token *shift* places later."""
    n = min(labels.shape[1], tokens.shape[1] - shift)
    if n <= 0:
        return 0.0
    labelled, found = labels[:, :n], tokens[:, shift : shift + n]
    counts = (labelled >= 0) & (labelled != ignored)
    n_places = int(counts.sum())
    if n_places < _LEAST:
        return 0.0
    return float((labelled == found)[counts].double().mean())
