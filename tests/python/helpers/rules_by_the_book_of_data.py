"""What rules about data and units should say, computed the plain way.

As ``rules_by_the_book`` does for those of tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from rules_by_the_book import (
    ERROR,
    INFO,
    TRAINING,
    WARNING,
    Entry,
    Row,
    Verdicts,
    entries,
    not_finite,
    of_role,
)
from rules_by_the_book_of_classes import at_least
from rules_by_the_book_of_losses import BOOKS_OF_LOSSES
from rules_fake import FakeRun
from tdbg.modes import ModeKeys
from tdbg.rules import (
    DeadEmbedding,
    DeadRelu,
    ExplodingTensor,
    NLPSequenceRatio,
    NotNormalizedData,
    Rule,
    SaturatedActivation,
    UnchangedTensor,
)
from tdbg.rules.window import OK
from tdbg.run.findings import Severity

__all__ = ["BOOKS_OF_DATA"]

INPUTS = {"input", "model_input", "prediction", "label"}
STATES = {"weight", "bias", "buffer"}


def not_normalized(rule: NotNormalizedData, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    for mode in TRAINING:
        for name in of_role(run, "model_input"):
            seen: list[Row] = []
            for entry in entries(run, mode):
                if name not in entry.rows or not entry.usable:
                    continue
                seen.append(entry.rows[name])
                merged = _merged(seen[-rule.num_steps :], rule.min_elements)
                if merged is not None:
                    mean, at_least, size = merged
                    far = mean > rule.max_mean
                    far |= at_least > rule.max_std or size < rule.min_std
                    result[mode, name, entry.step] = WARNING if far else OK
    return result


def _merged(rows: list[Row], enough: int) -> tuple[float, float, float] | None:
    """Least distance from 0, least deviation and size, of as few rows as will do."""
    counts, sums, squares, zeros = 0.0, 0.0, 0.0, 0.0
    used: list[Row] = []
    if rows[-1]["count"] == not_finite(rows[-1]):
        return None
    for row in reversed(rows):
        n = row["count"] - not_finite(row)
        if n:
            used.append(row)
            counts += n
            sums += n * row["mean"]
            squares += row["m2"] + n * row["mean"] ** 2
            zeros += row["zero"]
        if counts >= enough:
            mean = sums / counts
            std = math.sqrt(max(squares / counts - mean**2, 0.0))
            variances = {
                i: (each["m2"] / n + (each["mean"] - mean) ** 2, n / counts)
                for i, each in enumerate(used)
                for n in [each["count"] - not_finite(each)]
            }
            error = math.sqrt(
                sum(((v - std**2) * share) ** 2 for v, share in variances.values())
                * (len(used) / max(len(used) - 1, 1))
            )
            at_least = math.sqrt(max(std**2 - 2 * error, 0.0))
            away = abs(mean) - 2 * std / math.sqrt(counts)
            if not counts / 2 < zeros < counts:
                return away, at_least, std
            return away, at_least, math.sqrt(squares / (counts - zeros))
    return None


def sequence_ratio(rule: NLPSequenceRatio, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    limits = dict(zip(rule.token_values, rule.token_thresholds_percent, strict=True))
    (name,) = run.tensors
    values = run.tensors[name].values
    for mode in TRAINING:
        usable = [entry.step for entry in entries(run, mode) if entry.usable]
        steps = [step for step in usable if step in values]
        for k, step in enumerate(steps):
            last = steps[max(0, k + 1 - rule.max_steps) : k + 1][::-1]
            tokens: list[int] = []
            n_sequences = 0
            for each in last:
                if len(tokens) < rule.min_tokens and each in values:
                    tokens += values[each].ravel().tolist()
                    n_sequences += min(values[each].shape)
            # Of few tokens a share counts by its lower end, a sequence for a sample.
            few = len(tokens) < rule.min_tokens

            def above(
                part: int, whole: int, limit: float, n: int = n_sequences if few else 0
            ) -> bool:
                low = at_least(part / whole * n, n) if n else part / whole
                return 100 * part / whole > limit and 100 * low > limit

            bad = any(
                above(tokens.count(token), len(tokens), limit)
                for token, limit in limits.items()
            )
            rest = [token for token in tokens if token not in limits]
            if len(rest) >= 100:
                most = max(Counter(rest).values())
                bad |= above(most, len(rest), rule.any_percent)
            if bad or not few:
                result[mode, name, step] = WARNING if bad else OK
    return result


def unchanged(rule: UnchangedTensor, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    for mode in ModeKeys:
        streaks: Counter[str] = Counter()
        before: dict[str, Row | None] = {}
        last: dict[str, int] = {}
        since: dict[str, int] = {}
        for entry in entries(run, mode):
            broken = not entry.usable or entry.skipped
            for name in of_role(run, "weight"):
                if broken:
                    before[name], streaks[name] = None, 0
                if name not in entry.rows or broken:
                    continue
                row = entry.rows[name]
                hopeless = 0 < row["count"] == not_finite(row)
                if f"gradient/{name}" not in entry.rows or hopeless:
                    before[name], streaks[name] = None, 0
                    continue
                old, before[name] = before.get(name), row
                same = old is not None and all(
                    _near(row[field], old[field], rule) for field in row
                )
                streaks[name] = streaks[name] + 1 if same else 0
                if streaks[name] == 1:
                    since[name] = last[name]
                last[name] = entry.step
                if streaks[name] >= rule.num_steps - 1 and (
                    entry.step - since[name] + 1 >= 10
                ):
                    result[mode, name, entry.step] = WARNING
                elif old is not None and not same:
                    result[mode, name, entry.step] = OK
    return result


def _near(new: float, old: float, rule: UnchangedTensor) -> bool:
    if math.isnan(new) and math.isnan(old):
        return True
    return abs(new - old) <= rule.atol + rule.rtol * abs(old)


def exploding_tensor(rule: ExplodingTensor, run: FakeRun) -> Verdicts:
    del rule
    result: Verdicts = {}
    order = sorted(run.tensors, key=lambda name: run.tensors[name].role not in STATES)
    for mode in ModeKeys:
        # Of each severity: tensors whose latest row is not finite, at a step of it.
        was_bad: dict[int, dict[str, bool]] = {INFO: {}, ERROR: {}}
        had_minus: dict[str, bool] = {}
        for entry in entries(run, mode):
            if not entry.usable:
                continue
            bad = {}
            for name in [name for name in order if name in entry.rows]:
                row, role = entry.rows[name], run.tensors[name].role
                wrong = row["nan"] + row["positive_infinity"]
                if role not in INPUTS | {"output"}:
                    wrong += row["negative_infinity"]
                by_design = role == "gradient" and entry.skipped
                bad[name] = wrong > 0 and not by_design
            harm = any(bad.values())
            for name in bad:
                if run.tensors[name].role == "output":
                    minus = entry.rows[name]["negative_infinity"] > 0
                    bad[name] |= minus and not had_minus.get(name) and harm
                    had_minus[name] = minus
            is_handled = _is_handled(run, entry, mode)
            severity = INFO if is_handled else ERROR
            begins = any(bad.values()) and not any(was_bad[severity].values())
            for each, was in was_bad.items():
                was |= {n: is_bad and each == severity for n, is_bad in bad.items()}
            for name, is_bad in bad.items():
                if not any(bad.values()) or (is_handled and not is_bad):
                    result[mode, name, entry.step] = OK
                elif is_bad and begins:
                    begins = False
                    result[mode, name, entry.step] = severity
    return result


def _is_handled(run: FakeRun, entry: Entry, mode: ModeKeys) -> bool:
    """Whether the loss, the gradients and the weights of a step are known as finite."""
    there = Counter[str]()
    for name, row in entry.rows.items():
        role = run.tensors[name].role
        there[role] += 1
        by_design = role == "gradient" and entry.skipped
        if role not in INPUTS | {"output"} and not_finite(row) and not by_design:
            return False
    return bool(there["loss"] and (there["gradient"] or mode not in TRAINING))


def summaries(
    run: FakeRun, name: str, mode: ModeKeys
) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Steps without loss, and what was counted of the units then."""
    values = run.tensors[name].values
    return [
        (entry.step, values[entry.step].astype(float))
        for entry in entries(run, mode)
        if entry.usable and entry.step in values
    ]


