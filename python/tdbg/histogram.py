"""A histogram of a tensor's elements, and what follows from it.

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

from tdbg import _core
from tdbg.errors import ConfigurationError
from tdbg.precision import Loss, borders_of

__all__ = ["Histogram", "has_edge_values"]

ZERO = 0x0000
INFINITY = 0x7F80
NAN = 0x7FC0
SIGN = 0x8000

Column = NDArray[np.float64]

# No more than eight bits of mantissa, the first included.
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
class Histogram:
    """How many elements fall into each bin; bins of no element are left out.

    Attributes:
        keys: Of the bins, ascending: the upper 16 bits of the float32 at the edge
            nearer to zero.
        counts: How many elements each bin has.
        on_edges: Whether every element is that edge, as those of bfloat16, float8
            and 8-bit integers are.  Then all answers are exact.

    Raises:
        ConfigurationError: If keys and counts are no histogram.
    """

    keys: NDArray[np.uint16]
    counts: NDArray[np.uint64]
    on_edges: bool = False

    def __post_init__(self) -> None:
        """Check both columns, and make them such that they cannot be written to."""
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
            TypeError: If it has a dtype without statistics.
            ConfigurationError: If *scale* is not 1 and the elements are integers.
        """
        array = np.asarray(array)
        on_edges = has_edge_values(array.dtype.name) and scale == 1.0
        return cls(*_core.count_bins(array, scale), on_edges=on_edges)

    @classmethod
    def merge(cls, parts: Iterable[Histogram]) -> Histogram:
        """The histogram of the elements of all *parts*; of none, an empty one."""
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
        """How much it counts, not what."""
        return f"Histogram(count={self.count}, bins={len(self.keys)})"

    # --- Counts ---------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.counts.sum())

    @property
    def nan(self) -> int:
        """How many are NaN."""
        return self._count_of(NAN)

    @property
    def positive_infinity(self) -> int:
        """How many are +Inf."""
        return self._count_of(INFINITY)

    @property
    def negative_infinity(self) -> int:
        """How many are -Inf."""
        return self._count_of(INFINITY | SIGN)

    @property
    def zero(self) -> int:
        """How many are zero."""
        return self._count_of(ZERO)

    @property
    def finite(self) -> int:
        """How many are neither NaN nor infinite."""
        return self.count - self.nan - self.positive_infinity - self.negative_infinity

    @property
    def edges(self) -> Column:
        """Shape (bins, 2): least and greatest number of each bin, in order of keys.

        The bin of zeros, and those of infinities, have no width; NaN has no edges.
        """
        magnitude = (self.keys & ~np.uint16(SIGN)).astype(np.uint32)
        inner = (magnitude << 16).view(np.float32).astype(np.float64)
        outer = (
            (np.minimum(magnitude + 1, INFINITY) << 16)
            .view(np.float32)
            .astype(np.float64)
        )
        outer[magnitude == INFINITY - 1] = 2.0**128
        inner[magnitude == 1] = 0.0  # And all that is less.
        same = (magnitude == ZERO) | (magnitude >= INFINITY)
        outer = np.where(same, inner, outer)
        negative = self.keys >= SIGN
        low = np.where(negative, -outer, inner)
        return np.stack([low, np.where(negative, -inner, outer)], axis=1)

    # --- Answers --------------------------------------------------------------

    def quantile(self, q: ArrayLike) -> Any:
        """The quantiles *q* of the elements, as NumPy's ``linear`` method has them.

        Each element is taken to be the middle of its bin (with ``on_edges``: the
        number that it is), so that a quantile is off by no more than 2^-8 = 0.4 % of
        its neighbors, for numbers that are normal in float32.  As in NumPy a NaN makes
        it NaN; infinities take part.

        Args:
            q: One or many numbers from 0 to 1.

        Returns:
            A float, or an array of the shape of *q*; NaN without elements.

        Raises:
            ConfigurationError: If one of *q* is not between 0 and 1.
        """
        wanted = np.asarray(q, np.float64)
        if not np.all((wanted >= 0) & (wanted <= 1)):
            msg = f"quantiles are between 0 and 1, not {wanted}"
            raise ConfigurationError(msg)
        result = np.full(wanted.shape, np.nan)
        if self.count and not self.nan:
            points, counts = self._points()
            result = _quantile(points, counts, wanted)
        return result if wanted.ndim else float(result)

    @property
    def median(self) -> float:
        """The quantile 0.5."""
        return float(self.quantile(0.5))

    def cdf(self, x: ArrayLike) -> Any:
        """The shares of elements that are less than or equal to *x*; NaN left out.

        The elements of the bin that *x* lies in are taken to lie evenly in it (with
        ``on_edges``: where they are).  NaN without elements.
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
        """Counts and edges as ``np.histogram`` of the finite elements gives them.

        Args:
            bins: How many, evenly from the least to the greatest element, or their
                edges, ascending; what lies beyond them is left out.

        Returns:
            Counts, which are not whole where an edge divides a bin of this
            histogram, and edges.

        Raises:
            ConfigurationError: If *bins* are no bins.
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
        """What casting to a narrow float type would lose.

        With ``on_edges``, exact.  Otherwise the elements of a bin that a border
        divides are taken to lie evenly in it; for float8 and a *scale* that is a
        power of two, borders are edges, and only elements on a border itself can be
        taken for neighbors.

        Args:
            dtype: float16, bfloat16, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or
                float8_e5m2fnuz.
            scale: What the elements would be multiplied by before.

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
        """Where elements are taken to be, ascending, and how many; without NaN."""
        edges = self.edges
        points = edges.mean(axis=1)
        if self.on_edges:
            inner = (self.keys.astype(np.uint32) << 16).view(np.float32)
            points = inner.astype(np.float64)
        order = np.argsort(points, kind="stable")
        order = order[~np.isnan(points[order])]
        return points[order], self.counts[order].astype(np.float64)

    def _cumulative(self, x: Column, *, inclusive: bool = True) -> Column:
        """How many elements are less than *x*, or equal to it; spread in their bins."""
        order = np.argsort(self.edges.sum(axis=1), kind="stable")
        order = order[~np.isnan(self.edges[order, 0])]
        low, high = self.edges[order].T
        counts = self.counts[order].astype(np.float64)
        if not len(order):
            return np.zeros(x.shape)
        before = np.concatenate(([0.0], np.cumsum(counts)))
        whole = np.searchsorted(high, x, side="right" if inclusive else "left")
        # The bin at which *x* is not past the end: part of it, unless it is a point.
        at = np.minimum(whole, len(low) - 1)
        divided = (whole < len(low)) & (low[at] < high[at])
        part = np.zeros(x.shape)
        np.subtract(x, low[at], out=part, where=divided)
        width = np.subtract(high[at], low[at], out=np.ones(x.shape), where=divided)
        part = np.clip(part / width, 0.0, 1.0)
        return np.asarray(before[whole] + part * counts[at], np.float64)


class _Magnitudes:
    """The finite elements but zeros, without their signs."""

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
        """Which part of each bin is less than *border*, or at most that.

        Also says for which bins that is an estimate.
        """
        low, high = self._low, self._high
        if self._on_edges:
            below = (low <= border) if inclusive else (low < border)
            return below.astype(np.float64), np.zeros(len(low), np.bool_)
        inside = (low <= border) if inclusive else (low < border)
        part = np.clip((border - low) / (high - low), 0.0, 1.0)
        return part, inside & (border < high)

    def share(self, parts: NDArray[Any]) -> float:
        """The share of all elements that parts of the bins are."""
        return float((parts * self._counts).sum() / self.total)


def _quantile(points: Column, counts: Column, q: Column) -> Column:
    """NumPy's linear quantiles of points that are there *counts* times."""
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
