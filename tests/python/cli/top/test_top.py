"""``tdbg top``: what its screens show, and what its keys do to a real training."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from profiles import LOADER_BOUND, Plan, profiled_run
from run_builder import RunBuilder, simple_run
from tdbg.cli import _tdbg
from tdbg.cli.top.board import WatchedRun
from tdbg.cli.top.charts import on_log_scale, sparkline
from tdbg.cli.top.commands import Commands
from tdbg.cli.top.screens import KEYS, View, draw
from tdbg.config import Role
from tdbg.rules import check
from tdbg.run.schema import EventKind

N_STEPS = 3000
SPIKE, NAN = 1234, 2345
LOSS = "CrossEntropyLoss_output_0"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose loss has one spike and one NaN, and a layer whose gradient has."""
    path = tmp_path_factory.mktemp("runs") / "spiked"
    dice = np.random.default_rng(0)
    with RunBuilder(path) as builder:
        for step in range(N_STEPS):
            value = np.float32(50.0 if step == SPIKE else 1.0 + dice.random() / 100)
            if step == NAN:
                value = np.float32(np.nan)
            loss = np.asarray(value)
            builder.save(step, LOSS, loss, what="statistics", role=Role.LOSS)
            gradients = {
                f"gradient/block.{i}.weight": np.full(4, 10.0 ** (i - 12), np.float32)
                for i in range(12)
            }
            if step == NAN:
                gradients["gradient/block.7.weight"][1] = np.nan
            builder.step(step, gradients, what="statistics")
    return path


def looked(path: Path) -> WatchedRun:
    run = WatchedRun(str(path))
    run.look()
    return run


