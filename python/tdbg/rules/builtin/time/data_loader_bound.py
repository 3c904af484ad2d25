"""DataLoaderBound: trainings that wait for their data loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.lines import in_words, top_line
from tdbg.rules.builtin.time.loading import (
    Loading,
    allowed_cores,
    loading_of,
    wait_share,
)
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Advice, Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase
from tdbg.stats.loader_queue import ENDED

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["DataLoaderBound"]

# The name of verdicts on the beginnings of epochs.
EPOCHS = "beginnings of epochs"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderBound(TimeRule):
    """Report trainings that wait for their data loader.

    A step that needs ``fetch`` seconds of a worker and ``rest`` seconds of its own
    waits for ``max(0, 1 - w * rest / fetch)`` of its time with w workers.

    Args:
        threshold: Share of a step's time that waits for data, in percent.
        filled: Batches that are ready when one is asked for, in percent of those that
            may be: with more, the loader keeps up.
        epoch_threshold: Share of the time that goes by until the first batch of an
            epoch, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.LOADING
    tables = frozenset({"step", "loader", "system"})
    reach = 1

    threshold: float = 10.0
    filled: float = 25.0
    epoch_threshold: float = 5.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "filled", above=0.0, most=100.0)
        check_number(self, "epoch_threshold", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the wait of usual steps, and of those that begin an epoch."""
        return dict(self._signs(profile, i))

    def _signs(self, profile: ProfileWindow, i: int) -> Iterator[tuple[str, Sign]]:
        each = profile.bins[i]
        wait = wait_share(each)
        if wait is not None:
            yield TRAINING, self._of_steps(each, wait)
        share = _share_of_epochs(profile, i)
        if share is not None:
            yield EPOCHS, self._of_epochs(each, share)

    def _of_steps(self, each: Bin, wait: float) -> Sign:
        loading = loading_of(each)
        keeps_up = (
            loading is not None
            and loading.filled is not None
            and 100.0 * loading.filled >= self.filled
        )
        is_bad = 100.0 * wait >= self.threshold and not keeps_up
        return Sign(
            severity=gain_severity(wait) if is_bad else None,
            describe=lambda: self._describe(each, wait, loading),
        )

    def _describe(self, each: Bin, wait: float, loading: Loading | None) -> Description:
        message = (
            f"The training waits for data for {percent(100 * wait)} of the time of a "
            "step."
        )
        if loading is not None and loading.fetch_ns is not None:
            message += (
                f" Fetching the data of a step takes {_ms(loading.fetch_ns)}, the rest "
                f"of the step {_ms(loading.rest_ns)}, and the loader has "
                f"{plural(loading.workers, 'worker')}."
            )
        advice, gain = _advice(each, wait, loading)
        return Description(
            message=message,
            value=100 * wait,
            threshold=self.threshold,
            advice=advice,
            gain=gain,
        )

    def _of_epochs(self, each: Bin, share: float) -> Sign:
        settings = each.loaders.get((0, 0), {})
        is_bad = 100 * share >= self.epoch_threshold

        def describe() -> Description:
            return Description(
                message=(
                    "The first batch of an epoch takes long: the training waits for "
                    f"first batches for {percent(100 * share)} of its time."
                ),
                value=100 * share,
                threshold=self.epoch_threshold,
                gain=share,
                advice=_advice_on_epochs(settings, share),
            )

        return Sign(
            severity=gain_severity(share) if is_bad else None, describe=describe
        )


def _advice(each: Bin, wait: float, loading: Loading | None) -> tuple[Advice, float]:
    """Return what to do, and the share of a step's time that it saves."""
    if loading is None or loading.fetch_ns is None:
        blind = (
            "Let more workers load data, or make loading cheaper: without the wait you "
            f"have up to {shorter(wait)}. tdbg could not measure how long a fetch "
            "takes."
        )
        return blind, wait
    best, cores = loading.best_workers or 1, allowed_cores(each)
    most = best if cores is None else loading.most_workers(cores)
    workers = min(best, most)
    gain = 1.0 - loading.predicted_step_ns(workers) / loading.step_ns
    if workers <= loading.workers or gain < ENDED:
        line = in_words(top_line([each], {Phase.DATA_WAIT}))
        full = _no_more(cores) if most < best else ""
        return _advice_on_fetches(wait, loading, full) + line, wait
    left = loading.wait_share(workers)
    more = "" if workers == best else _no_more(cores)

    def advice(words: Vocabulary) -> str:
        setting = words.loader_workers.format(workers)
        rest = f", which leaves a wait of {percent(100 * left)}" if left >= 0.01 else ""
        return (
            f"Set {setting}: {plural(workers, 'worker')} instead of "
            f"{loading.workers or 'none'} should give {shorter(gain)}{rest}.{more}"
        )

    return advice, gain


def _no_more(cores: float | None) -> str:
    return (
        f" More workers would share the same cores: each rank has {number(cores or 0)}."
    )


def _advice_on_fetches(wait: float, loading: Loading, full: str) -> str:
    if loading.scatter is not None and loading.scatter > 3.0 and not full:
        return (
            "There are workers enough on average, but some fetches take "
            f"{number(loading.scatter, 2)} times as long as most. Raise "
            "prefetch_factor, so that more batches are ready when one is late: up to "
            f"{shorter(wait)}."
        )
    more = full or " More workers would not help."
    return (
        f"Make loading cheaper, for up to {shorter(wait)}: prepare data once and store "
        f"the result, decode or resize smaller files, do less per sample.{more}"
    )


def _advice_on_epochs(settings: Mapping[str, object], share: float) -> str:
    if settings.get("persistent") is False and settings.get("workers"):
        return (
            "Set persistent_workers=True: the workers start again for every epoch. "
            f"That should give up to {shorter(share)}."
        )
    return (
        "Find out what the loader does before its first batch: a sampler that sorts, a "
        f"dataset that opens files. Without it you have up to {shorter(share)}."
    )


def _ms(nanoseconds: float) -> str:
    return f"{number(nanoseconds / 1e6)} ms"


def _share_of_epochs(profile: ProfileWindow, i: int) -> float | None:
    """Return the share of a bin that goes by until first batches of later epochs.

    None if the bin has no warm steps or says nothing of loaders.
    """
    each = profile.bins[i]
    rows = each.tables["loader"]
    total = int(each.steps["duration_ns"][each.is_warm].sum())
    if not len(rows) or total <= 0:
        return None
    before = profile.bins[i - 1].tables["loader"] if i else rows[:0]
    waited = 0
    for key in np.unique(rows[["worker", "loader"]]):
        own, known = (
            each[(each["worker"] == key["worker"]) & (each["loader"] == key["loader"])]
            for each in (rows, before)
        )
        last = known["epoch"][-1] if len(known) else own["epoch"][0]
        begins = np.diff(own["epoch"], prepend=last) > 0
        waited += int(own["wait_ns"][begins].sum())
    return min(1.0, waited / total)