def units(
    rule: DeadRelu | SaturatedActivation,
    run: FakeRun,
    level: Callable[[np.ndarray[Any, Any]], int],
) -> Verdicts:
    """Verdicts on the sums of as few of the last steps as are enough."""
    result: Verdicts = {}
    for mode in TRAINING:
        for name in run.tensors:
            every = summaries(run, name, mode)
            for k, (step, _) in enumerate(every):
                for n in range(rule.min_steps, min(rule.max_steps, k + 1) + 1):
                    last = [counts for _, counts in every[k + 1 - n : k + 1]]
                    if rule.min_steps > 1 and step - every[k + 1 - n][0] + 1 < 10:
                        continue
                    if sum(counts[2].max() for counts in last) >= rule.min_samples:
                        key = mode, name.removeprefix("unit/"), step
                        result[key] = level(sum(last[1:], last[0]))
                        break
    return result


def dead_relu(rule: DeadRelu, run: FakeRun) -> Verdicts:
    def level(counts: np.ndarray[Any, Any]) -> int:
        given = np.maximum(counts[2], 1)
        dead = (counts[0] / given < rule.threshold_inactivity / 100) & (counts[2] > 0)
        gone = (counts[0] == 0) & (counts[2] > 0)
        if not 100 * dead.mean() > rule.threshold_layer:
            return OK
        if 100 * gone.mean() >= rule.error_layer:
            return ERROR
        n, share = len(dead), rule.threshold_layer / 100
        chance = sum(
            math.comb(n, k) * share**k * (1 - share) ** (n - k)
            for k in range(int(dead.sum()), n + 1)
        )
        if chance > 0.05 and not dead.all():
            return OK
        return WARNING if 100 * dead.mean() > rule.warning_layer else int(Severity.INFO)

    return units(rule, run, level)


