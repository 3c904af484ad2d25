"""Fingerprints: each sample's hash is recorded, whoever counts or sees its step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg._core import Fingerprints
from tdbg.modes import EVAL, TRAIN, ModeKeys
from tdbg.profiler import fingerprints
from tdbg.run.profile_tables import FINGERPRINT
from tdbg.trial import Trial

P1, P2, P3, P4, P5 = (
    *(0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
    *(0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
)
MASK = (1 << 64) - 1


def rotated(value: int, n: int) -> int:
    value &= MASK
    return (value << n | value >> (64 - n)) & MASK


def folded(lane: int, word: int) -> int:
    return rotated(lane + word * P2, 31) * P1 & MASK


def hash_of(row: torch.Tensor) -> int:
    """XXH64 of a row of up to 31 bytes, or of whole words of 8."""
    data = row.numpy().tobytes()
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    n_striped = len(data) // 32 * 4
    found = P5
    if n_striped:
        lanes = [P1 + P2, P2, 0, -P1]
        for i, word in enumerate(words[:n_striped]):
            lanes[i % 4] = folded(lanes[i % 4], word)
        found = sum(map(rotated, lanes, (1, 7, 12, 18)))
        for lane in lanes:
            found = (found ^ folded(0, lane)) * P1 + P4 & MASK
    found += len(data)
    for word in words[n_striped : len(data) // 8]:
        found = rotated(found ^ folded(0, word), 27) * P1 + P4
    if len(data) % 8 >= 4:
        found = rotated(found ^ (words[-1] & 0xFFFFFFFF) * P1, 23) * P2 + P3
    for n, prime in ((33, P2), (29, P3), (32, 1)):
        found = ((found & MASK) ^ (found & MASK) >> n) * prime & MASK
    return found


def hashes_of(rows: torch.Tensor) -> list[int]:
    return [hash_of(row) for row in rows]


def hashes_by_step(
    trial: Trial, instance: str, mode: ModeKeys = TRAIN
) -> dict[int, list[int]]:
    """Return the hashes of a tensor at each step, in the order of its samples."""
    rows = trial.profile.table("fingerprint")
    rows = rows[(rows["instance"] == instance) & (rows["mode"] == mode.value)]
    found: dict[int, list[int]] = {}
    for row in np.sort(rows, order=["global_step", "call", "first"]):
        hashes = row["hashes"][: row["n"]].tolist()
        found.setdefault(int(row["global_step"]), []).extend(hashes)
    return found


class Model(nn.Module):
    """Takes a tensor, and one by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, *, more: torch.Tensor) -> Any:
        return self.layer(x) + more.mean()


