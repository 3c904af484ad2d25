"""Damage in what smdebug wrote: reported, and never read as something else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdbg
from smdebug_corpus import CORPUS, expected
from tdbg.errors import NotARun, StorageError
from tdbg.importers.smdebug import Importer, LocalFiles

WORKER = "worker_0"


def event_file(out: Path, step: int) -> Path:
    return out / f"events/{step:012d}/{step:012d}_{WORKER}.tfevents"


def index_file(out: Path, step: int) -> Path:
    return out / f"index/{step // 1000:09d}/{step:012d}_{WORKER}.json"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A copy of PyTorch's case: 6 steps, 12 or more tensors each."""
    return Path(shutil.copytree(CORPUS / "pytorch" / "out", tmp_path / "out"))


def imported(out: Path, run: Path) -> tuple[tdbg.Trial, int]:
    with Importer(LocalFiles(out), run) as importer:
        lost = importer.convert().lost
    return tdbg.create_trial(run), lost


def check_what_is_left(trial: tdbg.Trial) -> int:
    """Compare all values that are there with smdebug's; return how many there are."""
    document, arrays = expected("pytorch")
    n_read = 0
    for entry in document["values"]:
        if not trial.has_tensor(entry["tensor"]):
            continue
        tensor = trial.tensor(entry["tensor"])
        if entry["step"] not in tensor.steps(entry["mode"], "values"):
            continue
        found = tensor.value(entry["step"], entry["mode"])
        np.testing.assert_array_equal(
            found, arrays[str(entry["array"])].reshape(found.shape)
        )
        n_read += 1
    return n_read


N_VALUES = len(expected("pytorch")[0]["values"])


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def places(out: Path, step: int) -> list[dict[str, object]]:
    payload = json.loads(index_file(out, step).read_text())["tensor_payload"]
    # Where a tensor was saved twice, the last one counts.
    return list({each["tensorname"]: dict(each) for each in payload}.values())


def change_index(out: Path, step: int, change: Callable[[dict], object]) -> None:
    document = json.loads(index_file(out, step).read_text())
    change(document)
    index_file(out, step).write_text(json.dumps(document))


@pytest.mark.parametrize("offset", [0, 4, 8, 11, 20, -1, -4])
def test_a_flipped_bit_around_a_tensor_is_reported(
    out: Path, tmp_path: Path, offset: int
) -> None:
    """In the length, its checksum, the message and what ends the record."""
    place = places(out, 2)[1]
    start, length = int(str(place["start_idx"])), int(str(place["length"]))
    at = start + offset if offset >= 0 else start + length + offset
    flip(event_file(out, 2), at)
    trial, lost = imported(out, tmp_path / "run")
    if offset == 20:  # The time of the event, which nothing protects.
        assert lost == 0
        assert check_what_is_left(trial) == N_VALUES
        return
    assert lost == 1
    assert trial.lost_records().records == 1
    assert check_what_is_left(trial) == N_VALUES - 1


def test_a_lost_tensor_is_named_with_the_reason(out: Path, tmp_path: Path) -> None:
    flip(event_file(out, 2), int(str(places(out, 2)[1]["start_idx"])))
    trial, _ = imported(out, tmp_path / "run")
    told = str(trial.lost_records())
    assert "conv1.bias" in told
    assert "checksum" in told


def test_a_cut_event_file_loses_what_was_behind_the_cut(
    out: Path, tmp_path: Path
) -> None:
    third = int(str(places(out, 4)[3]["start_idx"]))
    os.truncate(event_file(out, 4), third + 5)
    trial, lost = imported(out, tmp_path / "run")
    assert lost == len(places(out, 4)) - 3
    assert check_what_is_left(trial) == N_VALUES - lost


def test_a_missing_event_file_loses_the_step_alone(out: Path, tmp_path: Path) -> None:
    event_file(out, 4).unlink()
    trial, lost = imported(out, tmp_path / "run")
    assert lost == len(places(out, 4))
    assert check_what_is_left(trial) == N_VALUES - lost
    assert trial.steps("EVAL", "any") == [2]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"meta": {}}', b"[" * 200_000],
    ids=["empty", "cut", "binary", "list", "without meta", "deep"],
)
def test_of_a_damaged_index_the_event_file_says_all(
    out: Path, tmp_path: Path, content: bytes
) -> None:
    index_file(out, 2).write_bytes(content)
    trial, lost = imported(out, tmp_path / "run")
    assert lost == 1  # The index.
    assert check_what_is_left(trial) == N_VALUES


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["meta"].update(mode_step=7),
        lambda index: index["meta"].update(mode="EVAL"),
        lambda index: index["meta"].update(event_file_name="../../../etc/passwd"),
    ],
    ids=["mode step", "mode", "path"],
)
def test_an_index_that_contradicts_its_tensors_is_not_believed(
    out: Path, tmp_path: Path, change: Callable[[dict], object]
) -> None:
    change_index(out, 2, change)
    trial, lost = imported(out, tmp_path / "run")
    assert lost == 1
    assert check_what_is_left(trial) == N_VALUES


