"""The base of rules about time: signs in bins of 10 s, and when they are a finding.

A rule says for each bin whether it shows the problem.  Three bad bins among the last
four make a finding, and three good ones in a row end it.  A bin that cannot be judged
says nothing.

Thread safety: rules are immutable.
"""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tdbg.config.needs import Needs
from tdbg.config.quantities import percent
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import OK, UNKNOWN, Description, Evaluation, Window
from tdbg.run.findings import Severity
from tdbg.run.profile_tables import Phase

__all__ = ["TRAINING", "Sign", "TimeRule", "check_optional", "gain_severity", "shorter"]

#: The name of a verdict on the training as a whole.
TRAINING = "training"
# How many of the last bins that could be judged must be bad.
BAD, KNOWN = 3, 4
# Among how many bins these are looked for: where steps take 20 s, every other bin has
# none.
SPAN = 12
# Gains that are worth a word, and those that are worth a warning.
INFO_GAIN, WARNING_GAIN = 0.03, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What a bin shows.

    Attributes:
        severity: How bad it is; None: nothing is wrong.
        describe: Says it in words and numbers; called only for a finding.
    """

    severity: Severity | None
    describe: Callable[[], Description]


def gain_severity(gain: float) -> Severity | None:
    """Return how bad it is to forgo a gain, as a share of the time of a step."""
    if gain >= WARNING_GAIN:
        return Severity.WARNING
    return Severity.INFO if gain >= INFO_GAIN else None


def shorter(gain: float) -> str:
    """Return a gain in words: "38% shorter steps"."""
    return f"{percent(100 * gain)} shorter steps"


def check_optional(
    rule: Rule,
    parameter: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> None:
    """Check that a parameter is None or a number within bounds.

    Raises:
        ConfigurationError: If it is not.
    """
    if getattr(rule, parameter) is not None:
        check_number(rule, parameter, least=least, most=most, above=above)


class TimeRule(Rule):
    """Base class of rules about time.

    Attributes:
        tables: The tables of the profile that it reads.
        phases: The phases that it judges.  Where the framework does not tell each of
            them, it gives no verdict.
        reach: How many bins before a bin its sign depends on.
        bad_bins: How many of the last four known bins must be bad.
    """

    __slots__ = ()

    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)
    tables: ClassVar[frozenset[str]] = frozenset({"step"})
    phases: ClassVar[frozenset[Phase]] = frozenset()
    reach: ClassVar[int] = 0
    bad_bins: ClassVar[int] = BAD

    @property
    def needs(self) -> Needs:
        """Tables of the profile; nothing of tensors."""
        return Needs(statistics=False, profile=self.tables | {"step"})

    @property
    def lookback_bins(self) -> int:
        """The bins that decide whether a problem lasts, and those of the first."""
        return SPAN - 1 + self.reach

    @property
    def fewest_bins(self) -> int:
        """The bins that must be bad, after one of the beginning."""
        return self.bad_bins + 1 if self.bad_bins > 1 else 0

    @property
    def first_verdict(self) -> str:
        """Return that a bin of usual steps must have passed."""
        return "10 s of training after the first 20 steps and 10 s"

    def unjudged(self, training: TrainingFacts) -> str:
        """Return which phases the framework does not tell, of those that it judges."""
        return training.told.lacks(self._judged_phases)

    @property
    def _judged_phases(self) -> frozenset[Phase]:
        """The phases, with the wait of those who read about loaders."""
        of_loaders = {Phase.DATA_WAIT} if "loader" in self.tables else ()
        return self.phases.union(of_loaders)

    @abstractmethod
    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Return what a bin shows, by the name of what is judged.

        A name that is missing could not be judged.  The result may depend on this bin,
        the ``reach`` bins before it and the last ``lookback_steps`` steps.
        """

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the new bins by their signs and by those before them."""
        profile = window.profile
        first = max(0, profile.start - SPAN + 1)
        bins = profile.bins[first:]
        if not bins:
            return
        levels = [self._levels(profile, first + k) for k in range(len(bins))]
        for k in range(profile.start - first, len(bins)):
            if bins[k].last_step < 0:
                continue
            signs = self.signs(profile, first + k)
            for name in sorted(levels[k]):
                recent = [
                    (j, of_bin[name])
                    for j, of_bin in enumerate(levels[max(0, k - SPAN + 1) : k + 1])
                    if name in of_bin
                ]
                level, j = self._verdict(recent)
                since = bins[max(0, k - SPAN + 1) + j].first_step
                yield Evaluation.of_one(
                    name,
                    np.array([bins[k].last_step], np.int64),
                    bins[k].mode,
                    np.array([level]),
                    _described(signs[name], max(0, since)),
                )

    def _levels(self, profile: ProfileWindow, i: int) -> Mapping[str, int]:
        """Return the severities of a bin by name: what later bins need to know of it.

        There are none where the framework does not tell what the rule judges.

        They depend on what the rule may look back at, which never changes: so they are
        kept with the bin.
        """
        each = profile.bins[i]
        if not each.told.tells(*self._judged_phases):
            return {}
        return each.derived(
            self,
            lambda: {
                name: OK if sign.severity is None else int(sign.severity)
                for name, sign in self.signs(profile, i).items()
            },
        )

    def _verdict(self, levels: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the verdict by the last known levels, and where its problem began."""
        last, level = levels[-1]
        bad = [(j, each) for j, each in levels[-KNOWN:] if each != OK]
        if level == OK:
            return OK, last
        if len(bad) < self.bad_bins:
            return UNKNOWN, last
        return statistics.median_low(each for _, each in bad), bad[0][0]


def _described(sign: Sign, since: int) -> Callable[[int], Description]:
    def describe(_: int) -> Description:
        found = sign.describe()
        return found if found.since is not None else replace(found, since=since)

    return describe
