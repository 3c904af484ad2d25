"""Events may hold any JSON: no question about a run fails for it, and no verb."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder
from tdbg.cli import _tdbg
from tdbg.compat.smdebug.trials import create_trial as create_smdebug_trial
from tdbg.config import Collection, Role
from tdbg.errors import ConfigurationError
from tdbg.run.json_values import parse_document
from tdbg.trial import Trial, create_trial

CONFIGURATION, COLLECTIONS, CHANGE, FINDING, STATUS = 1, 2, 3, 4, 5
ODD: list[Any] = [None, True, 5, -1, 2.5, 1 << 62, 10**400, "\ud800"]
ODD += [[], [5, "a"], {}, {"0": {"a": []}}]

DOCUMENTS: list[tuple[int, dict[str, Any]]] = [
    (
        CONFIGURATION,
        {
            "hook": {
                "budget": 0.05,
                "include_collections": ["weights"],
                "save_histogram": False,
                "reduction_config": {"save_raw_tensor": True},
                "needs": [{"collections": ["gradients"], "interval": 5}],
            }
        },
    ),
    (
        CONFIGURATION,
        {
            "what": "model",
            "step": 0,
            "part": 0,
            "parts": 1,
            "models": ["Net"],
            "losses": ["MSELoss"],
            "optimizers": ["SGD"],
            "modules": {"fc": "Linear", "act": "ReLU"},
            "parameters": {
                "fc.weight": {
                    "shape": [4, 3],
                    "dtype": "float32",
                    "requires_grad": True,
                    "module": "Linear",
                    "optimizer": 0,
                }
            },
            "complete": True,
            "evaluating": ["drop"],
        },
    ),
    (
        COLLECTIONS,
        {
            "collections": {
                "mine": {
                    "include_regex": ["fc"],
                    "save_histogram": True,
                    "tensor_names": ["fc.weight"],
                }
            }
        },
    ),
    (CHANGE, {"what": "cost", "steps": 3, "capture_ns": 5, "duration_ns": 50}),
    (
        CHANGE,
        {
            "what": "budget",
            "step": 2,
            "worker": 0,
            "why": "it cost more",
            "measured": 0.1,
            "level": 1,
            "text": "no values",
        },
    ),
    (
        CHANGE,
        {"what": "devices", "devices": {"0": {"is_usable": False, "reason": "old"}}},
    ),
    (
        CHANGE,
        {
            "what": "capture",
            "state": "accepted",
            "request": "0" * 32,
            "asked": {"needs": [{"collections": ["outputs"]}], "rules": ["DeadRelu"]},
        },
    ),
    (CHANGE, {"what": "raw_limit", "tensors": {"fc.weight": {"bytes": 5, "limit": 3}}}),
    (
        FINDING,
        {
            "rule": "DeadRelu",
            "severity": "error",
            "step": 1,
            "mode": "TRAIN",
            "tensor": "fc.weight",
            "message": "dead",
            "value": 0.97,
            "threshold": 0.5,
            "advice": "lower it",
            "first_step": 1,
            "last_step": 1,
            "n_steps": 1,
            "phase": "begin",
        },
    ),
    (
        STATUS,
        {"rule": "DeadRelu", "status": "InProgress", "message": "", "training": 1},
    ),
]
IDS = [str(document.get("what") or next(iter(document))) for _, document in DOCUMENTS]


def variants(value: Any) -> Iterator[Any]:
    """*value* with each of its parts replaced by each odd value, one at a time."""
    yield from ODD
    for key in value if isinstance(value, dict) else range(len(value)):
        changed = copy.deepcopy(value)
        inner = value[key]
        for odd in variants(inner) if isinstance(inner, dict | list) else ODD:
            changed[key] = odd
            yield copy.deepcopy(changed)
        if isinstance(value, dict):
            del changed[key]
            yield copy.deepcopy(changed)


def write(run_dir: Path, kind: int, document: Any) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"fc.weight": np.ones((4, 3), np.float32)})
        run.save(1, "net_output_0", np.ones(4, np.float32), role=Role.OUTPUT)
        assert run.capture.event(1, kind, 1, json.dumps(document).encode())
        run.end_step(1)


def ask(trial: Trial) -> None:
    for finding in trial.findings():
        json.dumps(finding.to_json())
        assert isinstance(finding.rule + finding.tensor + finding.message, str)
    trial.rule_statuses()
    trial.configuration()
    for collection in trial.collections().values():
        collection.has("fc.weight", Role.WEIGHT)
    for info in trial.model_info():
        info.module_of("fc.weight")
        json.dumps(info.to_json())
    json.dumps([str(trial.overhead()), trial.overhead().to_json()])
    str(trial.lost_records())
    trial.step_table()
    trial.events()
    trial.problems()


@pytest.mark.parametrize(("kind", "document"), DOCUMENTS, ids=IDS)
def test_no_question_fails_for_an_odd_type_in_an_event(
    tmp_path: Path, kind: int, document: dict[str, Any]
) -> None:
    n = 0
    for i, odd in enumerate(variants(document)):
        write(tmp_path / str(i), kind, odd)
        trial = create_trial(tmp_path / str(i))
        with trial.no_refresh():
            ask(trial)
        n += 1
    assert n > 10 * len(document)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(each) for each in arguments])


@pytest.mark.parametrize(("kind", "document"), DOCUMENTS, ids=IDS)
def test_no_verb_fails_for_an_odd_type_in_an_event(
    tmp_path: Path, kind: int, document: dict[str, Any]
) -> None:
    found = [each for each in variants(document) if isinstance(each, dict)]
    # Each writer has the events of many: a run for each would take minutes.
    with RunBuilder(tmp_path / "run") as run:
        for odd in found:
            run.capture.event(1, kind, 1, json.dumps(odd).encode())
        run.step(1, {"fc.weight": np.random.default_rng(0).normal(size=(4, 3))})
    run_dir = tmp_path / "run"
    for line in (
        f"ls {run_dir}",
        f"ls {run_dir.parent}",
        f"show {run_dir}",
        f"check {run_dir} --no-record",
        f"check {run_dir} {run_dir} --no-record --jobs 1",
        f"watch {run_dir}",
        f"fsck {run_dir}",
        f"export tensorboard {run_dir} --out {tmp_path / 'out'}",
    ):
        for more in ([], ["--json"]):
            result = call(*line.split(), *more)
            assert result.exit_code == 0, result.output + result.stderr
    trial = create_smdebug_trial(str(run_dir))
    for collection in trial.collections().values():
        assert isinstance(collection.tensor_names, set)


def test_a_regex_that_is_none_in_a_recorded_collection_is_left_out(
    run_dir: Path,
) -> None:
    text = {
        "collections": {"mine": {"include_regex": 5}, "bad": {"include_regex": "("}}
    }
    write(run_dir, COLLECTIONS, text)
    assert "mine" in create_trial(run_dir).collections()
    assert "bad" not in create_trial(run_dir).collections()
    assert call("check", run_dir, "--no-record").exit_code == 0


@pytest.mark.parametrize("regex", [5, 2.5, True, [5], [None]])
def test_a_regex_of_an_odd_type_is_a_configuration_error(regex: Any) -> None:
    with pytest.raises(ConfigurationError, match="regular expression"):
        Collection("mine", regex)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1", 1),
        (b"-9223372036854775808", -(1 << 63)),
        (b"9223372036854775807", (1 << 63) - 1),
        (b"9223372036854775808", 2.0**63),
        (b"1" * 5000, None),
        (b"1e999", None),
        (b"NaN", None),
        (b"-Infinity", None),
        (b'{"a": [1.5]}', {"a": [1.5]}),
    ],
)
def test_numbers_that_no_column_holds_are_none(text: bytes, value: Any) -> None:
    assert parse_document(text) == value
    assert type(parse_document(text)) is type(value)


# --- Exit codes -----------------------------------------------------------


VERBS = ["ls", "show", "check", "watch", "fsck", "stop", "export tensorboard"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("error", [LookupError("odd"), MemoryError(), AssertionError()])
def test_a_crash_has_an_exit_code_of_its_own(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception
) -> None:
    write(run_dir, STATUS, {})

    def crash(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tdbg.run.directory.json.loads", crash)
    result = call(*verb.split(), run_dir)
    assert result.exit_code == 4, result.output
    assert "tdbg failed" in result.stderr
    assert "Traceback" in result.stderr


RULE = """
from dataclasses import dataclass
from tdbg.config import Needs
from tdbg.rules import Rule

@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Rule):
    @property
    def needs(self):
        return Needs(collections=frozenset({"weights"}))

    def evaluate(self, window):
        raise RuntimeError("the rule is broken")
"""


@pytest.mark.parametrize("n", [1, 2])
def test_a_rule_that_fails_has_found_nothing(
    run_dir: Path, tmp_path: Path, n: int
) -> None:
    write(run_dir, STATUS, {})
    file = tmp_path / "broken.py"
    file.write_text(RULE)
    runs = [run_dir] * n
    result = call("check", *runs, "--rule", f"{file}:Broken", "--no-record", "--json")
    assert result.exit_code == 4, result.output
    assert "Error" in result.stdout
