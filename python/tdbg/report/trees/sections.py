"""The sections for labels, predictions and trees, put together by what a run holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tdbg.config.quantities import plural
from tdbg.drawing.bars import columns_chart
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import number
from tdbg.report.page import Section
from tdbg.report.subject import Subject
from tdbg.report.trees.classification import classification
from tdbg.report.trees.ensemble import (
    importance,
    metrics,
    parameters,
    shape_of_trees,
)
from tdbg.report.trees.evaluation import PredictionKind
from tdbg.report.trees.regression import regression
from tdbg.report.trees.rounds import Rounds, rounds_of
from tdbg.report.trees.samples import Samples, objective, samples_of

__all__ = ["of_predictions", "of_trees"]

BINS = 32
# A loss that is by so much above its least at the end has turned; one that fell by so
# much in the last tenth still falls.
TURNED = FALLING = 0.01
# A loss of training by so much below that of validation is far below.
FAR = 3.0


def of_trees(subject: Subject) -> list[Section]:
    """The nine sections of smdebug's XGBoost report that apply, and the extras."""
    samples = samples_of(subject)
    found: list[Section | None] = []
    if samples:
        found.append(_labels(samples, "round"))
    found += [_losses(subject), importance(subject)]
    found += _of_kind(samples, "round")
    if not samples:
        found.append(_without_samples(subject))
    found += [metrics(subject), shape_of_trees(subject), parameters(subject)]
    return [each for each in found if each is not None]


def of_predictions(subject: Subject) -> list[Section]:
    """The sections for labels and predictions of any other training that saved them."""
    samples = samples_of(subject)
    if not samples:
        return []
    found = [_labels(samples, "step"), *_of_kind(samples, "step")]
    # The numbers are those of the report of boosted trees.
    return [replace(each, title=each.title.partition(" · ")[2]) for each in found]


def _of_kind(samples: Sequence[Samples], step_word: str) -> list[Section]:
    if not samples:
        return []
    if samples[0].kind is PredictionKind.REGRESSION:
        return regression(samples, step_word)
    return classification(samples, step_word)


def _without_samples(subject: Subject) -> Section:
    """Why there is nothing of labels and predictions."""
    told = objective(subject)
    if subject.in_collection("labels") and subject.in_collection("predictions"):
        what = f" of the objective {told}" if told else ""
        words = (
            f"The labels and predictions{what} are neither classes nor numbers to "
            f"predict."
        )
    else:
        words = (
            "Labels and predictions were not captured: "
            'Hook(include_collections=["labels", "predictions"]) captures them.'
        )
    return Section(
        "predictions", "Labels and predictions", tag("p", words, class_="quiet")
    )


def _labels(samples: Sequence[Samples], step_word: str) -> Section:
    """Section 1."""
    kind = samples[0].kind
    title = "1 · Distribution of true labels of the dataset"
    names = [each.name for each in samples]
    sizes = ", ".join(
        f"{plural(len(each.labels[-1]), 'sample')} of {each.name} "
        f"({step_word} {each.steps[-1]:,})"
        for each in samples
    )
    words = f"A {kind.value}: {sizes}."
    if kind is PredictionKind.REGRESSION:
        values = [each.labels[-1].astype(np.float64) for each in samples]
        low, high = min(v.min() for v in values), max(v.max() for v in values)
        edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
        shares = [100 * np.histogram(v, edges)[0] / len(v) for v in values]
        chart = columns_chart(
            edges,
            shares,
            names,
            alt="Distribution of labels.",
            x_label="label",
            y_label="% of samples",
        )
    else:
        n = max(each.n_classes for each in samples)
        counts = [
            np.bincount(each.labels[-1].astype(np.int64), minlength=n)
            for each in samples
        ]
        shares = [100 * each / max(each.sum(), 1) for each in counts]
        chart = columns_chart(
            np.arange(n + 1, dtype=np.float64),
            shares,
            names,
            alt="Distribution of labels.",
            x_label="class",
            y_label="% of samples",
            names=[str(k) for k in range(n)],
        )
    return Section("labels", title, [tag("p", words, class_="quiet"), chart], "Labels")


def _losses(subject: Subject) -> Section | None:
    """Section 2, with advice on over- and underfitting."""
    names = subject.losses()
    read = [rounds_of(subject, name) for name in names]
    found = {each.name: each for each in read if len(each)}
    if not found:
        return None
    content: list[Child] = [
        line_chart(
            [each.drawn() for each in found.values()],
            alt="Loss versus step.",
            y_label="loss",
            x_label="round",
            caption=None,
        )
    ]
    for held_back, trained in _compared(subject).items():
        if held_back in found and trained in found:
            content.append(_fitting(found[trained], found[held_back]))
    return Section("loss", "2 · Loss versus step graph", content, "Loss")


def _compared(subject: Subject) -> dict[str, str]:
    found: dict[str, str] = {}
    for info in subject.trial.model_info():
        found.update(info.evaluates)
    return found


def _fitting(training: Rounds, validation: Rounds) -> Markup:
    """Say how well the model fits, from a training loss and a validation loss."""
    held_back, trained = validation.name, training.name
    values = validation.values
    if not np.isfinite(values).all() or not np.isfinite(training.values).all():
        return tag(
            "p",
            f"{held_back} or {trained} is not finite at some rounds.",
            class_="advice bad",
        )
    best = int(np.argmin(values))
    least, last = float(values[best]), validation.last
    at, end = int(validation.rounds[best]), int(validation.rounds[-1])
    # One recorded round is no course.
    before = validation.at(end - max(1, (end - int(validation.rounds[0])) // 10))
    gap = f"at the end {held_back} is {number(last)}, {_told(training, end)}"
    if last > least + TURNED * abs(least) and training.last < training.at(at):
        words = (
            f"Overfitting: {held_back} was best at round {at:,} ({number(least)}) and "
            f"has risen since, while {trained} kept falling; {gap}. Stop there "
            f"(early_stopping_rounds), or learn more slowly, with shallower trees, "
            "subsampling or more regularization."
        )
    elif before - last > FALLING * abs(before):
        words = (
            f"Underfitting, so far: {held_back} still falls at the end; {gap}. More "
            f"rounds, a higher learning rate or deeper trees would reduce it further."
        )
    else:
        words = (
            f"{held_back} has levelled off, and was best at round {at:,} "
            f"({number(least)}); {gap}."
        )
        if 0 < training.last < last / FAR:
            words += (
                " The model knows its training data far better than other data: "
                "shallower trees, "
                "subsampling or more regularization may close the gap."
            )
    return tag("p", words, class_="advice")


def _told(found: Rounds, end: int) -> str:
    """Name the last value, and its round if the training went on without one."""
    newest = int(found.rounds[-1])
    when = "" if newest == end else f" at round {newest:,}"
    return f"{found.name} {number(found.last)}{when}"
