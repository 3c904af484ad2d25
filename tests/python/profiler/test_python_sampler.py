"""The Python sampler: lines by phase, by signals from the core."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tdbg import _core
from tdbg._core import SignalTimer, is_signal_free
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler import python_sampler
from tdbg.profiler.python_sampler import PythonSampler, StackCounts
from tdbg.run.profile_tables import Phase

FREE = signal.SIGRTMIN + 5


class FakeSession:
    """A session as far as the sampler knows one."""

    def __init__(self) -> None:
        self.is_live = True
        self.clock = SimpleNamespace(phase=Phase.FORWARD)
        self.events: list[dict[str, Any]] = []

    def write_event(self, _: int, content: dict[str, Any]) -> None:
        self.events.append(content)


@pytest.fixture
def session() -> Any:
    return FakeSession()


@pytest.fixture
def sampler(session: Any) -> Iterator[PythonSampler]:
    found = PythonSampler(session, 0.001)
    yield found
    found.close()


def until(enough: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not enough():
        assert time.monotonic() < deadline


def n_of(samples: list[dict[str, Any]]) -> int:
    return sum(each["count"] for each in samples)


def test_lines_are_counted_by_phase(session: Any) -> None:
    def busy() -> None:
        for _ in range(1000):
            pass

    def runs(n: int) -> None:
        counts = sampler._counts._counts
        until(lambda: busy() or sum(counts.values()) > n)  # type: ignore[func-returns-value]

    # Made here: a fixture's sampler would count how pytest goes on to the test.
    sampler = PythonSampler(session, 0.001)
    runs(100)
    session.clock.phase = Phase.BACKWARD
    runs(200)
    sampler.close()
    (event,) = session.events
    assert event["what"] == "python_lines"
    assert event["period_ns"] == 1_000_000
    assert event["end_ns"] > event["start_ns"]
    samples = event["samples"]
    assert {each["phase"] for each in samples} == {Phase.FORWARD, Phase.BACKWARD}
    in_test = [
        each
        for each in samples
        if any(f"{__file__}:" in call for call in each["stack"])
    ]
    assert n_of(in_test) > 0.9 * n_of(samples)
    inner = [each["stack"][-1] for each in samples]
    assert any(call.endswith(" busy") for call in inner)
    json.dumps(event)


def test_a_long_call_in_c_counts_for_all_its_time(
    session: Any, sampler: PythonSampler
) -> None:
    sorted(range(3_000_000), key=lambda i: -i)
    numbers = list(range(3_000_000, 0, -1)) * 3
    began = time.thread_time()
    numbers.sort()
    seconds = time.thread_time() - began
    sampler.close()
    line = test_a_long_call_in_c_counts_for_all_its_time.__code__.co_firstlineno + 6
    on_line = [
        each
        for event in session.events
        for each in event["samples"]
        if each["stack"][-1].split(":")[-1].startswith(f"{line} ")
    ]
    # One signal was handled, when the call returned; it stands for many.
    assert n_of(on_line) >= 0.5 * seconds / 0.001


def test_it_is_off_where_the_training_has_no_main_thread(session: Any) -> None:
    settings = ProfilerConfig(python_interval=0.05)
    thread = threading.Thread(target=python_sampler.start, args=(session, settings))
    thread.start()
    thread.join()
    (event,) = session.events
    assert event["off"] == "the training does not run on the main thread"


def test_its_interval_changes_while_it_runs(session: Any) -> None:
    sampler = PythonSampler(session, 3600.0)
    sampler.change(ProfilerConfig(python_interval=0.001))
    until(lambda: len(sampler._counts._counts) > 0)
    sampler.change(ProfilerConfig(python_interval=None))
    (event,) = session.events
    assert event["period_ns"] == 1_000_000
    time.sleep(0.02)
    sampler.close()
    assert session.events == [event]


def test_without_an_interval_it_takes_no_signal_until_it_gets_one(
    session: Any,
) -> None:
    settings = ProfilerConfig(python_interval=None)
    sampler = python_sampler.start(session, settings)
    assert sampler is not None
    assert sampler._number is None
    sampler.change(ProfilerConfig(python_interval=0.001))
    until(lambda: len(sampler._counts._counts) > 0)
    sampler.close()
    (event,) = session.events
    assert event["period_ns"] == 1_000_000


def test_it_samples_more_often_for_a_while(session: Any) -> None:
    sampler = PythonSampler(session, 3600.0)
    assert python_sampler.sampler_of(session) is sampler
    sampler.limit(0.001)
    until(lambda: len(sampler._counts._counts) > 0)
    # What the settings say meanwhile holds afterwards.
    sampler.change(SimpleNamespace(python_interval=1800.0))  # type: ignore[arg-type]
    assert sampler._interval_ns == 1_000_000
    sampler.limit(None)
    assert sampler._interval_ns == 1800 * 10**9
    sampler.close()
    assert {each["period_ns"] for each in session.events} == {1_000_000}
    assert python_sampler.sampler_of(session) is None


def test_a_limit_makes_it_neither_slower_nor_turns_it_on(session: Any) -> None:
    sampler = PythonSampler(session, 0.002)
    sampler.limit(0.01)
    assert sampler._interval_ns == 2_000_000
    sampler.change(SimpleNamespace(python_interval=None))  # type: ignore[arg-type]
    sampler.limit(0.001)
    assert sampler._timer is None
    sampler.close()


def test_an_interval_that_cannot_be_had_is_told(session: Any) -> None:
    sampler = PythonSampler(session, None)
    settings = ProfilerConfig(python_interval=0.05)
    thread = threading.Thread(target=sampler.change, args=(settings,))
    thread.start()
    thread.join()
    sampler.close()
    (event,) = session.events
    assert event["off"] == "the training does not run on the main thread"


def test_a_signal_before_the_timer_is_known_is_not_waited_for(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: without ``handled()`` at the beginning nothing is sampled any more."""
    make = SignalTimer

    def slow(number: int, interval: float) -> Any:
        timer = make(number, interval)
        until(lambda: timer.n_sent > 0)
        time.sleep(0.01)  # The handler runs.
        return timer

    monkeypatch.setattr(_core, "SignalTimer", slow)
    sampler = PythonSampler(session, 0.001)
    until(lambda: len(sampler._counts._counts) > 0)
    sampler.close()


