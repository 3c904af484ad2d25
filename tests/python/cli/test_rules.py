"""``tdbg rules`` and ``tdbg new-rule``."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tdbg import rules
from tdbg.cli import _tdbg
from tdbg.cli.new_rule import snake_case
from tdbg.cli.rules import captures
from tdbg.config import Needs
from tdbg.errors import ConfigurationError
from tdbg.rules import registry, testing


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


def listed(*names: object) -> dict[str, Any]:
    result = call("rules", *names, "--json")
    assert result.exit_code == 0, result.output
    return {rule["rule"]: rule for rule in json.loads(result.stdout)["rules"]}


def test_every_rule_is_listed_with_meaning_severity_needs_and_cost() -> None:
    found = listed()
    assert set(registry.BUILT_IN) <= set(found)
    for name in registry.BUILT_IN:
        rule = found[name]
        assert rule["meaning"].endswith("."), name
        assert rule["severities"], name
        assert rule["by_default"] == rules.get(name).by_default
        assert rule["error"] == ""
        assert all(rule["captures"])
        assert len(rule["captures"]) == len(rule["needs"])
        assert all(parameter["meaning"] for parameter in rule["parameters"]), name
    lines = {line.split()[0]: line for line in call("rules").output.splitlines()}
    assert set(registry.BUILT_IN) <= set(lines)
    assert lines["Confusion"].split("warning")[1].strip().startswith("classes that")
    assert len(lines) == len(found) + 2
    assert "costs one read of the tensor" in call("rules", "DeadRelu").output


def test_a_rule_by_name_tells_its_parameters() -> None:
    output = call("rules", "ExplodingTensor").output
    assert "ExplodingTensor (info, error)" in output
    assert "only_nan" in output
    assert "one read of the tensor" in output
    result = call("rules", "ExplodingTenser")
    assert result.exit_code == 2
    assert "ExplodingTensor" in result.stderr


def test_what_is_captured_is_told_in_words() -> None:
    both = frozenset({"weights", "biases"})
    need = Needs(collections=both, histogram=True, first_steps=100)
    assert captures(need) == (
        "rows and histograms of biases, weights as the hook does (every 10 steps by "
        "default), in the first 100 steps"
    )
    outputs = frozenset({"outputs"})
    units = {"modules": frozenset({"Tanh"}), "statistics": False}
    need = Needs(collections=outputs, unit_summaries=True, interval=1, **units)  # type: ignore[arg-type]
    assert captures(need) == "counts of units of outputs of Tanh every step"


def test_a_rule_of_another_package_is_listed_and_a_broken_one_hides_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call("new-rule", "MyOwn", "--dir", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("MyOwn", "my_own:MyOwn", registry.GROUP),
        EntryPoint("Missing", "no_such_package:Rule", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    found = listed()
    assert found["MyOwn"]["parameters"][0]["default"] == 100.0
    assert found["MyOwn"]["severities"] == ["warning"]
    assert not found["MyOwn"]["by_default"]
    assert "cannot be imported" in found["Missing"]["error"]
    assert call("rules", "Missing").exit_code == 2


def test_a_new_rule_is_tested_and_finds_the_planted_fault(tmp_path: Path) -> None:
    result = call("new-rule", "LargeWeights", "--dir", tmp_path / "mine")
    assert result.exit_code == 0, result.output
    rule = tmp_path / "mine" / "large_weights.py"
    test = tmp_path / "mine" / "test_large_weights.py"
    assert {rule, test} == set((tmp_path / "mine").iterdir())
    assert f"{rule}:LargeWeights" in result.output
    # By pytest as it is: without this project's settings.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    with testing.Recording(tmp_path / "run") as run:
        for step in range(5):
            scale = 900.0 if step == 3 else 1.0
            run.step({"fc.weight": np.full(4, scale, np.float32)})
    found = call("check", tmp_path / "run", "--rule", f"{rule}:LargeWeights", "--json")
    assert found.exit_code == 1, found.output
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["rule"], finding["step"]) == ("LargeWeights", 3)
    assert listed(f"{rule}:LargeWeights")["LargeWeights"]["meaning"]


def test_a_new_rule_overwrites_nothing(tmp_path: Path) -> None:
    test = tmp_path / "test_my_rule.py"
    test.write_text("mine")
    result = call("new-rule", "MyRule", "--dir", tmp_path)
    assert result.exit_code == 2
    assert "already exists" in result.stderr
    assert [test.read_text(), *tmp_path.iterdir()] == ["mine", test]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("large_weights", "write LargeWeights"),
        ("large weights", "write LargeWeights"),
        ("9lives", "write LargeWeights"),
        ("../Evil", "write Evil"),
        ("True", "is not a name for a rule"),
        ("ExplodingTensor", "there is a rule ExplodingTensor already"),
    ],
)
def test_a_bad_name_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    result = call("new-rule", name, "--dir", tmp_path)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_a_new_rule_is_not_written_into_a_run(tmp_path: Path) -> None:
    testing.Recording(tmp_path / "run").close()
    result = call("new-rule", "MyRule", "--dir", tmp_path / "run" / "w")
    assert result.exit_code == 2
    assert "lies in the run" in " ".join(result.stderr.split())


def test_modules_are_in_snake_case() -> None:
    names = {"MyRule": "my_rule", "NaNLoss": "na_n_loss", "L2Norm": "l2_norm"}
    assert {name: snake_case(name) for name in names} == names
    assert snake_case("HTTPError") == "http_error"


def test_a_recording_says_what_tensors_are_by_their_names(tmp_path: Path) -> None:
    x = np.ones(2, np.float32)
    with testing.Recording(tmp_path / "run") as run:
        names = ["fc.weight", "fc.bias", "gradient/fc.bias", "relu_output_0"]
        run.step({**dict.fromkeys(names, x), "MSELoss_output_0": x, "y": x})
        with pytest.raises(ConfigurationError, match="did you mean 'label'"):
            run.step({"y": x}, roles={"y": "labl"})
    from tdbg.trial import create_trial

    trial = create_trial(tmp_path / "run")
    roles = {name: trial.tensor(name).role for name in trial.tensor_names()}
    assert roles["gradient/fc.bias"] == "gradient"
    assert [roles[name] for name in names[:2]] == ["weight", "bias"]
    assert [roles["relu_output_0"], roles["MSELoss_output_0"]] == ["output", "loss"]
    with pytest.raises(ConfigurationError, match="there is a run at"):
        testing.Recording(tmp_path / "run")


def test_judging_tells_of_a_rule_that_looks_too_far_or_fails(tmp_path: Path) -> None:
    file = tmp_path / "bad_rule.py"
    call("new-rule", "BadRule", "--dir", tmp_path)
    text = file.read_text().replace("norm > self.limit", "norm > norm.mean()")
    file.write_text(text)
    with testing.Recording(tmp_path / "run") as run:
        for scale in (1.0, 2.0):
            run.step({"fc.weight": np.full(4, scale, np.float32)})
    with pytest.raises(AssertionError, match="how steps are cut into windows"):
        testing.judge(run.path, rules.make(f"{file}:BadRule"))
    other = tmp_path / "failing_rule.py"
    other.write_text(text.replace("norm.mean()", "1 / 0"))
    with pytest.raises(AssertionError, match="rule BadRule failed: ZeroDivision"):
        testing.judge(run.path, rules.make(f"{other}:BadRule"))
