"""How labels follow from tokens, and how long texts are without their padding.

Thread safety: the training's thread.  Errors: those of PyTorch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["TokenLabels", "is_array", "is_whole", "lengths_of", "shift_of"]

# The least of places that are compared, and the share that is equal at the right shift
# and at most equal at any other.
_LEAST, _EQUAL, _OTHERWISE = 64, 0.98, 0.7
_SHIFTS = (0, 1, 2)
# The share of sequences that end with padding, and of how many lengths they are.
_LEAST_PADDED_ROWS, _LEAST_LENGTHS = 0.25, 3


def is_array(value: object) -> bool:
    """Return whether a value is a tensor that has a dimension."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has whole numbers."""
    return tensor.dtype in {torch.int64, torch.int32, torch.int16, torch.uint8}


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
    tokens: torch.Tensor,
    labels: torch.Tensor,
    ignored: int = -100,
    *,
    is_batch_first: bool = True,
) -> TokenLabels | None:
    """Return how labels follow from tokens; None if they do not.

    Args:
        tokens: Whole numbers with two dimensions.
        labels: Whole numbers, as many, or fewer by up to two places of each sequence.
        ignored: The label that counts as none.
        is_batch_first: What is likely: labels that are the tokens fit both.

    Example:
        >>> tokens = torch.arange(100).reshape(2, 50)
        >>> shift_of(tokens[:, :-1], tokens[:, 1:])
        TokenLabels(shift=1, is_batch_first=True, first=(0, 0), last=(48, 48))
    """
    for is_first in (is_batch_first, not is_batch_first):
        rows = tokens if is_first else tokens.t()
        for length in range(rows.shape[1], max(0, rows.shape[1] - 3), -1):
            if labels.numel() != rows.shape[0] * length:
                continue
            shape = rows.shape[0], length
            labelled = labels.reshape(shape if is_first else shape[::-1])
            labelled = labelled if is_first else labelled.t()
            found = _shift(rows, labelled, ignored)
            if found is not None:
                ends = _ends((labelled >= 0) & (labelled != ignored))
                return TokenLabels(found, is_first, *ends)
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


def lengths_of(tokens: torch.Tensor) -> torch.Tensor | None:
    """Return the lengths of sequences without padding behind; None: there is none.

    Padding is a token that many sequences end with, and none has inside.
    """
    padding = tokens[:, -1].mode().values
    is_padding = tokens == padding
    width = tokens.shape[1]
    places = torch.arange(1, width + 1, device=tokens.device)
    lengths = (~is_padding * places).amax(1)
    is_inside = is_padding & (places <= lengths[:, None])
    share = float((lengths < width).double().mean())
    if bool(is_inside.any()) or share < _LEAST_PADDED_ROWS:
        return None
    return lengths if len({*lengths.tolist()}) >= _LEAST_LENGTHS else None
