"""Below, Above and Outside: limits that the user sets on a number of the training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg import rules
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.pytorch import Hook
from tdbg.rules import Above, Below, Outside, Severity
from tdbg.rules.parsing import parse_rule
from tdbg.trial import create_trial

ACCURACY = "scalar/val_acc"


def of_accuracies(*values: float) -> FakeRun:
    run = FakeRun()
    for step, value in enumerate(values):
        run.step(step)
        run.scalar(step, "val_acc", value)
    return run


def test_a_number_below_the_limit_is_reported_with_both():
    (finding,) = judge(of_accuracies(0.95, 0.85, 0.95), Below(ACCURACY, 0.9))
    assert (finding.tensor, finding.step) == (ACCURACY, 1)
    assert finding.message == "It is 0.85, below 0.9."
    assert (finding.value, finding.threshold) == (0.85, 0.9)
    assert finding.severity is Severity.WARNING


def test_a_number_at_the_limit_is_fine():
    run = of_accuracies(0.9, 0.9)
    assert not judge(run, Below(ACCURACY, 0.9))
    assert not judge(run, Above(ACCURACY, 0.9))
    assert not judge(run, Outside(ACCURACY, 0.9, 0.9))


def test_steps_before_since_and_after_until_are_not_judged():
    run = of_accuracies(0.1, 0.1, 0.95, 0.95, 0.1)
    assert not judge(run, Below(ACCURACY, 0.9, since=2, until=3))
    (finding,) = judge(run, Below(ACCURACY, 0.9, since=2))
    assert finding.step == 4
    (finding,) = judge(run, Below(ACCURACY, 0.9, since=1, until=3))
    assert finding.step == 1


def test_patience_counts_recorded_steps_in_a_row_however_windows_are_cut():
    run = of_accuracies(0.1, 0.1, 0.95, 0.1, 0.1, 0.1)
    rule = Below(ACCURACY, 0.9, patience=3)
    for findings in (judge(run, rule), judge_in_parts(run, range(6), rule)):
        (finding,) = findings
        assert (finding.step, finding.first_step) == (5, 3)
        assert finding.message.endswith("below 0.9, at 3 recorded steps in a row.")
    assert not judge(run, Below(ACCURACY, 0.9, patience=4))


def test_steps_before_since_do_not_count_for_patience():
    run = of_accuracies(0.1, 0.1, 0.1, 0.1)
    (finding,) = judge(run, Below(ACCURACY, 0.9, since=2, patience=2))
    assert finding.step == 3


def test_any_statistic_of_a_tensor_can_be_limited():
    run = FakeRun()
    for step, scale in enumerate((1.0, 20.0)):
        run.step(step, {"gradient/fc.weight": [scale, -scale, 0.0, 0.0]})
    limits = {"l2": 10.0, "abs_max": 10.0, "std": 10.0, "max": 10.0, "sum": None}
    for statistic, limit in limits.items():
        rule = Above("gradient/fc.weight", limit or 10.0, statistic=statistic)
        found = judge(run, rule)
        assert [each.step for each in found] == ([1] if limit else []), statistic
    (finding,) = judge(run, Above("gradients", 0.4, statistic="zero_share"))
    assert finding.message == "Its zero_share is 0.5, above 0.4."


def test_a_name_may_be_a_pattern_of_the_whole_name_a_role_or_a_collection():
    run = FakeRun()
    tensors = {"a_output_0": [9.0, 9.0], "b_output_0": [9.0, 9.0]}
    run.step(0, {**tensors, "Loss_output_0": [9.0]})
    run.custom["mine"] = ["b_output_0"]

    def named(tensor: str) -> set[str]:
        return {each.tensor for each in judge(run, Above(tensor, 1.0))}

    assert named("[ab]_output_0") == set(tensors)
    assert named("a_output") == set()
    assert named("loss") == named("losses") == {"Loss_output_0"}
    assert named("outputs") == set(tensors)
    assert named("mine") == {"b_output_0"}


def test_nan_is_outside_of_a_range_but_neither_below_nor_above():
    for value, is_above in ((np.nan, False), (np.inf, True)):
        run = of_accuracies(value)
        assert not judge(run, Below(ACCURACY, 1.0))
        assert bool(judge(run, Above(ACCURACY, 1.0))) is is_above
        assert judge(run, Outside(ACCURACY, 0.0, 1.0))


def test_one_mode_can_be_judged_alone():
    run = FakeRun()
    run.step(0, {"Loss_output_0": [9.0]})
    run.step(1, {"Loss_output_0": [9.0]}, mode=ModeKeys.EVAL)
    for mode in ("EVAL", "eval", ModeKeys.EVAL):
        (finding,) = judge(run, Above("loss", 1.0, mode=mode))
        assert (finding.step, finding.mode) == (1, ModeKeys.EVAL)
    assert len(judge(run, Above("loss", 1.0))) == 2


def test_steps_that_lost_data_are_not_judged():
    run = FakeRun()
    run.step(0, {"Loss_output_0": [9.0]}, lossless=False)
    assert not judge(run, Above("loss", 1.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Below(loss, high)", "write NAME or"),
        ("Below(loss, 'high')", "Below.limit is 'high'; give a number"),
        ("Below(loss, True)", "Below.limit is True"),
        ("Below(3, 0.5)", "Below.tensor is 3; give a tensor's"),
        ("Below('', 0.5)", "Below.tensor is ''"),
        ("Below('a(', 0.5)", "Below.tensor is 'a(', not a regular expression"),
        ("Below(loss)", "Below needs limit"),
        ("Below(loss, 0.5, 3)", "write NAME or"),
        ("Below(loss, 0.5, tensor='x')", "has tensor twice"),
        ("Below(loss, 0.5, statistic='men')", "Below.statistic is 'men'; give one of"),
        ("Below(loss, 0.5, since=-1)", "Below.since is -1"),
        ("Below(loss, 0.5, since=5, until=4)", "Below.until is 4"),
        ("Below(loss, 0.5, patience=0)", "Below.patience is 0"),
        ("Below(loss, 0.5, severity='fatal')", "Below.severity is 'fatal'"),
        ("Below(loss, 0.5, mode='test')", "Below.mode is 'test'"),
        ("Below(loss, 0.5, sinse=3)", "no parameter 'sinse'; did you mean 'since'"),
        ("Outside(loss, 2, 1)", "Outside.high is 1"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_its_value(text: str, message: str):
    with pytest.raises(ConfigurationError) as refused:
        parse_rule(text)
    assert message in str(refused.value)


def test_a_name_needs_no_quotes_on_the_command_line():
    name = "gradient/layer1.0.weight"
    for text in (f"Above({name}, 1)", f"Above('{name}', 1)", f'Above( "{name}" , 1 )'):
        assert parse_rule(text) == Above(name, 1)
    assert parse_rule("Above(.*_output_0, limit=-1)") == Above(".*_output_0", -1)
    assert parse_rule('Above(limit=1, tensor="loss")') == Above("loss", 1)


@pytest.mark.parametrize(
    ("tensor", "collections"),
    [
        (ACCURACY, {"scalars"}),
        ("gradient/fc.weight", {"gradients"}),
        ("loss", {"losses"}),
        ("MSELoss_output_0", {"losses"}),
        ("fc_output_0", {"outputs"}),
        ("fc_input_0", {"inputs"}),
        ("fc.weight", {"weights", "biases"}),
        ("updates", {"updates"}),
    ],
)
def test_the_hook_captures_what_has_the_name(tensor: str, collections: set[str]):
    assert Below(tensor, 0.5).needs.collections == collections


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of ten steps, whose accuracy falls at step 5, before an evaluation."""
    model = torch.nn.Linear(2, 1)
    with Hook(tmp_path / "run", min_free_bytes=0) as hook:
        hook.register_module(model)
        for step in range(10):
            model(torch.ones(1, 2))
            hook.save_scalar("val_acc", 0.95 if step < 5 else 0.5)
        model.eval()
        model(torch.ones(1, 2))
    return tmp_path / "run"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


