"""Plots of where the time of a run went, with matplotlib: docs/notebook.md, "Time".

They draw the values of ``tdbg.view.time``.  Each takes and returns an ``Axes``.

Thread safety: as matplotlib's: one figure, one thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import join_names
from tdbg.drawing.colors import PHASES, SERIES
from tdbg.errors import ConfigurationError, TensorUnavailable
from tdbg.notebook.axes import axes_of, text_of
from tdbg.view.time import NO_PROFILE, TimeView, UsageMap, even_edges, time_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tdbg.trial import Trial

__all__ = ["TimePlots"]

COLUMNS = 600
# A legend of more lines hides the plot.
MOST_NAMED = 12


class TimePlots:
    """The plots of a trial that are about time."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def phases(self, *, ax: Axes | None = None, columns: int = COLUMNS) -> Axes:
        """The phases of training steps, stacked; the line is the longest step.

        Args:
            ax: Where to draw; None: on axes of a new figure.
            columns: At most so many columns of steps; none of the steps is left out.

        Raises:
            TensorUnavailable: If the run has no profile of training steps.
            ConfigurationError: If there is no matplotlib.

        Example:
            trial.plot.phases().figure.savefig("time.pdf")
        """
        view = self._steps_of("phases")
        edges = view.edges(columns)
        bands = view.bands(edges)
        ax = axes_of(ax)
        at = np.repeat(edges, 2)[1:-1] - 0.5
        floor = np.zeros(len(at))
        for phase, name, mean in zip(
            bands.phases, bands.names, bands.mean_ns / 1e6, strict=True
        ):
            top = floor + np.repeat(np.nan_to_num(mean), 2)
            color = PHASES[phase]
            ax.fill_between(at, floor, top, color=color, label=name, linewidth=0)
            floor = top
        longest = np.repeat(bands.durations.high / 1e6, 2)
        ax.plot(at, longest, color="0.2", linewidth=0.8, label="longest step")
        ax.set_xlim(at[0], at[-1])
        ax.set_ylim(0, _limit(bands.durations.high / 1e6, floor))
        ax.set_xlabel("step")
        ax.set_ylabel("ms a step")
        ax.legend(loc="upper right", fontsize="small")
        return ax

    def step_timeline(self, *, ax: Axes | None = None) -> Axes:
        """How long each training step took over the seconds of the run.

        Args:
            ax: Where to draw; None: on axes of a new figure.  Each rank has a colour.

        Raises:
            TensorUnavailable: If the run has no profile of training steps.
            ConfigurationError: If there is no matplotlib.

        Example:
            trial.plot.step_timeline().set_yscale("log")
        """
        view = self._steps_of("step_timeline")
        ax = axes_of(ax)
        names = self._trial.workers()
        for i, worker in enumerate(np.unique(view.steps["worker"]).tolist()):
            rows = view.steps[view.steps["worker"] == worker]
            seconds = self._trial.profile.seconds(rows["time"])
            ax.plot(
                seconds,
                rows["duration_ns"] / 1e6,
                color=SERIES[i % len(SERIES)],
                linewidth=0.8,
                label=text_of(names[worker]),
            )
        ax.set_ylim(bottom=0)
        ax.set_xlabel("seconds since the run began")
        ax.set_ylabel("ms a step")
        if i:
            ax.legend(fontsize="small")
        return ax

    def step_histogram(self, *, ax: Axes | None = None, bins: int = 60) -> Axes:
        """How many training steps took how long.

        Args:
            ax: Where to draw; None: on axes of a new figure.
            bins: Number of bins; the last one holds all that is beyond 99.5 %.

        Raises:
            TensorUnavailable: If the run has no profile of training steps.
            ConfigurationError: If there is no matplotlib.

        Example:
            trial.plot.step_histogram()
        """
        milliseconds = self._steps_of("step_histogram").steps["duration_ns"] / 1e6
        ax = axes_of(ax)
        last = float(np.percentile(milliseconds, 99.5))
        ax.hist(np.minimum(milliseconds, last), bins=bins, color=SERIES[0])
        for q, style in ((50, "-"), (95, "--")):
            at = float(np.percentile(milliseconds, q))
            label = "median" if q == 50 else f"{q} %"
            ax.axvline(at, color="0.2", linestyle=style, linewidth=1, label=label)
        ax.set_xlabel("ms a step")
        ax.set_ylabel("steps")
        ax.legend(fontsize="small")
        return ax

    def usage_map(
        self,
        *,
        ax: Axes | None = None,
        select: str | Sequence[str] = ".*",
        columns: int = COLUMNS,
    ) -> Axes:
        """How busy cores and GPUs were over time: a row each, white: not recorded.

        Args:
            ax: Where to draw; None: on axes of a new figure.
            select: Patterns of names of rows, such as ``"GPU"`` or ``"core [0-3]$"``.
            columns: At most so many columns; all samples are in one.

        Raises:
            TensorUnavailable: If the run has no samples of cores or GPUs.
            ConfigurationError: If no row has such a name, or there is no matplotlib.

        Example:
            trial.plot.usage_map(select="GPU")
        """
        usage, seconds = self._usage(select, columns)
        ax = axes_of(ax, height=min(9.0, 1.2 + 0.22 * len(usage.names)))
        at = seconds, np.arange(len(usage.names) + 1)
        shares = np.ma.masked_invalid(100 * usage.columns.mean)
        mesh = ax.pcolormesh(
            *at, shares, cmap="viridis", vmin=0, vmax=100, rasterized=True
        )
        ax.set_ylim(len(usage.names), 0)
        every = -(-len(usage.names) // 40)
        rows = range(0, len(usage.names), every)
        ax.set_yticks([i + 0.5 for i in rows], [text_of(usage.names[i]) for i in rows])
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("seconds since the run began")
        ax.figure.colorbar(mesh, ax=ax, label="busy, %")
        return ax

    def usage_histogram(
        self,
        *,
        ax: Axes | None = None,
        select: str | Sequence[str] = ".*",
        bins: int = 50,
    ) -> Axes:
        """How often cores and GPUs were how busy, in % from 0 to 100.

        A training that uses a device well has the middle of its distribution at 80 to
        90 %; devices whose distributions differ are not equally loaded.

        Args:
            ax: Where to draw; None: on axes of a new figure.
            select: As of ``usage_map``.
            bins: Number of bins.

        Raises:
            TensorUnavailable: If the run has no samples of cores or GPUs.
            ConfigurationError: If no row has such a name, or there is no matplotlib.

        Example:
            trial.plot.usage_histogram(select="GPU")
        """
        with self._trial.no_refresh():
            samples = time_of(self._trial).machine.samples()
        chosen = _chosen([name for name, _ in samples], select)
        ax = axes_of(ax)
        for i, (name, shares) in enumerate(samples[k] for k in chosen):
            known = 100 * shares[np.isfinite(shares)]
            color = SERIES[i % len(SERIES)]
            edges = np.linspace(0, 100, bins + 1).tolist()
            ax.hist(known, edges, histtype="step", color=color, label=text_of(name))
        ax.set_xlim(0, 100)
        ax.set_xlabel("busy, %")
        ax.set_ylabel("samples")
        if len(chosen) <= MOST_NAMED:
            ax.legend(fontsize="small")
        return ax

    def usage_timeline(
        self,
        *,
        ax: Axes | None = None,
        select: str | Sequence[str] = ".*",
        columns: int = COLUMNS,
    ) -> Axes:
        """How busy cores and GPUs were over time, as lines in %.

        Args:
            ax: Where to draw; None: on axes of a new figure.
            select: As of ``usage_map``.
            columns: At most so many columns; all samples are in one.

        Raises:
            TensorUnavailable: If the run has no samples of cores or GPUs.
            ConfigurationError: If no row has such a name, or there is no matplotlib.

        Example:
            trial.plot.usage_timeline(select="GPU 0")
        """
        usage, seconds = self._usage(select, columns)
        ax = axes_of(ax)
        middles = (seconds[:-1] + seconds[1:]) / 2
        for i, (name, shares) in enumerate(
            zip(usage.names, usage.columns.mean, strict=True)
        ):
            color = SERIES[i % len(SERIES)]
            ax.plot(middles, 100 * shares, color=color, label=text_of(name), lw=1)
        ax.set_ylim(0, 103)
        ax.set_xlabel("seconds since the run began")
        ax.set_ylabel("busy, %")
        if len(usage.names) <= MOST_NAMED:
            ax.legend(fontsize="small")
        return ax

    # --- What is drawn ------------------------------------------------------

    def _steps_of(self, plot: str) -> TimeView:
        with self._trial.no_refresh():
            view = time_of(self._trial)
            if not view.has_steps:
                msg = f"{plot} needs rows of training steps. {NO_PROFILE}"
                raise TensorUnavailable(msg)
            return view

    def _usage(
        self, select: str | Sequence[str], columns: int
    ) -> tuple[UsageMap, NDArray[np.float64]]:
        """How busy the chosen rows were, and the bounds of columns in seconds."""
        with self._trial.no_refresh():
            machine = time_of(self._trial).machine
            span = machine.span
            first, last = (0, 0) if span is None else span
            edges = even_edges(first, last + 1, columns)
            usage = machine.usage(edges)
            chosen = _chosen(usage.names, select)
            return usage.selected(chosen), self._trial.profile.seconds(edges)


def _chosen(names: Sequence[str], select: str | Sequence[str]) -> list[int]:
    """The numbers of the rows whose names have a match of a pattern."""
    if not names:
        msg = f"there are no samples of cores or GPUs. {NO_PROFILE}"
        raise TensorUnavailable(msg)
    given = [select] if isinstance(select, str) else list(select)
    try:
        patterns = [re.compile(each) for each in given]
    except re.error as error:
        msg = f"{error.pattern!r} is not a pattern: {error}"
        raise ConfigurationError(msg) from error
    chosen = [
        i for i, name in enumerate(names) if any(p.search(name) for p in patterns)
    ]
    if not chosen:
        msg = f"no row is named like {select!r}: there are {join_names(names)}"
        raise ConfigurationError(msg)
    return chosen


def _limit(longest: NDArray[np.float64], sums: NDArray[np.float64]) -> float:
    """The end of the axis: a few steps far above the others do not crush them."""
    usual = 3.0 * float(np.median(sums))
    return max(min(float(np.nanmax(longest)), usual), float(sums.max()), 1e-9) * 1.05