class Training:
    """A classifier on 40 samples of 6 numbers."""

    def __init__(self, out: Path, **settings: Any) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(40, 6), torch.arange(40) % 3
        self.model = nn.Sequential(nn.Linear(6, 3))
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.hook = td.watch(self.model, self.criterion, out=out, **settings)

    def step(self, rows: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.criterion(self.model(self.x[rows]), self.y[rows]).backward()
        self.optimizer.step()

    def evaluate(self, rows: torch.Tensor) -> None:
        self.model.eval()
        with torch.no_grad():
            self.criterion(self.model(self.x[rows]), self.y[rows])
        self.model.train()


def test_every_step_of_a_training_has_the_hashes_of_its_samples_and_labels(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path / "run")
    batches = [torch.randperm(40)[:20] for _ in range(200)]
    for rows in batches:
        training.step(rows)
    assert training.hook._session.n_counted_events > 0, "some are only counted"
    training.hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    found = hashes_by_step(trial, "input/Sequential_input_0")
    assert list(found) == list(range(200))
    assert list(found.values()) == [hashes_of(training.x[rows]) for rows in batches]
    labels = hashes_by_step(trial, "label/CrossEntropyLoss_input_1")
    assert list(labels.values()) == [hashes_of(training.y[rows]) for rows in batches]


def test_evaluation_has_a_mode_of_its_own(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    for rows in torch.arange(40).split(8):
        training.step(rows)
        training.evaluate(rows[:3])
    training.hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    evaluated = hashes_by_step(trial, "input/Sequential_input_0", EVAL)
    assert list(evaluated.values()) == [
        hashes_of(training.x[rows[:3]]) for rows in torch.arange(40).split(8)
    ]


def test_the_rows_of_a_batch_are_described(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.step(torch.arange(40)[:20])
    training.hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    rows = trial.profile.table("fingerprint")
    inputs = rows[rows["instance"] == "input/Sequential_input_0"]
    assert inputs["first"].tolist() == [0, 16]
    assert inputs["n"].tolist() == [16, 4]
    assert inputs["n_varied"].tolist() == [16, 255]
    assert inputs["samples"].tolist() == [20, 20]
    assert inputs["row_bytes"].tolist() == [24, 24]
    assert inputs["is_whole"].all()
    assert bytes(np.unique(rows["kind"])) == b"fi"


def test_all_tensors_of_a_call_are_hashed(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, out=tmp_path / "run")
    x, more = torch.randn(4, 6), torch.randn(4, 2)
    model(x, more=more).sum().backward()
    optimizer.step()
    hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    assert hashes_by_step(trial, "input/Model_input_0") == {0: hashes_of(x)}
    assert hashes_by_step(trial, "input/Model_input_1") == {0: hashes_of(more)}


def test_flat_labels_are_cut_into_as_many_rows_as_there_are_samples(
    tmp_path: Path,
) -> None:
    model, criterion = nn.Embedding(9, 9), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=tmp_path / "run")
    tokens = torch.arange(15).remainder(9).reshape(3, 5)
    criterion(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    labels = hashes_by_step(trial, "label/CrossEntropyLoss_input_1")
    assert labels == {0: hashes_of(tokens)}


def test_micro_batches_are_calls_of_one_step(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    for _ in range(3):
        training.optimizer.zero_grad()
        for rows in torch.arange(40).split(20):
            training.criterion(
                training.model(training.x[rows]), training.y[rows]
            ).backward()
        training.optimizer.step()
    training.hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    found = hashes_by_step(trial, "input/Sequential_input_0")
    assert found == dict.fromkeys(range(3), hashes_of(training.x))
    rows = trial.profile.table("fingerprint")
    assert set(rows["call"].tolist()) == {0, 1}


def test_a_full_record_says_so_and_hashes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "MOST_TRAINED", 50)
    training = Training(tmp_path / "run")
    for _ in range(5):
        training.step(torch.arange(20))
    training.evaluate(torch.arange(5))
    training.hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    found = hashes_by_step(trial, "input/Sequential_input_0")
    assert len(found) == 2, "of 20 samples and 20 labels"
    assert hashes_by_step(trial, "input/Sequential_input_0", EVAL)
    told = [e.data for e in trial.events() if e.data.get("what") == "fingerprints"]
    assert [each["full"] for each in told] == ["training"]
    assert told[0]["trained"] == 60


def test_nothing_is_hashed_if_the_setting_says_so(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", profiler={"fingerprints": False})
    training.step(torch.arange(20))
    assert training.hook._session.fingerprints is None
    training.hook.close()
    trial = tdbg.create_trial(tmp_path / "run")
    assert "fingerprint" not in trial.profile.tables()


def test_arguments_that_are_no_tensors_are_passed_over(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    batch = training.hook._session.recorder.direct
    prints = Fingerprints(batch, 1000, 1000, 1)
    event = object()
    prints.add_root(event, "Net")
    x = torch.randn(2, 3)
    for args in ((), (None, 1, "a"), ({"a": [x]},), (torch.tensor(1.0),), 7):
        prints.take_inputs(event, 0, 1, args, None)
    prints.take_inputs(object(), 1, 1, (x,))
    prints.take_labels(9, (x, x))
    ((name, rows),) = prints.take()
    assert name == "input/Net_input_0"
    found = np.frombuffer(rows, FINGERPRINT)
    assert found["hashes"][0, :2].tolist() == hashes_of(x)
    assert prints.take() == []
    training.hook.close()