def test_the_command_line_judges_a_number_in_one_line(recorded: Path):
    found = call("check", recorded, "--rule", "Below(scalar/val_acc, 0.9, since=2)")
    assert found.exit_code == 1, found.output
    assert "Below at step 5: scalar/val_acc: It is 0.5, below 0.9." in found.output
    fine = call("check", recorded, "--rule", "Below(scalar/val_acc, 0.9, until=4)")
    assert fine.exit_code == 0, fine.output
    assert "found nothing: Below" in fine.output


def test_since_counts_training_steps_where_evaluation_lies_between(recorded: Path):
    (finding,) = rules.check(recorded, [Above(ACCURACY, 0.9, since=3)]).findings
    assert (finding.step, finding.last_step) == (3, 4)


def test_a_name_that_nothing_has_is_told_with_the_nearest(recorded: Path):
    result = call("check", recorded, "--rule", "Below(scalar/val_ac, 0.9)")
    assert result.exit_code == 0, result.output
    assert "no tensor or scalar of the run is named 'scalar/val_ac'" in result.output
    assert f"did you mean '{ACCURACY}'?" in result.output


def test_what_was_recorded_too_rarely_is_told(recorded: Path):
    result = call("check", recorded, "--rule", "Below(scalar/val_acc, 0.9, since=99)")
    told = " ".join(result.output.split())
    assert "the rule needs 1 recorded value from step 99 on" in told


def test_several_limits_on_one_number_are_findings_of_their_own(recorded: Path):
    limits = [Below(ACCURACY, 0.9), Below(ACCURACY, 0.6, severity="error")]
    report = rules.check(recorded, limits)
    assert [each.severity for each in report.findings] == [3, 2]
    assert [each.n_findings for each in report.statuses] == [1, 1]
    assert len(create_trial(recorded).findings()) == 2


@pytest.mark.parametrize(("severity", "stops"), [("warning", False), ("error", True)])
def test_a_broken_limit_stops_the_training_if_it_is_severe_enough(
    severity: str, stops: bool, recorded: Path
):
    rule = f"Below({ACCURACY}, 0.9, severity={severity!r})"
    result = call("watch", recorded, "--rule", rule, "--on-finding", "stop")
    assert result.exit_code == 1, result.output
    asked = [*(recorded / "ctl").glob("*.json")]
    assert bool(asked) is stops, result.output


def test_a_settings_file_has_limits_as_text_or_as_a_mapping(tmp_path: Path):
    settings = tmp_path / "tdbg.yaml"
    settings.write_text(
        f"out_dir: {tmp_path / 'run'}\nmin_free_bytes: 0\nrules:\n"
        "- Below(scalar/val_acc, 0.9, since=200)\n"
        "- {name: Above, tensor: gradients, limit: 10, statistic: l2}\n"
    )
    with Hook.create_from_file(settings):
        pass
    told = create_trial(tmp_path / "run").configuration()["hook"]["rules"]
    assert [each["name"] for each in told] == ["Below", "Above"]
    assert [each["limit"] for each in told] == [0.9, 10]
    settings.write_text("rules: ['Below(loss, high)']\n")
    with pytest.raises(ConfigurationError, match=r"rules\[0\]: rule 'Below\(loss"):
        Hook.create_from_file(settings)
