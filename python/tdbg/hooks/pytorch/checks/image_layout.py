"""Find images whose numbers a reshape has scrambled.

``reshape(3, height, width)`` of an image (height, width, 3) changes no number, and no
shape is wrong.  But neighbours in an image are alike, and then the elements that are
alike are not those that the shape says are neighbours.  In memory, an interleaved image
(height, width, channels) repeats its channels: an element is like the one *channels*
places on, less like all others around that one, and like the one a line below.  A
planar image (channels, height, width) has none of that.

Thread safety: pure functions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["ImageLayout", "image_layout_of", "mixed_layout"]

# Channels of images, and pixels in a line or a column, at least.
_CHANNELS, _LEAST_SIDE = {3, 4}, 6
# Samples that tell something; samples that are read at most, and elements of each.
_LEAST_IMAGES, _MOST_IMAGES, _MOST_OF_IMAGE = 4, 16, 1 << 14
# Flags and symbols have few values, and images many; the elements that are compared.
_LEAST_VALUES, _MOST_VALUES = 32, 2048
# Ratios of squared differences between neighbours and others: in a line, and of lines.
_LIKE, _LIKE_LINES = 0.85, 0.5
# By how much differences of channels differ that are no channels.
_UNIFORM = 1.25


class ImageLayout(NamedTuple):
    """How the images of a batch lie in memory, by their numbers.

    Attributes:
        shape: Of the batch.
        kind: "interleaved" where the shape says planar; "planar" where a planar array
            was taken for an interleaved one, and then permuted; "": as it should be.
    """

    shape: tuple[int, ...]
    kind: str


def image_layout_of(given: torch.Tensor) -> ImageLayout | None:
    """Return how a batch of images (samples, channels, height, width) was made.

    None: it has no images, or not enough.

    Example:
        >>> luck = torch.Generator().manual_seed(0)
        >>> steps = torch.randn(8, 9, 9, 1, generator=luck).cumsum(1).cumsum(2)
        >>> images = steps + torch.tensor([0.0, 5.0, 15.0])  # The channels are last.
        >>> image_layout_of(images.reshape(8, 3, 9, 9)).kind
        'interleaved'
        >>> image_layout_of(images.permute(0, 3, 1, 2)).kind
        ''
    """
    if given.dim() != 4 or given.shape[1] not in _CHANNELS or given.is_complex():
        return None
    n, n_channels, height, width = given.shape
    has_lines = 4 * n_channels * width <= _MOST_OF_IMAGE
    if min(height, width) < _LEAST_SIDE or not has_lines or n < _LEAST_IMAGES:
        return None
    with torch.no_grad():
        some = given.detach()[:_MOST_IMAGES]
        lines = some.permute(0, 2, 3, 1)[:, : _MOST_OF_IMAGE // (n_channels * width)]
        planes = some[:, : 1 + _MOST_OF_IMAGE // (height * width)]
        flat, turned = (
            each.flatten(1)[:, :_MOST_OF_IMAGE].cpu().float()
            for each in (planes, lines)
        )
        n_values = len({*flat[:2, :_MOST_VALUES].flatten().tolist()})
        if n_values < _LEAST_VALUES or not bool(flat.isfinite().all()):
            return None
        kind = ""
        if _is_interleaved(flat, n_channels, width):
            kind = "interleaved"
        elif _is_planar(turned, n_channels, width):
            kind = "planar"
    return ImageLayout(tuple(given.shape), kind)


def mixed_layout(seen: list[ImageLayout]) -> str:
    """Return the kind of images that a reshape has mixed in all batches, or "".

    Args:
        seen: The layouts of several batches.
    """
    kinds = {each.kind for each in seen}
    return kinds.pop() if len(seen) > 1 and len(kinds) == 1 else ""


def _is_interleaved(flat: torch.Tensor, n_channels: int, width: int) -> bool:
    """Return whether each pixel has its channels together."""
    around = [k for k in range(1, 2 * n_channels) if k != n_channels]
    least = min(_difference(flat, k) for k in around)
    of_lines = [_difference(flat, k) for k in (width * n_channels, width)]
    return (
        0 < _difference(flat, n_channels) < _LIKE * least
        and of_lines[0] < _LIKE_LINES * of_lines[1]
    )


def _is_planar(flat: torch.Tensor, n_channels: int, width: int) -> bool:
    """Return whether each channel has its pixels together."""
    steps = (flat[:, 1:] - flat[:, :-1]) ** 2
    phases = [float(steps[:, i::n_channels].mean()) for i in range(n_channels)]
    by_distance = [_difference(flat, k) for k in range(1, n_channels + 1)]
    of_lines = [_difference(flat, k) for k in (width, width * n_channels)]
    return (
        0 < max(phases) < _UNIFORM * min(phases)
        and by_distance[0] < _LIKE * by_distance[1]
        and by_distance == sorted(by_distance)
        and of_lines[0] < _LIKE * of_lines[1]
    )


def _difference(flat: torch.Tensor, distance: int) -> float:
    """Return the mean squared difference of elements at a distance in a sample."""
    return float(((flat[:, distance:] - flat[:, :-distance]) ** 2).mean())
