"""A running training captures something else for a while, because it is asked to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tdbg.capture.requests import MAX_OVERRIDES
from tdbg.cli import _tdbg
from tdbg.config import Collection, Role
from tdbg.errors import ConfigurationError, NotARun
from tdbg.modes import EVAL, TRAIN
from tdbg.pytorch import SaveConfig, create_trial
from tdbg.rules import check, needs_of
from tdbg.run.directory import run_of_process
from tdbg.run.requests import CaptureRequest, request_capture, write_request
from torch_helpers import Recorded, make_hook, parts, train

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "train_until_stopped.py"
RARELY = SaveConfig(save_interval=10**6, statistics_interval=10**6)
# Listeners look ten times a second, and less often where a look takes over 5 ms.
PATIENCE = 0.5
WAIT = ["--wait", "0.01"]


def hooked(run_dir: Path, **options: Any) -> tuple[Any, ...]:
    settings = {"include_collections": ["losses"], "save_config": RARELY, **options}
    hook = make_hook(run_dir, **settings)
    model, criterion, optimizer, batches = parts()
    hook.register_module(model)
    hook.register_loss(criterion)
    return hook, (model, criterion, optimizer, batches)


def await_look(hook: Any) -> None:
    """Wait until the next step looks for requests: on a busy machine, that is late."""
    pause = hook._session.obedience._requests._listener.next_ns - time.perf_counter_ns()
    time.sleep(max(PATIENCE, pause / 1e9))


def answers(run_dir: Path) -> list[dict[str, Any]]:
    events = [event.data for event in create_trial(run_dir).events("change")]
    return [event for event in events if event.get("what") == "capture"]


def test_what_is_asked_for_is_captured_for_so_long(run_dir: Path) -> None:
    hook, training = hooked(run_dir)
    train(*training, 7)
    await_look(hook)
    request_capture(
        run_dir,
        collections=["outputs", "gradients"],
        regex=["^fc1\\.weight$"],
        interval=2,
        steps=6,
        raw=True,
    )
    train(*training, 12)
    assert hook.close()
    trial = create_trial(run_dir)
    for name in ("relu_output_0", "gradient/fc2.weight", "fc1.weight"):
        tensor = trial.tensor(name)
        assert tensor.steps(mode=TRAIN, what="values") == [8, 10, 12], name
        assert tensor.steps(mode=TRAIN) == [8, 10, 12], name
    assert not trial.has_tensor("fc2.weight")
    assert trial.tensor("CrossEntropyLoss_output_0").steps(mode=TRAIN) == list(
        range(19)
    )
    accepted, ended = answers(run_dir)
    assert (accepted["state"], accepted["training_step"]) == ("accepted", 7)
    assert (accepted["until"], accepted["asked"]["interval"]) == (13, 2)
    assert "@" in accepted["who"]
    assert (ended["state"], ended["training_step"]) == ("ended", 13)
    assert ended["request"] == accepted["request"]


def test_statistics_of_one_mode_instead_of_all_else_until_it_is_ended(
    run_dir: Path,
) -> None:
    hook, training = hooked(
        run_dir,
        include_collections=["weights"],
        save_config=SaveConfig(save_interval=1, statistics_interval=1),
    )
    model, _, _, batches = training
    request_capture(run_dir, collections=["outputs"], mode=EVAL, instead=True)
    train(*training, 2)
    model.eval()
    model(next(batches)[0])
    model.train()
    await_look(hook)
    request_capture(run_dir, end=True)
    train(*training, 2)
    assert hook.close()
    trial = create_trial(run_dir)
    outputs = trial.tensor("fc1_output_0")
    assert outputs.steps(mode=EVAL) == [0]
    assert outputs.steps(mode=TRAIN) == []
    assert outputs.steps(mode=EVAL, what="values") == []
    assert trial.tensor("fc1.weight").steps(mode=TRAIN) == [2, 3]


def test_expressions_that_take_re_for_ever_are_taken_at_once() -> None:
    for pattern in ("(a+)+$", "(a|a)*$", ".*.*.*x", "(a+){3}"):
        assert CaptureRequest(regex=(pattern,)).regex == (pattern,)
        Collection("one", pattern).has("a" * 4000 + "b", Role.OTHER)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"collections": ["outptus"]}, "did you mean 'outputs'"),
    ({"regex": ["("]}, "not a regular expression"),
    ({"regex": ["(?!b)(a+)+$"]}, "forever"),
    ({"regex": ["(a{0,100}){0,100}$"]}, "too large"),
    ({"needs": [{"collections": ["outptus"]}]}, "did you mean 'outputs'"),
    ({"needs": [{"collections": "outputs"}]}, "list of texts"),
    ({"needs": [{"collections": ["outputs"], "raw": 1}]}, "raw must be True or False"),
    ({"needs": [{"collections": ["outputs"], "interval": 0.5}]}, "number of steps"),
    ({"needs": [{"collections": ["outputs"], "raw_limit": -1}]}, "raw_limit must be"),
    ({"needs": [{"colections": ["outputs"]}]}, "did you mean 'collections'"),
    ({"needs": ["outputs"]}, "not a rule's need"),
    ({"needs": {"collections": ["outputs"]}}, "list of needs"),
    ({"needs": [{"collections": ["outputs"]}] * 1000}, "at most"),
    ({"needs": [{"collections": ["outputs"]}], "raw": True}, "raw and mode apply to"),
    ({"regex": ["a"], "interval": True}, "number of steps"),
    ({"regex": ["x" * 1000]}, "not text"),
    ({"regex": ["a"] * 1000}, "at most"),
    ({"regex": "weight"}, "list of texts"),
    ({"regex": [["a"]]}, "not text"),
    ({"regex": ["a"], "interval": 0}, "number of steps"),
    ({"regex": ["a"], "interval": "5"}, "number of steps"),
    ({"regex": ["a"], "steps": -1}, "number of steps"),
    ({"regex": ["a"], "steps": 1 << 70}, "number of steps"),
    ({"regex": ["a"], "raw": 1}, "True or False"),
    ({"regex": ["a"], "mode": "TRIAN"}, "did you mean 'TRAIN'"),
    ({"regex": ["a"], "mode": ["TRAIN"]}, "mode"),
    ({"regex": ["a"], "intervall": 5}, "did you mean 'interval'"),
    ({}, "the request is empty"),
    ({"collections": ["default"]}, "selects nothing"),
]


def test_a_wrong_request_is_refused_with_its_reason_and_the_training_goes_on(
    run_dir: Path,
) -> None:
    hook, training = hooked(run_dir)
    for body, _ in BAD:
        write_request(run_dir, "capture", body)
    for _ in range(MAX_OVERRIDES + 1):
        write_request(run_dir, "capture", {"regex": ["fc1"]})
    train(*training, 3)
    assert hook.counters()["internal_errors"] == 0
    assert hook.close()
    assert [step[0] for step in Recorded(run_dir).steps] == [0, 1, 2]
    refused = [each for each in answers(run_dir) if each["state"] == "refused"]
    reasons = " / ".join(each["reason"] for each in refused)
    for _, reason in BAD:
        assert reason in reasons
    assert len(refused) == len(BAD) + 1
    assert "in effect already" in reasons


@pytest.mark.parametrize(("body", "reason"), BAD[:-1])
def test_a_wrong_request_is_refused_where_it_is_made(
    body: dict[str, Any], reason: str
) -> None:
    if "collections" in body:
        CaptureRequest.parse(body)  # Only the training knows its collections.
        return
    with pytest.raises(ConfigurationError, match=reason):
        CaptureRequest.parse(body)


def test_what_an_expression_may_have_and_who_asks() -> None:
    asked = CaptureRequest.parse(
        {"regex": ["^layer[0-9]{1,3}.*weight.*$"], "who": "x" * 1000}
    )
    assert len(asked.who) == 256


def test_collections_of_ones_own_and_losses_besides_what_is_instead(
    run_dir: Path,
) -> None:
    mine = Collection("mine", "relu_output")
    mine.tensor_names = {"fc1.weight"}
    included = ["losses", "scalars", "weights"]
    always = SaveConfig(save_interval=1, statistics_interval=1)
    hook, training = hooked(
        run_dir, collections=[mine], include_collections=included, save_config=always
    )
    request_capture(run_dir, collections=["mine"], instead=True)
    train(*training, 1)
    hook.save_scalar("accuracy", 0.5)
    train(*training, 1)
    assert hook.close()
    trial = create_trial(run_dir)
    rate, loss = "scalar/optimizer/group_0/lr", "CrossEntropyLoss_output_0"
    for name in ("relu_output_0", "fc1.weight", loss, rate):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1], name
    assert not trial.has_tensor("fc2.weight")
    assert trial.tensor("scalar/accuracy").steps(mode=TRAIN) == [0]


def test_the_command_line_asks_for_what_it_was_told(
    run_dir: Path,
) -> None:
    hook, training = hooked(run_dir)
    train(*training, 1)
    options = "--regex fc1 --interval 3 --for 6 --raw --mode train --instead"
    code, _ = call("attach", run_dir, *options.split(), "--wait", 0)
    assert code == 0
    code, _ = call("attach", run_dir, "--end", "--wait", 0)
    assert code == 0
    unanswered, _ = call("attach", run_dir, "--regex", "fc1", "--wait", 0.01)
    assert unanswered == 1
    result = CliRunner().invoke(_tdbg, ["attach", str(run_dir), "--regex", "x", *WAIT])
    assert "no answer within 0.01 s" in result.stdout
    await_look(hook)
    train(*training, 1)
    assert hook.close()
    first, *_, last = answers(run_dir)
    asked = first["asked"]
    assert {key: asked[key] for key in ("interval", "steps", "raw", "mode")} == {
        "interval": 3,
        "steps": 6,
        "raw": True,
        "mode": "TRAIN",
    }
    assert asked["instead"]
    assert last["state"] == "accepted"
    assert "somebody asked for it" in {each.get("reason") for each in answers(run_dir)}


def steps_of(run_dir: Path) -> dict[str, list[int]]:
    trial = create_trial(run_dir)
    return {
        f"{name} {what}": trial.tensor(name).steps(what=what)
        for name in trial.tensor_names()
        for what in ("statistics", "values", "histograms")
        if not name.startswith("scalar/")
    }


def test_rules_have_captured_what_they_need_as_if_asked_at_once(tmp_path: Path) -> None:
    often = SaveConfig(save_interval=3, statistics_interval=2)
    expected = tmp_path / "expected"
    hook, training = hooked(expected, rules="default", save_config=often)
    train(*training, 12)
    assert hook.close()
    run_dir = tmp_path / "run"
    hook, training = hooked(run_dir, save_config=often)
    train(*training, 5)
    # At once: nothing that it took before is needed by a rule.
    await_look(hook)
    code, _ = call("attach", run_dir, "--rules", "default", "--for", 5, "--wait", 0)
    assert code == 0
    train(*training, 7)
    assert hook.counters()["internal_errors"] == 0
    assert hook.close()
    found, requested = steps_of(run_dir), steps_of(expected)
    losses = "CrossEntropyLoss_output_0"
    for name, steps in requested.items():
        if not name.startswith(losses):
            # The inputs of the forward that takes it have passed by then.
            first = 6 if name.startswith("Net_input_0") else 5
            late = [step for step in steps if first <= step < 10]
            assert found.pop(name, []) == late, name
    assert {name.split()[0] for name in found} == {losses}
    assert found[f"{losses} statistics"] == list(range(12))
    assert steps_of(run_dir)["unit/relu_output_0 values"] == [5, 6, 7, 8, 9]


def test_what_a_rule_was_given_later_is_not_said_to_be_wanting(run_dir: Path) -> None:
    often = SaveConfig(statistics_interval=1)
    hook, training = hooked(run_dir, save_config=often)
    train(*training, 1)
    await_look(hook)
    request_capture(run_dir, needs=needs_of(["DeadRelu"]))
    train(*training, 1)
    assert hook.close()
    needs = create_trial(run_dir).configuration()["hook"]["needs"]
    assert {tuple(need["collections"]) for need in needs} == {("outputs",)}
    dead, other = check(run_dir, ["DeadRelu", "AllZero"], record=False).statuses
    assert "not captured" not in dead.message
    assert "were not captured" in other.message


def test_needs_of_the_hooks_own_rules_give_way_to_what_is_instead(
    run_dir: Path,
) -> None:
    often = SaveConfig(statistics_interval=1)
    hook, training = hooked(run_dir, rules=["WeightUpdateRatio"], save_config=often)
    train(*training, 2)
    await_look(hook)
    needs = needs_of(["VanishingGradient"])
    request_capture(run_dir, needs=needs, steps=3, instead=True)
    train(*training, 5)
    assert hook.close()
    trial = create_trial(run_dir)
    # Both rules need gradients; only the hook's own needs weights and updates.
    assert trial.tensor("gradient/fc1.weight").steps() == [0, 1, 2, 3, 4, 5, 6]
    assert trial.tensor("fc1.weight").steps() == [0, 1, 5, 6]
    assert trial.tensor("update/fc1.weight").steps() == [0, 1, 5, 6]


def test_a_training_may_be_named_by_its_process(run_dir: Path, tmp_path: Path) -> None:
    hook, training = hooked(tmp_path / "earlier")
    train(*training, 1)
    assert hook.close()
    read = create_trial(tmp_path / "earlier")  # Whoever reads a run does not write it.
    assert read.tensor_names()
    hook, training = hooked(run_dir)
    train(*training, 1)
    hook.flush()  # Its first shard is on the disk.
    assert run_of_process(os.getpid()) == run_dir
    assert call("attach", os.getpid(), "--regex", "fc1", "--wait", 0)[0] == 0
    await_look(hook)
    train(*training, 1)
    assert hook.close()
    assert [answer["state"] for answer in answers(run_dir)] == ["accepted"]
    result = CliRunner().invoke(_tdbg, ["attach", str(os.getpid()), "--regex", "x"])
    assert result.exit_code == 3
    assert "writes to no run; give the directory" in result.stderr
    with pytest.raises(NotARun, match="give the directory of its run"):
        run_of_process(2**22 + 1)  # More than Linux ever has.


def test_rules_are_asked_for_as_often_as_is_said(run_dir: Path) -> None:
    hook, training = hooked(run_dir)
    train(*training, 1)
    assert call("attach", run_dir, "--rules", "AllZeroo", "--wait", 0)[0] == 2
    words = "--rules ClassImbalance --rules VanishingGradient --interval 4 --wait 0"
    assert call("attach", run_dir, *words.split())[0] == 0
    await_look(hook)
    train(*training, 1)
    assert hook.close()
    (answer,) = answers(run_dir)
    usual = {need["interval"] for need in answer["asked"]["needs"]}
    # What is asked for at every step of the beginning stays so.
    assert usual <= {1, 4}
    assert 4 in usual


def test_a_training_that_has_ended_is_not_waited_for(
    run_dir: Path,
) -> None:
    hook, training = hooked(run_dir)
    train(*training, 1)
    assert hook.close()
    for words in (["attach", run_dir, "--regex", "fc1"], ["stop", run_dir]):
        code, answer = call(*words, "--wait", 600)
        assert (code, answer["state"]) == (1, "ended")
        result = CliRunner().invoke(_tdbg, [str(word) for word in words])
        assert result.stdout.startswith("the training ha")


def call(*arguments: object) -> tuple[int, dict[str, Any]]:
    texts = [str(argument) for argument in arguments]
    result = CliRunner().invoke(_tdbg, [*texts, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}


def ask_until_it_stops(training: subprocess.Popen[str], run_dir: Path) -> None:
    deadline = time.monotonic() + 120
    while not list(run_dir.glob("w/train-0-1/COMMIT")):
        assert time.monotonic() < deadline
        assert training.poll() is None, "it has ended"
        time.sleep(0.05)
    code, answer = call("attach", run_dir, "--collection", "weights", "--for", 20)
    assert (code, answer["state"]) == (0, "accepted")
    assert answer["until"] - answer["training_step"] == 20
    code, answer = call("attach", run_dir, "--collection", "wieghts")
    assert (code, answer["state"]) == (1, "refused")
    assert "did you mean 'weights'" in answer["reason"]
    code, answer = call("attach", run_dir, "--regex", "fc1", "--wait", 0)
    assert (code, answer["state"]) == (0, "asked")
    code, _ = call("attach", run_dir)
    assert code == 2
    code, answer = call("stop", run_dir, "--reason", "seen enough")
    assert (code, answer["state"]) == (0, "stopped")
    output, _ = training.communicate(timeout=60)
    assert output == "stopped: seen enough\n"
    assert training.returncode == 0


@pytest.mark.slow
def test_the_command_line_says_what_the_training_made_of_it(run_dir: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, PROGRAM, run_dir],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as training:
        try:
            ask_until_it_stops(training, run_dir)
        finally:
            training.kill()
    assert len(create_trial(run_dir).tensor("fc2.weight").steps(mode=TRAIN)) == 20
