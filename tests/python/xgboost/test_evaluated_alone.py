"""XGBoost with one evaluation set: every face counts its rounds and has its loss."""

from __future__ import annotations

from pathlib import Path

import xgboost

import tdbg
import tdbg.xgboost as tx
from faces import said_by
from tdbg import report, rules
from tdbg.compare import facts_of
from tdbg.view import diagnosis_of_report, head_of, view_of
from tree_runs import cancer

ROUNDS = 7


def trained(path: Path) -> Path:
    data = cancer()
    hook = tx.Hook(path)
    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        data.train(),
        ROUNDS,
        evals=[(data.valid(), "valid")],
        callbacks=[hook],
        verbose_eval=False,
    )
    hook.close()
    return path


def test_a_booster_that_is_only_evaluated_has_its_rounds_everywhere(
    tmp_path: Path,
) -> None:
    trial = tdbg.create_trial(trained(tmp_path / "run"))
    loss = trial.tensor("valid-logloss")
    values = {step: loss.value(step) for step in trial.steps()}
    assert values == loss.values()
    assert list(values) == [*range(ROUNDS)]
    assert head_of(trial).coverage.text == f"losses at each of {ROUNDS} rounds"
    assert facts_of(trial)["Steps"] == str(ROUNDS)
    page = report.render(trial)
    # A report of a run that nobody has judged judges it, as the other verbs do.
    assert "No rule has judged" not in page
    judged = diagnosis_of_report(rules.check(trial, record=False))
    assert view_of(trial, judged).verdict.sentence in page
    screen = said_by("top", tmp_path / "run", "--once")[1]
    assert "gradients" not in screen
