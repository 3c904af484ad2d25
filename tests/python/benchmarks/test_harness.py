"""What benchmarks say must follow from what they measured."""

from __future__ import annotations

import argparse
import json
import math
import random

import numpy as np
import pytest

from benchmarks import report as reporting
from benchmarks._harness import (
    CONTROL,
    Bars,
    Curves,
    Measured,
    Ratio,
    Report,
    Table,
    WrongAnswer,
    check,
    check_close,
    check_equal,
    interleave,
    median_interval,
)

QUICK = argparse.Namespace(quick=True, rounds=None, seed=1)


def fixed(seconds):
    return lambda: Measured(seconds, answer=seconds)


@pytest.mark.parametrize("n", [6, 25, 400, 1500])
def test_the_interval_holds_the_median_in_95_of_100_draws(n):
    random.seed(n)
    draws = [[random.lognormvariate(0, 1) for _ in range(n)] for _ in range(500)]
    held = sum(low <= 1 <= high for low, high in map(median_interval, draws))
    # Not less than promised, and not idly wide: steps of k are coarse for few values.
    assert 460 <= held <= (498 if n < 100 else 490)


def test_fewer_than_six_values_have_no_interval():
    assert all(map(math.isnan, median_interval([1.0] * 5)))
    assert median_interval([1.0] * 6) == (1, 1)
    assert not Ratio.of([1.0] * 5).within(0.005)
    assert str(Ratio.of([1.0] * 5)) == "1.000 (5 only)"


def test_ratios_are_of_the_same_round():
    drift = iter(range(1, 1000))

    def run(factor):
        # Every round is slower than the one before, for all alike.
        return lambda: Measured(factor * (1 + (next(drift) - 1) // 3))

    samples = interleave(
        {"plain": run(1), "twice": run(2)}, baseline="plain", rounds=20, seed=3
    )
    assert samples.ratio("twice").median == pytest.approx(2)
    assert samples.control() == Ratio(1, 1, 1, 20)
    assert samples.resolved


def test_a_noisy_control_makes_every_ratio_unresolved():
    dice = random.Random(5)
    samples = interleave(
        {"plain": lambda: Measured(dice.uniform(1, 2)), "other": fixed(3.0)},
        baseline="plain",
        rounds=30,
        seed=3,
    )
    assert not samples.resolved
    assert samples.text("other").endswith("not resolved")
    assert not samples.to_json()["resolved"]


def test_a_control_that_is_steady_but_beside_one_is_not_resolved():
    samples = interleave(
        {"plain": fixed(1.0), CONTROL: fixed(1.01)}, baseline="plain", rounds=20
    )
    assert samples.control().low == samples.control().high
    assert not samples.resolved


def test_every_contender_runs_once_a_round_in_changing_order():
    ran = []
    runs = {name: lambda name=name: ran.append(name) for name in "abc"}
    interleave(runs, baseline="a", rounds=10, warmup=2, seed=4)
    rounds = [tuple(ran[at : at + 4]) for at in range(0, len(ran), 4)]
    assert len(rounds) == 12
    assert {tuple(sorted(one)) for one in rounds} == {("a", "a", "b", "c")}
    assert len(set(rounds)) > 1
    again, ran[:] = list(ran), []
    interleave(runs, baseline="a", rounds=10, warmup=2, seed=4)
    assert ran == again


def test_a_run_ends_when_it_is_resolved_or_its_time_is_used_up():
    runs = {"plain": fixed(1.0)}
    resolved = interleave(runs, baseline="plain", rounds=100, until_resolved=True)
    assert len(resolved.seconds["plain"]) == 20
    short = interleave(runs, baseline="plain", rounds=100, at_most_seconds=0)
    assert len(short.seconds["plain"]) == 6


def test_a_wrong_answer_ends_the_run():
    def verify(answers):
        check_equal(answers["wrong"], answers["plain"], "answer")

    with pytest.raises(WrongAnswer, match=r"answer: got 2.0, expected 1.0"):
        interleave(
            {"plain": fixed(1.0), "wrong": fixed(2.0)},
            baseline="plain",
            rounds=10,
            verify=verify,
        )


def test_the_baseline_must_be_a_contender():
    with pytest.raises(ValueError, match="'none' is none of"):
        interleave({"plain": fixed(1.0)}, baseline="none", rounds=1)


def test_what_is_unequal_is_found():
    zeros = np.zeros(3, np.float32)
    check_equal(zeros.copy(), zeros, "same")
    for other in (zeros.astype(np.float64), zeros[:2], -zeros, zeros + 1):
        with pytest.raises(WrongAnswer):
            check_equal(other, zeros, "other")
    check_close(1 + 1e-8, 1, 1e-7, "near")
    for far in (1.1, math.nan):
        with pytest.raises(WrongAnswer):
            check_close(far, 1, 1e-7, "far")
    with pytest.raises(WrongAnswer):
        check(False, "false")


def test_other_figures_of_a_run_are_compared_too():
    samples = interleave(
        {
            "plain": lambda: Measured(1.0, also={"cpu": 2.0}),
            "other": lambda: Measured(1.0, also={"cpu": 3.0}),
        },
        baseline="plain",
        rounds=6,
    )
    assert samples.ratio("other", of="cpu").median == 1.5


def test_slices_of_a_table_and_of_a_plot_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setenv("TDBG_BENCH_RESULTS", str(tmp_path))
    for rows in ({"a": 1, "b": 2}, {"b": 3, "c": 4}):
        table = Table("times", ("what", "ms"))
        plot = Curves("curve", "title", "x", "y")
        for label, value in rows.items():
            table.add(label, value)
            plot.add(label, 1, value)
        Report(f"part/{min(rows)}", QUICK, tables=[table], plots=[plot]).save()
    (tmp_path / "env-tdbg").mkdir()
    (tmp_path / "env-tdbg" / "other.json").write_text("[]")
    documents = reporting.load(tmp_path)
    assert [one["name"] for one in documents] == ["part/a", "part/b"]
    (line,) = reporting.machines(documents)
    assert f"numpy {np.__version__}" in line
    (table,) = reporting.tables(documents)
    assert table.rows == [["a", "1"], ["b", "3"], ["c", "4"]]
    assert "Quick run" in table.note
    assert "| b | 3 |\n| c | 4 |" in table.markdown()
    (plot,) = reporting.plots(documents)
    assert {k: v[0][1] for k, v in plot["series"].items()} == {"a": 1, "b": 3, "c": 4}


def test_a_table_refuses_rows_that_do_not_fit():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table("times", ("what", "ms")).add("a")


def test_a_result_says_where_it_was_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TDBG_BENCH_RESULTS", str(tmp_path))
    path = Report("one/two", QUICK, packages=["numpy", "no-such-package"]).save()
    assert path == tmp_path / "one" / "two.json"
    where = json.loads(path.read_text())["machine"]
    assert where["versions"] == {"numpy": np.__version__, "no-such-package": "none"}
    assert where["cores"] >= 1
    assert where["cpu"]
    assert f"numpy {np.__version__}" in capsys.readouterr().out


def test_plots_are_drawn_where_matplotlib_is(tmp_path):
    curves = Curves("c", "title", "x", "y", log_x=True)
    bars = Bars("b", "title", "x")
    for x in (1, 2, 5):
        curves.add("line", x, 2 * x, x, 3 * x)
        bars.add(f"bar {x}", x, math.nan, math.nan)
    for plot in (curves, bars):
        reporting.draw(vars(plot), tmp_path / f"{plot.name}.png")
        assert (tmp_path / f"{plot.name}.png").read_bytes().startswith(b"\x89PNG")
