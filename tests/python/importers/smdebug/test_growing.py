"""A directory to which smdebug still writes, and one that several processes open."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import tdbg
from smdebug_corpus import CORPUS
from tdbg.errors import ConfigurationError, RunInUse
from tdbg.importers import local_run, opening
from tdbg.importers.smdebug import Changed, Importer, LocalFiles, has_state

SOURCE = CORPUS / "pytorch" / "out"
STEPS = (0, 2, 4, 6, 8, 10)


class Training:
    """Writes a directory step by step, as smdebug does."""

    def __init__(self, out: Path, source: Path = SOURCE) -> None:
        self.out = out
        self._source = source
        shutil.copytree(source / "collections", out / "collections")
        (out / "index").mkdir()

    def write(self, *steps: int) -> None:
        """Write steps: their events first, each file under another name before."""
        for step in steps:
            for pattern in (f"events/*/{step:012d}_*", f"index/*/{step:012d}_*"):
                for file in sorted(self._source.glob(pattern)):
                    target = self.out / file.relative_to(self._source)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    temporary = target.with_name(f"{target.name}.tmp")
                    shutil.copy(file, temporary)
                    temporary.rename(target)

    def end(self) -> None:
        (self.out / "training_job_end.ts").touch()


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path / "out")


def test_what_was_converted_is_not_converted_again(
    training: Training, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = []
    for steps in ((0, 2), (), (4,), (6, 8, 10)):
        training.write(*steps)
        with Importer(LocalFiles(training.out), run) as importer:
            done.append(importer.convert().steps)
        if training.out.exists() and not steps:
            assert tdbg.create_trial(run).status == "unknown"
    assert done == [2, 0, 1, 3]
    trial = tdbg.create_trial(run)
    assert trial.steps("GLOBAL") == list(STEPS)
    assert len(trial.attempts()) == 1
    training.end()
    with Importer(LocalFiles(training.out), run) as importer:
        assert importer.convert().has_ended
    assert trial.refresh()
    assert trial.status == "closed"


def test_an_import_that_was_killed_goes_on(training: Training, tmp_path: Path) -> None:
    training.write(*STEPS)
    training.end()
    run = tmp_path / "run"
    process = multiprocessing.get_context("spawn").Process(
        target=convert_and_die, args=(training.out, run)
    )
    process.start()
    process.join()
    assert process.exitcode == 9
    assert not has_state(run)
    with Importer(LocalFiles(training.out), run) as importer:
        assert importer.convert().has_ended
    assert has_state(run)
    trial, whole = tdbg.create_trial(run), tdbg.create_trial(SOURCE)
    assert trial.steps("GLOBAL", "any") == whole.steps("GLOBAL", "any")
    assert trial.lost_records().records == 0
    for name in whole.tensor_names():
        for step in whole.tensor(name).steps("GLOBAL", "values"):
            np.testing.assert_array_equal(
                trial.tensor(name).value(step, "GLOBAL"),
                whole.tensor(name).value(step, "GLOBAL"),
            )


def convert_and_die(out: Path, run: Path) -> None:
    def told(done: int, _: int) -> None:
        if done == 3:
            os._exit(9)

    Importer(LocalFiles(out), run, told).convert()


def test_one_importer_takes_in_what_comes(training: Training, tmp_path: Path) -> None:
    training.write(0)
    with Importer(LocalFiles(training.out), tmp_path / "run") as importer:
        importer.convert()
        trial = tdbg.create_trial(tmp_path / "run")
        assert trial.status == "running"
        assert trial.steps("GLOBAL") == [0]
        training.write(2, 4)
        assert importer.convert().steps == 2
        assert trial.steps("GLOBAL") == [0, 2, 4]
        assert importer.convert().steps == 0
        training.end()
        importer.convert()
        assert trial.loaded_all_steps


def test_an_index_whose_tensors_are_still_to_come_waits_for_them(
    training: Training, tmp_path: Path
) -> None:
    training.write(0, 2, 4)
    late = training.out / "events/000000000002/000000000002_worker_0.tfevents"
    late.rename(late.with_suffix(".later"))
    with Importer(LocalFiles(training.out), tmp_path / "run") as importer:
        assert importer.convert()[:2] == (1, 0)
        late.with_suffix(".later").rename(late)
        assert importer.convert()[:2] == (2, 0)
        assert tdbg.create_trial(tmp_path / "run").steps("GLOBAL") == [0, 2, 4]


def test_a_trial_of_a_growing_directory_sees_what_comes(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "FOLLOW_SECONDS", 0.02)
    training.write(0, 2)
    trial = tdbg.create_trial(training.out)
    assert trial.name == "out"
    assert trial.steps("GLOBAL") == [0, 2]
    training.write(4)
    trial.wait_for_steps([4], mode="GLOBAL", timeout=30)
    training.write(6, 8, 10)
    training.end()
    while not trial.loaded_all_steps:
        time.sleep(0.02)
    assert trial.steps("GLOBAL") == list(STEPS)
    assert trial.status == "closed"


def test_a_directory_that_was_written_anew_is_converted_anew(
    training: Training, tmp_path: Path
) -> None:
    training.write(0, 2)
    training.end()
    first = tdbg.create_trial(training.out)
    kept = tmp_path / "kept"
    with Importer(LocalFiles(training.out), kept) as importer:
        importer.convert()
    shutil.copy(
        SOURCE / "index/000000000/000000000000_worker_0.json",
        training.out / "index/000000000/000000000000_worker_0.json",
    )
    second = tdbg.create_trial(training.out)
    assert second.path != first.path
    assert first.steps("GLOBAL") == second.steps("GLOBAL") == [0, 2]
    with pytest.raises(Changed, match="no longer holds"):
        Importer(LocalFiles(training.out), kept)


def test_a_run_that_was_not_imported_is_not_written_to(
    training: Training, tmp_path: Path
) -> None:
    from tdbg.rules.testing import Recording

    with Recording(tmp_path / "run") as recording:
        recording.step({"a": np.ones(3, np.float32)})
    with pytest.raises(ConfigurationError, match="that was not imported"):
        Importer(LocalFiles(training.out), tmp_path / "run")


def test_one_process_converts_at_a_time(training: Training, tmp_path: Path) -> None:
    training.write(0)
    with (
        Importer(LocalFiles(training.out), tmp_path / "run"),
        pytest.raises(RunInUse, match="another process imports"),
    ):
        Importer(LocalFiles(training.out), tmp_path / "run")


def _steps_of(out: str) -> list[int]:
    return tdbg.create_trial(out).steps("GLOBAL")


def test_processes_that_open_a_directory_at_once_read_the_same(
    training: Training, cache: Path
) -> None:
    training.write(*STEPS)
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        found = pool.map(_steps_of, [str(training.out)] * 3)
    assert found == [list(STEPS)] * 3
    training.end()
    assert local_run(training.out).parent == cache / "smdebug"


def test_every_worker_is_a_rank_and_steps_are_complete_when_all_have_them(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path / "out", CORPUS / "workers" / "out")
    training.write(0, 1)
    (training.out / "events/000000000001/000000000001_worker_1.tfevents").unlink()
    (training.out / "index/000000000/000000000001_worker_1.json").unlink()
    with Importer(LocalFiles(training.out), tmp_path / "run") as importer:
        importer.convert()
        trial = tdbg.create_trial(tmp_path / "run")
        assert trial.workers() == ["worker_0", "worker_1"]
        assert trial.steps() == [0]
        assert trial.steps(show_incomplete_steps=True) == [0, 1]
        training.write(1)
        importer.convert()
        assert trial.steps() == [0, 1]


def test_the_cache_is_bounded_and_keeps_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDBG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TDBG_CACHE_BYTES", "1")
    old = tmp_path / "cache" / "smdebug" / "0123456789abcdef-0"
    old.mkdir(parents=True)
    (old / "used").touch()
    trial = tdbg.create_trial(CORPUS / "mxnet" / "out")
    assert not old.exists()
    assert Path(trial.path).exists()
    monkeypatch.setenv("TDBG_CACHE_BYTES", "much")
    with pytest.raises(ConfigurationError, match="TDBG_CACHE_BYTES is 'much'"):
        tdbg.create_trial(CORPUS / "mxnet" / "out")
