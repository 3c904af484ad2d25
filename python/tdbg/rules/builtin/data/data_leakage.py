"""DataLeakage: evaluation samples that the model was trained on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent
from tdbg.rules.builtin.data.sample_rule import SampleRule, SampleVerdict
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.samples import Folds, Inside, Leak, SampleFacts
from tdbg.rules.training_facts import NOT_EVALUATED, TrainingFacts
from tdbg.rules.window import OK, Description, Evaluation, Window
from tdbg.run.findings import Severity
from tdbg.run.observations import Fault, Observation

__all__ = ["DataLeakage"]

# Tokens and codes repeat by nature: short sentences, rows of a table.  So a share is a
# warning if it is so many times as large, and is told if it is.
OF_CODES = 5.0
# What is told as an info: this part of the threshold.
INFO_PART = 0.1
# What is judged if windows overlap.
WINDOWS = "evaluation windows"
# What is judged if the program says that it validates.
VALIDATION = "validation samples"
# What is judged if folds take turns.
FOLDS = "folds"
# What is judged if a scaler knows rows of evaluation.
SCALER = "scaler"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DataLeakage(SampleRule):
    """Report evaluation samples that the model was trained on, among others.

    Args:
        threshold: Share of the samples of a pass of evaluation, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return "an evaluation, and each training sample twice"

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that nothing is evaluated, if so."""
        lacking = SampleRule.inapplicable(self, training)
        return lacking or ("" if training.is_evaluated else NOT_EVALUATED)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge fingerprints, and windows that the hook has compared."""
        yield from SampleRule.evaluate(self, window)
        yield from _of_names(window)
        yield from _of_folds(window)
        for seen in window.observations(_SEEN):
            name, severity, describe = _SEEN[seen.fault]
            for each in window.profile.bins[window.profile.start :]:
                if each.last_step >= seen.step:
                    yield Evaluation.of_one(
                        name,
                        np.array([each.last_step], np.int64),
                        each.mode,
                        np.array([int(severity)]),
                        functools.partial(describe, seen),
                    )

    def verdicts(self, facts: SampleFacts) -> Iterator[SampleVerdict]:
        """Judge the pass of evaluation with the most samples that were trained on."""
        leak = facts.leak
        if leak is not None:
            yield SampleVerdict(
                severity=self._severity(leak), describe=lambda: self._describe(leak)
            )
        elif facts.evaluated and facts.trained:
            yield SampleVerdict(severity=None)

    def _severity(self, leak: Leak) -> Severity | None:
        limit = self.threshold * (1.0 if leak.is_of_numbers else OF_CODES)
        share = 100.0 * leak.share
        if share >= limit:
            return Severity.WARNING
        return Severity.INFO if share >= INFO_PART * limit else None

    def _describe(self, leak: Leak) -> Description:
        n, total = f"{leak.trained:,}", f"{leak.evaluated:,}"
        return Description(
            message=(
                f"Data leakage: {n} of the {total} different evaluation samples "
                f"({percent(100 * leak.share)}) were trained on in the last epochs. "
                "The others never were, so this is no evaluation on the training data."
            ),
            value=100.0 * leak.share,
            threshold=self.threshold,
            since=leak.step,
            advice=(
                "Split first, and only then oversample, augment or cut windows: remove "
                "duplicates before you split, and keep all copies of a sample, or all "
                "samples of a person, on one side. Until then, the evaluation promises "
                "more than new data will show."
            ),
        )


def _of_names(window: Window) -> Iterator[Evaluation]:
    """Judge what the program calls validation."""
    named = [*window.observations({Fault.VALIDATION_NAMED})]
    certain = max((each.numbers.get("certain", 0.0) for each in named), default=0.0)
    for each in window.profile.bins[window.profile.start :] if named else []:
        for facts in each.samples.values():
            if each.last_step < 0 or not (facts.trained and facts.evaluated):
                continue
            inside, name = facts.inside, named[0].words.get("name", "validation")
            if inside is not None and inside.others and certain <= 1:
                inside = None  # Those may be the validation.
            severity = Severity.WARNING if certain else Severity.INFO
            found = [] if inside is None else [inside]
            yield Evaluation.of_one(
                VALIDATION,
                np.array([each.last_step], np.int64),
                each.mode,
                np.array([int(severity) if found else OK]),
                functools.partial(_of_inside, found, name),
            )


