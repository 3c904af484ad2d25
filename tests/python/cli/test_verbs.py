"""The verbs of the command line, called as a user would, on real runs."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from run_builder import RunBuilder, simple_run
from tdbg.cli import _tdbg, check
from tdbg.cli.rule_options import print_statuses
from tdbg.cli.summaries import BARS, sparkline
from tdbg.modes import ModeKeys
from tdbg.rules import Engine
from tdbg.rules.testing import Recording
from tdbg.run.directory import open_run
from tdbg.run.requests import RequestListener
from tdbg.trial import create_trial


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


def call_json(*arguments: object, exit_code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    simple_run(path, steps=range(5))
    return path


@pytest.fixture
def sick_run(tmp_path: Path) -> Path:
    path = tmp_path / "sick"
    with RunBuilder(path) as builder:
        for step in range(4):
            value = np.ones(6, np.float32)
            value[step] = np.nan if step == 3 else 2.0
            builder.step(step, {"fc.weight": value})
    return path


def damage(run: Path) -> None:
    shard = next(run.glob("w/train-*/000001.tds"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0x40
    shard.write_bytes(content)


def test_ls_of_a_folder_lists_its_runs_with_state_and_size(run: Path) -> None:
    document = call_json("ls", run.parent)
    (listed,) = document["runs"]
    assert listed["run"] == str(run)
    assert (listed["state"], listed["steps"]) == ("closed", 5)
    assert listed["lost_records"]["records"] == 0
    assert listed["bytes"] > 1000
    assert str(run) in call("ls", run.parent).output.replace("\n", "")


def test_ls_of_a_run_lists_its_tensors(run: Path) -> None:
    tensors = {t["name"]: t for t in call_json("ls", run)["tensors"]}
    assert set(tensors) >= {"fc.weight", "gradient/fc.weight"}
    weight = tensors["fc.weight"]
    assert (weight["dtype"], weight["shape"]) == ("float32", [4, 3])
    assert (weight["statistics"], weight["last_step"]) == (5, 4)


def test_ls_selects_by_regex_and_collection(run: Path) -> None:
    names = [t["name"] for t in call_json("ls", run, "--regex", "^grad")["tensors"]]
    assert names == ["gradient/fc.weight"]


def test_show_prints_a_line_with_a_sparkline_for_each_tensor(run: Path) -> None:
    output = call("show", run).output
    lines = [line for line in output.splitlines() if line.startswith("fc.weight")]
    assert len(lines) == 1
    assert any(bar in lines[0] for bar in "▁▂▃▄▅▆▇█")


def test_show_of_a_tensor_tells_its_history_as_numpy_would(run: Path) -> None:
    history = call_json("show", run, "fc.weight")["history"]
    values = [
        np.array(call_json("show", run, "fc.weight", "--step", n)["values"])
        for n in range(5)
    ]
    assert [row["step"] for row in history] == list(range(5))
    for row, value in zip(history, values, strict=True):
        assert row["mean"] == pytest.approx(value.mean(), rel=1e-6)
        assert row["l2"] == pytest.approx(np.linalg.norm(value.ravel()), rel=1e-6)


def test_show_of_a_tensor_with_histograms_tells_what_types_would_lose(
    tmp_path: Path,
) -> None:
    x = np.array([1e-6, -1e-6, 1.0, 1.0, 1000.0, 0.0, 0.0], np.float32)
    with RunBuilder(tmp_path) as builder:
        for step in range(2):
            builder.save(step, "fc.weight", x, what="statistics")
            if step == 0:
                builder.histogram(step, "fc.weight", x)
            builder.end_step(step)
    found = call_json("show", tmp_path, "fc.weight")["histogram"]
    assert (found["step"], found["count"], found["zero"]) == (0, 7, 2)
    assert dict(found["quantiles"])[0.25] == 0
    assert found["lost"]["float8_e4m3fn"]["underflow"] == 0.4
    assert found["lost"]["float8_e4m3fn"]["overflow"] == 0.2
    assert found["lost"]["float16"]["subnormal"] == 0.4
    output = call("show", tmp_path, "fc.weight").output
    assert "quantiles at step 0: 0% -1e-06, 1% " in output
    assert re.search(r"float8_e4m3fn +40.00% +0% +20.00% +0%", output)
    assert call("show", tmp_path, "fc.weight", "--mode", "EVAL").exit_code == 0


def test_show_tells_modes_apart_and_with_a_mode_all_of_it(tmp_path: Path) -> None:
    with RunBuilder(tmp_path) as builder:
        for step in range(4):
            mode = ModeKeys.EVAL if step == 2 else ModeKeys.TRAIN
            x = np.full(3, 10.0 if step == 2 else 1.0)
            builder.step(step, {"fc.weight": x}, mode=mode)
    tensors = call_json("show", tmp_path)["tensors"]
    assert {t["mode"]: (t["mean"], t["steps"]) for t in tensors} == {
        "TRAIN": (1.0, [0, 1, 2]),
        "EVAL": (10.0, [2]),
    }
    (merged,) = call_json("show", tmp_path, "--mode", "GLOBAL")["tensors"]
    assert (merged["mode"], merged["steps"]) == ("GLOBAL", [0, 1, 2, 2])
    assert merged["global_steps"] == [0, 1, 2, 3]
    output = call("show", tmp_path).output.splitlines()
    assert [line for line in output if "step" in line and "," in line][:2] == [
        "TRAIN, 3 steps",
        "EVAL, 1 step",
    ]
    history = call_json("show", tmp_path, "fc.weight")["history"]
    assert [(row["step"], row["mode"]) for row in history] == [
        (0, "TRAIN"),
        (1, "TRAIN"),
        (2, "EVAL"),
        (2, "TRAIN"),
    ]
    assert [row["global_step"] for row in history] == [0, 1, 2, 3]
    lines = call("show", tmp_path, "fc.weight").output.splitlines()
    assert {"TRAIN", "EVAL"} <= set(lines)


def test_show_of_a_step_without_values_shows_its_statistics(tmp_path: Path) -> None:
    x = np.array([3.0, 4.0, np.nan])
    with RunBuilder(tmp_path) as builder:
        builder.save(0, "fc.weight", x, what="statistics")
        builder.end_step(0)
    document = call_json("show", tmp_path, "fc.weight", "--step", 0)
    assert (document["values"], document["shape"]) == (None, [3])
    assert document["statistics"]["l2"] == 5.0
    assert document["statistics"]["nan"] == 1
    output = call("show", tmp_path, "fc.weight", "--step", 0).output
    assert re.search(r"^l2 +5$", output, re.MULTILINE)
    assert call("show", tmp_path, "fc.weight", "--step", 1).exit_code == 3


def test_show_of_an_unknown_tensor_names_the_nearest_and_exits_with_3(
    run: Path,
) -> None:
    result = call("show", run, "fc.weigth")
    assert result.exit_code == 3
    assert "fc.weight" in result.stderr


def test_check_of_a_healthy_run_exits_with_0(run: Path) -> None:
    document = call_json("check", run, "--rule", "ExplodingTensor")
    assert document["findings"] == []
    assert document["statuses"][0]["status"] == "NoIssuesFound"


def test_what_follows_from_a_finding_is_folded_under_it_but_with_all(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with Recording(run) as recording:
        for step in range(30):
            x, w, out = (np.full(16, 1.0 + step % 2, np.float32) for _ in range(3))
            x[0] = np.nan if step == 3 else x[0]
            w[:], out[:] = (np.nan, 0.0) if step > 3 else (w, out)
            tensors = {"Net_input_0": x, "fc.weight": w, "relu_output_0": out}
            recording.step(tensors, roles={"Net_input_0": "model_input"})
    rules = "--rule", "ExplodingTensor", "--rule", "AllZero"
    # Watched, it is told in the same words; both exit codes are those of findings.
    for verb in "check", "watch":
        result = call(verb, run, *rules)
        assert result.exit_code == 1
        assert "    -> The data already contains it" in result.output
        assert (
            "    (and 1 finding that follows from it: AllZero; --all shows it)\n"
        ) in result.output
        assert "(gone)" not in result.output
        assert "Nothing passes this layer" not in result.output
        assert "in Net_input_0, with 1 consequence." in result.output
        in_full = call(verb, run, *rules, "--all").output
        assert "    -> Nothing passes this layer" in in_full
        assert "that follow" not in in_full
    findings = call_json("check", run, *rules, exit_code=1)["findings"]
    assert [each["rule"] for each in findings] == ["ExplodingTensor", "AllZero"]
    assert findings[0]["cause"] is None
    assert findings[1]["cause"] == {
        "rule": "ExplodingTensor",
        "tensor": "Net_input_0",
        "first_step": 3,
        "first_global_step": 3,
    }


def test_check_exits_with_1_on_a_finding_and_says_where(sick_run: Path) -> None:
    document = call_json("check", sick_run, exit_code=1)
    finding = next(f for f in document["findings"] if f["rule"] == "ExplodingTensor")
    assert (finding["tensor"], finding["step"]) == ("fc.weight", 3)
    result = call("check", sick_run)
    assert result.exit_code == 1
    assert "ExplodingTensor at step 3" in result.output


def test_check_takes_parameters_of_rules(sick_run: Path) -> None:
    call_json(
        "check", sick_run, "--rule", "ExplodingTensor(only_nan=True)", exit_code=1
    )


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("ExplodingTenser", "ExplodingTensor"),
        ("ExplodingTensor(nan=True)", "only_nan"),
        ("ExplodingTensor(True)", "NAME(parameter=value"),
        ("__import__('os').abort()", "NAME(parameter=value"),
        ("VanishingGradient(threshold=-1)", "threshold"),
        ("1 +", "NAME(parameter=value"),
    ],
)
def test_a_bad_rule_is_a_usage_error_that_says_what_to_write(
    run: Path, rule: str, hint: str
) -> None:
    result = call("check", run, "--rule", rule)
    assert result.exit_code == 2
    assert hint in result.stderr.replace("\n", " ")


def test_a_terminal_sees_how_far_a_check_has_come(run: Path) -> None:
    shown = io.StringIO()
    engine = Engine(run, ["ExplodingTensor"], record=False, max_window=4)
    with check._progress(engine, Console(file=shown, force_terminal=True, width=900)):
        engine.poll()
        assert engine.on_window is not None
        engine.on_window()
        deadline = time.monotonic() + 60
        while ": 5 recorded steps" not in shown.getvalue():  # It is drawn by a thread.
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert "judging" in shown.getvalue()
    quiet = io.StringIO()
    with check._progress(engine, Console(file=quiet)):
        engine.poll()
    assert quiet.getvalue() == ""


def test_check_without_record_leaves_the_run_as_it_is(sick_run: Path) -> None:
    before = sorted(sick_run.rglob("*"))
    call_json("check", sick_run, "--no-record", exit_code=1)
    assert sorted(sick_run.rglob("*")) == before


def test_watch_of_a_finished_run_reports_and_ends(sick_run: Path) -> None:
    result = call("watch", sick_run, "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["watching", "ended"]
    assert "ExplodingTensor" in {e["rule"] for e in events if e["event"] == "finding"}
    assert result.exit_code == 1


def test_watch_asks_for_a_stop_only_when_told_to(sick_run: Path) -> None:
    identity = open_run(sick_run).uuid
    call("watch", sick_run)
    assert RequestListener(sick_run, identity, 1).poll() == []
    call("watch", sick_run, "--on-finding", "stop")
    output = call("watch", sick_run, "--on-finding", "stop").output
    # It had ended: nobody is there who could be asked.
    assert "asked the training to stop" not in output
    assert "the training has ended" in output
    (request, _) = RequestListener(sick_run, identity, 1).poll()
    assert (request.type, request.body["rule"]) == ("stop", "ExplodingTensor")


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_an_interrupted_watch_says_that_it_was_stopped_and_asks_for_nothing(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "live"
    with RunBuilder(path) as builder:
        builder.step(0, {"fc.weight": np.ones(6, np.float32)})
        builder.flush()
        command = [sys.executable, "-m", "tdbg", "watch", str(path), *options]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        ) as watcher:
            assert watcher.stdout is not None
            watching = watcher.stdout.readline()
            # From then on it is heard.
            watcher.send_signal(signal.SIGINT)
            stdout, stderr = watcher.communicate(timeout=120)
        assert ("watching" in watching, stderr) == (True, "")
        if options:
            ended = json.loads(stdout.splitlines()[-1])
            assert {status["status"] for status in ended["statuses"]} == {"Stopped"}
        else:
            lines = stdout.splitlines()
            assert "Ctrl-C ends watching, not the training" in watching
            assert lines[0] == "watching has stopped; the training continues"
            assert "the training continues" in lines
        assert watcher.returncode == 0
        assert RequestListener(path, open_run(path).uuid, 1).poll() == []


def test_rules_of_which_there_is_nothing_to_say_are_a_line() -> None:
    """As after Ctrl-C, which stops all of them."""
    statuses = [
        {"rule": name, "status": "Stopped", "message": "", "n_findings": n}
        for name, n in (("AllZero", 0), ("DeadRelu", 0), ("Overfit", 1))
    ]
    with io.StringIO() as file:
        print_statuses(statuses, Console(file=file), named=False)
        lines = file.getvalue().splitlines()
    assert lines == [
        "found something: Overfit (1); tdbg docs NAME explains it",
        "found nothing before judging was stopped: AllZero, DeadRelu",
    ]


def test_the_statuses_of_a_watch_that_was_killed_do_not_stay_in_progress(
    tmp_path: Path,
) -> None:
    path = tmp_path / "live"
    with RunBuilder(path) as builder:
        builder.step(0, {"fc.weight": np.ones(6, np.float32)})
        builder.flush()
        options = ("--rule", "ExplodingTensor", "--json")
        command = [sys.executable, "-m", "tdbg", "watch", str(path), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            try:
                assert watcher.stdout is not None
                watcher.stdout.readline()
                trial = create_trial(path)
                deadline = time.monotonic() + 120
                while not trial.rule_statuses() and time.monotonic() < deadline:
                    time.sleep(0.05)
                alive = trial.rule_statuses()["ExplodingTensor"]
            finally:
                watcher.kill()
    assert alive["status"] == "InProgress"
    dead = create_trial(path).rule_statuses()["ExplodingTensor"]
    assert dead["status"] == "Stopped"
    assert dead["message"] == "the process that judged is gone"


def test_watch_gives_up_on_a_run_that_does_not_appear(tmp_path: Path) -> None:
    result = call("watch", tmp_path / "never", "--wait", 0.2)
    assert result.exit_code == 3
    assert "does not exist" in result.stderr


def test_fsck_of_a_sound_run_exits_with_0(run: Path) -> None:
    document = call_json("fsck", run)
    assert document["damaged"] is False
    assert document["writers"][0]["steps"] == 5


def test_fsck_finds_one_flipped_bit_and_names_file_and_offset(run: Path) -> None:
    damage(run)
    document = call_json("fsck", run, exit_code=1)
    problems = [p for writer in document["writers"] for p in writer["problems"]]
    assert document["damaged"] is True
    assert any("000001.tds" in p["file"] and p["offset"] >= 0 for p in problems)
    assert "DAMAGED" in call("fsck", run).output


@pytest.mark.parametrize("verb", ["ls", "show", "check", "watch"])
def test_what_capture_cost_ends_each_summary(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "run"
    with RunBuilder(path) as builder:
        for step in range(4):
            loss = {"loss": np.ones(1)}
            builder.step(step, loss, capture_ns=4 * 10**8, duration_ns=204 * 10**8)
    line = "measured cost: steps take 2.0 % longer"
    assert line in call(verb, path).output
    output = call(verb, path, "--json").stdout
    cost = json.loads(output.splitlines()[-1] if verb == "watch" else output)["cost"]
    assert cost["share"] == pytest.approx(0.02)
    assert (cost["steps"], cost["budget"], cost["changes"]) == (4, None, [])


@pytest.mark.parametrize("verb", ["ls", "show", "check", "watch"])
def test_the_cost_of_a_few_short_steps_is_not_told(tmp_path: Path, verb: str) -> None:
    """What is done once makes 960 % of them."""
    path = tmp_path / "run"
    with RunBuilder(path) as builder:
        for step in range(4):
            loss = {"loss": np.ones(1)}
            builder.step(step, loss, capture_ns=960_000, duration_ns=1_060_000)
    output = call(verb, path).output
    assert "too short to tell (0.0 s in steps, and 0.0 s in tdbg)" in output
    assert "longer" not in output
    assert "%" not in call("ls", tmp_path).output


def test_what_unrecorded_steps_cost_is_in_the_totals(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunBuilder(path) as builder:
        x = {"x": np.ones(1)}
        builder.step(0, x, capture_ns=500, duration_ns=1_500)
        totals = {"steps": 101, "capture_ns": 1_000, "duration_ns": 101_000}
        text = json.dumps({"what": "cost", **totals}).encode()
        builder.capture.event(100, 3, 1, text)
        builder.step(110, x, capture_ns=500, duration_ns=1_500)
    (listed,) = call_json("ls", tmp_path)["runs"]
    assert listed["cost"]["steps"] == 102
    assert listed["cost"]["share"] == pytest.approx(1_500 / 101_000)


@pytest.mark.parametrize("verb", ["show", "check", "fsck"])
def test_a_directory_that_is_no_run_exits_with_3(tmp_path: Path, verb: str) -> None:
    result = call(verb, tmp_path)
    assert result.exit_code == 3
    assert str(tmp_path) in result.stderr


def test_an_unknown_verb_names_the_nearest() -> None:
    result = call("chekc")
    assert result.exit_code == 2
    assert "check" in result.stderr


def test_names_with_control_characters_and_markup_are_printed_harmlessly(
    tmp_path: Path,
) -> None:
    name = "evil\x1b[31m[bold]\nname"
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(0, {name: np.ones(3, np.float32)})
    for verb in ("ls", "show"):
        result = call(verb, tmp_path / "run")
        assert result.exit_code == 0, result.output
        assert "\x1b[31m" not in result.output
        assert "[bold]" in result.output


# ---- sparklines ------------------------------------------------------------------


def test_lowest_and_highest_values_have_the_lowest_and_highest_bars() -> None:
    assert sparkline([1, 2, 3, 4]) == "▁▃▆█"


def test_a_series_without_change_is_drawn_in_the_middle() -> None:
    assert sparkline([5.0] * 3) == BARS[4] * 3


def test_a_long_series_is_cut_to_the_width() -> None:
    assert len(sparkline(range(1000), width=20)) == 20


@pytest.mark.parametrize("n", [60, 100, 999, 100_000])
@pytest.mark.parametrize("spike", [9.0, -9.0])
def test_one_value_of_many_shows_in_a_long_series(n: int, spike: float) -> None:
    values = np.ones(n)
    calm = sparkline(values, width=14)
    assert set(calm) == {calm[0]}
    values[n * 2 // 3] = spike
    line = sparkline(values, width=14)
    (other,) = (character for character in line if character != line[0])
    assert line.index(other) == 14 * 2 // 3
    # From the lowest dot to the highest one, on one side.
    dots = ord(other) - 0x2800
    assert any(dots & side == side for side in (0x47, 0xB8))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_shows_in_a_long_series(value: float) -> None:
    values = np.arange(1000.0)
    values[500] = value
    assert sparkline(values, width=10).index("!") == 5


def test_values_that_are_not_finite_are_marked() -> None:
    assert sparkline([1.0, math.nan, 2.0, math.inf]) == "▁!█!"


def test_nothing_is_drawn_for_nothing() -> None:
    assert sparkline([]) == ""


@given(st.lists(st.floats(), max_size=50), st.integers(1, 30))
def test_any_numbers_can_be_drawn(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    if len(values) <= width:
        assert len(line) == len(values)
        assert set(line) <= set(BARS + "!")
    else:
        assert len(line) <= width
        assert all(c == "!" or 0x2800 < ord(c) < 0x2900 for c in line)
