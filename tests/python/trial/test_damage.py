"""Damage in a run's files is reported, and costs what is damaged."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from questions import ask_everything
from run_builder import RunBuilder, simple_run
from tdbg.errors import (
    CorruptionError,
    NotARun,
    QueryError,
    StorageError,
    TdbgError,
    UnsupportedFeature,
)
from tdbg.modes import ModeKeys
from tdbg.trial import Call, RunOverhead, create_trial
from tdbg.trial.shards import element_type
from tdbg.trial.values import RawEntry, read_value

FINDING, STATUS, MESSAGE, CONFIGURATION, COLLECTIONS = 4, 5, 6, 1, 2


def test_a_damaged_value_fails_alone(run_dir: Path) -> None:
    arrays = {f"w{i}": np.random.default_rng(i).normal(size=999) for i in range(3)}
    with RunBuilder(run_dir, codec="none") as run:
        run.step(0, arrays)
    shard = run.directory / "000001.tds"
    content = bytearray(shard.read_bytes())
    at = content.find(arrays["w1"].tobytes())
    assert at > 0
    content[at + 800] ^= 1
    shard.write_bytes(content)
    trial = create_trial(run_dir)
    for name in ("w0", "w2"):
        assert trial.tensor(name).value(0).tobytes() == arrays[name].tobytes()
    with pytest.raises(
        StorageError, match=r"000001\.tds|damage|checksum|crc"
    ) as caught:
        trial.tensor("w1").value(0)
    assert caught.value.kind is not None
    assert trial.tensor("w1").stats(0).count == 999
    ask_everything(trial)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_is_reported_and_never_fails_a_question(
    run_dir: Path, seed: int
) -> None:
    simple_run(run_dir, range(20))
    random = np.random.default_rng(seed)
    shard = run_dir / "w" / "train-0-1" / "000001.tds"
    content = np.frombuffer(shard.read_bytes(), np.uint8).copy()
    at = random.integers(256, len(content), size=5)
    content[at] ^= random.integers(1, 256, size=5).astype(np.uint8)
    shard.write_bytes(content.tobytes())
    for cache in ("000001.tdi", "COMMIT"):
        (shard.parent / cache).unlink(missing_ok=True)
    trial = create_trial(run_dir)
    ask_everything(trial)
    assert set(trial.steps()) <= set(range(20))
    values = 0
    for name in trial.tensor_names():
        for step in trial.tensor(name).steps(what="values"):
            try:
                values += trial.tensor(name).value(step).shape == (4, 3)
            except StorageError:
                continue
    assert values >= 30


def test_a_shard_of_another_run_is_reported_and_not_read(
    run_dir: Path, tmp_path: Path
) -> None:
    simple_run(run_dir, seed=1)
    simple_run(tmp_path / "other", seed=2)
    stranger = run_dir / "w" / "train-0-2"
    shutil.copytree(tmp_path / "other" / "w" / "train-0-1", stranger)
    trial = create_trial(run_dir)
    ask_everything(trial)
    expected = create_trial(tmp_path / "other").tensor("fc.weight").value(2)
    assert not np.array_equal(trial.tensor("fc.weight").value(2), expected)
    assert any(p.writer == "train-0-2" for p in trial.problems())


def test_a_shard_that_is_gone_costs_its_own_steps(run_dir: Path) -> None:
    with RunBuilder(run_dir, shard_bytes=1 << 16, codec="none") as run:
        for step in range(60):
            run.step(step, {"w": np.full(1000, step, np.float64)})
    shards = sorted(run.directory.glob("*.tds"))
    assert len(shards) >= 4
    shards[1].unlink()
    trial = create_trial(run_dir)
    ask_everything(trial)
    left = trial.steps()
    assert 20 < len(left) < 60
    for step in left:
        if step in trial.tensor("w").steps(what="values"):
            assert trial.tensor("w").value(step)[0] == step
    assert any(p.kind == "missing" for p in trial.problems())


def test_a_shard_that_goes_while_the_trial_is_open_is_a_typed_error_at_most(
    run_dir: Path,
) -> None:
    simple_run(run_dir)
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2, 3, 4]
    shutil.rmtree(run_dir / "w")
    with contextlib.suppress(TdbgError):
        assert trial.tensor("fc.weight").value(2).shape == (4, 3)
    trial.refresh()
    trial.problems()


def test_files_that_are_not_ours_are_passed_over(run_dir: Path) -> None:
    simple_run(run_dir)
    before = create_trial(run_dir).tensor_names()
    (run_dir / "w" / "train-0-1" / "notes.txt").write_text("hello")
    (run_dir / "w" / "something").mkdir()
    (run_dir / "w" / "train-x-1").mkdir()
    (run_dir / "w" / "train-0-7").write_text("a file")
    (run_dir / "w" / "train-3-1").mkdir()
    trial = create_trial(run_dir)
    ask_everything(trial)
    assert trial.tensor_names() == before
    assert trial.tensor("fc.weight").value(1).shape == (4, 3)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", NotARun),
        ("{}", NotARun),
        ('{"format": "other", "version": 1, "uuid": "00", "created": ""}', NotARun),
        ("[" * 20000, NotARun),
        (
            '{"format": "tdbg-run", "version": 9, "uuid": "' + "0" * 32 + '",'
            ' "created": ""}',
            UnsupportedFeature,
        ),
    ],
)
def test_a_broken_run_json_is_a_typed_error(
    run_dir: Path, content: str, error: type[Exception]
) -> None:
    simple_run(run_dir)
    (run_dir / "RUN.json").unlink()
    (run_dir / "RUN.json").write_text(content)
    with pytest.raises(error):
        create_trial(run_dir)


def definition(**changes: Any) -> Any:
    fields = {"name": "x", "dtype": "float32", "item_size": 4, "shape": (2,)}
    return SimpleNamespace(**fields | changes)


@pytest.mark.parametrize(
    "text", ["O", "object", "i4,i4", "V8", "finfo", "__name__", "", "nonsense", "8f"]
)
def test_no_element_type_in_a_file_makes_pointers_or_records(text: str) -> None:
    with pytest.raises(UnsupportedFeature, match="unknown type"):
        element_type(definition(dtype=text, item_size=4))


def test_a_value_that_does_not_fit_its_definition_is_refused() -> None:
    reader = SimpleNamespace(read_tensor=lambda _: np.zeros(7, np.uint8))
    source: Any = SimpleNamespace(writer=SimpleNamespace(reader=reader))
    entry = RawEntry(source, definition(), Call(0, 0), 0, None)
    with pytest.raises(CorruptionError, match="7 bytes instead of 8"):
        read_value(entry)


# --- Events ---------------------------------------------------------------


def finding(step: int, **changes: object) -> bytes:
    document = {
        "rule": "DeadRelu",
        "severity": "error",
        "step": step,
        "mode": "TRAIN",
        "tensor": "net_output_0",
        "message": "97 % of the units are dead",
        "value": 0.97,
        "threshold": 0.5,
        "advice": "lower the learning rate",
        "first_step": step,
        "last_step": step,
        "n_steps": 1,
        "phase": "begin",
    }
    return json.dumps(document | changes).encode()


def test_findings_and_statuses_are_read_from_the_engine(run_dir: Path) -> None:
    simple_run(run_dir)
    for status in ("running", "finding"):
        with RunBuilder(run_dir, role="engine") as engine:
            capture = engine.capture
            capture.event(3, FINDING, 3, finding(3))
            capture.event(1, FINDING, 3, finding(1, tensor="other"))
            text = json.dumps({"rule": "DeadRelu", "status": status})
            capture.event(-1, STATUS, 1, text.encode())
    trial = create_trial(run_dir)
    assert [(f.step, f.tensor) for f in trial.findings()] == [
        (1, "other"),
        (3, "net_output_0"),
    ]
    assert trial.findings()[1].advice == "lower the learning rate"
    assert trial.findings()[1].mode is ModeKeys.TRAIN
    assert trial.rule_statuses()["DeadRelu"]["status"] == "finding"
    assert trial.workers() == ["worker_0"]
    assert trial.status == "closed"
    assert len(trial.events("finding")) == 4
    assert {event.writer for event in trial.events()} == {"engine-0-1", "engine-0-2"}
    assert trial.events("finding")[0].severity == "error"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"nonsense", b"\xff\xfe", b"1e999", b"{" * 5000, b'"text"'],
)
def test_an_event_that_is_no_json_object_is_a_problem_only(
    run_dir: Path, content: bytes
) -> None:
    simple_run(run_dir)
    with RunBuilder(run_dir, role="engine") as engine:
        if not engine.capture.event(1, FINDING, 3, content):
            pytest.skip("the writer refuses it")
        engine.capture.event(1, FINDING, 3, finding(1))
    trial = create_trial(run_dir)
    assert len(trial.findings()) == 1
    assert [p.kind for p in trial.problems()] == ["event"]


def test_findings_of_a_later_version_are_passed_over(run_dir: Path) -> None:
    simple_run(run_dir)
    with RunBuilder(run_dir, role="engine") as engine:
        engine.capture.event(1, FINDING, 3, finding(1, severity="apocalyptic"))
        engine.capture.event(1, FINDING, 3, b'{"rule": 3}')
        engine.capture.event(1, STATUS, 3, b'{"rule": 3}')
        engine.capture.event(1, FINDING, 3, finding(2, extra="field"))
    trial = create_trial(run_dir)
    assert [f.step for f in trial.findings()] == [2]
    assert trial.rule_statuses() == {}
    ask_everything(trial)


def test_configuration_and_collections_come_from_the_training(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.capture.event(-1, CONFIGURATION, 0, b'{"framework": "pytorch"}')
        text = {"collections": {"relu": {"include_regex": ["relu"]}, "bad": 3}}
        run.capture.event(-1, COLLECTIONS, 0, json.dumps(text).encode())
        run.step(0, {"relu_output_0": np.ones(2), "fc.weight": np.ones(2)})
    trial = create_trial(run_dir)
    assert trial.configuration() == {"framework": "pytorch"}
    assert trial.collection("relu").tensor_names == {"relu_output_0"}
    assert trial.tensor_names(collection="relu") == ["relu_output_0"]
    assert trial.collection("outputs").tensor_names == {"relu_output_0"}
    assert "bad" not in trial.collections()
    with pytest.raises(QueryError, match="relu"):
        trial.collection("rel")


def test_the_cost_and_the_losses_of_capture_are_summed_up(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for step in range(4):
            mode = ModeKeys.EVAL if step == 3 else ModeKeys.TRAIN
            if step == 2:
                run.capture.refuse(step, 3)
            cost = 10 * (step + 1)
            ones = {"w": np.ones(2)}
            run.step(step, ones, mode, capture_ns=cost, duration_ns=1000)
    trial = create_trial(run_dir)
    cost = trial.overhead()
    assert (cost.steps, cost.capture_seconds, cost.step_seconds) == (4, 1e-7, 4e-6)
    assert cost.share == pytest.approx(100 / 3900)
    assert trial.overhead("train").share == pytest.approx(60 / 2940)
    assert str(cost) == (
        "measured cost: too short to tell (0.0 s in steps, and 0.0 s in tdbg)"
    )
    assert not cost.to_json()["is_telling"]
    assert str(RunOverhead(100, 0.1, 1.1)) == "measured cost: steps take 10.0 % longer"
    within = RunOverhead(100, 0.1, 1.1, 0.05, 3.0)
    assert str(within) == (
        "measured cost: steps take 10.0 % longer (0.1 s in all); the budget of 5 % "
        "allows 3.0 s in the first minute"
    )
    assert str(RunOverhead(100, 4.0, 104.0, 0.05, 3.0)).endswith(
        "steps take 4.0 % longer, within the budget of 5 %"
    )
    assert str(RunOverhead(100, 7.0, 107.0, 0.05)).endswith(
        "steps take 7.0 % longer, more than the budget of 5 %"
    )
    assert RunOverhead(5, 6.0, 66.0).is_telling
    assert not RunOverhead(99, 5.0, 55.0).is_telling
    assert not RunOverhead(1000, 0.4, 0.9).is_telling
    # Nor where most of that time was tdbg's, as in the first steps of any training.
    assert not RunOverhead(200, 0.9, 1.1).is_telling
    counters = trial.counters()
    assert counters["dropped"] == 3
    assert counters["failed"] == 0
    assert counters["offered"] == counters["written"] + 3
    assert trial.step_table()["lossless"].tolist() == [True, True, False, True]
    assert trial.n_bytes > 0
