"""A run with a spike and a NaN of one step each, for tests that look for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity
from tdbg.run.schema import EventKind

__all__ = [
    "LAYERS",
    "NAN",
    "NAN_STEP",
    "SPIKE",
    "SPIKE_STEP",
    "STEPS",
    "add_findings",
    "finding",
    "planted_run",
]

STEPS = 3000
LAYERS = [f"gradient/blocks.{i}.weight" for i in range(24)]
SPIKE_STEP = 1234
NAN_STEP = 2047
SPIKE, NAN = LAYERS[5], LAYERS[15]


def planted_run(path: Path) -> None:
    """A run of 24 gradients and a loss; layer 5 has a spike, layer 15 a NaN."""
    random = np.random.default_rng(3)
    with RunBuilder(path) as run:
        for step in range(STEPS):
            tensors = {
                name: (random.normal(size=4) * 10.0 ** -(3 - i / 24)).astype(np.float32)
                for i, name in enumerate(LAYERS)
            }
            if step == SPIKE_STEP:
                tensors[SPIKE] *= np.float32(1000)
            if step == NAN_STEP:
                tensors[NAN][1] = np.nan
            for name, array in tensors.items():
                run.save(step, name, array, what="statistics")
            loss = np.array(2.0 / (1 + step / 300), np.float32)
            run.save(step, "loss_output_0", loss, what="statistics", role=Role.LOSS)
            run.end_step(step)
    add_findings(
        path,
        finding("ExplodingTensor", NAN, NAN_STEP, Severity.ERROR),
        finding("LossSpike", SPIKE, SPIKE_STEP, Severity.WARNING),
    )


def finding(
    rule: str, tensor: str, step: int, severity: Severity, text: str = "measured"
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        step=step,
        mode=ModeKeys.TRAIN,
        tensor=tensor,
        message=f"{text} at step {step}",
        advice=f"look at step {step}: {text}",
        first_step=step,
        last_step=step,
    )


def add_findings(path: Path, *findings: Finding) -> None:
    """Write findings as an engine does."""
    with RunBuilder(path, role="engine") as engine:
        for each in findings:
            content = json.dumps(each.to_json()).encode()
            engine.capture.event(each.step, EventKind.FINDING, 1, content)
