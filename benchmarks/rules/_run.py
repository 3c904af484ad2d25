"""A run of a thousand tensors for a thousand steps, with known faults in it.

Written by the writer that a training has: rows of all tensors at every step, and
beside them what some rules go by: facts of the model, labels and predictions, tokens,
histograms of gradients, unit summaries, learning rates, trees, and passes of
evaluation, all as often as a hook takes them for the default rules.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.rules._plan import (
    EMBEDDING,
    N_ELEMENTS,
    N_FEATURES,
    N_ROWS,
    NOT_IN_OPTIMIZER,
    PASS_STEPS,
    SHAPE,
    Plan,
)
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.run.schema import EventKind

__all__ = ["build"]

N_UNITS, N_CLASSES, BATCH = 64, 10, 64
# Layers that have unit summaries, and of a kind of activation each.
UNIT_LAYERS = range(0, 16, 2)
UNITS_EVERY, LABELS_EVERY, TOKENS_EVERY = 5, 5, 10
HISTOGRAMS_EVERY, TREES_EVERY = 100, 10
# At each of the first steps a hook takes what it takes at some steps later.
DENSE_STEPS = 50
# Classes that are mistaken for each other.
CONFUSED = 3, 5
# The class that has few samples, all of which are missed.
RARE = 8
# Steps for which batches that are not shuffled are of one class.
CLASS_STEPS = 20
# What is left of a learning rate at each step, and in the end.
DECAY, LEFT = 0.7, 1e-12

Arrays = dict[str, NDArray[np.generic]]


def build(
    path: Path,
    n_tensors: int,
    n_steps: int,
    seed: int = 0,
    *,
    rows_only: bool = False,
) -> int:
    """Write it, on demand without values and histograms; answers how many steps."""
    plan = Plan(n_tensors, n_steps)
    writer = _Writer(path)
    training = _Training(plan, np.random.default_rng(seed))
    for document in plan.model_info().parts():
        writer.event(0, document)
    for step in range(n_steps):
        at = plan.global_step(step)
        writer.rows(at, training.rows(step))
        values = training.values(step)
        if not rows_only:
            for name, value in values.items():
                writer.value(at, name, value)
            if step % HISTOGRAMS_EVERY == 0:
                writer.histograms(at)
        writer.scalars(at, training.scalars(step))
        writer.end(at, ModeKeys.TRAIN, step)
        if plan.ends_pass(step):
            for k in range(PASS_STEPS):
                writer.rows(at + 1 + k, training.validation(step), others=False)
                writer.end(at + 1 + k, ModeKeys.EVAL)
    writer.close()
    return plan.global_step(n_steps - 1) + 1 + PASS_STEPS * plan.ends_pass(n_steps - 1)


class _Writer:
    """Defines what it is given, and writes it."""

    def __init__(self, path: Path) -> None:
        run = create_run(path)
        self._capture = _core.Capture(
            str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16), min_free_bytes=0
        )
        self._ids: dict[tuple[str, tuple[int, ...]], int] = {}
        self._rows: Arrays = {}
        self._n_evaluated = 0
        self._n_steps = 0

    def event(self, step: int, document: object) -> None:
        self._capture.event(
            step, EventKind.CONFIGURATION, 1, json.dumps(document).encode()
        )

    def rows(self, step: int, arrays: Arrays, *, others: bool = True) -> None:
        """Statistics of these."""
        if others:
            self._rows = arrays
        ids = [self._define(name, array) for name, array in arrays.items()]
        pointers = [array.ctypes.data for array in arrays.values()]
        self._capture.statistics(step, ids, pointers)

    def value(self, step: int, name: str, array: NDArray[np.generic]) -> None:
        self._capture.values(step, self._define(name, array), array.ctypes.data)

    def histograms(self, step: int) -> None:
        """Of the gradients of the last rows."""
        for name, array in self._rows.items():
            if name.startswith("gradient/"):
                number = self._define(name, array)
                self._capture.count_histogram(step, number, array.ctypes.data)

    def scalars(self, step: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            key = name, ()
            if key not in self._ids:
                self._ids[key] = self._capture.define(name, int(Role.SCALAR))
            self._capture.scalar(step, self._ids[key], value, 1)

    def end(self, step: int, mode: ModeKeys, mode_step: int | None = None) -> None:
        if mode_step is None:
            mode_step = self._n_evaluated
            self._n_evaluated += 1
        self._capture.end_step(step, mode.value, mode_step)
        self._n_steps += 1
        if self._n_steps % 50 == 0:
            self._capture.flush()

    def close(self) -> None:
        if not self._capture.close(60.0):
            msg = "the run could not be written"
            raise OSError(msg)

    def _define(self, name: str, array: NDArray[np.generic]) -> int:
        key = name, array.shape
        if key not in self._ids:
            self._ids[key] = self._capture.define(
                name, int(_role(name)), array.dtype.name, array.shape
            )
        return self._ids[key]


class _Training:
    """The values of all tensors at each step, with the faults in them.

    Args:
        plan: What they are.
        random: Where noise comes from.
    """

    def __init__(self, plan: Plan, random: np.random.Generator) -> None:
        self._plan, self._random = plan, random
        self._faults = plan.faults()
        tensors = plan.tensors()
        self._names = [name for name, _, _ in tensors]
        self._halves = {name for name, _, t in tensors if t == np.float16}
        roles = np.array([role for _, role, _ in tensors])
        self._is = {role: roles == role for role in set(roles.tolist())}
        self._row = {name: i for i, name in enumerate(self._names)}
        shape = (len(tensors), N_ELEMENTS)
        self._held = random.normal(size=shape).astype(np.float32)
        # All units of a layer have the same weights.
        alike = self._row[f"{plan.layers[2]}.weight"]
        self._held[alike] = np.tile(self._held[alike, :4], 4)
        self._forgotten = self._row[f"{plan.layers[NOT_IN_OPTIMIZER]}.weight"]
        rectified = [
            self._row[name]
            for i, name in enumerate(plan.outputs)
            if plan.activation(i) == "ReLU"
        ]
        self._rectified = np.array(rectified)

    def rows(self, step: int) -> Arrays:
        """What has statistics at this step of training."""
        found = self._tensors(step)
        found |= self._losses(step)
        found[f"gradient/{EMBEDDING}.weight"] = self._noise(N_ROWS, 4)
        found["Model_input_0"] = self._noise(BATCH, 8) + 100 * self._is_due(
            "NotNormalizedData", step
        )
        if step < DENSE_STEPS or step % LABELS_EVERY == 0:
            labels, predictions = self._batch()
            found["CrossEntropyLoss_input_1"] = labels
            found["CrossEntropyLoss_input_0"] = predictions
            found["NLLLoss_input_1"] = np.full(BATCH, step // CLASS_STEPS % N_CLASSES)
            self._last = labels, predictions
        if step < DENSE_STEPS or step % TOKENS_EVERY == 0:
            tokens = self._random.integers(0, N_ROWS, size=1200)
            if self._is_due("NLPSequenceRatio", step):
                tokens[:1000] = 0
            found[f"{EMBEDDING}_input_0"] = self._tokens = tokens
        if step % TREES_EVERY == 0:
            share = np.full(N_FEATURES, 1.0)
            if self._is_due("FeatureImportance", step):
                share[:3] = 100.0
            for i in range(N_FEATURES):
                found[f"feature_importance/weight/f{i}"] = share[i : i + 1]
            depth = 12 if self._is_due("TreeDepth", step) else 6
            found["trees/Node"] = self._tree = np.arange(2**depth - 1)
        return found

    def values(self, step: int) -> Arrays:
        """What is kept as it is at this step of training, after ``rows``."""
        found: Arrays = {}
        dense = step < DENSE_STEPS
        if dense or step % LABELS_EVERY == 0:
            labels, predictions = self._last
            found["CrossEntropyLoss_input_1"] = labels
            found["CrossEntropyLoss_input_0"] = predictions
        if dense or step % TOKENS_EVERY == 0:
            found[f"{EMBEDDING}_input_0"] = self._tokens
        if dense or step % UNITS_EVERY == 0:
            found |= self._units(step)
        if step % TREES_EVERY == 0:
            found["trees/Node"] = self._tree
        if step == 0:
            found |= {
                name: self._held[i].reshape(SHAPE)
                for name, i in self._row.items()
                if _role(name) is Role.WEIGHT and name not in self._halves
            }
        return found

    def scalars(self, step: int) -> dict[str, float]:
        """Learning rates."""
        rates = [1e-3, 1e-3, 1e-3]
        if self._is_due("ZeroLearningRate", step):
            rates[0] = 0.0
        if self._is_due("VanishingLearningRate", step):
            rates[1] *= max(DECAY**step, LEFT)
        return {f"scalar/optimizer/{i}/lr": rate for i, rate in enumerate(rates)}

    def validation(self, step: int) -> Arrays:
        """The loss of a step of evaluation."""
        done = step / self._plan.n_steps
        loss = 2.4 * np.exp(-4 * done) + 0.3 + 3.0 * max(0.0, done - 0.4)
        return {"SmoothL1Loss_output_0": np.full(1, loss, np.float32)}

    def _tensors(self, step: int) -> Arrays:
        values = self._noise(*self._held.shape)
        is_weight = self._is[Role.WEIGHT] | self._is[Role.BIAS]
        values[is_weight] = self._held[is_weight] + 1e-3 * values[is_weight]
        values[self._forgotten] = self._held[self._forgotten]
        values[self._is[Role.GRADIENT]] *= 1e-2
        values[self._rectified] = np.maximum(values[self._rectified], 0)
        weights = np.flatnonzero(self._is[Role.WEIGHT])
        updates = np.flatnonzero(self._is[Role.UPDATE])
        if step == 0:
            values[is_weight] = self._held[is_weight]
            values[updates] *= 1e-3
        self._spoil(step, values)
        if step:
            values[updates] = values[weights] - self._held[weights]
        self._held[is_weight] = values[is_weight]
        found = {
            name: row.astype(np.float16) if name in self._halves else row
            for name, row in zip(self._names, values, strict=True)
        }
        for i in weights.tolist():
            found[self._names[i]] = found[self._names[i]].reshape(SHAPE)
        return found

    def _spoil(self, step: int, values: NDArray[np.float32]) -> None:
        """Put the faults of single tensors into a step."""
        for (rule, name), fault in self._faults.items():
            i = self._row.get(name)
            if i is None or step < fault.since:
                continue
            if rule == "AllZero":
                values[i] = 0.0
            elif rule == "ExplodingGradient":
                values[i] *= 1e6
            elif rule == "ExplodingTensor":
                values[i, 3] = np.nan
            elif rule == "TensorVariance":
                values[i] = 1.0
            elif rule in ("PrecisionLoss", "UnchangedTensor"):
                values[i] = self._held[i]
            elif rule == "VanishingGradient":
                values[i] *= 1e-8
            elif rule == "WeightUpdateRatio":
                values[i] = self._noise(N_ELEMENTS)

    def _losses(self, step: int) -> Arrays:
        done = step / self._plan.n_steps
        spikes = self._faults["LossSpike", "MSELoss_output_0"].since
        noise = 0.01 * self._random.normal(size=3)
        losses = {
            "CrossEntropyLoss_output_0": np.log(N_CLASSES) + noise[0],
            "MSELoss_output_0": 2.3 * np.exp(-done) + 0.2 + noise[1],
            "SmoothL1Loss_output_0": 2.3 * np.exp(-2 * done) + 0.1 + noise[2],
        }
        if spikes <= step < spikes + 10:
            losses["MSELoss_output_0"] = 20.0
        return {name: np.full(1, loss, np.float32) for name, loss in losses.items()}

    def _batch(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Labels, and scores that are right but where classes are confused."""
        labels = self._random.integers(0, N_CLASSES, size=BATCH)
        rare = (labels == RARE) & (self._random.random(BATCH) < 0.95)
        labels[rare] = 0
        said = labels.copy()
        said[labels == RARE] = 0
        one, other = CONFUSED
        said[(labels == one) & (self._random.random(BATCH) < 0.6)] = other
        scores = self._noise(BATCH, N_CLASSES)
        scores[np.arange(BATCH), said] = 10.0
        return labels, scores

    def _units(self, step: int) -> Arrays:
        """Unit summaries: active, out of range and all, of each unit."""
        found: Arrays = {}
        for i in UNIT_LAYERS:
            name = self._plan.outputs[i]
            summary = np.zeros((3, N_UNITS), np.uint64)
            summary[2] = BATCH
            summary[0] = self._random.integers(20, 60, N_UNITS)
            if ("DeadRelu", name) in self._faults and self._is_due("DeadRelu", step):
                summary[0] = 0
            if ("SaturatedActivation", name) in self._faults:
                summary[1] = BATCH * self._is_due("SaturatedActivation", step)
            found[f"unit/{name}"] = summary
        used = np.zeros((3, N_ROWS), np.uint64)
        used[2] = 4
        used[0] = 4 * (self._random.random(N_ROWS) < 0.5)
        if self._is_due("DeadEmbedding", step):
            used[0, N_ROWS // 4 :] = 0
        found[f"unit/gradient/{EMBEDDING}.weight"] = used
        return found

    def _is_due(self, rule: str, step: int) -> bool:
        """Whether the fault that a rule is to find is there."""
        since = min(f.since for (name, _), f in self._faults.items() if name == rule)
        return step >= since

    def _noise(self, *shape: int) -> NDArray[np.float32]:
        return self._random.normal(size=shape).astype(np.float32)


def _role(name: str) -> Role:
    for beginning, role in (
        ("gradient/", Role.GRADIENT),
        ("update/", Role.UPDATE),
        ("unit/", Role.UNIT_SUMMARY),
        ("feature_importance/", Role.OTHER),
        ("trees/", Role.OTHER),
        ("Model_input", Role.MODEL_INPUT),
        ("CrossEntropyLoss_input_0", Role.PREDICTION),
        ("CrossEntropyLoss_input_1", Role.LABEL),
        ("NLLLoss_input_1", Role.LABEL),
    ):
        if name.startswith(beginning):
            return role
    for end, role in (
        ("Loss_output_0", Role.LOSS),
        ("_output_0", Role.OUTPUT),
        ("_input_0", Role.INPUT),
        (".bias", Role.BIAS),
    ):
        if name.endswith(end):
            return role
    return Role.WEIGHT