def _of_inside(found: Sequence[Inside], name: str, j: int) -> Description:
    inside = found[j]
    known, trained = f"{inside.evaluated:,}", f"{inside.trained:,}"
    n, others = f"{inside.passes:,}", f"{inside.others:,}"
    once = f" The {others} others were evaluated once." if inside.others else ""
    return Description(
        message=(
            "Data leakage: the validation samples are trained on. The program speaks "
            f"of validation (`{name}`), and the {known} samples that it evaluates, {n} "
            f"times so far, are all among the {trained} training samples.{once} So its "
            "validation does not tell how the model does on new data."
        ),
        value=100.0,
        threshold=0.0,
        since=inside.step,
        advice=(
            "Split first, and evaluate on the part that you hold back: look at which "
            "dataset the loader of the validation is made from. If you validate "
            "elsewhere, and this is the training accuracy, ignore this finding."
        ),
    )


def _of_folds(window: Window) -> Iterator[Evaluation]:
    """Judge folds that take turns, where the hook saw from which weights it trains."""
    how = {each.words.get("how") for each in window.observations({Fault.TRAINED_ON})}
    for each in window.profile.bins[window.profile.start :] if how else []:
        for facts in each.samples.values():
            if each.last_step >= 0 and facts.folds is not None:
                yield Evaluation.of_one(
                    FOLDS,
                    np.array([each.last_step], np.int64),
                    each.mode,
                    np.array([int(Severity.WARNING) if how == {"on"} else OK]),
                    functools.partial(_of_turns, facts.folds),
                )


def _of_turns(folds: Folds, _: int) -> Description:
    return Description(
        message=(
            "Data leakage: all folds of the cross-validation train one model. The "
            f"{folds.samples:,} samples that it is evaluated on were trained on in "
            "other folds, and the weights were not drawn anew. So every score but the "
            "first is one on training data."
        ),
        value=float(folds.turns),
        threshold=0.0,
        since=folds.step,
        advice=(
            "Make a new model and a new optimizer at the beginning of each fold, or "
            "set the model back to a copy of its initial weights."
        ),
    )


def _of_windows(seen: Observation, _: int) -> Description:
    numbers = {key: round(each) for key, each in seen.numbers.items()}
    n, between = numbers.get("n", 0), numbers.get("n_between", 0)
    steps, shared = numbers.get("n_steps", 0), numbers.get("n_shared", 0)
    return Description(
        message=(
            f"Data leakage: evaluation windows overlap training windows. {between:,} "
            f"of {n:,} lie between two windows that were trained on, one that begins "
            f"earlier and one that begins later; the nearest share {shared} of {steps} "
            "time steps. So the values that evaluation asks for were trained on."
        ),
        value=100.0 * between / max(1, n),
        threshold=0.0,
        since=seen.step,
        advice=(
            "Split the series by time before you cut windows: train on the first part, "
            "evaluate on the last, and leave out a window's length between them. With "
            "several series, keep each one on one side. Until then, the evaluation "
            "promises more than new data will show."
        ),
    )


def _of_scaler(seen: Observation, _: int) -> Description:
    numbers = {key: round(each) for key, each in seen.numbers.items()}
    n, trained = numbers.get("all", 0), numbers.get("rows", 0)
    how = seen.words.get("how") == "range"
    scale = "goes from 0 to 1" if how else "has mean 0 and deviation 1"
    return Description(
        message=(
            "Data leakage: your scaler was fitted on rows that you evaluate. Over "
            f"{n:,} rows of both together, each column {scale} exactly; over the "
            f"{trained:,} training rows, it does not. So training data know a little "
            "about the evaluation: means and deviations."
        ),
        value=float(n),
        threshold=float(trained),
        since=seen.step,
        advice=(
            "Split first. Call fit_transform on the training rows and transform on the "
            "others, or put the scaler and the model into one pipeline."
        ),
    )


_SEEN = {
    Fault.WINDOWS_OVERLAP: (WINDOWS, Severity.WARNING, _of_windows),
    Fault.SCALED_TOGETHER: (SCALER, Severity.INFO, _of_scaler),
}
