"""What was written and is not there any more is found, by fsck and by the trial.

Runs of a real writer are cut and thinned out afterwards, as an interrupted copy, a
full disk or a careless hand does it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from run_builder import RunBuilder
from tdbg import _core
from tdbg.cli import _tdbg
from tdbg.run.directory import open_run
from tdbg.trial import create_trial

N_STEPS = 33
N_TENSORS = 3
CACHES = [(), ("COMMIT",), (".tdi",), ("COMMIT", ".tdi")]
WITHOUT = pytest.mark.parametrize(
    "without", CACHES, ids=lambda c: "+".join(c) or "none"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run of several shards; steps begin in one and end in the next."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with RunBuilder(path, shard_bytes=1 << 16, codec="none") as run:
        for step in range(N_STEPS):
            run.step(
                step,
                {f"w{i}": np.full(500, step + i, np.float64) for i in range(N_TENSORS)},
            )
    assert len(shards_of(path)) >= 5
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return copy_of(whole, tmp_path / "copy")


def copy_of(run: Path, to: Path, without: tuple[str, ...] = ()) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(run, to)
    for ending in without:
        for path in to.glob(f"w/*/*{ending}"):
            path.unlink()
    return to


def shards_of(run: Path) -> list[Path]:
    return sorted(run.glob("w/*/*.tds"))


def boundaries(shard: Path) -> list[int]:
    """Where its records begin, but for the first, and the length of its header."""
    content = shard.read_bytes()
    found, at = [128], 128
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at + 32)
        at = (at + 64 + length + 63) // 64 * 64
        found.append(at)
    assert found.pop() == len(content)
    return found


def problems(run: Path) -> list[_core.Problem]:
    """What fsck finds in the one writer of *run*."""
    (directory,) = (run / "w").iterdir()
    return _core.RunReader(str(directory), open_run(run).uuid).verify()


def fsck(run: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(_tdbg, ["fsck", str(run), "--json"])
    return result.exit_code, json.loads(result.stdout)


def check_that_lossless_steps_are_whole(run: Path) -> int:
    """Returns how many are lossless."""
    trial = create_trial(run)
    table = trial.step_table()
    assert not (table["lossless"] & ~table["complete"]).any()
    lossless = table["step"][table["lossless"]].tolist()
    for i in range(N_TENSORS):
        tensor = trial.tensor(f"w{i}") if f"w{i}" in trial.tensor_names() else None
        values = tensor.steps(what="values") if tensor else []
        rows = tensor.steps(what="statistics") if tensor else []
        assert set(lossless) <= set(values) & set(rows)
    return len(lossless)


def names(found: list[_core.Problem]) -> set[str]:
    return {problem.file for problem in found if problem.kind == "missing"}


def test_the_whole_run_is_sound_and_every_step_is_lossless(whole: Path) -> None:
    exit_code, document = fsck(whole)
    assert (exit_code, document["damaged"]) == (0, False)
    assert document["writers"][0]["problems"] == []
    assert check_that_lossless_steps_are_whole(whole) == N_STEPS


@WITHOUT
def test_a_sealed_shard_that_was_cut_is_named_wherever_it_was_cut(
    whole: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    random = np.random.default_rng(1)
    last = len(shards_of(whole)) - 1
    for number in (0, 2, last):
        length = shards_of(whole)[number].stat().st_size
        cuts = boundaries(shards_of(whole)[number])
        cuts += random.integers(0, length, size=8).tolist()
        for cut in cuts:
            run = copy_of(whole, tmp_path / "cut", without)
            shard = shards_of(run)[number]
            os.truncate(shard, cut)
            n_lossless = check_that_lossless_steps_are_whole(run)
            # Behind the steps of the last shard stand its index and its end.
            assert n_lossless < N_STEPS or number == last, cut
            if number == last and len(without) == 2:
                # As a writer leaves it that was killed: nobody can tell.
                (directory,) = (run / "w").iterdir()
                assert _core.RunReader(str(directory)).end_is_unknown
            else:
                assert names(problems(run)) == {shard.name}, cut
                assert any(p.kind == "missing" for p in create_trial(run).problems())


@WITHOUT
def test_a_shard_that_was_deleted_is_named(
    whole: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    n_shards = len(shards_of(whole))
    for number in range(n_shards):
        run = copy_of(whole, tmp_path / "thinned", without)
        shard = shards_of(run)[number]
        shard.unlink()
        assert check_that_lossless_steps_are_whole(run) < N_STEPS
        if number == n_shards - 1 and len(without) == 2:
            assert fsck(run)[1]["writers"][0]["problems"][0]["kind"] == "unknown_end"
        else:
            assert shard.name in names(problems(run))


@WITHOUT
def test_the_last_shards_that_were_deleted_together_are_missed(
    whole: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    run = copy_of(whole, tmp_path / "thinned", without)
    for shard in shards_of(run)[-3:]:
        shard.unlink()
    assert check_that_lossless_steps_are_whole(run) < N_STEPS
    kinds = {p["kind"] for p in fsck(run)[1]["writers"][0]["problems"]}
    assert ("missing" in kinds) == (len(without) < 2)
    assert ("unknown_end" in kinds) == ("COMMIT" in without)


def test_fsck_exits_with_1_and_names_the_file_that_lost_its_end(copy: Path) -> None:
    os.truncate(shards_of(copy)[1], 128)
    exit_code, document = fsck(copy)
    assert (exit_code, document["damaged"]) == (1, True)
    (problem,) = document["writers"][0]["problems"]
    assert problem["file"] == "w/train-0-1/000002.tds"
    assert "the end of the shard is lost" in problem["message"]
    assert "000003.tds begins with record" in problem["message"]
    result = CliRunner().invoke(_tdbg, ["fsck", str(copy)])
    assert "w/train-0-1/000002.tds at byte 128" in result.output.replace("\n", " ")


def test_only_the_steps_at_the_hole_are_incomplete(copy: Path) -> None:
    os.truncate(shards_of(copy)[1], 128)
    table = create_trial(copy).step_table()
    there = set(table["step"].tolist())
    first_behind = min(step for step in there if step - 1 not in there and step > 0)
    incomplete = set(table["step"][~table["complete"]].tolist())
    assert incomplete == {first_behind, first_behind + 1}


def test_damage_within_a_shard_makes_its_step_incomplete(copy: Path) -> None:
    shard = shards_of(copy)[1]
    content = bytearray(shard.read_bytes())
    # A tensor's head, in the middle of the shard; without an index it is walked.
    at = content.index(struct.pack("<d", 8.0) * 500)
    content[at - 128 + 20] ^= 1
    shard.write_bytes(content)
    shard.with_suffix(".tdi").unlink()
    assert check_that_lossless_steps_are_whole(copy) == N_STEPS - 2


def test_a_run_that_was_copied_without_its_commit_page_has_an_unknown_end(
    whole: Path, tmp_path: Path
) -> None:
    run = copy_of(whole, tmp_path / "copy", ("COMMIT",))
    # The writer closed its last shard, which says so.
    assert fsck(run) == (0, fsck(run)[1])
    assert fsck(run)[1]["writers"][0]["problems"] == []
    shards_of(run)[-1].unlink()
    for index in run.glob("w/*/*.tdi"):
        index.unlink()
    exit_code, document = fsck(run)
    (problem,) = document["writers"][0]["problems"]
    assert (exit_code, problem["kind"]) == (0, "unknown_end")
    assert problem["file"] == "w/train-0-1/COMMIT"
    output = CliRunner().invoke(_tdbg, ["fsck", str(run)]).output
    assert "sound so far, but its end is unknown" in output


def test_a_live_run_is_whole_at_every_moment(run_dir: Path) -> None:
    with RunBuilder(run_dir, shard_bytes=1 << 16, codec="none") as run:
        trial = create_trial(run_dir)
        for step in range(20):
            run.step(step, {"w": np.full(1000, step, np.float64)})
            if step % 3 == 0:
                run.flush()
                assert problems(run_dir) == []
                assert trial.step_table()["lossless"].all()
                assert trial.problems() == []
    assert fsck(run_dir)[0] == 0


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from run_builder import RunBuilder
run = RunBuilder(Path(sys.argv[1]), shard_bytes=1 << 16, codec="none")
for step in range(25):
    run.step(step, {"w": np.full(1000, step, np.float64)})
run.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@WITHOUT
def test_a_killed_writer_leaves_no_damage(
    run_dir: Path, without: tuple[str, ...], tmp_path: Path
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(run_dir)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    run = copy_of(run_dir, tmp_path / "copy", without)
    exit_code, document = fsck(run)
    assert (exit_code, document["damaged"]) == (0, False)
    table = create_trial(run).step_table()
    assert table["lossless"].all()
    assert table["step"].tolist() == list(range(25))
    # Torn in the last record: harmless where nobody says that there was more.
    os.truncate(shards_of(run)[-1], shards_of(run)[-1].stat().st_size - 10)
    assert fsck(run)[0] == (0 if "COMMIT" in without else 1)
