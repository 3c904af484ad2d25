"""Collections that are made while reading, and trials of runs that have not begun."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg
import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug.exceptions import MissingCollectionFiles, SMDebugValueError
from tdbg.compat.smdebug.trials import Trial, create_trial
from tdbg.compat.smdebug.trials import trial as trials
from torch_helpers import digits, mlp, train

pytestmark = pytest.mark.torch
RELU = ["relu_input_0", "relu_output_0"]
WEIGHTS = ["Net_fc1.weight", "Net_fc2.weight"]


def train_into(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, save_all=True, save_config=smd.SaveConfig(save_interval=1))
    model = mlp()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(8), 2)
    hook.close()
    smd.del_hook()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("smdebug") / "run"
    train_into(run_dir)
    return run_dir


@pytest.fixture
def trial(finished: Path) -> Trial:
    return create_trial(str(finished))


def test_a_collection_is_made_while_reading(trial: Trial) -> None:
    trial.collection("mine").include("relu")
    assert trial.tensor_names(collection="mine") == RELU
    assert trial.collection("mine").tensor_names == set(RELU)
    assert trial.tensor_names(step=1, collection=trial.collection("mine")) == RELU
    assert "mine" in trial.collections()


def test_a_collection_of_the_run_is_extended_while_reading(trial: Trial) -> None:
    assert trial.tensor_names(collection="weights") == WEIGHTS
    trial.collection("weights").include("relu_output")
    assert trial.tensor_names(collection="weights") == [*WEIGHTS, "relu_output_0"]
    trial.collection("biases").add_tensor_name("relu_input_0")
    assert "relu_input_0" in trial.tensor_names(collection="biases")
    again = create_trial(trial.path)
    assert again.tensor_names(collection="weights") == WEIGHTS


@pytest.mark.parametrize("name", ["mine", "default"])
def test_a_collection_of_the_callers_own_selects_by_itself(
    trial: Trial, name: str
) -> None:
    own = smd.Collection(name, include_regex=["relu"])
    assert trial.tensor_names(collection=own) == RELU
    own = smd.Collection(name, tensor_names=["relu_output_0", "not saved"])
    assert trial.tensor_names(collection=own) == ["relu_output_0"]
    assert trial.tensor_names(collection=smd.Collection("weights")) == WEIGHTS


def test_a_collection_that_holds_nothing_is_told(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    assert trial.tensor_names(collection=trial.collection("wieghts")) == []
    assert caplog.messages == ["nothing of the collection 'wieghts' was saved"]
    with pytest.raises(SMDebugValueError, match="did you mean 'biases'"):
        trial.tensor_names(collection="biasses")


def test_tdbgs_own_trial_takes_a_collection_of_the_callers_own(finished: Path) -> None:
    trial = tdbg.create_trial(finished)
    for name in ("mine", "default"):
        own = tdbg.Collection(name, "relu")
        assert trial.tensor_names(collection=own) == RELU
    extended = trial.collection("weights")
    extended.include("relu_output")
    assert trial.tensor_names(collection=extended) == [*WEIGHTS, "relu_output_0"]
    with pytest.raises(tdbg.errors.QueryError, match="did you mean 'weights'"):
        trial.tensor_names(collection="wieghts")


# ---- a run that has not begun ------------------------------------------------------


@pytest.fixture
def _waits() -> Iterator[None]:
    yield
    trials.wait_for_runs(0.0)


@pytest.mark.usefixtures("_waits")
def test_a_trial_waits_for_its_run_where_it_is_told_to(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trials, "TELL_SECONDS", 0.2)
    with pytest.raises(MissingCollectionFiles):
        create_trial(str(run_dir))
    trials.wait_for_runs(math.inf)
    with pytest.raises(MissingCollectionFiles):
        create_trial(str(run_dir), wait=0.1)
    training = threading.Timer(0.7, train_into, [run_dir])
    training.start()
    with caplog.at_level(logging.WARNING, "tdbg"):
        trial = create_trial(str(run_dir))
    trial.wait_for_steps([1])
    training.join()
    assert f"waiting for the run {run_dir} to begin" in caplog.messages


@pytest.mark.usefixtures("_waits")
def test_what_can_never_become_a_run_is_not_waited_for(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "RUN.json").write_text("{}")
    trials.wait_for_runs(math.inf)
    with pytest.raises(MissingCollectionFiles):
        create_trial(str(run_dir))


def test_the_runner_lets_an_unedited_script_wait_for_the_run(
    tmp_path: Path, run_dir: Path
) -> None:
    script = tmp_path / "rule.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from smdebug.rules import Rule, invoke_rule
        from smdebug.trials import create_trial

        class Seen(Rule):
            def invoke_at_step(self, step):
                print("step", step, flush=True)
                return False

        print("asks", flush=True)
        invoke_rule(Seen(create_trial(sys.argv[1]), ""))
        """)
    )
    command = [sys.executable, "-m", "tdbg.compat.smdebug"]
    rest = [str(script), str(run_dir)]
    refused = subprocess.run(
        [*command, "--wait", "0.1", *rest],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "MissingCollectionFiles" in refused.stderr
    with subprocess.Popen(
        [*command, *rest], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "asks\n"
        time.sleep(0.5)
        assert watching.poll() is None
        train_into(run_dir)
        out, _ = watching.communicate(timeout=60)
    assert out.splitlines() == ["step 0", "step 1"]
    assert watching.returncode == 0
