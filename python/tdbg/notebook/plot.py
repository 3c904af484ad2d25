"""Plots of a run for papers and notebooks, with matplotlib: docs/notebook.md, "Plots".

Each takes and returns an ``Axes``, and touches no state of pyplot: without one, a
figure is made that belongs to the caller (``ax.figure.savefig("loss.pdf")``).

Nothing is sampled: a line has an area from the least to the greatest value of each
column, a cell of a map the greatest value of its rows, and NaN and infinities have
marks of their own, so that no axis is emptied.

Thread safety: as matplotlib's: one figure, one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.messages import short
from tdbg.config.quantities import reach
from tdbg.drawing.colors import NOT_FINITE, SERIES
from tdbg.drawing.scales import scale_of
from tdbg.errors import ConfigurationError, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.notebook.axes import axes_of, text_of
from tdbg.notebook.time_plots import TimePlots
from tdbg.stats.histogram import Histogram
from tdbg.stats.shared_bins import counts_in, note_of, shared_edges
from tdbg.trial import Series
from tdbg.view import MAP_FIELDS, Histograms, is_number, layer_cells, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["Plots"]

WORDS = {
    "l2": "l2 norm",
    "rms": "root mean square",
    "mean": "mean",
    "std": "standard deviation",
    "abs_max": "largest |x|",
    "zero_share": "zeros (share of elements)",
}
# Above the axes, in their height: where what is not finite has its marks.
STRIP, LINE_OF_SERIES = 1.02, "tdbg-series"
MOST_LABELS = 40
OVERLAP = 1.7


class Plots(TimePlots):
    """The plots of a trial; made by ``Trial.plot``."""

    def series(
        self,
        name: str,
        field: str | None = None,
        *,
        ax: Axes | None = None,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        stop: int | None = None,
        log: bool | None = None,
        label: str | None = None,
        color: Any = None,
        columns: int = 800,
    ) -> Axes:
        """A statistic of a tensor, a loss or a scalar over the global steps.

        The line is the mean of each column of steps; the area around it reaches from
        the least to the greatest row.  Triangles above the axes mark columns with a
        NaN or an infinity, those below them a value that a logarithmic axis has no
        place for.

        Args:
            name: The tensor or scalar.
            field: l2, rms, mean, std, abs_max or zero_share; None: the value of what
                has one element, and rms of everything else.
            ax: Where to draw; None: on axes of a new figure.
            mode: Only steps of this mode.
            start: First training step.
            stop: Training step before which to end.
            log: Whether the axis of values is logarithmic; None: where the greatest
                value is 50 times the least.
            label: What the legend says; None: the name.
            color: A colour of matplotlib; None: the next one of Okabe and Ito's.
            columns: At most so many columns of steps.

        Raises:
            TensorUnavailable: If there is nothing of that name, or nothing recorded.
            ConfigurationError: If there is no such field, or no matplotlib.

        Example:
            ax = trial.plot.series("gradient/fc.weight", "l2")
            trial.plot.series("gradient/head.weight", "l2", ax=ax).legend()
            ax.figure.savefig("gradients.pdf")
        """
        found = series_of(
            self._trial,
            name,
            field,
            mode=mode,
            start=start,
            stop=stop,
            columns=columns,
        )
        if not len(found):
            msg = f"nothing of {short(name)} was recorded in these steps"
            raise TensorUnavailable(msg)
        ax = axes_of(ax)
        drawn = [line for line in ax.lines if line.get_gid() == LINE_OF_SERIES]
        if color is None:
            color = SERIES[len(drawn) % len(SERIES)]
        if log is None and not drawn:
            log = scale_of([found.low, found.high], 0, 1).is_log
        if log is not None:
            ax.set_yscale("log" if log else "linear")
        _draw_series(ax, found, color, text_of(name if label is None else label))
        ax.set_xlabel("step")
        if not drawn:
            what = "value" if is_number(self._trial, name) and field is None else ""
            words = what or WORDS[field or "rms"]
            ax.set_ylabel(f"{words} of {text_of(name)}")
        else:
            ax.set_ylabel(ax.get_ylabel().partition(" of ")[0])
        return ax

    def layer_map(
        self,
        tensors: str | Sequence[str] = "gradients",
        field: str = "rms",
        *,
        ax: Axes | None = None,
        mode: ModeKeys | str | None = None,
        start: int | None = None,
        stop: int | None = None,
        rows: int = 200,
        columns: int = 400,
        colorbar: bool = True,
    ) -> Axes:
        """All layers over the steps: a row a tensor, in the order of the forward pass.

        A cell has the greatest value of its rows; where it has a NaN or an infinity, it
        is red, and so is a triangle above its column.  What was not recorded is empty.

        Args:
            tensors: A collection of the run, or names.
            field: l2, rms, std, abs_max or zero_share.
            ax: Where to draw; None: on axes of a new figure.
            mode: Only steps of this mode.
            start: First training step.
            stop: Training step before which to end.
            rows: At most so many rows: neighbours of more tensors share one.
            columns: At most so many columns of steps.
            colorbar: Whether the figure gets a bar that says what colours are.

        Raises:
            QueryError: If there is no such collection.
            TensorUnavailable: If a name is unknown, or nothing has statistics.
            ConfigurationError: If there is no such field, or no matplotlib.

        Example:
            trial.plot.layer_map("gradients", "l2").figure.savefig("map.png", dpi=200)
        """
        if field not in MAP_FIELDS:
            known = ", ".join(MAP_FIELDS)
            msg = f"a layer map has no field {field!r}: use one of {known}"
            raise ConfigurationError(msg)
        cells = layer_cells(
            self._trial,
            tensors,
            field,
            mode=mode,
            start=start,
            stop=stop,
            rows=rows,
            columns=columns,
        )
        ax = axes_of(ax, height=min(9.0, 1.4 + 0.2 * len(cells.names)))
        what = WORDS[field]
        if isinstance(tensors, str):
            what += f" of {text_of(tensors)}"
        norm, values = _norm(cells.values, field)
        at = cells.edges.astype(np.float64), np.arange(len(cells.names) + 1)
        mesh = ax.pcolormesh(
            *at, values, cmap="viridis", norm=norm, rasterized=True, shading="flat"
        )
        if cells.bad.any():
            _draw_bad_cells(ax, at, cells.bad)
        ax.set_ylim(len(cells.names), 0)
        ax.set_xlim(at[0][0], at[0][-1])
        every = -(-len(cells.names) // MOST_LABELS)
        shown = range(0, len(cells.names), every)
        names = [text_of(cells.names[i], 40) for i in shown]
        ax.set_yticks([i + 0.5 for i in shown], names)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("step")
        if colorbar:
            ax.figure.colorbar(mesh, ax=ax, label=what)
        else:
            ax.set_title(what)
        return ax

    def ridgeline(
        self,
        name: str,
        *,
        ax: Axes | None = None,
        start: int | None = None,
        stop: int | None = None,
        most: int = 12,
    ) -> Axes:
        """Histograms of a tensor over its steps, one behind the other.

        Where there are more than *most*, neighbouring steps are merged into one curve;
        none is left out.
        All have the same bins, from the quantile 0.001 to 0.999; the outermost hold
        what lies beyond.  Each is as high as its greatest bin.  At its right stands
        what bins do not show: NaN, infinities, zeros.

        Args:
            name: The tensor; its histograms, or else its values, were saved.
            ax: Where to draw; None: on axes of a new figure.
            start: First training step.
            stop: Training step before which to end.
            most: At most so many curves.

        Raises:
            TensorUnavailable: If there is nothing of that name, or neither a histogram
                nor a value of it in these steps.
            ConfigurationError: If *most* is below 1, or there is no matplotlib.

        Example:
            trial.plot.ridgeline("gradient/fc.weight").figure.savefig("ridges.pdf")
        """
        if most < 1:
            msg = f"a ridgeline has at least one histogram, got most={most!r}"
            raise ConfigurationError(msg)
        saved = Histograms(self._trial, name)
        is_scalar = self._trial.tensor(name).role == "scalar"
        stretches = [] if is_scalar else saved.stretches(most, start, stop)
        if not stretches:
            msg = (
                f"neither histograms nor values of {short(name)} were saved in these "
                "steps: Hook(save_histogram=True) saves histograms"
            )
            raise TensorUnavailable(msg)
        found = {
            reach(steps[0], steps[-1]): Histogram.merge(map(saved.at, steps))
            for steps in stretches
        }
        edges = shared_edges(found.values())
        ax = axes_of(ax, height=1.4 + 0.42 * len(found))
        places = np.repeat(edges, 2)[1:-1]
        _draw_ridges(ax, places, [counts_in(each, edges) for each in found.values()])
        for i, each in enumerate(found.values()):
            note = note_of(each)
            is_bad = each.finite < each.count
            ax.annotate(
                note,
                (1.0, i),
                xytext=(6, 0),
                xycoords=ax.get_yaxis_transform(),
                textcoords="offset points",
                color=NOT_FINITE if is_bad else "0.35",
                fontsize="small",
                annotation_clip=False,
                va="bottom",
            )
        ax.set_yticks(range(len(found)), list(found))
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(found) - 0.7, -OVERLAP)
        ax.set_xlim(edges[0], edges[-1])
        ax.set_ylabel("step")
        ax.set_xlabel(f"value of {text_of(name)}")
        for side in ("left", "right", "top"):
            ax.spines[side].set_visible(False)
        return ax


def _draw_series(ax: Axes, series: Series, color: Any, label: str) -> None:
    """The line, the area around it, and the marks."""
    is_log = ax.get_yscale() == "log"
    at, mean = series.centers, series.mean
    if is_log:
        mean = np.where(mean > 0, mean, np.nan)
    low, high = series.low, series.high
    if is_log:
        # What goes down to zero or below goes down to the edge.
        positive = np.concatenate([low, high])
        floor = min(positive[positive > 0], default=1.0)
        low = np.where(low > 0, low, floor)
        high = np.where(high > 0, high, np.nan)
    if np.any(high > low):
        # As wide as its steps: a column of one step still has its height.
        edges = np.stack([series.first, series.last + 1], axis=1).ravel()
        ax.fill_between(
            edges - 0.5,
            np.repeat(low, 2),
            np.repeat(high, 2),
            color=color,
            alpha=0.28,
            linewidth=0.5,
        )
    (line,) = ax.plot(at, mean, color=color, linewidth=1.4, label=label)
    line.set_gid(LINE_OF_SERIES)
    if np.isfinite(mean).sum() == 1:
        line.set_marker("o")
    _mark(ax, at[series.bad > 0], STRIP, "v", NOT_FINITE, "NaN or infinity")
    if is_log:
        _mark(ax, at[series.low <= 0], -0.02, "^", "0.4", "zero or below")


def _mark(
    ax: Axes, at: NDArray[Any], y: float, marker: str, color: str, label: str
) -> None:
    """Marks outside of the axes, at some steps; the legend has each kind once."""
    if not len(at):
        return
    known = {line.get_label() for line in ax.lines}
    ax.plot(
        at,
        np.full(len(at), y),
        marker,
        color=color,
        markersize=5,
        markeredgewidth=0,
        clip_on=False,
        transform=ax.get_xaxis_transform(),
        label="_" + label if label in known else label,
        zorder=5,
    )


def _norm(values: NDArray[np.float64], field: str) -> tuple[Any, NDArray[Any]]:
    """How values become colours, and values of which each has one."""
    from matplotlib.colors import LogNorm, Normalize

    shown = np.ma.masked_invalid(values)
    if field == "zero_share":
        return Normalize(0.0, 1.0), shown
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        return Normalize(0.0, 1.0), shown
    low, high = float(positive.min()), float(positive.max())
    # Zero has no logarithm, and is the darkest: what is not there is empty.
    return LogNorm(low, high if high > low else low * 1.0001), np.ma.maximum(shown, low)


def _draw_bad_cells(
    ax: Axes, at: tuple[NDArray[Any], NDArray[Any]], bad: NDArray[np.bool_]
) -> None:
    from matplotlib.colors import ListedColormap

    ax.pcolormesh(
        *at,
        np.ma.masked_array(np.ones(bad.shape), ~bad),
        cmap=ListedColormap([NOT_FINITE]),
        rasterized=True,
        shading="flat",
    )
    centers = (at[0][:-1] + at[0][1:]) / 2
    height = 0.02 * 10 / max(5, len(bad)) + 1.0
    marked = centers[bad.any(axis=0)]
    _mark(ax, marked, height, "v", NOT_FINITE, "NaN or infinity")


def _draw_ridges(
    ax: Axes, places: NDArray[Any], counts: Sequence[NDArray[np.float64]]
) -> None:
    """Curves with the first one at the top, each in front of the one before it."""
    from matplotlib import colormaps

    colors = colormaps["viridis"](np.linspace(0.15, 0.85, len(counts)))
    for i, each in enumerate(counts):
        greatest = float(each.max()) or 1.0
        heights = i - np.repeat(each, 2) / greatest * OVERLAP * 0.92
        ax.fill_between(
            places, heights, i, facecolor=colors[i], alpha=0.75, zorder=2 + i
        )
        ax.plot(places, heights, color="0.15", linewidth=0.7, zorder=2 + i)
