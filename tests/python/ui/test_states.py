"""What the dashboard says of a training that does not go on, and of requests."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser, expect

from browser import new_page
from dashboard import Dashboard, dashboard, page_address
from planted import add_findings, finding
from reference_reader import masked_crc
from run_builder import RunBuilder
from tdbg.run.findings import Finding, Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts
from tdbg.run.refused import Refused
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial
from tdbg.ui.control import estimate

WRITER = Path(__file__).parents[1] / "helpers/programs/write_and_wait.py"
SLOTS, SLOT_BYTES, HEARTBEAT = 64, 64, 24
BEYOND_2_53 = "1,152,921,504,606,846,977", "9,007,199,254,740,993"


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run whose process was stopped by a signal: it lives, and shows no life."""
    run = tmp_path / "runs" / "run"
    helpers = str(WRITER.parents[1])
    path = os.pathsep.join([helpers, os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(run)],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGSTOP)
        yield run, process
    finally:
        process.kill()
        process.communicate()


def let_time_pass(run: Path, seconds: float) -> None:
    """The last heartbeat becomes so much older: docs/format.md, "The commit page"."""
    (page,) = run.rglob("COMMIT")
    content = page.read_bytes()
    slots = [content[at : at + SLOT_BYTES] for at in (SLOTS, SLOTS + SLOT_BYTES)]
    newest = bytearray(max(slots, key=lambda slot: struct.unpack_from("<Q", slot)[0]))
    counter = struct.unpack_from("<Q", newest)[0] + 1
    (heartbeat,) = struct.unpack_from("<q", newest, HEARTBEAT)
    struct.pack_into("<Q", newest, 0, counter)
    struct.pack_into("<q", newest, HEARTBEAT, heartbeat - int(seconds * 1e9))
    struct.pack_into("<I", newest, 60, masked_crc(bytes(newest[:60])))
    with page.open("r+b") as file:
        file.seek(SLOTS + SLOT_BYTES * (counter & 1))
        file.write(newest)


def test_a_training_that_shows_no_life_is_stalled_since_when_and_comes_back(
    browser: Browser, paused: tuple[Path, subprocess.Popen[str]]
) -> None:
    run, process = paused
    with dashboard(run) as served, new_page(browser, served.address) as watched:
        page = watched.page
        expect(page.locator(".state")).to_have_text("running")
        let_time_pass(run, 60)
        expect(page.locator(".state")).to_have_text("stalled")
        banner = page.locator(".banner")
        expect(banner).to_contain_text("has shown no sign of life for at least 10 s")
        expect(banner).to_contain_text(
            re.compile(r"last step, 2, ended \d+ s ago, at \d")
        )
        expect(page.locator(".map")).to_be_visible()
        process.send_signal(signal.SIGCONT)
        # The next heartbeat comes when the machine has time for it.
        expect(page.locator(".state")).to_have_text("running", timeout=30_000)
        expect(banner).to_have_count(0)


def test_steps_that_have_come_to_a_halt_are_said_to_have_though_the_process_lives(
    browser: Browser, tmp_path: Path
) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        for step in range(5):
            builder.step(step, {"w": np.ones(3, np.float32)}, what="statistics")
        builder.flush()
        with (
            dashboard(tmp_path / "run") as served,
            new_page(browser, served.address) as watched,
        ):
            page = watched.page
            expect(page.locator(".map")).to_be_visible()
            expect(page.locator(".banner")).to_have_count(0)
            page.clock.install()
            page.reload()
            expect(page.locator(".map")).to_be_visible()
            # Longer than the usual step, shorter than the pause that ends a stream.
            page.clock.fast_forward(20_000)
            banner = page.locator(".banner")
            expect(banner).to_contain_text(
                "no step has ended for a while; the last step, 4"
            )


def test_a_run_without_a_step_says_what_is_awaited(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        RunBuilder(tmp_path / "run"),
        dashboard(tmp_path / "run") as served,
        new_page(browser, served.address) as watched,
    ):
        verdict = watched.page.locator(".verdict")
        expect(verdict.locator("h1")).to_have_text("Waiting for the first step.")
        expect(verdict).to_contain_text("The process is alive and has opened the run.")


