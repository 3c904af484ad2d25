"""``smdebug.mxnet``: programs written for it run on tdbg, with the names they know."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdbg.compat.smdebug.mxnet as smd
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tdbg.errors import ConfigurationError

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import tdbg.compat.smdebug
tdbg.compat.smdebug.install()
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from smdebug import modes
from smdebug.mxnet import Hook, SaveConfig, create_trial
from smdebug.mxnet.singleton_utils import get_hook

hook = Hook(
    out_dir=sys.argv[1],
    save_config=SaveConfig(save_interval=2),
    include_collections=["weights", "gradients"],
)
assert get_hook() is hook
net = nn.HybridSequential()
with net.name_scope():
    net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
net.initialize()
hook.register_block(net)
loss = gluon.loss.SoftmaxCrossEntropyLoss()
hook.register_block(loss)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
for epoch in range(2):
    hook.set_mode(modes.TRAIN)
    for _ in range(3):
        with autograd.record():
            value = loss(net(nd.ones((2, 3))), nd.zeros(2))
        value.backward()
        trainer.step(2)
    hook.set_mode(modes.EVAL)
    loss(net(nd.ones((2, 3))), nd.zeros(2))
hook.close()
trial = create_trial(sys.argv[1])
print("steps", trial.steps(mode=modes.TRAIN), trial.steps(mode=modes.EVAL))
print(*trial.tensor_names(), sep="\\n")
"""


def test_a_program_of_smdebug_runs_as_it_is(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first, *names = ended.stdout.splitlines()
    assert first == "steps [0, 2, 4] [0]"
    prefix = "hybridsequential0_dense"
    parameters = [f"{prefix}{i}_{kind}" for i in (0, 1) for kind in ("bias", "weight")]
    assert {f"gradient/{each}" for each in parameters} <= set(names)
    assert {f"{prefix}0_weight", f"{prefix}1_weight"} <= set(names)
    assert "softmaxcrossentropyloss0_output_0" in names


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Any]:
    made = smd.Hook(
        out_dir=str(tmp_path / "run"),
        save_config=smd.SaveConfig(save_interval=1),
        include_collections=["chosen"],
    )
    yield made
    made.close()
    smd.del_hook()


def train(hook: Any, net: Any, n_steps: int = 2) -> None:
    hook.register_block(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(n_steps):
        with autograd.record():
            loss = (net(nd.ones((2, 3))) ** 2).sum()
        loss.backward()
        trainer.step(2)


def test_blocks_are_added_to_a_collection_before_the_hook_knows_them(
    hook: Any, tmp_path: Path
) -> None:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    net.initialize()
    hook.get_collection("chosen").add_block_tensors(net[0], inputs=True, outputs=True)
    train(hook, net)
    hook.close()
    names = smd.create_trial(str(tmp_path / "run")).tensor_names(collection="chosen")
    assert sorted(names) == ["net_dense0_input_0", "net_dense0_output_0"]


def test_the_index_of_outputs_runs_on_over_the_calls_of_a_block(
    hook: Any, tmp_path: Path
) -> None:
    class Twice(gluon.Block):
        def __init__(self) -> None:
            super().__init__(prefix="twice_")
            with self.name_scope():
                self.dense = nn.Dense(3)

        def forward(self, x: Any) -> Any:
            return self.dense(self.dense(x))

    net = Twice()
    net.initialize()
    hook.get_collection("chosen").include("twice_dense0_output")
    train(hook, net)
    hook.close()
    names = smd.create_trial(str(tmp_path / "run")).tensor_names(collection="chosen")
    assert sorted(names) == ["twice_dense0_output_0", "twice_dense0_output_1"]


def test_a_hook_is_made_of_a_file_as_in_sagemaker(tmp_path: Path) -> None:
    settings = {
        "LocalPath": str(tmp_path / "run"),
        "HookParameters": {"save_interval": "3"},
        "CollectionConfigurations": [{"CollectionName": "gradients"}],
    }
    path = tmp_path / "hook.json"
    path.write_text(json.dumps(settings))
    hook = smd.Hook.create_from_json_file(str(path))
    try:
        assert smd.get_hook() is hook
        net = nn.Dense(2, prefix="d_")
        net.initialize()
        train(hook, net, n_steps=4)
        hook.close()
        run = smd.create_trial(str(tmp_path / "run"))
        assert run.tensor("gradient/d_weight").steps() == [0, 3]
    finally:
        hook.close()
        smd.del_hook()


def test_what_is_no_block_and_no_name_is_refused(hook: Any, tmp_path: Path) -> None:
    with pytest.raises(SMDebugTypeError, match=r"expected a gluon\.Block"):
        hook.get_collection("chosen").add_block_tensors("dense0")
    with pytest.raises(ConfigurationError, match="register_block needs"):
        hook.register_hook(nd.ones(1))
    with pytest.raises(SMDebugTypeError, match="is not a name of a collection"):
        smd.Hook(out_dir=str(tmp_path / "other"), include_collections=[1])
