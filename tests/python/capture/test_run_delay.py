"""Time in which a thread waits for a processor is found in what a clock counts."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tdbg.capture import overhead
from tdbg.capture.overhead import RunDelay

MS = 1_000_000


def work(cpu_ns: int) -> tuple[int, int]:
    """Work; return the time, and the processor's time, that it took."""
    start, started = time.perf_counter_ns(), time.thread_time_ns()
    while time.thread_time_ns() - started < cpu_ns:
        pass
    return time.perf_counter_ns() - start, time.thread_time_ns() - started


@pytest.mark.parametrize("n_busy", [0, 3])
def test_what_is_left_of_a_clock_is_the_threads_own_time(n_busy: int) -> None:
    """Beside three busy processes on one core, a clock counts about four times it."""
    core = min(os.sched_getaffinity(0))
    pin = multiprocessing.get_context("fork").Process(
        target=_compare, args=(core, n_busy)
    )
    pin.start()
    pin.join()
    assert pin.exitcode == 0


def _compare(core: int, n_busy: int) -> None:
    os.sched_setaffinity(0, {core})
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(n_busy)
    ]
    try:
        delay = RunDelay(time.perf_counter_ns())
        duration, own = work(300 * MS)
        part = delay.part_running(time.perf_counter_ns())
        assert part * duration == pytest.approx(own, rel=0.1)
        if n_busy:
            assert part < 0.7
    finally:
        for each in busy:
            each.kill()
            each.wait()


def test_sleep_is_no_delay_for_the_training_waits_for_it() -> None:
    delay = RunDelay(time.perf_counter_ns())
    start = time.perf_counter_ns()
    time.sleep(0.2)
    now = time.perf_counter_ns()
    assert delay.part_running(now) * (now - start) >= 150 * MS


def test_the_same_time_has_the_same_answer() -> None:
    delay = RunDelay(0)
    assert delay.part_running(5) == delay.part_running(5)


def test_where_the_system_says_nothing_all_time_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    for path in (tmp_path / "none", tmp_path / "empty"):
        monkeypatch.setattr(overhead, "_FILE", str(path))
        assert RunDelay(0).part_running(1000) == 1.0


def test_a_thread_that_calls_for_the_first_time_begins_anew() -> None:
    delay, found = RunDelay(0), []
    other = threading.Thread(target=lambda: found.append(delay.part_running(1)))
    other.start()
    other.join()
    assert found == [1.0]
