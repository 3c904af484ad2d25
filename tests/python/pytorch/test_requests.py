"""A training of several real processes is asked for something from outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ranks import read_notes, run_ranks, write_note
from tdbg.cli import _tdbg
from tdbg.errors import TrainingStopped
from tdbg.modes import TRAIN
from tdbg.pytorch import SaveConfig
from tdbg.run.requests import request_capture, request_stop
from tdbg.trial import Trial, create_trial
from torch_helpers import digits, make_hook, mlp

pytestmark = [pytest.mark.torch, pytest.mark.slow]
WORLD = 3
RARELY = SaveConfig(save_interval=10**6, statistics_interval=10**6)
WRITERS = {f"train-{rank}-1" for rank in range(WORLD)}


def train_until_stopped(run_dir: Path, step_seconds: float) -> dict[str, Any]:
    """What a training says that is in lock step, as most are."""
    rank = distributed.get_rank()
    hook = make_hook(
        run_dir,
        include_workers="all",
        include_collections=["losses"],
        save_config=RARELY,
    )
    model = mlp()
    ddp = DistributedDataParallel(model)
    hook.register_module(ddp)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batches = digits(4)
    deadline = time.monotonic() + 300
    step, reason = 0, ""
    try:
        while time.monotonic() < deadline:
            inputs, labels = next(batches)
            optimizer.zero_grad()
            loss = criterion(ddp(inputs), labels)
            # Ranks are apart within a step, each as far as any other.
            time.sleep(step_seconds * ((step + rank) % WORLD + 1) / WORLD)
            loss.backward()
            optimizer.step()
            step += 1
    except TrainingStopped as stop:
        reason = stop.reason
    errors = hook.counters()["internal_errors"]
    return {"stopped": step, "reason": reason, "errors": errors, "all": hook.close()}


def rank_main(rank: int, folder: Path) -> None:
    for name, seconds in (("fast", 0.002), ("slow", 0.15)):
        note = train_until_stopped(folder / name, seconds)
        write_note(folder, name, rank, note)
        distributed.barrier()


def wait_for(what: Callable[[], bool], training: threading.Thread) -> None:
    while not what():
        assert training.is_alive()
        time.sleep(0.02)


def call(*arguments: object) -> tuple[int, dict[str, Any]]:
    texts = [str(argument) for argument in arguments]
    result = CliRunner().invoke(_tdbg, [*texts, "--json"])
    return result.exit_code, json.loads(result.stdout)


def answers(trial: Trial) -> list[tuple[str, dict[str, Any]]]:
    return [
        (event.writer, event.data)
        for event in trial.events("change")
        if event.data.get("what") == "capture"
    ]


def ask_fast(run: Path, training: threading.Thread) -> dict[str, Any]:
    """All kinds of requests; what was answered."""
    code, attached = call(
        *("attach", run, "--collection", "gradients", "--interval", 3, "--for", 9)
    )
    assert (code, attached["state"]) == (0, "accepted")
    code, refused = call("attach", run, "--collection", "gradeints")
    assert (code, refused["state"]) == (1, "refused")
    request = request_capture(run, regex=["^fc1_output_0$"], steps=5, raw=True)

    def has_ended() -> bool:
        ended = [data for _, data in answers(create_trial(run))]
        return (request.id, "ended") in {(e["request"], e["state"]) for e in ended}

    wait_for(has_ended, training)
    code, stopped = call("stop", run, "--reason", "seen enough")
    assert (code, stopped["state"]) == (0, "stopped")
    return {"attached": attached, "refused": refused, "python": request.id}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("asked")
    errors: list[BaseException] = []

    def train() -> None:
        try:
            run_ranks(rank_main, WORLD, folder)
        except BaseException as error:
            errors.append(error)

    training = threading.Thread(target=train)
    training.start()

    def have_begun(name: str) -> bool:
        return len(list(folder.glob(f"{name}/w/train-*-1/COMMIT"))) == WORLD

    wait_for(lambda: have_begun("fast"), training)
    found = ask_fast(folder / "fast", training)
    wait_for(lambda: have_begun("slow"), training)
    time.sleep(0.5)
    trial = create_trial(folder / "slow")
    request_stop(folder / "slow", reason="slow enough")
    # At most this step has been recorded before the training could know of it.
    trial.refresh()
    found["slow_step"] = max(trial.steps(), default=-1)
    training.join(240)
    assert errors == []
    return folder, found


def test_a_request_takes_effect_on_all_ranks_at_one_step(
    asked: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = asked
    trial = create_trial(folder / "fast")
    of_request = [
        (writer, data)
        for writer, data in answers(trial)
        if data["request"] == found["attached"]["request"]
    ]
    for state in ("accepted", "ended"):
        said = [(w, data) for w, data in of_request if data["state"] == state]
        assert {writer for writer, _ in said} == WRITERS
        assert len(said) == WORLD
        (step,) = {data["training_step"] for _, data in said}
        expected = found["attached"][
            "training_step" if state == "accepted" else "until"
        ]
        assert step == expected
    first = found["attached"]["training_step"]
    assert found["attached"]["until"] == first + 9
    every_third = [step for step in range(first, first + 9) if step % 3 == 0]
    gradient = trial.tensor("gradient/fc1.weight")
    assert gradient.steps(mode=TRAIN) == every_third
    for worker in trial.workers():
        for step in every_third:
            found = gradient.stats(step, mode=TRAIN, worker=worker)
            assert found.count == 24 * 64


def test_what_is_asked_for_in_python_is_captured_raw_by_all_ranks(
    asked: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = asked
    trial = create_trial(folder / "fast")
    (first,) = {
        data["training_step"]
        for _, data in answers(trial)
        if (data["request"], data["state"]) == (found["python"], "accepted")
    }
    output = trial.tensor("fc1_output_0")
    assert output.steps(mode=TRAIN, what="values") == list(range(first, first + 5))
    for worker in trial.workers():
        values = output.values(mode=TRAIN, worker=worker)
        assert list(values) == list(range(first, first + 5))
    assert output.stats(first, mode=TRAIN).count == WORLD * 4 * 24


def test_a_wrong_request_is_refused_by_all_ranks_and_the_training_goes_on(
    asked: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = asked
    trial = create_trial(folder / "fast")
    refused = [
        (writer, data["reason"])
        for writer, data in answers(trial)
        if data["state"] == "refused"
    ]
    assert {writer for writer, _ in refused} == WRITERS
    assert all("did you mean 'gradients'" in reason for _, reason in refused)
    assert found["refused"]["reason"] == refused[0][1]
    notes = read_notes(folder, "fast")
    losses = trial.tensor("CrossEntropyLoss_output_0")
    for rank in range(WORLD):
        of_rank = losses.values(mode=TRAIN, worker=f"worker_{rank}")
        assert list(of_rank) == list(range(notes[0]["stopped"]))
    assert {note["errors"] for note in notes.values()} == {0}


@pytest.mark.parametrize(
    ("name", "reason"), [("fast", "seen enough"), ("slow", "slow enough")]
)
def test_a_stop_asked_by_another_process_ends_all_ranks_at_one_step(
    asked: tuple[Path, dict[str, Any]], name: str, reason: str
) -> None:
    folder, _ = asked
    notes = read_notes(folder, name)
    assert sorted(notes) == list(range(WORLD))
    assert {note["reason"] for note in notes.values()} == {reason}
    assert {note["all"] for note in notes.values()} == {True}
    (step,) = {note["stopped"] for note in notes.values()}
    assert step > 0
    ended = [
        (event.writer, event.data["training"], event.data["reason"])
        for event in create_trial(folder / name).events("status")
        if event.data["training"] != "running"
    ]
    assert set(ended) == {(writer, "stopped", reason) for writer in WRITERS}


def test_slow_steps_are_looked_at_each(asked: tuple[Path, dict[str, Any]]) -> None:
    """At most the step under way, and the one at whose beginning one is heard.

    And those that were made, but not written, before the last one was looked up.
    """
    folder, found = asked
    stopped = read_notes(folder, "slow")[0]["stopped"]
    assert stopped <= found["slow_step"] + 1 + 2 + 2