@pytest.mark.parametrize(
    "entry",
    [
        {"tensorname": "Net_conv1.weigh"},
        {"start_idx": 1},
        {"start_idx": -5},
        {"length": 1 << 62},
        {"start_idx": 1 << 62, "length": 1 << 62},
    ],
    ids=str,
)
def test_a_wrong_place_in_an_index_loses_its_tensor_alone(
    out: Path, tmp_path: Path, entry: dict[str, object]
) -> None:
    change_index(out, 2, lambda index: index["tensor_payload"][0].update(entry))
    trial, lost = imported(out, tmp_path / "run")
    assert lost == 1
    assert check_what_is_left(trial) == N_VALUES - 1


def test_an_event_file_without_index_is_told_when_the_training_has_ended(
    out: Path, tmp_path: Path
) -> None:
    index_file(out, 2).unlink()
    trial, lost = imported(out, tmp_path / "run")
    assert lost == 1
    assert "index of its step is missing" in str(trial.lost_records())
    assert check_what_is_left(trial) == N_VALUES - len(
        places(CORPUS / "pytorch/out", 2)
    )


def test_half_written_files_are_not_read(out: Path, tmp_path: Path) -> None:
    (out / "training_job_end.ts").unlink()
    for file in (event_file(out, 10), index_file(out, 10)):
        file.rename(file.with_name(f"{file.name}.tmp"))
    trial, lost = imported(out, tmp_path / "run")
    assert lost == 0
    assert trial.steps("GLOBAL")[-1] == 8
    assert trial.status == "unknown"


def test_damaged_collections_cost_nothing_but_roles(out: Path, tmp_path: Path) -> None:
    for file in out.glob("collections/*/*.json"):
        file.write_text("{")
    trial, lost = imported(out, tmp_path / "run")
    assert lost == 0
    assert check_what_is_left(trial) == N_VALUES
    assert trial.tensor("gradient/Net_fc.bias").role == "gradient"


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_what_is_no_file_is_not_opened(out: Path, tmp_path: Path, kind: str) -> None:
    file = event_file(out, 2)
    secret = tmp_path / "secret"
    shutil.copy(file, secret)
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(secret)
    else:
        file.mkdir()
    trial, lost = imported(out, tmp_path / "run")
    assert lost == len(places(out, 2))
    assert check_what_is_left(trial) == N_VALUES - lost


def test_names_never_become_paths(out: Path, tmp_path: Path) -> None:
    odd = out / "index" / "000000000" / "000000000002_..%2f..%2fetc.json"
    shutil.copy(index_file(out, 2), odd)
    before = sorted(tmp_path.iterdir())
    trial, lost = imported(out, tmp_path / "run")
    assert lost > 0
    assert trial.workers() == ["worker_0", "worker_1"]
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "run"])


def test_what_smdebug_did_not_write_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "collections").mkdir()
    with pytest.raises(NotARun, match=r"has no RUN\.json"):
        tdbg.create_trial(tmp_path)


def test_a_directory_that_cannot_be_listed_is_a_typed_error(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    with (
        Importer(LocalFiles(out), tmp_path / "run") as importer,
        monkeypatch.context() as patches,
    ):
        patches.setattr(os, "scandir", refuse)
        with pytest.raises(StorageError, match="Permission denied"):
            importer.convert()


@settings(max_examples=150)
@given(data=st.data())
def test_any_flipped_byte_is_reported_or_only_in_what_nothing_protects(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flips")
    out = Path(shutil.copytree(CORPUS / "pytorch" / "out", folder / "out"))
    step = data.draw(st.sampled_from([0, 2, 4, 6, 8, 10]))
    file = data.draw(st.sampled_from([event_file, index_file]))(out, step)
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    trial, lost = imported(out, folder / "run")
    document, arrays = expected("pytorch")
    wrong = []
    n_there = 0
    for entry in document["values"]:
        if not trial.has_tensor(entry["tensor"]):
            continue
        tensor = trial.tensor(entry["tensor"])
        if entry["step"] not in tensor.steps(entry["mode"], "values"):
            continue
        n_there += 1
        found = tensor.value(entry["step"], entry["mode"])
        want = arrays[str(entry["array"])].reshape(found.shape)
        if not np.array_equal(found, want, equal_nan=True):
            wrong.append(entry)
    # A value is missing only if that is told; a wrong one only if its bytes flipped.
    assert n_there == N_VALUES or lost > 0
    assert len(wrong) <= 1
    if wrong:
        assert file.suffix == ".tfevents"
        assert lost == 0
    shutil.rmtree(folder)
