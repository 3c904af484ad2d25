"""What a step holds from which something was lost never leads to a finding."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rules_fake import STEP
from tdbg.errors import TensorUnavailableForStep
from tdbg.modes import ModeKeys
from tdbg.rules import Engine, default_rules
from tdbg.run.findings import Finding
from tdbg.stats.row_fields import FIELDS

ROLES = {
    "0.weight": "weight",
    "1.weight": "weight",
    "1.bias": "bias",
    "0_output_0": "output",
    "CrossEntropyLoss_output_0": "loss",
    "CrossEntropyLoss_input_0": "prediction",
    "CrossEntropyLoss_input_1": "label",
    "Net_input_0": "model_input",
    "gradient/0.weight": "gradient",
    "gradient/1.weight": "gradient",
    "gradient/1.bias": "gradient",
    "unit/0_output_0": "unit_summary",
}
N_ELEMENTS = 64
TRAIN, EVAL = ModeKeys.TRAIN.value, ModeKeys.EVAL.value
# Garbage is of a kind for so many steps.
STRETCH = 40
# Values are kept of so many first steps only.
N_VALUES = 300


class LossyRun:
    """Steps of which some were not whole; with garbage in these, if wanted."""

    loaded_all_steps = True
    status = "closed"
    path = ""
    profile = SimpleNamespace(tables=list)

    def __init__(self, n_steps: int, lossy: float, seed: int, *, garbage: bool) -> None:
        random = np.random.default_rng(seed)
        self._names = list(ROLES)
        self._table = np.zeros(n_steps, STEP)
        self._table["step"] = np.arange(n_steps)
        self._table["wall_ns"] = np.arange(n_steps) * 10**9
        self._table["mode"] = np.where(random.random(n_steps) < 0.1, EVAL, TRAIN)
        # Now and then, and for a while: most rules ask for what lasts.
        lost = random.random(n_steps) < lossy / 2
        whiles = random.random(n_steps // STRETCH + 1) < lossy
        lost |= np.repeat(whiles, STRETCH)[:n_steps]
        incomplete = lost & (random.random(n_steps) < 0.5)
        self._table["complete"] = ~incomplete
        self._table["lossless"] = ~lost
        self._table["settled"] = True
        self._lost = lost
        self._garbage = garbage
        self._rows = _rows(random, n_steps)
        broken = _garbage(random, n_steps)
        if garbage:
            for field in FIELDS:
                self._rows[field][:, lost] = broken[field][:, lost]
        self._present = np.ones((len(ROLES), n_steps), bool)
        self._present[:, random.random(n_steps) < 0.05] = False
        self._random = seed

    def refresh(self) -> bool:
        return True

    def no_refresh(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def training_steps_at(self, global_steps: Sequence[int]) -> list[int]:
        return list(global_steps)

    def configuration(self) -> dict[str, Any]:
        return {}

    def workers(self) -> list[str]:
        return ["worker_0"]

    def attempts(self) -> list[Any]:
        return []

    def model_info(self) -> list[Any]:
        return []

    def observations(self) -> list[Any]:
        return []

    def collections(self) -> dict[str, Any]:
        return {}

    def tensor_names(self) -> list[str]:
        return self._names

    def step_table(
        self, start: int | None = None, *, limit: int | None = None
    ) -> np.ndarray:
        return self._table[start or 0 :][:limit].copy()

    def columns(self, names: list[str], steps: np.ndarray) -> Any:
        at = np.ix_([self._names.index(name) for name in names], steps)
        return SimpleNamespace(
            present=self._present[at],
            fields=np.stack([self._rows[field][at] for field in FIELDS]),
        )

    def tensor(self, name: str) -> Any:
        def missing(step: int, **_: Any) -> Any:
            raise TensorUnavailableForStep(str(step))

        def value(step: int) -> np.ndarray:
            if step >= min(N_VALUES, len(self._table)):
                missing(step)
            bad = self._garbage and bool(self._lost[step])
            return _value(np.random.default_rng([self._random, step]), name, bad=bad)

        return SimpleNamespace(
            role=ROLES[name],
            position=self._names.index(name),
            dtype="float32",
            first_shape=(4,),
            steps=lambda what="any": (
                []
                if what == "histograms"
                else list(range(min(N_VALUES, len(self._table))))
            ),
            value=value,
            values_between=lambda start, stop: {
                step: value(step)
                for step in range(start, min(stop, N_VALUES, len(self._table)))
            },
            histogram=missing,
            workers=missing,
            stats=missing,
        )


def _rows(random: np.random.Generator, n_steps: int) -> dict[str, np.ndarray]:
    """Rows of a training that learns."""
    shape = (len(ROLES), n_steps)
    noise = random.normal(size=shape)
    mean = 0.01 * noise
    loss = list(ROLES.values()).index("loss")
    mean[loss] = 2.0 * np.exp(-np.arange(n_steps) / 500) + 0.1 + 0.01 * noise[loss]
    l2 = 1.0 + 0.1 * np.abs(noise)
    return {
        "count": np.full(shape, float(N_ELEMENTS)),
        "nan": np.zeros(shape),
        "positive_infinity": np.zeros(shape),
        "negative_infinity": np.zeros(shape),
        "zero": np.ones(shape),
        "min": mean - 0.3,
        "max": mean + 0.3,
        "abs_min": np.full(shape, 1e-3),
        "mean": mean,
        "m2": np.full(shape, 1.0) + 0.01 * noise,
        "l1": 5.0 + 0.1 * noise,
        "l2": l2,
    }


def _garbage(random: np.random.Generator, n_steps: int) -> dict[str, np.ndarray]:
    """Rows that look as bad as they can, in different ways."""
    shape = (len(ROLES), n_steps)
    kind = random.integers(0, 4, size=(shape[0], n_steps // STRETCH + 1))
    kind = np.repeat(kind, STRETCH, axis=1)[:, :n_steps]
    result = {}
    for field in FIELDS:
        huge = np.full(shape, 1e30)
        result[field] = np.choose(kind, [np.zeros(shape), huge, -huge, np.nan * huge])
    result["count"] = np.full(shape, float(N_ELEMENTS))
    for field in ("nan", "positive_infinity", "zero"):
        result[field] = np.where(kind == 3, float(N_ELEMENTS), 0.0)
    return result


def _value(random: np.random.Generator, name: str, *, bad: bool) -> np.ndarray:
    role = ROLES[name]
    if role == "unit_summary":
        active = np.zeros(8) if bad else random.integers(10, 60, 8)
        return np.stack([active, active * 0, active * 0 + 64]).astype(np.uint64)
    if role == "label":
        return np.zeros(32, np.int64) if bad else random.integers(0, 4, 32)
    if bad:
        return np.full((32, 4), np.nan, np.float32)
    return random.normal(size=(32, 4)).astype(np.float32)


def findings(run: LossyRun) -> list[Finding]:
    return Engine(run, default_rules()).poll()


def check(n_steps: int, seed: int) -> None:
    """Whatever all rules say of sane lossy steps, they say of garbage ones."""
    assert findings(LossyRun(n_steps, 1.0, seed, garbage=True)) == []
    sane, garbage = (
        findings(LossyRun(n_steps, 0.3, seed, garbage=bad)) for bad in (False, True)
    )
    assert garbage == sane


@pytest.mark.parametrize("seed", range(3))
def test_what_was_lost_makes_no_finding(seed: int):
    check(1500, seed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_lossy_steps_make_no_finding():
    for seed in range(10):
        check(10_000, 100 + seed)
    check(100_000, 0)


def test_the_garbage_above_is_seen_where_nothing_was_lost():
    run = LossyRun(400, 0.3, 0, garbage=True)
    run._table["complete"] = run._table["lossless"] = True
    assert len({finding.rule for finding in findings(run)}) >= 5
