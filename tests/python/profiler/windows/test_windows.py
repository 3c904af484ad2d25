"""Windows of real trainings: they take the steps that were asked for, and tell."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.profiler.python_sampler import sampler_of
from tdbg.profiler.windows.controller import WindowCosts
from tdbg.profiler.windows.torch_operators import TorchOperators
from tdbg.run.profile_requests import request_profile
from tdbg.trial import create_trial

pytestmark = pytest.mark.torch

N_LAYERS = 3


class Training:
    """Trains a small network; one step calls ``aten::addmm`` once a layer."""

    def __init__(self, out: Path, profiler: Any = None, **arguments: Any) -> None:
        self.out = out
        layers = [nn.Linear(8, 8) for _ in range(N_LAYERS)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.hook = td.Hook(out, profiler=profiler, **arguments)
        self.hook.register_module(self.model)

    def train(self, n_steps: int, in_step: Callable[[], None] = lambda: None) -> None:
        for _ in range(n_steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(4, 8)).square().mean()
            in_step()
            loss.backward()
            self.optimizer.step()

    def until(self, is_done: Callable[[], bool]) -> None:
        """Train until something has happened."""
        deadline = time.monotonic() + 60
        while not is_done():
            assert time.monotonic() < deadline
            self.train(1)

    def close(self) -> None:
        self.hook.close()

    def told(self, what: str = "profile_window") -> list[dict[str, Any]]:
        self.hook.flush() if not self.hook.is_closed else None
        events = create_trial(self.out).events()
        return [dict(e.data) for e in events if e.data.get("what") == what]

    def states(self) -> list[str]:
        return [each["state"] for each in self.told()]

    def calls(self, name: str = "aten::addmm") -> list[int]:
        """How often each window has seen an operator."""
        return [
            row["calls"]
            for event in self.told("operators")
            for row in event["operators"]
            if row["name"] == name
        ]


def window(**settings: Any) -> td.ProfilerConfig:
    return td.ProfilerConfig(windows=(td.WindowConfig(**settings),))


def test_a_window_takes_exactly_its_steps(run_dir: Path) -> None:
    """Sabotaged: no ``seen_from``, so that counted steps pass the window by."""
    training = Training(run_dir, window(start_step=30, num_steps=4))
    training.train(80)
    session = training.hook._session
    assert session.n_counted_events > 0, "no step was only counted"
    training.close()
    assert training.states() == ["accepted", "started", "ended"]
    ended = training.told()[-1]
    assert (ended["first_step"], ended["last_step"]) == (30, 33)
    assert training.calls() == [4 * N_LAYERS]
    assert ended["cost_ns"] > 0
    assert ended["start_ns"] < ended["end_ns"]


def test_a_window_can_begin_with_the_first_step(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=0, num_steps=2))
    training.train(5)
    training.close()
    assert training.calls() == [2 * N_LAYERS]
    assert training.told()[-1]["first_step"] == 0


def test_evaluation_within_a_window_is_no_step_of_it(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=3, num_steps=2))
    for _ in range(8):
        training.train(1)
        training.model.eval()
        with torch.no_grad():
            training.model(torch.randn(4, 8))
        training.model.train()
    training.close()
    # Both forwards of evaluation in the window were timed, too.
    assert training.calls() == [3 * N_LAYERS] or training.calls() == [4 * N_LAYERS]
    assert training.told()[-1]["reason"] == "its steps are over"


def test_windows_repeat(run_dir: Path) -> None:
    config = td.ProfilerConfig(
        budget=1.0, windows=(td.WindowConfig(start_step=5, num_steps=2, every=20),)
    )
    training = Training(run_dir, config)
    training.train(60, lambda: time.sleep(0.005))
    training.close()
    ended = [each for each in training.told() if each["state"] == "ended"]
    assert [each["first_step"] for each in ended] == [5, 25, 45]
    assert [each["id"] for each in ended] == [
        f"settings-0-{step}" for step in (5, 25, 45)
    ]


def test_a_window_by_time_ends_when_its_time_is_over(run_dir: Path) -> None:
    training = Training(run_dir, window(duration=0.05))
    training.train(30, lambda: time.sleep(0.005))
    training.close()
    ended = training.told()[-1]
    assert ended["reason"] == "its time is over"
    assert ended["end_ns"] - ended["start_ns"] >= 50e6


def test_a_time_that_is_over_is_refused(run_dir: Path) -> None:
    training = Training(run_dir, window(start_time=1e9, duration=5.0))
    training.train(2)
    training.close()
    (told,) = training.told()
    assert told["state"] == "refused"
    assert "was over before it began" in told["reason"]


def test_a_window_across_the_end_of_the_training_ends_with_it(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=5, num_steps=50))
    training.train(10)
    training.close()
    ended = training.told()[-1]
    assert (ended["state"], ended["reason"]) == ("ended", "the training has ended")
    assert (ended["first_step"], ended["last_step"]) == (5, 9)
    assert training.calls() == [5 * N_LAYERS]


def test_a_window_that_is_never_reached_is_refused(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=50))
    training.train(5)
    training.close()
    assert training.states() == ["accepted", "refused"]
    assert training.told()[-1]["reason"] == "the training ended before the window began"


def test_a_window_that_has_no_step_any_more_is_refused(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=5, num_steps=2))
    training.train(5)
    training.close()
    assert training.states() == ["accepted", "started", "refused"]
    assert not training.told("operators")
    assert not torch._C._autograd._profiler_enabled()


def test_shapes_lines_memory_and_calls_are_told_on_request(run_dir: Path) -> None:
    config = window(
        start_step=2, num_steps=2, shapes=True, stacks=True, memory=True, spans=True
    )
    training = Training(run_dir, config)
    training.train(6)
    training.close()
    (event,) = training.told("operators")
    rows = [row for row in event["operators"] if row["name"] == "aten::addmm"]
    assert sum(row["calls"] for row in rows) == 2 * N_LAYERS
    assert all("[8], [4, 8]" in row["shapes"] for row in rows)
    assert all("test_windows.py" in row["line"] for row in rows)
    assert all(row["bytes"] > 0 for row in rows)
    spans = create_trial(run_dir).profile.spans()
    ended = training.told()[-1]
    assert len(spans) == ended["n_spans"] > 0
    # On the monotonic clock, as the window is.
    starts = spans["start_ns"]
    assert starts.min() >= ended["start_ns"] - 20_000_000
    assert starts.max() <= ended["end_ns"] + 20_000_000


@pytest.mark.parametrize("timer", ["default", "cpu_time", "off_cpu_time"])
def test_cprofile_counts_the_functions_of_a_window(run_dir: Path, timer: str) -> None:
    config = window(
        start_step=3, num_steps=4, operators=False, functions="cprofile", timer=timer
    )
    training = Training(run_dir, config)

    def sleepy_part() -> None:
        time.sleep(0.01)

    training.train(10, sleepy_part)
    training.close()
    (event,) = training.told("functions")
    (row,) = [row for row in event["functions"] if row["name"].endswith("sleepy_part")]
    assert row["calls"] == 4
    assert (row["total_ns"] >= 4 * 5e6) is (timer != "cpu_time")
    assert not training.told("operators")


def test_pyinstrument_is_named_where_it_is_missing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    config = window(start_step=1, operators=False, functions="pyinstrument")
    training = Training(run_dir, config)
    training.train(4)
    training.close()
    assert training.states() == ["accepted", "refused"]
    assert "pip install pyinstrument" in training.told()[-1]["reason"]


# ---- the program's own profilers ----------------------------------------------


def test_a_profiler_that_the_program_runs_is_left_alone(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=2, num_steps=2))
    with torch.profiler.profile(acc_events=False) as own:
        training.train(6)
    training.close()
    assert training.told()[-1]["reason"] == (
        "the program runs a torch.profiler of its own"
    )
    names = [event.name() for event in own.profiler.kineto_results.events()]
    assert names.count("aten::addmm") == 6 * N_LAYERS


def test_a_profiler_that_the_program_starts_in_a_window_is_not_stopped(
    run_dir: Path,
) -> None:
    """Sabotaged: the window ends the profiler that runs, whoever started it."""
    training = Training(run_dir, window(start_step=2, num_steps=3))
    training.train(3)
    with torch.profiler.profile(acc_events=False) as own:
        training.train(6)
    training.close()
    ended = training.told()[-1]
    assert ended["state"] == "ended"
    assert "started a torch.profiler of its own" in ended["unknown"]["operators"]
    names = [event.name() for event in own.profiler.kineto_results.events()]
    assert names.count("aten::addmm") == 6 * N_LAYERS
    prepare = torch.autograd.profiler.profile._prepare_trace
    assert prepare.__module__ == "torch.autograd.profiler"


def test_a_profile_function_of_the_program_is_left_alone(run_dir: Path) -> None:
    config = window(start_step=1, operators=False, functions="cprofile")
    training = Training(run_dir, config)
    before = sys.getprofile()
    calls = []

    def own(frame: object, event: str, arg: object) -> None:
        del frame, arg
        calls.append(event)

    sys.setprofile(own)
    try:
        training.train(4)
        assert sys.getprofile() is own
    finally:
        sys.setprofile(before)
    training.close()
    assert "of its own" in training.told()[-1]["reason"]


# ---- requests ------------------------------------------------------------------


def test_a_request_is_obeyed_and_a_second_one_is_refused_meanwhile(
    run_dir: Path,
) -> None:
    training = Training(run_dir)
    training.train(3)
    asked = td.WindowConfig(start_step=100_000)
    first = request_profile(run_dir, window=asked)
    training.until(lambda: "accepted" in training.states())
    second = request_profile(run_dir, window=td.WindowConfig())
    training.until(lambda: "refused" in training.states())
    training.close()
    refused = training.told()[1]
    assert refused["request"] == second.id
    assert refused["reason"] == (
        f"request {first.id} waits for its window: one at a time"
    )


def test_a_requested_window_takes_its_steps(run_dir: Path) -> None:
    training = Training(run_dir)
    training.train(3)
    request = request_profile(run_dir, window=td.WindowConfig(num_steps=3))
    training.until(lambda: "ended" in training.states())
    training.close()
    assert training.calls() == [3 * N_LAYERS]
    assert {each["id"] for each in training.told()} == {request.id}


def test_a_step_that_has_passed_is_refused(run_dir: Path) -> None:
    training = Training(run_dir)
    training.train(5)
    request_profile(run_dir, window=td.WindowConfig(start_step=2))
    training.until(lambda: bool(training.told()))
    training.close()
    (told,) = training.told()
    assert told["state"] == "refused"
    assert told["reason"].startswith("step 2 has begun already: the training is at")


def test_a_request_that_cannot_be_read_is_refused(run_dir: Path) -> None:
    training = Training(run_dir)
    training.train(2)
    request_profile(run_dir, window=td.WindowConfig())
    (file,) = (run_dir / "ctl").glob("*.json")
    content = json.loads(file.read_text())
    content["id"] = "0" * 32
    content["body"]["window"] = {"start_step": -3}
    file.unlink()
    (run_dir / "ctl" / f"{content['id']}.json").write_text(json.dumps(content))
    training.until(lambda: bool(training.told()))
    training.close()
    (told,) = training.told()
    assert told["state"] == "refused"
    assert "start_step" in told["reason"]


def test_settings_change_while_the_training_runs(run_dir: Path) -> None:
    training = Training(run_dir)
    training.train(2)
    request_profile(run_dir, settings={"system_interval": 0.25})
    training.until(lambda: bool(training.told("profiler")))
    request_profile(run_dir, settings={"enabled": False})
    training.until(lambda: len(training.told("profiler")) == 2)
    request_profile(run_dir, window=td.WindowConfig())
    training.until(lambda: bool(training.told()))
    request_profile(run_dir, settings={"enabled": True})
    training.until(lambda: len(training.told("profiler")) == 3)
    request_profile(run_dir, window=td.WindowConfig())
    training.until(lambda: "ended" in training.states())
    training.close()
    changes = training.told("profiler")
    assert [each["settings"]["enabled"] for each in changes] == [True, False, True]
    assert changes[0]["settings"]["system_interval"] == 0.25
    refused = training.told()[0]
    assert refused["state"] == "refused"
    assert refused["reason"].startswith("the profiler is off")


def test_without_a_profiler_nothing_is_told(run_dir: Path) -> None:
    training = Training(run_dir, profiler=False)
    training.train(5)
    training.close()
    assert not training.told()
    assert not create_trial(run_dir).configuration()["profiler"]["enabled"]


# ---- the budget ----------------------------------------------------------------


def test_windows_above_the_budget_are_put_off_and_told(run_dir: Path) -> None:
    config = td.ProfilerConfig(
        budget=1e-6,
        windows=(
            td.WindowConfig(start_step=3, num_steps=2),
            td.WindowConfig(start_step=8, num_steps=2),
        ),
    )
    training = Training(run_dir, config)
    training.train(7)
    training.until(lambda: "ended" in training.states())
    training.train(20)
    training.close()
    second = [each for each in training.told() if each["id"] == "settings-1"]
    assert [each["state"] for each in second] == ["accepted", "accepted", "refused"]
    assert second[1]["reason"].startswith("put off for about")
    assert training.calls() == [2 * N_LAYERS]


def test_a_request_may_ask_for_a_window_above_the_budget(run_dir: Path) -> None:
    config = td.ProfilerConfig(
        budget=1e-6, windows=(td.WindowConfig(start_step=3, num_steps=2),)
    )
    training = Training(run_dir, config)
    training.train(7)
    training.until(lambda: "ended" in training.states())
    asked = td.WindowConfig(num_steps=3)
    request_profile(run_dir, window=asked, over_budget=True)
    training.until(lambda: training.states().count("ended") == 2)
    training.close()
    assert training.calls() == [2 * N_LAYERS, 3 * N_LAYERS]


def test_costs_are_held_against_the_time_of_the_training() -> None:
    costs = WindowCosts(budget=0.01)
    kinds = ("operators",)
    for step in range(11):
        costs.see(step, step * 1_000)
    assert costs.step_ns(10, 10_000) == 1_000
    assert costs.wait_ns(kinds, 5, 10_000) == 0, "the first window never waits"
    costs.add(kinds, 5, 500)
    # It has cost 500, and the next one will cost as much: 1,000 of 100,000.
    assert costs.wait_ns(kinds, 5, 20_000) == 80_000
    assert costs.wait_ns(kinds, 5, 100_000) == 0
    costs.add_results(kinds, 5, 250)
    assert costs.wait_ns(kinds, 5, 100_000) == 50_000, "750 twice, of 150,000"
    costs.begin_again()
    assert costs.step_ns(20, 20_000) == 0, "no step is known since the window"


# ---- faults --------------------------------------------------------------------


def test_a_profiler_that_fails_refuses_the_window_and_not_the_training(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        msg = "no such profiler"
        raise OSError(msg)

    monkeypatch.setattr(torch.autograd.profiler, "profile", broken)
    training = Training(run_dir, window(start_step=2))
    training.train(6)
    assert training.hook.n_steps == 6
    training.close()
    assert training.states() == ["accepted", "refused"]
    assert "no such profiler" in training.told()[-1]["reason"]


# ---- samples of Python -----------------------------------------------------------


def test_python_is_sampled_100_times_a_second_within_a_window(run_dir: Path) -> None:
    training = Training(run_dir, window(start_step=3, num_steps=3))
    training.train(12, lambda: time.sleep(0.06))
    training.close()
    (_, started, ended) = training.told()
    often = [x for x in training.told("python_lines") if x["period_ns"] == 10_000_000]
    assert often
    for each in often:
        assert each["start_ns"] >= started["start_ns"]
        assert each["end_ns"] <= ended["end_ns"] + 10**9
    assert training.told("python_lines")[-1]["period_ns"] == 50_000_000


def test_python_is_sampled_as_before_after_a_window_that_fails(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = TorchOperators.stop

    def broken(engine: TorchOperators) -> None:
        stop(engine)
        msg = "cannot stop"
        raise OSError(msg)

    monkeypatch.setattr(TorchOperators, "stop", broken)
    training = Training(run_dir, window(start_step=3, num_steps=2))
    training.train(4)
    sampler = sampler_of(training.hook._session)
    assert sampler is not None
    assert sampler._interval_ns == 10_000_000
    training.train(4)
    assert sampler._interval_ns == 50_000_000
    assert training.hook.n_steps == 8
    training.close()


def test_a_forked_child_has_no_window(run_dir: Path) -> None:
    config = window(start_step=2, num_steps=4, functions="cprofile")
    training = Training(run_dir, config)
    training.train(3)
    pid = os.fork()
    if pid == 0:
        is_profiled = sys.getprofile() is not None
        os._exit(int(is_profiled))
    _, status = os.waitpid(pid, 0)
    training.train(6)
    training.close()
    assert os.waitstatus_to_exitcode(status) == 0, "the child is profiled"
    assert training.states() == ["accepted", "started", "ended"]
    assert training.calls() == [4 * N_LAYERS]
