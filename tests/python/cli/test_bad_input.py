"""What ``tdbg check`` and ``watch`` say of input that cannot be judged, and how."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder
from tdbg.cli import _tdbg
from tdbg.rules.testing import Recording
from tdbg.run.schema import EventKind


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


def told(result: Result) -> str:
    return " ".join(result.stderr.split())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose hook captured losses and weights, without histograms."""
    path = tmp_path / "run"
    hook = {
        "include_collections": ["losses", "weights"],
        "needs": [],
        "save_histogram": False,
    }
    with RunBuilder(path) as builder:
        content = json.dumps({"hook": hook}).encode()
        builder.capture.event(0, EventKind.CONFIGURATION, 0, content)
        for step in range(5):
            builder.step(step, {"fc.weight": np.full(3, step, np.float32)})
    return path


def statuses(run: Path, *rules: str) -> dict[str, Any]:
    asked = [each for rule in rules for each in ("--rule", rule)]
    result = call("check", run, *asked, "--json", "--no-record")
    assert result.exit_code == 0, result.output
    return {s["rule"]: s for s in json.loads(result.stdout)["statuses"]}


def test_a_collection_that_was_not_captured_is_named_with_its_setting(
    run: Path,
) -> None:
    found = statuses(run, "VanishingGradient", "ExplodingTensor")
    assert found["VanishingGradient"]["status"] == "NoIssuesFound"
    assert found["VanishingGradient"]["message"] == (
        "nothing to judge: gradients were not captured; "
        'include_collections=["gradients"] or rules=["VanishingGradient"] captures them'
    )
    output = call("check", run, "--rule", "VanishingGradient", "--no-record").output
    assert 'include_collections=["gradients"]' in output
    # What it needs is there in part.
    assert found["ExplodingTensor"]["message"].startswith(
        "some of what the rule needs is"
    )
    assert "weights were not" not in found["ExplodingTensor"]["message"]


def test_what_a_training_does_not_have_is_no_setting_that_was_forgotten(
    tmp_path: Path,
) -> None:
    needs = [{"collections": ["gradients", "trees"], "unit_summaries": True}]
    hook = {"include_collections": ["losses"], "needs": needs}
    with RunBuilder(tmp_path / "run") as builder:
        content = json.dumps({"hook": hook}).encode()
        builder.capture.event(0, EventKind.CONFIGURATION, 0, content)
        builder.step(0, {"fc.weight": np.ones(3, np.float32)})
    found = statuses(tmp_path / "run", "DeadEmbedding", "TreeDepth")
    assert found["DeadEmbedding"]["message"] == (
        "nothing to judge: the training has no gradients of embedding"
    )
    assert found["TreeDepth"]["message"] == (
        "does not apply: this training has no boosted trees"
    )


def test_rules_that_found_nothing_share_a_line(run: Path) -> None:
    asked = ('AllZero(collections=["weights"], min_count=1)', "TreeDepth")
    options = [each for rule in asked for each in ("--rule", rule)]
    output = call("check", run, *options, "--no-record").output.splitlines()
    assert "found nothing: AllZero" in output
    assert any(line.startswith("TreeDepth: does not apply") for line in output)
    assert "judged 5 recorded steps" in output


@pytest.mark.parametrize("verb", ["check", "watch"])
def test_a_rule_that_is_left_out_is_not_judged_and_others_share_lines(
    verb: str, run: Path
) -> None:
    output = call(verb, run, "--rule", "-AllZero").output
    assert "AllZero" not in output
    assert "do not apply to this training: " in output


@pytest.mark.parametrize("verb", ["check", "watch"])
@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("VanishingGradent", "did you mean 'VanishingGradient"),
        ("vanishinggradient", "did you mean 'VanishingGradient"),
        (
            "VanishingGradient(treshold=1)",
            "no parameter 'treshold'; did you mean 'threshold'?",
        ),
        (
            "VanishingGradient(threshold='high')",
            "threshold is 'high'; give",
        ),
        ("VanishingGradient(threshold=-1)", "VanishingGradient.threshold is -1"),
        ("VanishingGradient(threshold=True)", "VanishingGradient.threshold is True"),
        ("ExplodingTensor(tensor_regex='(')", "not a regular expression"),
        ("SimilarAcrossRuns", "SimilarAcrossRuns.other_runs is empty"),
        ("VanishingGradient(**{})", "NAME(parameter=value"),
        ("VanishingGradient(threshold=open('x'))", "NAME(parameter=value"),
        ("no_such_file.py:Rule", "there is no file"),
    ],
)
def test_a_bad_rule_is_refused_with_what_would_be_right(
    run: Path, verb: str, rule: str, hint: str
) -> None:
    result = call(verb, run, "--rule", rule)
    assert result.exit_code == 2
    assert hint in told(result)
    assert not list(run.glob("w/engine-*"))


def empty(folder: Path) -> None:
    folder.mkdir()


def foreign(folder: Path) -> None:
    folder.mkdir()
    (folder / "RUN.json").write_text('{"format": "other", "version": 1}')


def later(folder: Path) -> None:
    folder.mkdir()
    content = {"format": "tdbg-run", "version": 99, "uuid": "0" * 32, "created": ""}
    (folder / "RUN.json").write_text(json.dumps(content))


def above(folder: Path) -> None:
    with RunBuilder(folder / "first") as builder:
        builder.step(0, {"fc.weight": np.ones(3, np.float32)})