def test_signals_of_the_program_are_not_taken(session: Any) -> None:
    numbers = range(signal.SIGRTMIN + 15, signal.SIGRTMIN + 19)
    taken = [number for number in numbers if is_signal_free(number)]
    before = {number: signal.signal(number, lambda *_: None) for number in taken}
    left, python_sampler._left = python_sampler._left, set()
    try:
        settings = ProfilerConfig(python_interval=0.05)
        assert python_sampler.start(session, settings) is None
        assert "the program uses all signals" in session.events[0]["off"]
    finally:
        python_sampler._left = left
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_second_sampler_of_a_process_works(session: Any) -> None:
    for _ in range(6):
        sampler = PythonSampler(session, 0.001)
        until(lambda counts=sampler._counts._counts: len(counts) > 0)  # type: ignore[misc]
        sampler.close()
    assert len(session.events) == 6


def test_a_sampler_that_is_gone_is_called_no_more(session: Any) -> None:
    sampler = PythonSampler(session, 0.001)
    number = sampler._number
    assert number is not None
    del sampler
    os.kill(os.getpid(), number)
    assert session.events == []
    signal.signal(number, signal.SIG_IGN)
    python_sampler._left.add(number)


def test_a_forked_child_is_not_sampled(sampler: PythonSampler) -> None:
    pid = os.fork()
    if pid == 0:
        before = sampler._timer.n_sent
        time.sleep(0.05)
        with contextlib.suppress(BaseException):
            os._exit(0 if sampler._timer.n_sent == before else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_sleeps_and_reads_of_the_program_are_as_long_as_ever(
    sampler: PythonSampler,
) -> None:
    counts = sampler._counts._counts
    began = time.monotonic()
    time.sleep(0.05)
    assert time.monotonic() - began >= 0.05
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(0.05); print('done')"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.communicate()[0] == b"done\n"
    assert counts


# ---- counting ---------------------------------------------------------------------


def deep(n: int, counts: StackCounts) -> None:
    if n > 0:
        deep(n - 1, counts)
    else:
        counts.add(3, sys._getframe(), 2)


def test_deep_stacks_keep_their_innermost_calls() -> None:
    counts = StackCounts()
    deep(100, counts)
    (sample,) = counts.take()
    assert (sample["phase"], sample["count"]) == (3, 2)
    assert len(sample["stack"]) == 49
    assert sample["stack"][0] == "..."
    assert sample["stack"][-1].endswith(" deep")
    assert counts.take() == []


def test_what_is_beyond_the_bounds_counts_in_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_sampler, "_MAX_STACKS", 5)
    monkeypatch.setattr(python_sampler, "_MAX_WRITTEN", 3)
    counts = StackCounts()
    for i in range(10):
        deep(i, counts)
    samples = counts.take()
    assert n_of(samples) == 20
    assert len(samples) == 4
    assert samples[0]["stack"] == ["..."]
    assert samples[0]["count"] == 10
    assert samples[-1]["stack"] == ["..."]


# ---- the timer --------------------------------------------------------------------


def test_the_timer_waits_for_its_signal_to_be_handled() -> None:
    seen: list[int] = []
    signal.signal(FREE, lambda number, _: seen.append(number))
    timer = SignalTimer(FREE, 0.001)
    until(lambda: timer.n_sent == 1 and len(seen) == 1)
    time.sleep(0.02)
    assert timer.n_sent == 1
    timer.handled()
    until(lambda: timer.n_sent == 2)
    until(lambda: len(seen) == 2)
    signal.signal(FREE, signal.SIG_IGN)  # The default would end the process.


def test_the_timer_sends_nothing_where_nobody_handles_it() -> None:
    timer = SignalTimer(FREE, 0.001)
    until(lambda: timer.is_taken)
    assert timer.n_sent == 0


def test_a_timer_refuses_what_is_no_interval() -> None:
    with pytest.raises(ValueError, match="to 3600 seconds"):
        SignalTimer(FREE, 0.0)
