"""Batches of a classifier as runs: what tests of rules about labels have in common."""

from __future__ import annotations

import numpy as np

from rules_fake import FakeRun
from tdbg.modes import ModeKeys

__all__ = ["BALANCED", "BATCH", "LABELS", "SCORES", "record", "run_of"]

LABELS, SCORES = "CrossEntropyLoss_input_1", "CrossEntropyLoss_input_0"
BATCH = 64
BALANCED = [1.0] * 10


def run_of(
    shares: list[float],
    recall: list[float] | None = None,
    mistaken_for: dict[int, int] | None = None,
    n_steps: int = 40,
    seed: int = 0,
    mode: ModeKeys = ModeKeys.TRAIN,
) -> FakeRun:
    """Batches with these shares of classes, of which so many are recognized."""
    random = np.random.default_rng(seed)
    n = len(shares)
    run = FakeRun()
    for step in range(n_steps):
        labels = random.choice(n, BATCH, p=np.array(shares) / sum(shares))
        scores = random.random((BATCH, n)).astype(np.float32)
        for row, label in enumerate(labels.tolist()):
            right = recall is None or random.random() < recall[label]
            other = (mistaken_for or {}).get(label, (label + 1 + step) % n)
            scores[row, label if right else other] += 5.0
        record(run, step, labels, scores, mode=mode)
    return run


def record(
    run: FakeRun, step: int, labels: np.ndarray, scores: np.ndarray, **flags: object
) -> None:
    run.step(step, {SCORES: scores, LABELS: labels}, **flags)
    run.value(step, SCORES, scores)
    run.value(step, LABELS, labels)