def lines_of(runs: list[WatchedRun], view: View, width: int, height: int) -> list[str]:
    lines = draw(runs, view, width, height).plain.split("\n")
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_screen_fits_every_terminal(
    spiked: Path, size: tuple[int, int], is_open: bool
) -> None:
    lines = lines_of([looked(spiked)], View(is_open=is_open), *size)
    assert "spiked" in lines[0] or "spiked" in lines[2]
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("columns", [20, 48, 200, 1000])
def test_a_spike_and_a_nan_of_one_step_are_drawn_at_any_width(
    spiked: Path, columns: int
) -> None:
    (loss,) = looked(spiked).losses(columns)
    assert loss.envelope.high["mean"].max() == 50
    drawn = sparkline(loss).plain
    assert drawn.count("!") == 1
    place = NAN * len(drawn) // N_STEPS
    assert abs(drawn.index("!") - place) <= 1
    # Only the column of the spike reaches the upper edge.
    at_top = [i for i, each in enumerate(drawn) if each != "!" and ord(each) & 0x09]
    assert len(at_top) == 1
    assert abs(at_top[0] - SPIKE * len(drawn) // N_STEPS) <= 1


def test_layers_stand_in_their_order_and_the_one_with_nan_is_marked(
    spiked: Path,
) -> None:
    lines = lines_of([looked(spiked)], View(is_open=True), 120, 40)
    names = [line.split()[0] for line in lines if line.startswith("gradient/")]
    assert names == [f"gradient/block.{i}.weight" for i in range(12)]
    assert any("NaN or infinite" in line for line in lines)
    screen = draw([looked(spiked)], View(is_open=True), 120, 40)
    rows = screen.split("\n")
    reddish = [
        row.plain.split()[0]
        for row in rows
        if row.plain.startswith("gradient/")
        and any("#cc79a7" in str(span.style).lower() for span in row.spans)
    ]
    assert reddish == ["gradient/block.7.weight"]


def test_many_layers_share_the_lines_and_none_is_left_out(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "deep") as builder:
        for step in range(3):
            arrays = {
                f"gradient/block.{i}.weight": np.full(2, np.nan if i == 77 else 1.0)
                for i in range(100)
            }
            builder.step(step, arrays)
    screen = draw([looked(tmp_path / "deep")], View(is_open=True), 80, 24)
    lines_of([looked(tmp_path / "deep")], View(is_open=True), 80, 24)
    assert any("#cc79a7" in str(span.style).lower() for span in screen.spans)


def test_magnitudes_are_told_from_zero_and_from_nothing() -> None:
    shares = on_log_scale(np.array([0.0, 1e-9, 1.0, np.nan]))
    assert shares[0] == 0
    assert 0 < shares[1] < shares[2] == 1
    assert np.isnan(shares[3])
    assert on_log_scale(np.array([0.0, 0.0])).tolist() == [0, 0]


def test_steps_are_those_of_the_training_where_every_tenth_is_recorded(
    tmp_path: Path,
) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        for step in range(0, 400, 10):
            weight = {"w": np.ones(2, np.float32)}
            builder.step(step, weight, mode_step=step, what="statistics")
    run = looked(tmp_path / "run")
    lines = lines_of([run], View(is_open=True), 80, 24)
    assert lines[1].startswith("Trained for 391 steps.")


def test_a_finding_stands_first_with_its_advice(spiked: Path, tmp_path: Path) -> None:
    judged = tmp_path / "spiked"
    shutil.copytree(spiked, judged)
    check(judged, ["ExplodingTensor"])
    run = looked(judged)
    lines = lines_of([run], View(is_open=True), 120, 40)
    (worst, *_) = run.findings
    assert worst.rule == "ExplodingTensor"
    assert "1 problem occurred and recovered: ExplodingTensor" in lines[1]
    assert lines[3].startswith(f"■ ExplodingTensor steps {NAN:,} to {NAN:,} (gone)")
    assert lines[4].strip().startswith("->")


def test_names_from_a_run_cannot_reach_the_terminal(tmp_path: Path) -> None:
    name = "gradient/\x1b[31mred\x1b]0;title\x07"
    with RunBuilder(tmp_path / "hostile") as builder:
        for step in range(3):
            builder.step(step, {name: np.ones(3, np.float32)})
    for is_open in (True, False):
        view = View(is_open=is_open)
        text = "".join(lines_of([looked(tmp_path / "hostile")], view, 100, 20))
        assert "\x1b" not in text
        assert "\x07" not in text


def test_a_run_that_cannot_be_read_is_told_and_hides_no_other(
    tmp_path: Path, spiked: Path
) -> None:
    broken = tmp_path / "broken"
    simple_run(broken, steps=range(3))
    (broken / "RUN.json").write_text("{")
    runs = [looked(spiked), looked(broken)]
    lines = lines_of(runs, View(selected=1), 120, 20)
    assert any("broken" in line and "unreadable" in line for line in lines)
    assert any("spiked" in line and "closed" in line for line in lines)


def test_keys_choose_runs_findings_maps_and_steps(spiked: Path, tmp_path: Path) -> None:
    simple_run(tmp_path / "other", steps=range(3))
    runs, view = [looked(spiked), looked(tmp_path / "other")], View()
    commands = Commands(runs, view)
    for key in ("down", "j", "down"):
        commands.press(key)
    assert view.selected == 1
    commands.press("k")
    commands.press("enter")
    assert (view.selected, view.is_open) == (0, True)
    commands.press("+")
    lines = lines_of(runs, view, 120, 40)
    assert any("steps 1,496 to 2,999" in line for line in lines)
    commands.press("-")
    commands.press("-")
    assert view.zoom == 0
    commands.press("?")
    shown = "\n".join(lines_of(runs, view, 120, 40))
    assert all(what in shown for what in KEYS.values())
    commands.press("q")  # Any key leaves the keys.
    assert not commands.has_quit
    commands.press("escape")
    commands.press("q")
    assert (view.is_open, commands.has_quit) == (False, True)


def test_nothing_is_asked_of_a_training_that_has_ended(spiked: Path) -> None:
    view = View()
    commands = Commands([looked(spiked)], view)
    commands.press("s")
    assert view.question == ""
    assert "has ended" in view.message
    commands.press("y")
    assert not list((spiked / "ctl").glob("*.json"))


def test_rules_judge_when_they_are_asked(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunBuilder(path) as builder:
        for step in range(4):
            value = np.ones(6, np.float32)
            value[0] = np.nan if step == 3 else 2.0
            builder.step(step, {"fc.weight": value})
    run, view = looked(path), View(is_open=True)
    assert "Press c to check it." in lines_of([run], view, 100, 20)[1]
    commands = Commands([run], view)
    commands.press("c")
    deadline = time.monotonic() + 60
    while not commands.look():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "the rules have judged" in view.message
    lines = lines_of([looked(path)], View(is_open=True), 120, 20)
    assert "One thing is wrong: ExplodingTensor in" in lines[1]
    assert lines[2].startswith("■ ExplodingTensor since step 3")
    assert "■ 1 ExplodingTensor" in "".join(lines_of([looked(path)], View(), 120, 10))


def test_a_pipe_gets_a_line_for_each_run(spiked: Path, tmp_path: Path) -> None:
    simple_run(tmp_path / "other", steps=range(3))
    result = call("top", spiked, tmp_path / "other")
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{spiked}: closed. Trained for 3,000 steps.")
    assert "Last loss 1.0" in first
    sentence = "Trained for 3 steps. No rule has judged this run yet."
    assert second == f"{tmp_path / 'other'}: closed. {sentence}"
    documents = [
        json.loads(line) for line in call("top", spiked, "--json").stdout.splitlines()
    ]
    assert [each["steps"] for each in documents] == [N_STEPS]


def test_the_screen_can_be_printed_once(spiked: Path) -> None:
    result = call("top", spiked, "--once")
    assert result.exit_code == 0, result.output
    assert "spiked  closed" in result.stdout.splitlines()[0]
    assert "gradient/block.7.weight" in result.stdout


def test_a_pattern_without_a_run_is_refused(tmp_path: Path) -> None:
    result = call("top", tmp_path / "*")
    assert result.exit_code == 3
    assert "matches no run" in result.stderr


# ---- a real terminal --------------------------------------------------------------


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *command: str, width: int = 80, height: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self._text = ""

    def press(self, keys: str) -> None:
        self._text = ""
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Read until the text is on the screen, and return what came meanwhile."""
        deadline = time.monotonic() + 60
        while text not in self._text:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} in {self._text[-3000:]!r}"
            if select.select([self._master], [], [], min(left, 1.0))[0]:
                data = os.read(self._master, 1 << 16).decode(errors="replace")
                self._text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)
        return self._text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def training(
    tmp_path: Path, repository: Path
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    helpers = repository / "tests" / "python" / "helpers"
    program = helpers / "programs" / "train_until_stopped.py"
    path = tmp_path / "live"
    with subprocess.Popen(
        [sys.executable, str(program), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(helpers)},
    ) as process:
        deadline = time.monotonic() + 60
        while not list(path.glob("w/train-0-1/COMMIT")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        yield path, process
        process.kill()


@pytest.mark.torch
def test_a_real_training_is_stopped_from_a_real_terminal(
    training: tuple[Path, subprocess.Popen[str]],
) -> None:
    path, process = training
    terminal = Terminal(sys.executable, "-m", "tdbg", "top", str(path))
    try:
        terminal.wait_for("running")
        terminal.wait_for("steps/s")
        terminal.press("s")
        terminal.wait_for("[y/n]")
        terminal.press("n")
        terminal.wait_for("q quit")
        assert process.poll() is None
        terminal.press("s")
        terminal.wait_for("[y/n]")
        terminal.press("y")
        terminal.wait_for("stops at its next forward")
        out, _ = process.communicate(timeout=60)
        assert out == "stopped: tdbg top\n"
        terminal.wait_for("closed")
        terminal.press("\x1b[A")
        terminal.press("q")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


def test_a_line_says_where_the_time_of_a_step_goes(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(LOADER_BOUND)])
    run = looked(tmp_path / "run")
    (line,) = (
        each
        for each in lines_of([run], View(is_open=True), 100, 30)
        if each.startswith("time")
    )
    assert "█" in line
    assert "a step 90" in line
    assert "data wait 67 %" in line


def test_a_live_run_says_at_which_line_each_rank_is(tmp_path: Path) -> None:
    stacks = [
        ["/home/ada/train.py:9 main", f"/home/ada/data.py:{i} load"] for i in (3, 4)
    ]
    with RunBuilder(tmp_path / "run") as run:
        run.end_step(0)
        for counts in ((9, 1), (1, 9)):
            samples = [
                {"phase": 1, "stack": each, "count": count}
                for each, count in zip(stacks, counts, strict=True)
            ]
            told = {"what": "python_lines", "period_ns": 50_000_000}
            run.event(EventKind.CHANGE, {**told, "samples": samples})
        run.flush()
        watched = looked(tmp_path / "run")
        lines = lines_of([watched], View(is_open=True), 100, 30)
    assert [each for each in lines if each.startswith("now")] == [
        "now   rank 0  home/ada/data.py:4 load  90 %"
    ]


def test_a_run_without_a_profile_has_no_line_about_time(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    lines = lines_of([looked(tmp_path / "run")], View(is_open=True), 100, 30)
    assert not [line for line in lines if line.startswith("time")]