def saturated(rule: SaturatedActivation, run: FakeRun) -> Verdicts:
    def level(counts: np.ndarray[Any, Any]) -> int:
        inside = 1 - counts[1] / np.maximum(counts[2], 1)
        full = (inside < rule.threshold_activity / 100) & (counts[2] > 0)
        values = 100 * counts[1].sum() / max(counts[2].sum(), 1)
        is_bad = 100 * full.mean() > rule.threshold_layer
        return WARNING if is_bad or values > rule.threshold_values else OK

    return units(rule, run, level)


def dead_embedding(rule: DeadEmbedding, run: FakeRun) -> Verdicts:
    result: Verdicts = {}
    kinds = [
        kind for model_info in run.known_facts for kind in model_info.modules.values()
    ]
    has_two = kinds.count("Embedding") > 1
    for mode in TRAINING:
        for name in run.tensors:
            every = summaries(run, name, mode)
            for k, (step, _) in enumerate(every):
                last = [counts for _, counts in every[: k + 1][-rule.max_steps :]]
                n = len(last)
                used = sum((counts[0] > 0).astype(int) for counts in last)
                seen, once, twice = (
                    (used > 0).sum(),
                    *((used == i).sum() for i in (1, 2)),
                )
                if n < rule.min_steps or not seen:
                    continue
                rough = once > 0.1 * seen
                more = (n - 1) / n * once * (once - 1) / (2 * (twice + 1))
                more *= 20 if rough else 1
                unused = 100 * max(0.0, 1 - (seen + more) / len(used))
                if rough and unused <= rule.threshold:
                    continue
                key = mode, name.removeprefix("unit/"), step
                prefix = list(used) == [n] * seen + [0] * (len(used) - seen)
                is_meant = (prefix and has_two) or unused < 80
                bad = int(Severity.INFO) if is_meant else WARNING
                result[key] = bad if unused > rule.threshold else OK
    return result


BOOKS_OF_DATA: dict[type[Rule], Callable[[Any, FakeRun], Verdicts]] = {
    **BOOKS_OF_LOSSES,
    NotNormalizedData: not_normalized,
    NLPSequenceRatio: sequence_ratio,
    UnchangedTensor: unchanged,
    ExplodingTensor: exploding_tensor,
    DeadRelu: dead_relu,
    SaturatedActivation: saturated,
    DeadEmbedding: dead_embedding,
}
