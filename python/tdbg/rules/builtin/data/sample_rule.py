"""SampleRule: base class of rules about the fingerprints of samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdbg.config.needs import Needs
from tdbg.rules.rule import Rule
from tdbg.rules.samples import SampleFacts
from tdbg.rules.training_facts import NO_PROFILE, TrainingFacts
from tdbg.rules.window import OK, Description, Evaluation, Window
from tdbg.run.findings import Severity

__all__ = ["SampleRule", "SampleVerdict"]

TABLE = "fingerprint"


def _nothing() -> Description:
    raise AssertionError


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVerdict:
    """What the samples of a model show.

    Attributes:
        what: What is judged, beside the model, if a rule judges several things.
        severity: How bad it is; None: nothing is wrong.
        describe: Says it in words and numbers; called only for a finding.
    """

    severity: Severity | None
    describe: Callable[[], Description] = _nothing
    what: str = ""


class SampleRule(Rule):
    """Base class of rules about the fingerprints of samples.

    The bins of the profile have what is known of them, by model.
    """

    __slots__ = ()

    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)

    @property
    def needs(self) -> Needs:
        """Tables of the profile; nothing of tensors."""
        return Needs(statistics=False, profile=frozenset({"step", TABLE}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there are no fingerprints, if so."""
        if not training.profile:
            return NO_PROFILE
        return "" if TABLE in training.profile else "tdbg recorded no fingerprints"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge what is known of the samples at the end of each new bin."""
        for each in window.profile.bins[window.profile.start :]:
            if each.last_step < 0:
                continue
            for model, facts in sorted(each.samples.items()):
                for verdict in self.verdicts(facts):
                    severity = verdict.severity
                    level = OK if severity is None else int(severity)
                    yield Evaluation.of_one(
                        verdict.what or f"{model}_input_0",
                        np.array([each.last_step], np.int64),
                        each.mode,
                        np.array([level]),
                        _of(verdict.describe),
                    )

    @abstractmethod
    def verdicts(self, facts: SampleFacts) -> Iterator[SampleVerdict]:
        """Judge a model by what is known of its samples; nothing: it is too early."""


def _of(describe: Callable[[], Description]) -> Callable[[int], Description]:
    return lambda _: describe()
