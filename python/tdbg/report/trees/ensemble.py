"""Sections about the trees: importance, metrics, depth, contributions, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tdbg.compare import hyperparameters_of
from tdbg.drawing.bars import bar_chart
from tdbg.drawing.lines import line_chart
from tdbg.drawing.markup import Child, tag
from tdbg.modes import ModeKeys
from tdbg.report.page import Section, setting_text, table
from tdbg.report.subject import Subject
from tdbg.report.trees.rounds import rounds_of
from tdbg.trial import Series

__all__ = [
    "importance",
    "importance_of",
    "metrics",
    "parameters",
    "shape_of_trees",
]

MOST_FEATURES, MOST_LINES = 20, 8
# Kinds of importance by the names of the report that smdebug made.
KINDS = {"weight": "Weight", "gain": "Gain", "cover": "Coverage"}
PREFIX, SHAP = "feature_importance/", "average_shap/"


def importance(subject: Subject) -> Section | None:
    """Section 3: by weight, gain and cover; and how it changed over the iterations."""
    by_kind: dict[str, dict[str, str]] = {}
    for name in sorted(subject.in_collection("feature_importance")):
        kind, _, feature = name.removeprefix(PREFIX).partition("/")
        if feature:
            by_kind.setdefault(kind, {})[feature] = name
    if not by_kind:
        return None
    content: list[Child] = []
    rest: list[Child] = []
    leading = "gain" if "gain" in by_kind else next(iter(by_kind))
    named = [
        *(k for k in KINDS if k in by_kind),
        *(k for k in by_kind if k not in KINDS),
    ]
    for kind in named:
        charts = _importance_of(
            by_kind[kind], kind, subject, over_rounds=kind == leading
        )
        (content if kind in KINDS or len(by_kind) == 1 else rest).extend(charts)
    if rest:
        names = ", ".join(k for k in by_kind if k not in KINDS)
        content.append(tag("details", tag("summary", f"Further kinds: {names}"), rest))
    return Section("importance", "3 · Feature importance", content, "Importance")


def _importance_of(
    names: Mapping[str, str], kind: str, subject: Subject, *, over_rounds: bool
) -> list[Child]:
    """Bars of the last round, and lines over all rounds."""
    found = {feature: rounds_of(subject, name) for feature, name in names.items()}
    last = {feature: each.last for feature, each in found.items() if len(each)}
    chosen = sorted(last, key=lambda f: (-last[f], f))[:MOST_FEATURES]
    if not chosen:
        return []
    caption = (
        f"The {len(chosen)} highest of {len(names)}."
        if len(chosen) < len(names)
        else None
    )
    content: list[Child] = [
        tag("h3", KINDS.get(kind, kind)),
        bar_chart(
            chosen,
            [[last[f] for f in chosen]],
            [kind],
            alt=f"Feature importance by {kind}.",
            caption=caption,
        ),
    ]
    if over_rounds:
        content.append(
            line_chart(
                [found[f].drawn(f) for f in chosen[:MOST_LINES]],
                alt=f"Importance by {kind} over the iterations.",
                y_label=kind,
                x_label="round",
                caption=f"Importance by {kind} over the iterations.",
                height=200,
            )
        )
    return content


def metrics(subject: Subject) -> Section | None:
    """All metrics of all evaluation sets, a chart for each metric."""
    charts: dict[str, list[Series]] = {}
    for name in sorted(subject.in_collection("metrics")):
        data, _, metric = name.rpartition("-")
        found = rounds_of(subject, name)
        if len(found):
            charts.setdefault(metric, []).append(found.drawn(data or name))
    if not charts:
        return None
    content = [
        (
            tag("h3", metric),
            line_chart(
                series[:MOST_LINES],
                alt=f"{metric} of each evaluation set.",
                y_label=metric,
                x_label="round",
                height=200,
            ),
        )
        for metric, series in charts.items()
    ]
    return Section("metrics", "Metrics of every evaluation set", content, "Metrics")


def shape_of_trees(subject: Subject) -> Section | None:
    """Depth and leaves of the trees by round, and mean contributions of features."""
    content: list[Child] = []
    depths = _depths(subject)
    if depths:
        rounds = list(depths)
        content += [
            line_chart(
                [
                    Series.of_points(
                        "levels of the deepest tree",
                        rounds,
                        [d[0] for d in depths.values()],
                    ),
                    Series.of_points(
                        "leaves of a tree, mean",
                        rounds,
                        [d[1] for d in depths.values()],
                    ),
                ],
                alt="Depth and leaves of the trees by round.",
                y_label="levels, leaves",
                x_label="round",
                with_zero=True,
                height=190,
            )
        ]
    shap = {
        name.removeprefix(SHAP): rounds_of(subject, name)
        for name in sorted(subject.in_collection("average_shap"))
        if name != f"{SHAP}bias"
    }
    last = {f: each.last for f, each in shap.items() if len(each)}
    chosen = sorted(last, key=lambda f: (-last[f], f))[:MOST_FEATURES]
    if chosen:
        content += [
            tag("h3", "Mean size of the contributions (SHAP)"),
            bar_chart(
                chosen,
                [[last[f] for f in chosen]],
                ["mean |SHAP|"],
                alt="Mean size of the contribution of each feature.",
            ),
        ]
    return Section("trees", "Trees", content) if content else None


def _depths(subject: Subject) -> dict[int, tuple[float, float]]:
    """By round: levels of splits of the deepest tree, and mean number of leaves."""
    names = [f"trees/{column}" for column in ("Tree", "Node", "Yes", "No")]
    if not all(subject.trial.has_tensor(name) for name in names):
        return {}
    tensors = [subject.trial.tensor(name) for name in names]
    found = {}
    # Of a model that was asked when it was trained, in mode PREDICT.
    for mode in (ModeKeys.TRAIN, ModeKeys.PREDICT):
        for step in tensors[0].steps(mode, what="values"):
            columns = [subject.read(t.name, t.value, step, mode) for t in tensors]
            there = [column for column in columns if column is not None]
            if len(there) == len(names) and _is_table(there):
                found[step] = _depth(*there)
    return found


def _is_table(columns: Sequence[np.ndarray]) -> bool:
    """Whether columns of a file that anybody may have written are those of trees."""
    is_integer = all(column.dtype.kind in "iu" for column in columns)
    are_alike = len({column.shape for column in columns}) == 1
    return is_integer and are_alike and columns[0].size > 0


def _depth(
    tree: np.ndarray, node: np.ndarray, *children: np.ndarray
) -> tuple[float, float]:
    """Levels of splits of the deepest tree, and mean number of leaves."""
    shapes = [
        _shape(node[tree == each], [c[tree == each] for c in children])
        for each in np.unique(tree).tolist()
    ]
    deepest = max(levels for levels, _ in shapes)
    return float(deepest), float(np.mean([leaves for _, leaves in shapes]))


def _shape(nodes: np.ndarray, children: Sequence[np.ndarray]) -> tuple[int, int]:
    """Levels of splits, and leaves, of one tree."""
    below = {int(n): [int(c[i]) for c in children] for i, n in enumerate(nodes)}
    leaves = sum(all(child < 0 for child in each) for each in below.values())
    level, depth = {int(nodes[0])}, -1
    # Bounded by the number of nodes, so that damaged data ends too.
    while level and depth < len(nodes):
        depth += 1
        level = {c for n in level for c in below[n] if c >= 0 and c in below}
    return depth, leaves


def importance_of(subject: Subject, kind: str) -> dict[str, float]:
    """Importance of each feature at the last round that has it; empty without."""
    prefix = f"{PREFIX}{kind}/"
    names = [
        n for n in subject.in_collection("feature_importance") if n.startswith(prefix)
    ]
    found = {n.removeprefix(prefix): rounds_of(subject, n) for n in sorted(names)}
    return {feature: each.last for feature, each in found.items() if len(each)}


def parameters(subject: Subject) -> Section | None:
    """The hyperparameters as a table."""
    rows = [
        (tag("code", name), setting_text(value))
        for name, value in hyperparameters_of(subject.trial).items()
    ]
    if not rows:
        return None
    return Section(
        "hyperparameters", "Hyperparameters", table(("parameter", "value"), rows)
    )
