"""Rules of smdebug's: followed by invoke_rule, and judged by tdbg's engine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder
from tdbg import rules
from tdbg.cli import _tdbg
from tdbg.compat.smdebug.rules import Rule
from tdbg.compat.smdebug.rules.rule import rule_of
from tdbg.errors import ConfigurationError

# As a user of smdebug has written it: nothing in it is of tdbg.
THEIRS = '''
from smdebug.exceptions import RuleEvaluationConditionMet
from smdebug.rules.rule import Rule


class Growing(Rule):
    """Fires where a weight is so many times what it was at first."""

    def __init__(self, base_trial, factor, names=["weight"], other_trials=None):
        super().__init__(base_trial, action_str="", other_trials=other_trials)
        assert isinstance(names, list)
        self.factor = float(factor)
        self.names = names
        self.first = None

    def set_required_tensors(self, step):
        for name in self.names:
            self.req_tensors.add(name, steps=[step], should_match_regex=True)
        for trial in self.other_trials or ():
            self.req_tensors.add("fc.weight", [step], trial=trial)

    def invoke_at_step(self, step):
        now = max(abs(tensor.value(step)).max() for tensor in self.req_tensors.get())
        if self.other_trials:
            (other,) = self.req_tensors.get(self.other_trials[0])
            return bool(now > self.factor * abs(other.value(step)).max())
        self.first = now if self.first is None else self.first
        return bool(now > self.factor * self.first)


class Ends(Growing):
    def invoke_at_step(self, step):
        raise RuleEvaluationConditionMet(self.rule_name, step, end_of_rule=True)


class Breaks(Growing):
    def invoke_at_step(self, step):
        return self.no_such_attribute


class Abstract(Rule):
    pass


class Clashing(Growing):
    def __init__(self, base_trial, needs=1):
        super().__init__(base_trial, 1)
'''
FOLLOW = """
import sys
import tdbg.compat.smdebug
tdbg.compat.smdebug.install()
sys.path.insert(0, sys.argv[1])
from smdebug.rules import invoke_rule
from smdebug.trials import create_trial
from their_rules import Growing

rule = Growing(create_trial(sys.argv[2]), factor="2")
print("following", flush=True)
met = []
rule.logger.info = lambda text, *rest: met.append(text % rest)
invoke_rule(rule, start_step="0", raise_eval_cond="False")
print(len([text for text in met if "is met at step" in text]), flush=True)
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "their_rules.py"
    path.write_text(THEIRS)
    return path


def write(path: Path, scales: list[float]) -> Path:
    with RunBuilder(path) as builder:
        for step, scale in enumerate(scales):
            builder.step(step, {"fc.weight": np.full(3, scale, np.float32)})
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", [1, 1, 1.5, 3, 3, 1, 1, 1, 5])


def check(run: Path, rule: str, exit_code: int) -> dict[str, object]:
    result: Result = CliRunner().invoke(
        _tdbg, ["check", str(run), "--rule", rule, "--json", "--no-record"]
    )
    assert result.exit_code == exit_code, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("factor", ["2", "'2'"])
def test_the_engine_judges_step_by_step_in_a_process_of_its_own(
    theirs: Path, run: Path, factor: str
) -> None:
    document = check(run, f"{theirs}:Growing(factor={factor})", 1)
    found = document["findings"]
    assert isinstance(found, list)
    assert [(f["rule"], f["severity"], f["first_step"]) for f in found] == [
        ("Growing", "warning", 3),
        ("Growing", "warning", 8),
    ]
    assert found[0]["message"] == "its condition is met by fc.weight"
    assert document["notes"] == []
    # What it remembers does not depend on how steps were cut into windows, nor on
    # what it has judged before.
    rule = rules.make(f"{theirs}:Growing", factor=2)
    for max_window in (1, 2, None):
        engine = rules.Engine(
            run, rule, record=False, isolate=False, max_window=max_window
        )
        engine.poll()
        assert [f.first_step for f in engine.finish().findings] == [3, 8]


def test_other_trials_and_lists_are_given_as_texts_and_tuples(
    theirs: Path, run: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", [1.0] * 7)
    text = f"Growing(factor=2, names=('weight', 'fc'), other_trials='{other}')"
    document = check(run, f"{theirs}:{text}", 1)
    found = document["findings"]
    assert isinstance(found, list)
    # Of steps that the other run does not have nothing is known.
    assert [f["first_step"] for f in found] == [3]


def test_a_rule_may_end_and_may_break(theirs: Path, run: Path) -> None:
    document = check(run, f"{theirs}:Ends(factor=2)", 1)
    found = document["findings"]
    assert isinstance(found, list)
    assert [(f["first_step"], f["n_steps"]) for f in found] == [(0, 1)]
    ends = rules.make(f"{theirs}:Ends", factor=2)
    for _ in range(2):  # Another engine begins anew.
        engine = rules.Engine(run, ends, record=False, isolate=False)
        assert len(engine.poll()) == 1
    document = check(run, f"{theirs}:Breaks(factor=2)", 4)
    (status,) = document["statuses"]  # type: ignore[misc]
    assert status["status"] == "Error"
    assert "no_such_attribute" in status["message"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Growing", "factor"),
        ("Growing(factr=1)", "no parameter 'factr'; did you mean 'factor'"),
        ("Abstract", "it lacks invoke_at_step"),
        ("Clashing", "cannot give it its parameter 'needs'"),
    ],
)
def test_what_cannot_be_judged_is_said(
    theirs: Path, run: Path, name: str, hint: str
) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        rules.check(run, f"{theirs}:{name}", record=False)


def test_a_class_is_one_rule_and_needs_nothing() -> None:
    class Never(Rule):
        def invoke_at_step(self, step: int) -> bool:
            return step < 0

    assert rule_of(Never) is rule_of(Never)
    assert rules.needs_of(rule_of(Never)()) != ()
    assert rule_of(Never)().needs.collections == frozenset()
    assert rule_of(Never)() == rule_of(Never)()


def test_a_rule_follows_a_training_of_another_process_to_its_end(
    theirs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "live"
    with RunBuilder(run) as builder:
        builder.step(0, {"fc.weight": np.ones(3, np.float32)})
        builder.flush()
        command = [sys.executable, "-c", FOLLOW, str(theirs.parent), str(run)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "following\n"
            for step in range(1, 8):
                # A step of which nothing was saved is left out.
                if step != 4:
                    scale = 3.0 if step >= 6 else 1.0
                    value = np.full(3, scale, np.float32)
                    builder.step(step, {"fc.weight": value})
                    builder.flush()
                time.sleep(0.05)
            assert follower.poll() is None
            builder.close()
            stdout, stderr = follower.communicate(timeout=60)
    assert (stdout, stderr, follower.returncode) == ("2\n", "", 0)


def test_the_engine_follows_a_training_with_a_rule_of_smdebugs(
    theirs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "live"
    found: list[int] = []
    with RunBuilder(run) as builder:
        builder.step(0, {"fc.weight": np.ones(3, np.float32)})
        builder.flush()

        def watch() -> None:
            report = rules.watch(run, f"{theirs}:Growing(factor=2)", record=False)
            found.extend(finding.first_step for finding in report.findings)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for step in range(1, 8):
            scale = 3.0 if step >= 5 else 1.0
            builder.step(step, {"fc.weight": np.full(3, scale, np.float32)})
            builder.flush()
            time.sleep(0.02)
    watcher.join(60)
    assert not watcher.is_alive()
    assert found == [5]
