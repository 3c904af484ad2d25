"""A collection that was asked for and holds no tensor is named when a training ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.trial import create_trial
from tdbg.view import head_of

OF_TORCH = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""
OF_KERAS = """
import keras
import numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
x = np.ones((48, 4), np.float32)
model.fit(x, x, batch_size=4, epochs=1, verbose=0)
"""
COLLECTIONS = {
    "misspelt": {"include_regex": ["rellu_output", "^sofmax"]},
    "found": {"include_regex": "_output_0$"},
    "off": {"include_regex": "nothing", "save_config": {"end_step": 0}},
}
SMDEBUG = {
    "CollectionConfigurations": [
        {
            "CollectionName": "misspelt",
            "CollectionParameters": {"include_regex": "rellu_output,^sofmax"},
        }
    ],
}


@pytest.mark.parametrize(
    ("program", "settings"),
    [
        (OF_TORCH, {"collections": COLLECTIONS}),
        (OF_KERAS, {"collections": COLLECTIONS}),
        (OF_TORCH, SMDEBUG),
    ],
    ids=["torch", "keras", "smdebug"],
)
def test_a_collection_that_found_no_tensor_is_named_at_the_end(
    program: str, settings: dict[str, object], tmp_path: Path
) -> None:
    """Nothing that was asked for is left out without a word."""
    if settings is SMDEBUG:
        settings = {"LocalPath": str(tmp_path / "run"), **settings}
    file, script = tmp_path / "hook.json", tmp_path / "train.py"
    file.write_text(json.dumps(settings))
    script.write_text(program)
    options = ("--out", str(tmp_path / "run"), "--config", str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "tdbg", "run", *options, sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        check=True,
    )
    named = "collection 'misspelt' (include_regex 'rellu_output', '^sofmax')"
    (line,) = [each for each in ended.stderr.splitlines() if "misspelt" in each]
    assert f"captured no tensor of {named}" in line
    assert "'found'" not in line
    assert "'off'" not in line
    coverage = head_of(create_trial(tmp_path / "run")).coverage
    assert coverage.empty == (named,)
    assert f"; no tensor of {named}" in coverage.text
