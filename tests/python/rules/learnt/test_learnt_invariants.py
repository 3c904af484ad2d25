"""LearntInvariants: what healthy runs teach, the file, and what breaks it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tdbg
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError, NotARun, QueryError, UnsupportedFeature
from tdbg.modes import ModeKeys
from tdbg.rules import Finding, LearntInvariants, Severity, read_invariants
from tdbg.rules.testing import Recording, judge

STEPS = 40
WEIGHT, GRADIENT = "fc.weight", "gradient/fc.weight"
Arrays = dict[str, Any]
Change = Callable[[int, Arrays], object]


def record(
    path: Path,
    seed: int = 0,
    *,
    change: Change = lambda _step, _arrays: None,
    evaluates: bool = True,
    steps: int = STEPS,
) -> Path:
    """Record a training whose dropout passes all on in evaluation."""
    random = np.random.default_rng(seed)
    weight = random.normal(0, 0.1, 64).astype(np.float32)
    frozen = random.normal(0, 0.1, 64).astype(np.float32)
    with Recording(path) as run:
        for step in range(steps):
            gradient = random.normal(0, 0.01, 64).astype(np.float32)
            output = random.normal(0, 1, 256).astype(np.float32)
            arrays: Arrays = {
                WEIGHT: weight.copy(),
                "stem.weight": frozen,
                GRADIENT: gradient,
                "update/fc.weight": 0.01 * gradient,
                "fc_output_0": output,
                "CrossEntropyLoss_output_0": np.float32(2.0 / (1 + step)),
            }
            change(step, arrays)
            run.step(arrays)
            weight = weight - 0.01 * gradient
            if evaluates and step % 4 == 3:
                output = random.normal(0, 1, 256).astype(np.float32)
                arrays = {"fc_output_0": output, "drop_output_0": output}
                change(step, arrays)
                run.step(arrays, mode=ModeKeys.EVAL)
    return path


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("learnt")
    out = folder / "invariants.json"
    tdbg.learn(record(folder / "good"), out=out)
    return str(out)


def found(run: Path, learnt: str) -> list[Finding]:
    return judge(run, LearntInvariants(learnt))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(_tdbg, [str(argument) for argument in arguments])


def kinds(path: str) -> set[tuple[str, str]]:
    return {(each.kind, each.tensor) for each in read_invariants(path).invariants}


# ---- learning --------------------------------------------------------------------


def test_what_held_at_every_step_is_learnt(learnt: str) -> None:
    known = {(e.kind, e.tensor): e for e in read_invariants(learnt).invariants}
    assert known["changes", WEIGHT].value is True
    assert known["changes", "stem.weight"].value is False
    assert known["equal", "drop_output_0"].other == "fc_output_0"
    assert known["dtype", WEIGHT].value == "float32"
    assert known["evaluation", "training"].value == 4
    rms = known["range", GRADIENT]
    assert rms.rows == STEPS
    (least, most), (low, high) = rms.seen["middle"], rms.bounds["middle"]
    assert 0.005 < least <= most < 0.02
    assert low < least / 999
    assert 5 * most <= high < 6 * most


def test_another_seed_breaks_nothing(learnt: str, tmp_path: Path) -> None:
    for seed in range(1, 4):
        assert not found(record(tmp_path / str(seed), seed), learnt)


def test_an_order_of_learning_rates_is_learnt_and_broken(tmp_path: Path) -> None:
    def rates(head: float) -> Change:
        def add(step: int, arrays: Arrays) -> None:
            warm_up = min(1.0, step / 5)
            arrays["scalar/optimizer/group_0/lr"] = np.float64(1e-3 * warm_up)
            arrays["scalar/optimizer/group_1/lr"] = np.float64(head * warm_up)

        return add

    out = tmp_path / "invariants.json"
    tdbg.learn(record(tmp_path / "good", change=rates(1e-2)), out=out)
    orders = [e for e in read_invariants(out).invariants if e.kind == "order"]
    assert [(e.tensor[-10:], e.other[-10:]) for e in orders] == [
        ("group_0/lr", "group_1/lr")
    ]
    lower_head = record(tmp_path / "lower", 1, change=rates(5e-3))
    assert not [e for e in found(lower_head, str(out)) if "second" in e.message]
    alike = found(record(tmp_path / "alike", 1, change=rates(1e-3)), str(out))
    (finding,) = [
        each for each in alike if "In the healthy run, the second" in each.message
    ]
    assert finding.severity is Severity.WARNING
    assert finding.tensor == "scalar/optimizer/group_0/lr"


def test_what_does_not_hold_in_each_run_is_dropped(tmp_path: Path) -> None:
    def thaw(step: int, arrays: Arrays) -> None:
        arrays["stem.weight"] = arrays.get("stem.weight", np.zeros(64)) + step

    runs = record(tmp_path / "a"), record(tmp_path / "b", 1, change=thaw)
    both = tdbg.learn(*runs, out=tmp_path / "both.json")
    assert len(both.runs) == 2
    assert ("changes", "stem.weight") not in kinds(str(tmp_path / "both.json"))
    assert ("changes", WEIGHT) in kinds(str(tmp_path / "both.json"))


def test_ranges_span_all_runs(tmp_path: Path, learnt: str) -> None:
    def larger(_: int, arrays: Arrays) -> None:
        if GRADIENT in arrays:
            arrays[GRADIENT] = 8 * arrays[GRADIENT]

    runs = record(tmp_path / "a"), record(tmp_path / "b", change=larger)
    tdbg.learn(*runs, out=tmp_path / "both.json")
    assert found(runs[1], learnt)
    assert not found(runs[1], str(tmp_path / "both.json"))


def test_too_little_teaches_nothing(tmp_path: Path) -> None:
    short = record(tmp_path / "short", steps=4)
    with pytest.raises(QueryError, match="has 4 recorded steps of training"):
        tdbg.learn(short)
    with pytest.raises(NotARun):
        tdbg.learn(tmp_path / "nothing")
    with pytest.raises(QueryError, match="at least one healthy run"):
        tdbg.learn()


def test_a_run_without_statistics_teaches_nothing(tmp_path: Path) -> None:
    with Recording(tmp_path / "empty") as run:
        for _ in range(20):
            run.step({})
    with pytest.raises(QueryError, match=r"td\.watch|recorded step"):
        tdbg.learn(tmp_path / "empty")


# ---- findings --------------------------------------------------------------------


def test_a_weight_that_stands_still_is_named_with_its_first_step(
    learnt: str, tmp_path: Path
) -> None:
    first: Arrays = {}

    def stop(step: int, arrays: Arrays) -> None:
        if step >= 20 and WEIGHT in arrays:
            arrays[WEIGHT] = first.setdefault(WEIGHT, arrays[WEIGHT])

    (finding,) = found(record(tmp_path / "run", 1, change=stop), learnt)
    assert (finding.tensor, finding.first_step) == (WEIGHT, 22)
    assert finding.severity is Severity.ERROR
    assert finding.message.startswith("It no longer changes from step to step.")


def test_a_frozen_weight_that_moves_is_an_error(learnt: str, tmp_path: Path) -> None:
    def thaw(step: int, arrays: Arrays) -> None:
        if step >= 10 and "stem.weight" in arrays:
            arrays["stem.weight"] = arrays["stem.weight"] + step

    (finding,) = found(record(tmp_path / "run", 1, change=thaw), learnt)
    assert (finding.tensor, finding.first_step) == ("stem.weight", 10)
    assert "it was the same at all 39 recorded steps" in finding.message


def test_tensors_that_were_equal_and_differ_are_an_error(
    learnt: str, tmp_path: Path
) -> None:
    def drop(_: int, arrays: Arrays) -> None:
        if "drop_output_0" in arrays:
            arrays["drop_output_0"] = 1.1 * arrays["drop_output_0"]

    (finding,) = found(record(tmp_path / "run", 1, change=drop), learnt)
    assert (finding.tensor, finding.mode) == ("drop_output_0", ModeKeys.EVAL)
    assert finding.message.startswith("It differs from fc_output_0: ")


def test_another_type_is_a_warning(learnt: str, tmp_path: Path) -> None:
    def half(_: int, arrays: Arrays) -> None:
        arrays["fc_output_0"] = arrays["fc_output_0"].astype(np.float16)
        if "drop_output_0" in arrays:
            arrays["drop_output_0"] = arrays["fc_output_0"]

    findings = found(record(tmp_path / "run", 1, change=half), learnt)
    assert {each.severity for each in findings} == {Severity.WARNING}
    assert "Its element type is float16, and float32" in findings[0].message


def test_a_range_must_be_left_three_times_in_a_row(learnt: str, tmp_path: Path) -> None:
    def spikes(step: int, arrays: Arrays) -> None:
        if step in (20, 21, 30, 31, 32) and GRADIENT in arrays:
            arrays[GRADIENT] = 100 * arrays[GRADIENT]

    (finding,) = found(record(tmp_path / "run", 1, change=spikes), learnt)
    assert (finding.tensor, finding.first_step) == (GRADIENT, 32)
    assert finding.severity is Severity.WARNING
    assert finding.value is not None
    assert finding.threshold is not None
    assert finding.value > finding.threshold


def test_much_smaller_gradients_are_reported_and_a_little_smaller_ones_not(
    learnt: str, tmp_path: Path
) -> None:
    def scaled(by: float) -> Change:
        def change(_: int, arrays: Arrays) -> None:
            if GRADIENT in arrays:
                arrays[GRADIENT] = by * arrays[GRADIENT]

        return change

    assert not found(record(tmp_path / "a", change=scaled(0.1)), learnt)
    assert found(record(tmp_path / "b", change=scaled(1e-5)), learnt)


def test_an_initial_scale_is_judged_at_step_zero(learnt: str, tmp_path: Path) -> None:
    def large(_: int, arrays: Arrays) -> None:
        if WEIGHT in arrays:
            arrays[WEIGHT] = 50 * arrays[WEIGHT]

    findings = found(record(tmp_path / "run", 1, change=large), learnt)
    (initial,) = (each for each in findings if each.tensor == WEIGHT)
    assert initial.first_step == 0
    assert "before the first update" in initial.message


def test_missing_evaluations_are_an_info(learnt: str, tmp_path: Path) -> None:
    (finding,) = found(record(tmp_path / "run", 1, evaluates=False), learnt)
    assert (finding.severity, finding.first_step) == (Severity.INFO, 21)
    assert finding.message.startswith("The last 21 training steps passed without")


def test_many_that_break_at_once_are_one_finding(tmp_path: Path) -> None:
    def recorded(path: Path, scale: float) -> Path:
        random = np.random.default_rng(0)
        with Recording(path) as run:
            for step in range(20):
                factor = scale if step >= 10 else 1.0
                run.step(
                    {
                        f"gradient/l{i}.weight": factor * random.normal(0, 1, 64)
                        for i in range(200)
                    }
                )
        return path

    out = str(tmp_path / "invariants.json")
    tdbg.learn(recorded(tmp_path / "good", 1.0), out=out)
    (finding,) = found(recorded(tmp_path / "bad", 1000.0), out)
    assert finding.tensor == "gradient/l0.weight"
    assert finding.first_step == 12
    assert "broken for 199 more of 200 tensors" in finding.message
    assert len(finding.message) < 300
    assert "(200 lines)" in finding.advice


# ---- the file --------------------------------------------------------------------


def test_a_file_reads_as_it_was_written(learnt: str, tmp_path: Path) -> None:
    known = read_invariants(learnt)
    copy = tmp_path / "copy.json"
    copy.write_text(known.text())
    again = read_invariants(copy)
    assert again.invariants == known.invariants
    assert (again.runs, again.steps) == (known.runs, known.steps)


def test_a_file_of_version_1_is_read(repository: Path) -> None:
    path = repository / "tests" / "corpus" / "invariants" / "v1.json"
    known = read_invariants(path)
    assert [each.kind for each in known.invariants] == [*known.counts()]
    assert len(known.invariants) == 9
    assert known.invariants[-1].bounds["middle"] == (None, 0.5)
    assert known.text() == path.read_text()


def test_deleted_lines_are_judged_no_more(learnt: str, tmp_path: Path) -> None:
    def larger(_: int, arrays: Arrays) -> None:
        if GRADIENT in arrays:
            arrays[GRADIENT] = 1000 * arrays[GRADIENT]

    run = record(tmp_path / "run", 1, change=larger)
    (finding,) = found(run, learnt)
    lines = Path(learnt).read_text().splitlines(keepends=True)
    number = int(finding.advice.rstrip(".").rpartition(" ")[2])
    assert GRADIENT in lines.pop(number - 1)
    edited = tmp_path / "edited.json"
    edited.write_text("".join(lines) + "\n")
    assert not found(run, str(edited))


HEAD = {"format": "tdbg invariants", "version": 1, "runs": [], "steps": 10}
LINE = {"kind": "changes", "tensor": "a", "value": True}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty: write it by 'tdbg learn RUN"),
        (["{"], "line 1 is not JSON"),
        (["[1]"], r"line 1 is \[1\], and no object"),
        ([{"rules": []}], "has no invariants: the first line must say"),
        ([{**HEAD, "version": "1"}], "line 1: version is '1'; give 1"),
        ([{**HEAD, "steps": 0}], "line 1: steps is 0; give a whole number"),
        ([HEAD, "nonsense"], "line 2 is not JSON"),
        ([HEAD, {**LINE, "kind": "chnages"}], "line 2: kind is 'chnages'; give one of"),
        ([HEAD, LINE, {**LINE, "tensor": ""}], "line 3: tensor is ''; give a name"),
        ([HEAD, {**LINE, "mode": "REST"}], "line 2: mode is 'REST'"),
        ([HEAD, {**LINE, "value": 3}], "line 2: value is 3; give true or false"),
        ([HEAD, {**LINE, "what": "rms"}], "line 2: what is 'rms'; give none"),
        ([HEAD, {**LINE, "other": "b"}], "line 2: other is 'b'; give a tensor for"),
        ([HEAD, {**LINE, "bound": {}}], "line 2: no key 'bound'; did you mean 'bounds"),
        ([HEAD, {**LINE, "bounds": {"begin": [2, 1]}}], "line 2: bounds is {'begin'"),
        ([HEAD, {**LINE, "bounds": {"late": [1, 2]}}], "line 2: bounds is {'late'"),
    ],
)
def test_a_broken_file_says_which_line(
    lines: list[Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts))
    with pytest.raises(ConfigurationError, match=message):
        LearntInvariants(str(path))
    result = call("check", tmp_path, "--invariants", path)
    assert result.exit_code == 2, result.output


def test_a_file_of_a_later_tdbg_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.json"
    path.write_text(json.dumps({**HEAD, "version": 2}))
    with pytest.raises(UnsupportedFeature, match="version 2 of the format"):
        LearntInvariants(str(path))
    assert call("check", tmp_path, "--invariants", path).exit_code == 3


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no invariants can be read: No such"):
        LearntInvariants(str(tmp_path / "nothing.json"))
    for wrong in ("", 3):
        with pytest.raises(ConfigurationError, match="give a file that tdbg learn"):
            LearntInvariants(wrong)  # type: ignore[arg-type]


# ---- the command line ------------------------------------------------------------


def test_learn_writes_a_file_that_check_takes(tmp_path: Path) -> None:
    good, out = record(tmp_path / "good"), tmp_path / "invariants.json"
    result = call("learn", good, "--out", out)
    assert result.exit_code == 0, result.output
    assert "learnt " in result.stdout
    assert "invariants from 1 run" in result.stdout
    assert f"tdbg check RUN --invariants {out}" in result.stdout.replace("\n", "")
    to_stdout = call("learn", good)
    assert to_stdout.stdout == out.read_text()
    document = json.loads(call("learn", good, "--json").stdout)
    assert len(document["invariants"]) == len(out.read_text().splitlines()) - 1

    again = call("check", good, "--rule", "LearntInvariants", "--invariants", out)
    assert again.exit_code == 0, again.output
    n = len(document["invariants"])
    assert f"{out}: compared {n} of {n} invariants" in again.stdout.replace("\n", "")


def test_check_names_the_first_step_and_tensor(learnt: str, tmp_path: Path) -> None:
    def thaw(step: int, arrays: Arrays) -> None:
        if step >= 10 and "stem.weight" in arrays:
            arrays["stem.weight"] = arrays["stem.weight"] + step

    run = record(tmp_path / "run", 1, change=thaw)
    result = call("check", run, "--invariants", learnt, "--json")
    assert result.exit_code == 1, result.output
    document = json.loads(result.stdout)
    (finding,) = (e for e in document["findings"] if e["rule"] == "LearntInvariants")
    assert (finding["tensor"], finding["first_step"]) == ("stem.weight", 10)
    (coverage,) = document["invariants"]
    assert coverage["missing"] == 0
    assert len(document["statuses"]) > 50  # The default rules judge, too.


def test_a_renamed_layer_is_no_fault_and_is_told(learnt: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Recording(run) as recording:
        random = np.random.default_rng(0)
        for _ in range(20):
            recording.step({"linear.weight": random.normal(0, 9, 64)})
    arguments = ("check", run, "--rule", "LearntInvariants", "--invariants", learnt)
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    assert "; this run has no " in result.stdout
    (coverage,) = json.loads(call(*arguments, "--json").stdout)["invariants"]
    assert 0 < coverage["invariants"] - coverage["missing"] < coverage["invariants"]
    assert WEIGHT in coverage["tensors"]


def test_many_runs_are_compared(learnt: str, tmp_path: Path) -> None:
    def larger(_: int, arrays: Arrays) -> None:
        if GRADIENT in arrays:
            arrays[GRADIENT] = 1000 * arrays[GRADIENT]

    record(tmp_path / "a", 1)
    record(tmp_path / "b", 1, change=larger)
    arguments = ["check", f"{tmp_path}/*", "--rule", "LearntInvariants"]
    result = call(*arguments, "--invariants", learnt, "--jobs", 1)
    assert result.exit_code == 1, result.output
    assert GRADIENT in result.stdout


def test_watch_compares_a_live_run(learnt: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    seen = threading.Event()

    def slowly(step: int, arrays: Arrays) -> None:
        if step >= 10 and "stem.weight" in arrays:
            arrays["stem.weight"] = arrays["stem.weight"] + step
        if step == 20:
            seen.wait(20)
        time.sleep(0.01)

    thread = threading.Thread(target=record, args=(path, 1), kwargs={"change": slowly})
    thread.start()
    report: list[Finding] = []
    try:
        while not (path / "RUN.json").exists():
            time.sleep(0.01)
        engine = tdbg.rules.Engine(path, [LearntInvariants(learnt)])
        for batch in engine.follow():
            report += batch
            seen.set()
        engine.finish()
    finally:
        seen.set()
        thread.join()
    (finding,) = (each for each in report if each.phase == "begin")
    assert (finding.tensor, finding.step) == ("stem.weight", 10)
    result = call("watch", path, "--invariants", learnt, "--json")
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert documents[-1]["event"] == "ended"
    assert documents[-1]["invariants"][0]["file"] == learnt


def test_a_hook_is_asked_for_what_the_file_needs(learnt: str) -> None:
    always, beginning = LearntInvariants(learnt).needs
    expected = {"weights", "biases", "gradients", "updates", "outputs", "losses"}
    assert expected <= always.collections
    assert beginning.first_steps == 50