def file(folder: Path) -> None:
    folder.write_text("a file")


@pytest.mark.parametrize(
    ("make", "code", "hint"),
    [
        (empty, 3, "has no RUN.json"),
        (foreign, 3, "is not the description of a run"),
        (later, 3, "has run format 99"),
        (above, 3, "did you mean"),
        (above, 3, "folder/*'"),
        (file, 2, "is a file"),
        (lambda _: None, 3, "does not exist"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "watch"])
def test_what_is_no_run_is_told_with_what_is_there(
    tmp_path: Path, verb: str, make: Any, code: int, hint: str
) -> None:
    folder = tmp_path / "folder"
    make(folder)
    wait = ("--wait", "0") if verb == "watch" else ()
    result = call(verb, folder, *wait)
    assert result.exit_code == code, result.output
    assert hint in told(result)


def test_a_run_without_a_step_is_healthy_and_says_why(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run"):
        pass
    result = call("check", tmp_path / "run")
    assert result.exit_code == 0
    assert "no step to judge: nothing has been captured yet" in result.output


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("[AllZero, ExplodingTenser]", "no rule 'ExplodingTenser'; did you mean "),
        ("explodingtensor", "did you mean 'ExplodingTensor'?"),
        ("./nosuch.py:Mine", "nosuch.py"),
    ],
)
def test_an_action_that_waits_for_a_rule_there_is_not_is_refused(
    run: Path, tmp_path: Path, runs: int, rules: str, said: str
) -> None:
    """Sabotaged: a training that is to be stopped is not, and nobody knows why."""
    file = tmp_path / "actions.yaml"
    file.write_text(f"actions:\n- report\n- stop: {{rules: {rules}}}\n")
    result = call("watch", *[run] * runs, "--actions", file, "--wait", 0)
    assert result.exit_code == 2, result.output
    assert "actions[1]" in told(result)
    assert said in told(result)


def test_an_action_may_wait_for_a_rule_in_a_file(run: Path, tmp_path: Path) -> None:
    assert call("new-rule", "LargeWeights", "--dir", tmp_path).exit_code == 0
    rule = f"{tmp_path / 'large_weights.py'}:LargeWeights"
    file, out = tmp_path / "actions.yaml", tmp_path / "out"
    file.write_text(f"actions:\n- command: {{command: 'cat > {out}', rules: {rule}}}\n")
    asked = f"{rule}(limit=1)"
    result = call("watch", run, "--rule", asked, "--actions", file)
    assert result.exit_code == 1, result.output
    assert json.loads(out.read_text())["rule"] == "LargeWeights"


def test_a_run_says_what_has_become_of_its_training(run: Path, tmp_path: Path) -> None:
    assert "Trained for 5 steps." in call("check", run, "--no-record").output
    path = tmp_path / "live"
    with RunBuilder(path) as builder:
        builder.step(0, {"fc.weight": np.ones(6, np.float32)})
        builder.flush()
        said = call("check", path, "--no-record").output
        assert "Training, 1 step so far." in said
        document = json.loads(call("check", path, "--no-record", "--json").stdout)
        assert document["state"] == "running"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_reader_that_goes_and_a_full_disk_change_no_exit_code_to_findings(
    run: Path, more: tuple[str, ...]
) -> None:
    """Sabotaged: `tdbg check RUN | head -1 || page` pages for a healthy run."""
    command = [sys.executable, "-m", "tdbg", "check", str(run), "--no-record", *more]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone, Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert done.stderr == b"tdbg: [Errno 28] No space left on device\n"


def test_ctrl_c_before_there_is_anything_to_tell_is_neither_healthy_nor_sick(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tdbg", "watch", str(tmp_path / "late")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as watcher:
        assert watcher.stdout is not None
        # A run that is misspelt is noticed.
        assert "late to appear" in watcher.stdout.readline()
        watcher.send_signal(signal.SIGINT)
        _, stderr = watcher.communicate(timeout=120)
    assert (watcher.returncode, stderr) == (130, "\n")


def test_a_run_that_cannot_be_read_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "RUN.json").write_text("{}")
    result = call("check", tmp_path)
    assert result.exit_code == 3
    assert "To judge all" not in told(result)


def test_what_has_ended_is_not_asked_to_stop_and_has_not_stopped_for_it(
    run: Path,
) -> None:
    """Sabotaged: an end of the last seconds is taken for the answer."""
    result = call("stop", run, "--json")
    assert json.loads(result.stdout) == {"state": "ended", "request": None}
    assert result.exit_code == 1
    assert not list((run / "ctl").glob("*"))


def test_a_rule_that_cannot_judge_says_what_it_needs_and_how_many_steps_there_are(
    tmp_path: Path,
) -> None:
    with Recording(tmp_path / "run") as recording:
        for step in range(5):
            recording.step({"MSELoss_output_0": np.float32(step)})
    rules = ("LossNotDecreasing(window=30)", "Overtraining(passes_validation=4)")
    options = [each for rule in rules for each in ("--rule", rule)]
    output = call("check", tmp_path / "run", *options, "--no-record").output
    assert (
        "LossNotDecreasing: nothing to judge: the rule needs a loss at 60 recorded "
        "steps of training, or at 30 if it has fallen by then; the run has 5 recorded "
        "steps of training\n"
    ) in output
    assert (
        "Overtraining: does not apply: the training has no validation (no steps of "
        "mode EVAL)"
    ) in output
