"""``smdebug.xgboost``: names, modes and collections that scripts for smdebug rely on.

After smdebug's own tests/xgboost (test_hook.py), through this package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

import tdbg.compat.smdebug.xgboost as smd
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tree_runs import cancer

PARAMETERS = {"objective": "binary:logistic", "max_depth": 3}


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    yield
    hook = smd.get_hook()
    if hook is not None:
        hook.close()
    smd.del_hook()


def train(hook: smd.Hook, n_rounds: int = 12) -> xgboost.Booster:
    data = cancer()
    matrix, valid = data.train(), data.valid()
    booster = xgboost.train(
        PARAMETERS,
        matrix,
        n_rounds,
        evals=[(matrix, "train"), (valid, "validation")],
        verbose_eval=False,
        callbacks=[hook],
    )
    hook.close()
    return booster


def test_all_names_no_gradients_that_are_not_captured(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, save_all=True, save_config=smd.SaveConfig(save_interval=1))
    train(hook, 2)
    named = smd.create_trial(str(run_dir)).tensor_names(collection="all")
    assert "predictions" in named
    assert "gradient/margin" not in named
    assert "gradient/margin" not in hook.get_collection("all").tensor_names


def test_a_file_configures_collections(run_dir: Path) -> None:
    file = run_dir.parent / "hook.json"
    file.write_text(
        json.dumps(
            {
                "LocalPath": str(run_dir),
                "HookParameters": {"save_interval": "4"},
                "CollectionConfigurations": [
                    {"CollectionName": "metrics"},
                    {"CollectionName": "trees"},
                    {
                        "CollectionName": "own",
                        "CollectionParameters": {"include_regex": "gain/"},
                    },
                ],
            }
        )
    )
    train(smd.Hook.create_from_json_file(file))
    trial = smd.create_trial(str(run_dir))
    assert trial.tensor("train-logloss").steps() == [0, 4, 8]
    assert trial.tensor("trees/Gain").steps() == [0, 4, 8]
    assert "own" in trial.collections()


def test_the_public_names_are_those_of_smdebug() -> None:
    assert sorted(smd.__all__) == [
        "Collection",
        "CollectionKeys",
        "Hook",
        "SaveConfig",
        "SaveConfigMode",
        "create_trial",
        "del_hook",
        "get_hook",
        "modes",
        "set_hook",
    ]


def test_metrics_are_saved_every_ten_rounds_and_all_in_training(run_dir: Path) -> None:
    train(smd.Hook(out_dir=str(run_dir)))
    trial = smd.create_trial(str(run_dir))
    assert trial.tensor_names() == ["train-logloss", "validation-logloss"]
    assert trial.tensor("validation-logloss").steps() == [0, 10]
    assert trial.tensor("validation-logloss").steps(mode=smd.modes.TRAIN) == [0, 10]
    assert trial.modes() == [smd.modes.TRAIN]


def test_all_collections_of_smdebug_are_there(run_dir: Path) -> None:
    data = cancer()
    hook = smd.Hook(
        out_dir=str(run_dir),
        save_config=smd.SaveConfig(save_interval=5),
        include_collections=[
            "metrics",
            "losses",
            "predictions",
            "labels",
            "feature_importance",
            "average_shap",
            "full_shap",
            "hyperparameters",
            "trees",
        ],
        hyperparameters={"num_round": 12},
        train_data=data.train(),
        validation_data=data.valid(),
    )
    booster = train(hook)
    trial = smd.create_trial(str(run_dir))
    assert trial.steps() == [0, 5, 10]
    labels = trial.tensor("labels").value(10)
    assert labels.tolist() == data.valid_y.tolist()
    part = booster[:11].predict(data.valid())
    np.testing.assert_allclose(trial.tensor("predictions").value(10), part, rtol=1e-5)
    assert trial.tensor("trees/Node").steps() == [0, 5, 10]
    assert trial.tensor("hyperparameters/num_round").value(0) == 12
    assert trial.tensor("hyperparameters/max_depth").value(0) == 3
    # Names that smdebug's expressions lose: they end in one of "/bias".
    assert "average_shap/f3" in trial.tensor_names(collection="average_shap")
    assert len(trial.tensor_names(collection="full_shap")) == 31


def test_save_all_saves_trees_too(run_dir: Path) -> None:
    train(smd.Hook(out_dir=str(run_dir), save_all=True), 2)
    names = smd.create_trial(str(run_dir)).tensor_names()
    for name in ("trees/Node", "labels", "full_shap/bias", "train-logloss"):
        assert name in names


def test_a_collection_of_ones_own_finds_names(run_dir: Path) -> None:
    hook = smd.Hook(out_dir=str(run_dir), include_collections=["gains"])
    hook.get_collection("gains").include("feature_importance/gain/f2$")
    train(hook)
    trial = smd.create_trial(str(run_dir))
    assert trial.tensor_names(collection="gains") == ["feature_importance/gain/f2"]


@pytest.mark.filterwarnings("ignore:.*Text file input:UserWarning")
def test_data_may_be_in_a_file(run_dir: Path, tmp_path: Path) -> None:
    data = cancer()
    path = tmp_path / "valid.csv"
    table = np.column_stack([data.valid_y, data.valid_x])
    np.savetxt(path, table, delimiter=",")
    hook = smd.Hook(
        out_dir=str(run_dir),
        include_collections=["labels"],
        validation_data=(str(path), "csv"),
    )
    train(hook, 1)
    trial = smd.create_trial(str(run_dir))
    assert trial.tensor("labels").value(0).tolist() == data.valid_y.tolist()


@pytest.mark.parametrize(
    "settings", [{"train_data": [1, 2]}, {"include_collections": [1]}]
)
def test_arguments_of_a_wrong_type_are_refused(
    run_dir: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(SMDebugTypeError):
        smd.Hook(out_dir=str(run_dir), **settings)


def test_the_hook_of_the_process_is_found(run_dir: Path) -> None:
    hook = smd.Hook(out_dir=str(run_dir))
    assert smd.get_hook() is hook
    smd.del_hook()
    assert smd.get_hook() is None
    hook.close()


def test_arguments_come_in_the_order_of_smdebug(tmp_path: Path) -> None:
    """Third from the right are the hyperparameters, which are recorded as given."""
    data, given = cancer(), {"objective": "mine", "num_round": 20}
    hook = smd.Hook(
        str(tmp_path / "run"), False, None, False, None,
        smd.SaveConfig(save_interval=1), None, ["hyperparameters", "labels"], False,
        "one", given, data.train(), data.valid(),
    )  # fmt: skip
    hook.save_scalar("seen", 3.0, sm_metric=True)
    train(hook, 2)
    hook.close()
    trial = smd.create_trial(str(tmp_path / "run"))
    assert trial.tensor("hyperparameters/objective").value(0) == "mine"
    assert trial.tensor("hyperparameters/num_round").value(0) == 20
    assert len(trial.tensor("labels").value(0)) == data.valid().num_row()
    assert trial.tensor("scalar/seen").steps()
