"""Every face counts the rounds of boosted trees, and says the same about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xgboost

from faces import add_statuses, check_faces
from tdbg.trial import create_trial
from tdbg.view import view_of
from tdbg.xgboost import Hook


def test_the_faces_agree_on_rounds(tmp_path: Path) -> None:
    path = tmp_path / "trees"
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 3))
    data = xgboost.DMatrix(x, x[:, 0] > 0)
    options = {"objective": "binary:logistic", "nthread": 1}
    evals = [(data, "train"), (data, "valid")]
    hook = Hook(path)
    xgboost.train(options, data, 12, evals=evals, verbose_eval=False, callbacks=[hook])
    hook.close()
    add_statuses(path, A="")
    check_faces(path)
    said = view_of(create_trial(path)).verdict
    assert said.sentence == "Trained for 12 rounds. 1 rule found nothing wrong."