def test_what_is_missing_of_a_run_is_named_and_how_to_look_closer(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with RunBuilder(run, shard_bytes=1 << 16) as builder:
        for step in range(400):
            builder.step(step, {"w": np.full(64, step, np.float32)})
    shards = sorted(run.rglob("*.tds"))
    assert len(shards) > 2
    shards[1].unlink()
    with dashboard(run) as served, new_page(browser, served.address) as watched:
        notice = watched.page.locator(".facts .notice").first
        expect(notice).to_contain_text(shards[1].name)
        expect(notice).to_contain_text(f"tdbg fsck {run}"[:40])
        expect(watched.page.locator(".map")).to_be_visible()


def test_what_was_not_recorded_is_told_by_tensor_and_reason(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    refused = Refused("gradient/embedding", "it is sparse", 3, 0)
    with RunBuilder(run) as builder:
        content = json.dumps(refused.to_json()).encode()
        builder.capture.event(0, EventKind.MESSAGE, 0, content)
        builder.capture.refuse(0, 3)
        builder.step(0, {"w": np.ones(4, np.float32)})
    with dashboard(run) as served, new_page(browser, served.address) as watched:
        notice = watched.page.locator(".facts .notice")
        expect(notice).to_contain_text("3 records lost (3 refused)")
        expect(notice).to_contain_text("gradient/embedding: it is sparse")


@pytest.mark.parametrize(
    ("values", "least", "greatest"),
    [
        (np.array([-(2**60) - 1, 2**53 + 1]), *BEYOND_2_53),
        (np.array([16384, 123456789]), "16,384", "123,456,789"),
        (np.array([16384.6, 2.0**70], np.float32), "16,380", "1.18e21"),
    ],
)
def test_whole_numbers_have_all_their_digits(
    browser: Browser,
    tmp_path: Path,
    values: NDArray[Any],
    least: str,
    greatest: str,
) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        builder.step(0, {"ids": values})
    document = finding("Odd", "ids", 0, Severity.WARNING).to_json()
    add_findings(
        run, Finding.from_json({**document, "value": 16384, "threshold": 67108865})
    )
    with dashboard(run) as served:
        address = page_address(served, "run", screen="tensor", tensor="ids")
        with new_page(browser, address) as watched:
            row = watched.page.locator("table.rows tr.current")
            expect(row).to_contain_text(least)
            expect(row).to_contain_text(greatest)
            measured = watched.page.locator(".measure").first
            expect(measured).to_have_text("measured 16,384, threshold 67,108,865")


def test_the_list_says_which_run_is_being_judged_and_which_one_waits(
    browser: Browser, tmp_path: Path
) -> None:
    for name in "ab":
        with RunBuilder(tmp_path / name) as run:
            for step in range(2000):
                run.step(step, {"gradient/w": np.ones(4, np.float32)})
    with (
        dashboard(tmp_path, judge=True) as served,
        new_page(browser, served.address) as watched,
    ):
        tasks = Path(f"/proc/{served.process.pid}/task")
        while not (found := [c.read_text() for c in tasks.glob("*/children")]) or not (
            pids := "".join(found).split()
        ):
            time.sleep(0.01)
        judge = int(pids[0])
        os.kill(judge, signal.SIGSTOP)
        rows = watched.page.locator(".run-row")
        waiting = rows.filter(has_text="waits to be judged")
        try:
            expect(rows.filter(has_text="being judged")).to_have_count(1)
            expect(waiting).to_have_count(1)
        finally:
            os.kill(judge, signal.SIGCONT)
        expect(waiting).to_have_count(0, timeout=60_000)


# --- What a request would cost ------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Dashboard]:
    """A training with a weight of 1,000 elements, whose gradient is not captured."""
    run = tmp_path / "runs" / "run"
    with RunBuilder(run) as builder:
        facts = ParameterFacts(
            shape=(10, 100), dtype="float32", requires_grad=True, module="Linear"
        )
        document = ModelInfo(step=0, parameters={"fc.weight": facts}).to_json()
        model = {"what": "model", "part": 0, "parts": 1, **document}
        content = json.dumps(model).encode()
        builder.capture.event(0, EventKind.CONFIGURATION, 0, content)
        for step in range(4):
            builder.save(step, "fc.weight", np.ones((10, 100), np.float32))
            builder.end_step(step, capture_ns=2_000_000, duration_ns=12_000_000)
        builder.flush()
        with dashboard(run) as found:
            yield found


def test_what_a_capture_would_cost_is_estimated_from_what_is_known(
    served: Dashboard,
) -> None:
    def ask(query: str) -> object:
        return served.ask(f"/api/estimate?run={served.run_id()}&{query}").json

    # A gradient that was never recorded is as large as its weight.
    gradients = ask("collection=gradients&interval=2&steps=9")
    assert gradients == {
        "tensors": 1,
        "bytes": 5 * 240,
        "seconds": pytest.approx(0.002),
        "share": pytest.approx(0.2),
    }
    both = ask("regex=fc.weight&interval=1&steps=10&raw=true")
    assert both["tensors"] == 2  # type: ignore[index]
    assert both["bytes"] == 10 * 2 * (240 + 4000)  # type: ignore[index]
    assert ask("collection=outputs")["tensors"] == 0  # type: ignore[index]


def test_steps_that_have_little_do_not_make_what_is_asked_dear(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        for step in range(200):
            builder.save(step, "loss", np.ones(1, np.float32))
            # The first step prepares everything; of the others each 40th has weights.
            is_full = step % 40 == 0
            for k in range(10 * is_full):
                builder.save(step, f"fc{k}.weight", np.ones((10, 10), np.float32))
            spent = 60_000_000 if step == 0 else 2_500_000 if is_full else 500_000
            builder.end_step(step, capture_ns=spent, duration_ns=10_000_000 + spent)
    trial = create_trial(str(run))
    found = estimate(
        trial, collections=(), regex=["fc"], interval=1, steps=5, raw=False
    )
    assert found.tensors == 10
    assert found.seconds == pytest.approx(0.002, rel=0.01)
    assert found.share == pytest.approx(0.2, rel=0.01)


def test_of_losses_nothing_follows_for_what_is_a_thousand_times_as_much(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with RunBuilder(run) as builder:
        builder.save(0, "w", np.ones(1000, np.float32))
        builder.end_step(0, capture_ns=0, duration_ns=0)
        for step in range(1, 50):
            builder.save(step, "loss", np.ones(1, np.float32))
            builder.end_step(step, capture_ns=500_000, duration_ns=10_000_000)
    trial = create_trial(str(run))
    found = estimate(
        trial, collections=(), regex=["^w$"], interval=1, steps=5, raw=False
    )
    assert found.tensors == 1
    assert found.seconds is None
    assert found.share is None


@pytest.mark.parametrize("query", ["regex=(", "collection=nothing", "interval=-1"])
def test_an_estimate_of_what_can_never_be_asked_is_refused(
    served: Dashboard, query: str
) -> None:
    found = served.ask(f"/api/estimate?run={served.run_id()}&{query}")
    assert found.status == 400
    assert found.json["error"]


def test_the_cost_of_a_capture_stands_there_before_it_is_asked_for(
    browser: Browser, served: Dashboard
) -> None:
    with new_page(browser, page_address(served, "run"), forgiven=("400",)) as watched:
        page = watched.page
        page.get_by_role("button", name="Capture now").first.click()
        cost = page.locator(".cost")
        expect(cost).to_have_text(
            "About 1 tensor, at most 12 kB on disk; a captured step takes about 2 ms "
            "(20 %) longer."
        )
        page.get_by_label("values as well").check()
        expect(cost).to_contain_text("at most 212 kB on disk")
        page.get_by_label("or names").fill("nothing like it")
        expect(cost).to_contain_text("is not known")
        page.get_by_label("or names").fill("(")
        expect(cost).to_contain_text("not a regular expression")
