"""Two runs beside each other: what differs in how they were set up, and how they went.

Thread safety: functions over subjects, which belong to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tdbg.compare import Value, differences, divergence, facts_of, settings_of
from tdbg.drawing.bars import bar_chart
from tdbg.drawing.dots import Dots, dot_chart
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import number
from tdbg.drawing.time_charts import breakdown_chart
from tdbg.report.page import Section, badge, setting_text, table
from tdbg.report.sections.layers import usual_magnitudes
from tdbg.report.sections.losses import (
    DrawnLoss,
    loss_curves,
    scalar_series,
    scalars_of,
)
from tdbg.report.sections.overview import WORDS, size
from tdbg.report.sections.workers import median_step_time, step_time
from tdbg.report.subject import GRADIENT, Subject
from tdbg.report.trees.ensemble import importance_of
from tdbg.report.trees.rounds import rounds_of
from tdbg.trial import Series
from tdbg.view import last_value, loss_text
from tdbg.view.time import percent_text

__all__ = ["banners", "compared"]

Pair: TypeAlias = tuple[Subject, Subject]
Names: TypeAlias = tuple[str, str]

MOST_CHARTS, MOST_FEATURES, MOST_ROWS = 12, 20, 300
NOTHING = "-"
# From which difference on runs are said to part, relative to the larger value.
TOLERANCES = (0.0, 0.01, 0.1, 0.5)


def banners(runs: Pair, names: Names) -> Markup:
    """The verdict on each run."""
    return tag(
        "div",
        (
            tag(
                "div",
                tag("p", tag("b", name), class_="note"),
                tag("p", badge(v.tone, WORDS[v.tone]), v.sentence, class_="sentence"),
                tag("p", tag("b", "What to do: "), v.advice) if v.advice else None,
                tag("p", f"Where the time went: {time}.", class_="note")
                if time
                else None,
                class_=f"verdict tone-{v.tone}",
                role="group",
                aria_label=f"Verdict on {name}",
            )
            for v, time, name in (
                (run.view.verdict, run.time.sentence, name)
                for run, name in zip(runs, names, strict=True)
            )
        ),
    )


def compared(runs: Pair, names: Names) -> list[Section]:
    """The sections of the comparison."""
    found = [
        _facts(runs, names),
        _settings(runs, names),
        _divergence(runs),
        _findings(runs, names),
        _losses(runs, names),
        _numbers(runs, names),
        _layers(runs, names),
        _importance(runs, names),
        _time(runs, names),
    ]
    return [each for each in found if each is not None]


def _facts(runs: Pair, names: Names) -> Section:
    told: list[dict[str, Child]] = [
        {
            **facts_of(run.trial),
            "Parameters": f"{len(run.parameters):,}" if run.parameters else "",
            "Size": size(run.trial.n_bytes),
            "Identity": tag("code", run.trial.uuid),
        }
        for run in runs
    ]
    rows = [(name, *(each[name] or NOTHING for each in told)) for name in told[0]]
    return Section("run", "The runs", table(("fact", *names), rows))


def _settings(runs: Pair, names: Names) -> Section:
    rows = [
        (tag("code", key), *map(_words, values))
        for key, values in differences([settings_of(run.trial) for run in runs])
    ]
    if not rows:
        same = tag("p", "All recorded settings are the same.", class_="quiet")
        return Section("settings", "What was set differently", same)
    content: list[Child] = [table(("setting", *names), rows[:MOST_ROWS])]
    if len(rows) > MOST_ROWS:
        content.append(
            tag("p", f"{len(rows) - MOST_ROWS} more are not listed.", class_="quiet")
        )
    return Section("settings", "What was set differently", content)


def _words(value: Value | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, tuple):
        return f"{number(value[0])} to {number(value[1])}"
    return setting_text(value)


def _divergence(runs: Pair) -> Section | None:
    """Where the runs differ for the first time, and what differs first."""
    first, second = runs
    at_all = first.read("both runs", divergence, first.trial, second.trial)
    if at_all is None or not at_all.n_places or not at_all.n_names:
        return None
    what = (
        f"tdbg compared {at_all.n_names:,} tensors and numbers that both have, at "
        f"{at_all.n_places:,} {first.view.head.step_word}s that both have recorded."
    )
    content: list[Child] = [tag("p", what, class_="quiet")]
    if not at_all.points:
        content.append(tag("p", "They are the same throughout."))
        return Section("divergence", "Where they diverge", content)
    rows: list[tuple[Child, ...]] = []
    for tolerance in TOLERANCES:
        found = divergence(first.trial, second.trial, tolerance=tolerance)
        begin = "at all" if not tolerance else f"by more than {tolerance:.0%}"
        if found.points:
            earliest = found.points[0]
            word = f"{first.view.head.step_word} {earliest.place:,}"
            at_once = sum(p.place == earliest.place for p in found.points) - 1
            others = f" and {at_once:,} more" if at_once else ""
            rows.append((begin, word, [tag("code", earliest.name), others]))
        else:
            rows.append((begin, "never", NOTHING))
    content.append(table(("they differ", "from", "first in"), rows))
    return Section("divergence", "Where they diverge", content)


def _findings(runs: Pair, names: Names) -> Section:
    told = [_by_rule(run) for run in runs]
    rules = list(dict.fromkeys([*told[0], *told[1]]))
    if not rules:
        nothing = tag("p", "No rule has found anything in either.", class_="quiet")
        return Section("findings", "Findings", nothing)
    rows = [
        (tag("code", rule), *(each.get(rule, NOTHING) for each in told))
        for rule in rules
    ]
    return Section("findings", "Findings", table(("rule", *names), rows))


def _by_rule(run: Subject) -> dict[str, Child]:
    found: dict[str, Child] = {}
    for each in run.diagnosis.problems:
        label = each.severity.label
        tone, words = (
            ("ok", f"{WORDS[label]}, gone") if each.is_over else (label, WORDS[label])
        )
        others = f" and {len(each.findings) - 1} more" if len(each.findings) > 1 else ""
        where = tag("code", each.worst.tensor)
        found.setdefault(
            each.rule,
            [
                badge(tone, words),
                where,
                others,
                f", since step {each.worst.first_step:,}",
            ],
        )
    return found


def _losses(runs: Pair, names: Names) -> Section:
    told = [_losses_of(run) for run in runs]
    common = [label for label in told[0] if label in told[1]]
    content: list[Child] = []
    for label in common[:MOST_CHARTS]:
        pair = [
            each[label][0].named(name) for each, name in zip(told, names, strict=True)
        ]
        content += [
            tag("h3", label),
            line_chart(
                pair,
                alt=f"{label} of both runs.",
                y_label=label,
                x_label=runs[0].view.head.step_word,
            ),
        ]
    rows = []
    for label in dict.fromkeys([*told[0], *told[1]]):
        cells: list[Child] = [tag("code", label)]
        for each in told:
            if label in each:
                series, last = each[label]
                cells += [_least(series), last]
            else:
                cells += [NOTHING, NOTHING]
        rows.append(cells)
    if rows:
        columns = [f"{what}, {name}" for name in names for what in ("least", "last")]
        content.append(table(("loss", *columns), rows, right=columns))
    else:
        content.append(tag("p", "No loss was recorded in either.", class_="quiet"))
    return Section("losses", "Losses", content)


def _losses_of(run: Subject) -> dict[str, tuple[Series, str]]:
    """Return the losses of a run by label, each with its last value.

    Those of trees are by round, and metrics are among them; the others are by step.
    """
    if not run.are_trees:
        return {
            each.series.label: (each.series, _last_text(run, each))
            for each in loss_curves(run)
        }
    numbers = run.in_collection("losses") | run.in_collection("metrics")
    found = [rounds_of(run, name) for name in sorted(numbers) if run.is_number(name)]
    return {e.name: (e.drawn(), loss_text(e.last)) for e in found if len(e)}


def _last_text(run: Subject, curve: DrawnLoss) -> str:
    last = run.read(
        curve.name, last_value, run.trial, curve.name, curve.mode, run.table
    )
    return NOTHING if last is None else last.text


def _least(series: Series) -> str:
    finite = series.low[np.isfinite(series.low)]
    return loss_text(float(finite.min()) if len(finite) else math.nan)


def _numbers(runs: Pair, names: Names) -> Section | None:
    told = [scalar_series(scalars_of(run)) for run in runs]
    content: list[Child] = []
    for name in [n for n in told[0] if n in told[1]][:MOST_CHARTS]:
        pair = [
            each[name].named(label) for each, label in zip(told, names, strict=True)
        ]
        if not all(len(each) for each in pair) or _are_alike(*pair):
            continue
        short = name.removeprefix("scalar/").removeprefix("optimizer/")
        content.append(
            line_chart(pair, alt=f"{short} of both runs.", y_label=short, height=160)
        )
    return Section("numbers", "Rates and other numbers", content) if content else None


def _are_alike(first: Series, second: Series) -> bool:
    n = min(len(first), len(second))
    return bool(np.array_equal(first.mean[:n], second.mean[:n], equal_nan=True))


def _layers(runs: Pair, names: Names) -> Section | None:
    content: list[Child] = []
    for title, prefix, what in (
        ("Gradients", GRADIENT, "median rms of gradients"),
        ("Weights", "", "median rms of weights"),
    ):
        told = [usual_magnitudes(run, prefix) for run in runs]
        parameters = list(dict.fromkeys([*told[0], *told[1]]))[:MOST_ROWS]
        if not parameters:
            continue
        dots = [
            Dots(name, _values(each, parameters), np.zeros(len(parameters), bool))
            for each, name in zip(told, names, strict=True)
        ]
        content += [
            tag("h3", title),
            dot_chart(
                parameters, dots, alt=f"{title} of both runs by layer.", what=what
            ),
        ]
    return Section("layers", "Layers", content) if content else None


def _values(told: Mapping[str, float], names: list[str]) -> NDArray[np.float64]:
    return np.array([told.get(name, np.nan) for name in names])


def _importance(runs: Pair, names: Names) -> Section | None:
    told = [importance_of(run, "gain") for run in runs]
    if not any(told):
        return None
    total = {f: max(each.get(f, 0.0) for each in told) for f in {*told[0], *told[1]}}
    features = sorted(total, key=lambda f: (-total[f], f))[:MOST_FEATURES]
    values = [[each.get(f, np.nan) for f in features] for each in told]
    chart = bar_chart(
        features, values, names, alt="Feature importance by gain of both runs."
    )
    return Section("importance", "Feature importance by gain", chart)


def _time(runs: Pair, names: Names) -> Section | None:
    pair = [step_time(run).named(name) for run, name in zip(runs, names, strict=True)]
    if not all(len(each) for each in pair):
        return None
    medians = [median_step_time(run) for run in runs]
    texts = ", ".join(
        f"{name}: {number(ms)} ms" for ms, name in zip(medians, names, strict=True)
    )
    content: list[Child] = []
    if min(medians) > 0:
        content.append(tag("p", _ratio_text(medians[0], medians[1], names)))
    found = [
        replace(each, title=name)
        for run, name in zip(runs, names, strict=True)
        if (each := run.time.breakdown) is not None
    ]
    if len(found) == len(runs):
        content.append(breakdown_chart(found))
    chart = line_chart(
        pair,
        alt="Time of the steps of both runs.",
        y_label="ms a step",
        height=190,
        caption=f"Median time of a step: {texts}.",
    )
    return Section("time", "Time", [*content, chart])


def _ratio_text(before: float, after: float, names: Names) -> str:
    """Say how much longer or shorter a step is in the second run."""
    change = after / before - 1
    words = "as long as" if round(abs(change), 2) == 0 else ""
    if not words:
        direction = "longer" if change > 0 else "shorter"
        words = f"{percent_text(abs(change))} {direction} than"
    return f"A step of {names[1]} is {words} one of {names[0]}."
