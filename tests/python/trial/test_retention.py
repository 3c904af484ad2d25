"""Runs of which retention removed data, live and afterwards."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder
from tdbg._core import RunReader, apply_retention
from tdbg.cli import _tdbg
from tdbg.errors import TensorUnavailableForStep
from tdbg.run.directory import open_run
from tdbg.trial import Trial, create_trial

RANDOM = np.random.default_rng(5)
MIB = 1 << 20


def array(step: int, n: int = 4096) -> np.ndarray[Any, Any]:
    """Values that hardly compress, and tell their step."""
    made = RANDOM.normal(size=n).astype(np.float32)
    made[0] = step
    return made


def write(run: RunBuilder, steps: range, *, every: int = 1) -> None:
    for step in steps:
        run.save(step, "w", array(step), what="statistics")
        run.scalar(step, "loss", float(step))
        if step % every == 0:
            run.save(step, "w", array(step), what="values")
        run.end_step(step)


def n_bytes(path: Path) -> int:
    total = 0
    for each in (path / "w").rglob("*"):
        with suppress(FileNotFoundError):
            total += each.stat().st_size if each.is_file() else 0
    return total


def keep(path: Path, *, last: int | None = None, every: int = 0, **options: Any) -> Any:
    directories = sorted(map(str, (path / "w").iterdir()))
    return apply_retention(
        directories,
        create_trial(path).last_complete_step,
        keep_last=last,
        keep_every=every,
        max_bytes=options.get("max_bytes", 0),
        is_dry=options.get("is_dry", False),
        is_live=options.get("is_live", False),
    )


def check_sound(path: Path) -> None:
    """A reader that walks every record finds nothing wrong or lost."""
    for directory in (path / "w").iterdir():
        reader = RunReader(str(directory), open_run(path).uuid)
        assert [(p.kind, p.message) for p in reader.verify()] == []
        assert not reader.problems()
    trial = create_trial(path)
    assert trial.problems() == []
    assert trial.lost_records().in_order, str(trial.lost_records())


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """200 steps with values, in shards of 256 KiB; the last is not closed for long."""
    with RunBuilder(tmp_path / "run", shard_bytes=256 << 10) as run:
        run.event(1, {"what": "test", "who": "the first shard"})
        write(run, range(200))
    return tmp_path / "run"


def test_values_of_old_steps_go_and_all_else_stays(long_run: Path) -> None:
    before = create_trial(long_run)
    rows = before.statistics(names=["w"]).reduction("l2")
    removals, _ = keep(long_run, last=50)
    assert removals
    assert all(removal["values_only"] for removal in removals)
    check_sound(long_run)
    trial = create_trial(long_run)
    np.testing.assert_array_equal(trial.statistics(names=["w"]).reduction("l2"), rows)
    assert trial.steps(what="statistics") == list(range(200))
    kept = trial.tensor("w").steps(what="values")
    assert set(range(150, 200)) <= set(kept)
    assert kept[0] > 100
    for step in kept:
        assert trial.tensor("w").value(step)[0] == step
    assert trial.tensor("loss").value(3) == 3.0
    assert n_bytes(long_run) < 0.5 * 200 * 4096 * 4


def test_a_value_that_went_is_told_from_one_that_never_was(long_run: Path) -> None:
    keep(long_run, last=50)
    with pytest.raises(TensorUnavailableForStep, match="removed by retention") as found:
        create_trial(long_run).tensor("w").value(7)
    assert "its statistics are there" in str(found.value)


def test_every_kth_stays(long_run: Path) -> None:
    keep(long_run, last=50, every=20)
    check_sound(long_run)
    tensor = create_trial(long_run).tensor("w")
    kept = tensor.steps(what="values")
    assert {0, 20, 40, 60, 80, 100, 120, 140} <= set(kept)
    assert {1, 19, 21} & set(kept) == set()
    assert [tensor.value(step)[0] for step in kept] == kept


def test_differences_keep_what_they_differ_from(tmp_path: Path) -> None:
    path = tmp_path / "run"
    weight = RANDOM.normal(size=1 << 15).astype(np.float32)
    values = {}
    with RunBuilder(path, shard_bytes=MIB, codec="max") as run:
        for step in range(120):
            weight = weight * np.float32(1 + 1e-6)
            values[step] = weight.copy()
            run.step(step, {"w": weight})
            run.flush()
    keep(path, last=5, every=7)
    check_sound(path)
    tensor = create_trial(path).tensor("w")
    kept = tensor.steps(what="values")
    assert set(range(0, 100, 7)) <= set(kept)
    assert len(kept) < 100
    for step in kept:
        np.testing.assert_array_equal(tensor.value(step), values[step])


def test_a_limit_takes_values_first_then_the_oldest_steps(long_run: Path) -> None:
    total = n_bytes(long_run)
    removals, left = keep(long_run, max_bytes=total // 2)
    assert left == n_bytes(long_run) <= total // 2
    assert all(removal["values_only"] for removal in removals)
    check_sound(long_run)
    removals, left = keep(long_run, max_bytes=40 << 10)
    assert left == n_bytes(long_run)
    check_sound(long_run)
    trial = create_trial(long_run)
    assert trial.steps()[0] > 0
    assert trial.steps()[-1] == 199
    assert [e.data["who"] for e in trial.events() if "who" in e.data] == [
        "the first shard"
    ]
    assert len(list((long_run / "w" / "train-0-1").glob("*.tds"))) <= 3


def test_a_dry_run_changes_nothing_and_tells_what_would_go(long_run: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (long_run / "w").rglob("*")}
    would, left = keep(long_run, last=50, is_dry=True)
    assert {p: p.stat().st_mtime_ns for p in (long_run / "w").rglob("*")} == before
    did, really = keep(long_run, last=50)
    assert [r["shard"] for r in would] == [r["shard"] for r in did]
    assert abs(left - really) < 0.2 * n_bytes(long_run) + 100_000


def test_a_run_without_end_stays_within_its_limit(tmp_path: Path) -> None:
    path, limit = tmp_path / "run", 2 * MIB
    most = 0
    with RunBuilder(path, max_bytes=limit) as run:
        for step in range(2000):
            run.step(step, {"w": array(step), "v": array(step, 64)})
            if step % 10 == 0:
                run.flush()
                most = max(most, n_bytes(path))
    assert most > limit // 2
    assert max(most, n_bytes(path)) <= limit
    check_sound(path)
    assert create_trial(path).steps()[-1] == 1999
    assert not list(path.rglob("*.new"))


def test_a_limit_holds_over_attempts(tmp_path: Path) -> None:
    path, limit = tmp_path / "run", 2 * MIB
    for attempt in range(4):
        with RunBuilder(
            path, max_bytes=limit, attempt=os.urandom(16), ordinal=attempt
        ) as run:
            write(run, range(100 * attempt, 100 * attempt + 100))
        assert n_bytes(path) <= limit
    check_sound(path)


def test_a_live_reader_sees_no_error_while_shards_go(tmp_path: Path) -> None:
    path = tmp_path / "run"
    failures: list[BaseException] = []
    n_looks = 0
    done = threading.Event()

    def look(trial: Trial) -> None:
        nonlocal n_looks
        handle = trial.tensor("w")
        while not done.is_set():
            try:
                steps = handle.steps(what="statistics")
                if steps:
                    table = trial.statistics(names=["w"])
                    assert table.present.shape[1] >= 1
                    last = handle.steps(what="values")[-1]
                    assert handle.value(last)[0] == last
                assert trial.problems() == []
                assert trial.lost_records().in_order
                n_looks += 1
            except BaseException as error:
                failures.append(error)
                raise

    with RunBuilder(path, max_bytes=4 * MIB, keep_last=60) as run:
        write(run, range(5))
        run.flush()
        reader = threading.Thread(target=look, args=(create_trial(path),))
        reader.start()
        for step in range(5, 1500):
            write(run, range(step, step + 1))
            if step % 50 == 0:
                run.flush()
        done.set()
        reader.join()
    assert not failures
    assert n_looks > 3
    check_sound(path)


def test_what_an_open_reader_knew_is_answered_until_it_looks_again(
    long_run: Path,
) -> None:
    trial = create_trial(long_run)
    with trial.no_refresh():
        assert trial.tensor("w").value(3)[0] == 3
        keep(long_run, last=50, is_live=True)
        assert trial.tensor("w").value(5)[0] == 5
        assert trial.statistics(names=["w"]).present.all()
    assert trial.problems() == []
    with pytest.raises(TensorUnavailableForStep, match="removed by retention"):
        trial.tensor("w").value(5)
    # What was left for readers goes with the next pass that looks.
    assert list(long_run.rglob("*.old"))
    keep(long_run, last=50, is_live=False)
    assert not list(long_run.rglob("*.old"))


def test_what_is_damaged_or_not_sealed_stays(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = RunBuilder(path, shard_bytes=256 << 10)
    write(run, range(60))
    run.flush()
    shards = sorted((path / "w" / "train-0-1").glob("*.tds"))
    with shards[0].open("r+b") as file:
        file.seek(-200, os.SEEK_END)
        file.write(b"\0" * 200)
    removals, _ = keep(path, last=1)
    assert {r["shard"] for r in removals} == set(range(2, len(shards)))
    run.close()


def test_a_second_pass_finds_nothing_to_do(long_run: Path) -> None:
    assert keep(long_run, last=50, every=20)[0]
    assert not keep(long_run, last=50, every=20)[0]


def test_fsck_calls_it_sound(long_run: Path) -> None:
    keep(long_run, max_bytes=100 << 10)
    result = CliRunner().invoke(_tdbg, ["fsck", str(long_run)])
    assert result.exit_code == 0, result.output
    assert "is sound" in result.output
