"""The action ``profile`` asks for a window when something is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actions_helpers import finding
from run_builder import RunBuilder
from tdbg import actions
from tdbg.actions import ActionSpec
from tdbg.errors import ConfigurationError


def requests_of(run: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in (run / "ctl").glob("*.json")]


def test_a_finding_asks_for_a_window_and_its_end_does_not(tmp_path: Path):
    path = tmp_path / "run"
    with RunBuilder(path):
        action = actions.make("profile", path)
        action(finding(phase="end"))
        assert requests_of(path) == []
        action(finding())
    (request,) = requests_of(path)
    assert request["type"] == "profile"
    body = request["body"]
    assert isinstance(body, dict)
    assert body["window"] == {"num_steps": 5}
    assert body["reason"].startswith("DeadRelu at step 7")
    assert body["over_budget"] is False


def test_a_parameter_that_can_never_work_is_named():
    for parameters, words in (
        ({"steps": 0}, "action profile: num_steps must be from 1"),
        ({"functions": "perf"}, "action profile: functions: unknown 'perf'"),
        ({"kinds": "all"}, "has no parameter 'kinds'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            actions.make(ActionSpec(name="profile", parameters=parameters), "runs/a")
