"""Histograms of tensors: quantiles, shares, merging, and losses in narrow types.

The bins are log-linear, 128 to each power of two: docs/statistics.md, "The histogram".

    h = trial.tensor("gradient/fc.weight").histogram(100)
    h.quantile([0.01, 0.5, 0.99])
    h.lost_in("float8_e4m3fn", scale=2.0**12).underflow
    counts, edges = h.to_numpy(50)  # to plot, as np.histogram gives it

Thread safety: values and pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tdbg._core import count_bins
from tdbg.errors import ConfigurationError
from tdbg.shown import Shown
from tdbg.stats.number_formats import Loss, borders_of

__all__ = ["Histogram", "has_edge_values"]

ZERO = 0x0000
INFINITY = 0x7F80
NAN = 0x7FC0
SIGN = 0x8000

Column = NDArray[np.float64]

# Types whose mantissa has no more than eight bits, the first included.
_EDGE_TYPES = frozenset(
    np.dtype(dtype).name
    for dtype in (
        *(np.bool_, np.int8, np.uint8),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
        *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
        ml_dtypes.float8_e8m0fnu,
    )
)


def has_edge_values(dtype: str) -> bool:
    """Whether every number of a type is an edge of its bin: see ``on_edges``."""
    return dtype in _EDGE_TYPES


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Histogram(Shown):
    """The number of elements in each bin that has any.

    Attributes:
        keys: Keys of the bins, ascending: the upper 16 bits of the float32 at the
            edge nearer to zero. Shape (bins,).
        counts: Number of elements of each bin. Shape (bins,).
        on_edges: Whether every element equals that edge of its bin, as with bfloat16,
            float8 and 8-bit integers.  Then all answers are exact.

    Raises:
        ConfigurationError: If the shapes of keys and counts differ, or the keys do
            not ascend.
    """

    keys: NDArray[np.uint16]
    counts: NDArray[np.uint64]
    on_edges: bool = False

    def __post_init__(self) -> None:
        """Check both columns, and make them read-only."""
        keys = np.array(self.keys, np.uint16)
        counts = np.array(self.counts, np.uint64)
        if keys.ndim != 1 or keys.shape != counts.shape:
            msg = f"keys and counts differ in shape: {keys.shape}, {counts.shape}"
            raise ConfigurationError(msg)
        if np.any(keys[1:] <= keys[:-1]):
            msg = "the keys of a histogram ascend"
            raise ConfigurationError(msg)
        keys.flags.writeable = counts.flags.writeable = False
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, array: Any, scale: float = 1.0) -> Histogram:
        """Count the elements of an array, each multiplied by *scale* first.

        Raises:
            TypeError: If tdbg has no statistics of the array's dtype.
            ConfigurationError: If *scale* is not 1 and the elements are integers.
        """
        array = np.asarray(array)
        on_edges = has_edge_values(array.dtype.name) and scale == 1.0
        return cls(*count_bins(array, scale), on_edges=on_edges)

    @classmethod
    def merge(cls, parts: Iterable[Histogram]) -> Histogram:
        """The histogram of the elements of all *parts*; empty if there are none."""
        known = list(parts)
        if len(known) == 1:
            return known[0]
        none = Histogram(np.empty(0, np.uint16), np.empty(0, np.uint64))
        keys = np.concatenate([part.keys for part in known or [none]])
        counts = np.concatenate([part.counts for part in known or [none]])
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] ^ 1))
        if len(keys):
            counts = np.add.reduceat(counts, starts)
        on_edges = bool(known) and all(part.on_edges for part in known)
        return cls(keys[starts], counts, on_edges=on_edges)

    def __add__(self, other: Histogram) -> Histogram:
        """The histogram of the elements of both."""
        if not isinstance(other, Histogram):
            return NotImplemented
        return Histogram.merge((self, other))

    def __eq__(self, other: object) -> bool:
        """Whether all counts are equal."""
        if not isinstance(other, Histogram):
            return NotImplemented
        return np.array_equal(self.keys, other.keys) and np.array_equal(
            self.counts, other.counts
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """The numbers of elements and bins, without the bins themselves."""
        return f"Histogram(count={self.count}, bins={len(self.keys)})"

    # --- Counts ---------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.counts.sum())

    @property
    def nan(self) -> int:
        """Number of elements that are NaN."""
        return self._count_of(NAN)

    @property
    def positive_infinity(self) -> int:
        """Number of elements that are +Inf."""
        return self._count_of(INFINITY)

    @property
    def negative_infinity(self) -> int:
        """Number of elements that are -Inf."""
        return self._count_of(INFINITY | SIGN)

    @property
    def zero(self) -> int:
        """Number of elements that are zero."""
        return self._count_of(ZERO)

    @property
    def finite(self) -> int:
        """Number of elements that are neither NaN nor infinite."""
        return self.count - self.nan - self.positive_infinity - self.negative_infinity

    @property
    def edges(self) -> Column:
        """The least and the greatest number of each bin. Shape (bins, 2), by key.

        The bin of zeros and those of infinities have no width; the edges of the bin of
        NaN are NaN.
        """
        magnitude = (self.keys & ~np.uint16(SIGN)).astype(np.uint32)
        inner = (magnitude << 16).view(np.float32).astype(np.float64)
        outer = (
            (np.minimum(magnitude + 1, INFINITY) << 16)
            .view(np.float32)
            .astype(np.float64)
        )
        outer[magnitude == INFINITY - 1] = 2.0**128
        inner[magnitude == 1] = 0.0  # This bin also holds all smaller numbers.
        same = (magnitude == ZERO) | (magnitude >= INFINITY)
        outer = np.where(same, inner, outer)
        negative = self.keys >= SIGN
        low = np.where(negative, -outer, inner)
        return np.stack([low, np.where(negative, -inner, outer)], axis=1)

    # --- Answers --------------------------------------------------------------

    def quantile(self, q: ArrayLike) -> Any:
        """The quantiles *q* of the elements, by NumPy's method ``linear``.

        Each element is taken to be the middle of its bin (with ``on_edges``: the edge,
        which it equals).  So the error of a quantile is at most 2^-8 = 0.4 % of the
        elements next to it, if these are normal numbers of float32.  As in NumPy, all
        quantiles are NaN if an element is NaN; infinities take part.

        Args:
            q: One or many numbers from 0 to 1.

        Returns:
            A float, or an array of the shape of *q*; NaN without elements.

        Raises:
            ConfigurationError: If one of *q* is not between 0 and 1.
        """
        requested = np.asarray(q, np.float64)
        if not np.all((requested >= 0) & (requested <= 1)):
            msg = f"quantiles are between 0 and 1, not {requested}"
            raise ConfigurationError(msg)
        result = np.full(requested.shape, np.nan)
        if self.count and not self.nan:
            points, counts = self._points()
            result = _quantile(points, counts, requested)
        return result if requested.ndim else float(result)

    @property
    def median(self) -> float:
        """The quantile 0.5."""
        return float(self.quantile(0.5))

    def cdf(self, x: ArrayLike) -> Any:
        """The shares of elements that are at most *x*, among those that are not NaN.

        The elements of the bin that holds *x* are taken to be spread evenly over it
        (with ``on_edges``: their places are known).  NaN without elements.
        """
        at = np.asarray(x, np.float64)
        total = self.count - self.nan
        if not total:
            result = np.full(at.shape, np.nan)
        elif self.on_edges:
            points, counts = self._points()
            before = np.concatenate(([0], np.cumsum(counts)))
            result = before[np.searchsorted(points, at, side="right")] / total
        else:
            result = self._cumulative(at) / total
        result = np.where(np.isnan(at), np.nan, result)
        return result if at.ndim else float(result)

    def to_numpy(self, bins: int | ArrayLike = 64) -> tuple[Column, Column]:
        """Counts and edges as ``np.histogram`` returns them for the finite elements.

        Args:
            bins: The number of bins of equal width from the least to the greatest
                element; or the edges of the bins, ascending, outside of which
                elements are not counted.

        Returns:
            Counts, which are not whole numbers where an edge divides a bin of this
            histogram; and edges.

        Raises:
            ConfigurationError: If *bins* is neither.
        """
        finite = np.isfinite(self.edges[:, 0])
        edges = self.edges[finite]
        ends = np.array([edges.min(), edges.max()]) if len(edges) else np.zeros(0)
        try:
            chosen = np.histogram_bin_edges(ends, np.asarray(bins)[()])
            chosen = np.asarray(chosen, np.float64)
        except (TypeError, ValueError) as error:
            msg = f"no bins for a histogram: {bins!r} ({error})"
            raise ConfigurationError(msg) from error
        if self.on_edges:
            part = Histogram(self.keys[finite], self.counts[finite], on_edges=True)
            points, weights = part._points()
            return np.histogram(points, chosen, weights=weights)[0], chosen
        infinite = float(self.negative_infinity)
        below = self._cumulative(chosen, inclusive=False) - infinite
        # The last bin has its right edge, too.
        below[-1] = self._cumulative(chosen[-1:])[0] - infinite
        return np.diff(below), chosen

    def lost_in(self, dtype: str, scale: float = 1.0) -> Loss:
        """The shares of elements that a cast to a narrow float type would lose.

        The shares are exact with ``on_edges``.  Otherwise the elements of a bin that a
        border divides are taken to be spread evenly over it.  For float8 and a *scale*
        that is a power of two, the borders are edges of bins, and only elements that
        equal a border can be counted on its wrong side.

        Args:
            dtype: float16, bfloat16, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or
                float8_e5m2fnuz.
            scale: The factor that the elements would be multiplied by first.

        Raises:
            ConfigurationError: If there is no such type, or *scale* is not a number
                greater than zero.
        """
        borders = borders_of(dtype)
        if not (scale > 0 and math.isfinite(scale)):
            msg = f"scale must be finite and greater than 0, not {scale}"
            raise ConfigurationError(msg)
        magnitudes = _Magnitudes(self)
        if not magnitudes.total:
            return Loss(dtype, scale, 0.0, 0.0, 0.0, 0.0)
        zero, at_zero = magnitudes.up_to(borders.vanishing / scale, True)
        small, at_normal = magnitudes.up_to(borders.normal / scale, False)
        kept, at_overflow = magnitudes.up_to(
            borders.overflow / scale, not borders.overflows_at
        )
        return Loss(
            dtype=dtype,
            scale=scale,
            underflow=magnitudes.share(zero),
            subnormal=magnitudes.share(small - zero),
            overflow=magnitudes.share(1.0 - kept),
            uncertain=magnitudes.share(at_zero | at_normal | at_overflow),
        )

    # --- Inside ---------------------------------------------------------------

    def _count_of(self, key: int) -> int:
        at = int(np.searchsorted(self.keys, np.uint16(key)))
        found = at < len(self.keys) and self.keys[at] == key
        return int(self.counts[at]) if found else 0

    def _points(self) -> tuple[Column, Column]:
        """The places that stand for elements, ascending, and their counts; no NaN."""
        edges = self.edges
        points = edges.mean(axis=1)
        if self.on_edges:
            inner = (self.keys.astype(np.uint32) << 16).view(np.float32)
            points = inner.astype(np.float64)
        order = np.argsort(points, kind="stable")
        order = order[~np.isnan(points[order])]
        return points[order], self.counts[order].astype(np.float64)

    def _cumulative(self, x: Column, *, inclusive: bool = True) -> Column:
        """The number of elements below *x* (or up to it), spread evenly in bins."""
        order = np.argsort(self.edges.sum(axis=1), kind="stable")
        order = order[~np.isnan(self.edges[order, 0])]
        low, high = self.edges[order].T
        counts = self.counts[order].astype(np.float64)
        if not len(order):
            return np.zeros(x.shape)
        before = np.concatenate(([0.0], np.cumsum(counts)))
        whole = np.searchsorted(high, x, side="right" if inclusive else "left")
        # The first bin that ends beyond *x* counts in part, unless it is a point.
        at = np.minimum(whole, len(low) - 1)
        divided = (whole < len(low)) & (low[at] < high[at])
        part = np.zeros(x.shape)
        np.subtract(x, low[at], out=part, where=divided)
        width = np.subtract(high[at], low[at], out=np.ones(x.shape), where=divided)
        part = np.clip(part / width, 0.0, 1.0)
        return np.asarray(before[whole] + part * counts[at], np.float64)


class _Magnitudes:
    """The absolute values of the finite elements that are not zero."""

    def __init__(self, histogram: Histogram) -> None:
        magnitude = histogram.keys & ~np.uint16(SIGN)
        chosen = (magnitude != ZERO) & (magnitude < INFINITY)
        edges = np.abs(histogram.edges[chosen])
        self._low, self._high = edges.min(axis=1), edges.max(axis=1)
        self._counts = histogram.counts[chosen].astype(np.float64)
        self._on_edges = histogram.on_edges
        if self._on_edges:
            inner = magnitude[chosen].astype(np.uint32) << 16
            self._low = inner.view(np.float32).astype(np.float64)
        self.total = float(self._counts.sum())

    def up_to(self, border: float, inclusive: bool) -> tuple[Column, NDArray[np.bool_]]:
        """The part of each bin below *border* (*inclusive*: up to it).

        Returns:
            The parts, from 0 to 1, and for which bins the part is an estimate.
        """
        low, high = self._low, self._high
        if self._on_edges:
            below = (low <= border) if inclusive else (low < border)
            return below.astype(np.float64), np.zeros(len(low), np.bool_)
        inside = (low <= border) if inclusive else (low < border)
        part = np.clip((border - low) / (high - low), 0.0, 1.0)
        return part, inside & (border < high)

    def share(self, parts: NDArray[Any]) -> float:
        """The share of all elements that lie in these parts of the bins."""
        return float((parts * self._counts).sum() / self.total)


def _quantile(points: Column, counts: Column, q: Column) -> Column:
    """NumPy's linear quantiles of points, each repeated *counts* times."""
    last = np.cumsum(counts)
    position = q * (last[-1] - 1)
    lower = np.floor(position)
    share = position - lower
    a = points[np.searchsorted(last, lower, side="right")]
    upper = np.minimum(lower + 1, last[-1] - 1)
    b = points[np.searchsorted(last, upper, side="right")]
    with np.errstate(invalid="ignore"):
        between = a + (b - a) * share
    return np.asarray(np.where((a == b) | (share == 0), a, between), np.float64)
