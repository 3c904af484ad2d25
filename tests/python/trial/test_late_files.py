"""Files that come late, and in any order: never wrong, and all is there in the end.

As on a file system that shows changes late, or in a copy that is still under way.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.errors import TdbgError
from tdbg.trial import Trial, create_trial, writers

N_STEPS = 40
WRITER = Path("w/train-0-1")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("late") / "source"
    with RunBuilder(path, shard_bytes=1 << 16, codec="none") as run:
        for step in range(N_STEPS):
            run.step(step, {"w": np.full(1000, step, np.float64)})
    return path


@pytest.fixture
def copy(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[Path]]:
    """A run of which only its description is there, and the files that are to come."""
    monkeypatch.setattr(writers, "MENDING_SECONDS", 0.0)
    run = tmp_path / "run"
    (run / WRITER).mkdir(parents=True)
    shutil.copy(source / "RUN.json", run)
    files = sorted((source / WRITER).iterdir())
    assert len(files) > 8
    return run, files


def look(trial: Trial) -> int:
    """How many steps are there; every answer is right, or an error of tdbg's."""
    trial.refresh()
    steps = []
    with contextlib.suppress(TdbgError):
        tensor = trial.tensor("w")
        steps = tensor.steps(show_incomplete_steps=True)
        for step in steps:
            assert tensor.stats(step).mean == step
            assert (tensor.value(step) == step).all()
    complete = trial.step_table()
    assert set(complete["step"][complete["complete"]]) <= set(range(N_STEPS))
    return len(steps)


def check_whole(trial: Trial) -> None:
    look(trial)
    assert look(trial) == N_STEPS
    assert trial.problems() == []
    assert trial.status == "closed"
    assert trial.step_table()["complete"].all()
    assert trial.lost_records().in_order


@pytest.mark.parametrize("seed", range(6))
def test_files_in_any_order_are_read_as_they_come(
    copy: tuple[Path, list[Path]], seed: int
) -> None:
    run, files = copy
    order = random.Random(seed)
    order.shuffle(files)
    trial = create_trial(run)
    for file in files:
        target = run / WRITER / file.name
        content = file.read_bytes()
        # First its name, then a part, then all of it.
        for length in (0, order.randrange(len(content)), len(content)):
            target.write_bytes(content[:length])
            look(trial)
    check_whole(trial)


@pytest.mark.parametrize("kind", ["missing", "cut", "zeros"])
def test_what_was_called_missing_or_damaged_is_not_so_for_good(
    copy: tuple[Path, list[Path]], kind: str
) -> None:
    run, files = copy
    for file in files:
        shutil.copy(file, run / WRITER)
    late = run / WRITER / "000002.tds"
    content = late.read_bytes()
    if kind == "missing":
        late.unlink()
    elif kind == "cut":
        late.write_bytes(content[: len(content) // 2])
    else:
        late.write_bytes(content[:4096] + bytes(20480) + content[24576:])
    (run / WRITER / "000002.tdi").unlink()
    trial = create_trial(run)
    assert look(trial) < N_STEPS
    assert trial.problems() != []
    late.write_bytes(content)
    check_whole(trial)


def test_what_stays_away_is_looked_for_without_reading_all_again(
    copy: tuple[Path, list[Path]],
) -> None:
    run, files = copy
    for file in files[:-2]:
        shutil.copy(file, run / WRITER)
    trial = create_trial(run)
    look(trial)
    openings = [writer.n_openings for writer in trial._run.everyone]
    for _ in range(10):
        look(trial)
    assert [writer.n_openings for writer in trial._run.everyone] == openings
