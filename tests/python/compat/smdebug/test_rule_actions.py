"""What a rule of smdebug's contract does when its condition is met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.compat.smdebug.rules import Rule, invoke_rule
from tdbg.compat.smdebug.rules.action import Actions
from tdbg.compat.smdebug.rules.action.action import ALLOWED_ACTIONS
from tdbg.compat.smdebug.trials import create_trial

ONES = np.ones(3, np.float32)
STOP = '{"name": "StopTraining", "training_job_prefix": "job"}'


class Always(Rule):
    """Its condition always holds."""

    def __init__(self, base_trial: Any, action_str: str | None = None) -> None:
        super().__init__(base_trial, action_str)

    def invoke_at_step(self, step: int) -> bool:
        return step >= 0


def requests(run_dir: Path) -> list[dict[str, Any]]:
    """What the training was asked for."""
    files = sorted((run_dir / "ctl").glob("*.json"))
    return [json.loads(file.read_text()) for file in files]


def test_a_rule_stops_the_training_of_its_run_once(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        for step in range(3):
            run.step(step, {"w": ONES})
        run.flush()
        trial = create_trial(str(run_dir))
        invoke_rule(Always(trial), end_step=3)
        assert requests(run_dir) == []
        invoke_rule(Always(trial, STOP), end_step=3)
        (request,) = requests(run_dir)
    assert request["type"] == "stop"
    assert request["body"]["rule"] == "Always"
    assert request["body"]["reason"] == "Always: its condition is met at step 0"


def test_a_training_that_has_ended_is_not_stopped(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"w": ONES})
    invoke_rule(Always(create_trial(str(run_dir)), STOP))
    assert requests(run_dir) == []


def test_a_training_that_cannot_be_stopped_is_told(
    run_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"w": ONES})
        run.flush()
        rule = Always(create_trial(str(run_dir)), STOP)
        monkeypatch.setattr(rule.base_trial, "path", str(run_dir / "no"))
        invoke_rule(rule, end_step=1)
    (message,) = caplog.messages
    assert message.startswith("Always: the training cannot be stopped:")


def test_actions_of_sagemaker_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    several = [{"name": name, "endpoint": "me"} for name in ALLOWED_ACTIONS]
    actions = Actions(json.dumps(several), "Mine")
    for _ in range(2):
        actions.invoke("it happened")
    assert [each.partition(" does nothing")[0] for each in caplog.messages] == [
        "Mine: the action 'sms'",
        "Mine: the action 'email'",
    ]
    Actions(None, "Mine").invoke()
    Actions(" ", "Mine").invoke()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("text", ["stop", "3", '[{"prefix": "a"}]', '["stop"]'])
def test_actions_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(SMDebugValueError):
        Actions(text, "Mine")
