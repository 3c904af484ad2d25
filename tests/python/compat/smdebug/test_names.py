"""Names that scripts and smdebug's own tests use: arguments, methods and constants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug import exceptions
from tdbg.compat.smdebug.core import collection_manager, reductions, utils
from tdbg.compat.smdebug.core import config_constants as constants
from tdbg.compat.smdebug.pytorch.collection import CollectionManager
from tdbg.compat.smdebug.pytorch.hook import DEFAULT_INCLUDE_COLLECTIONS
from torch_helpers import Recorded, digits, mlp, train

pytestmark = pytest.mark.torch
LOSS = "CrossEntropyLoss_output_0"
EVERY = smd.SaveConfig(save_interval=1)


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


class Training:
    """A training that goes on step by step."""

    def __init__(self, hook: smd.Hook) -> None:
        self._hook = hook
        self._model, self._criterion = mlp(), nn.CrossEntropyLoss()
        hook.register_module(self._model)
        hook.register_loss(loss_module=self._criterion)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self._batches = digits(8)

    def train(self, n_steps: int) -> None:
        train(self._model, self._criterion, self._optimizer, self._batches, n_steps)

    def end(self) -> Recorded:
        assert self._hook.counters()["internal_errors"] == 0
        self._hook.close()
        return Recorded(Path(self._hook.out_dir))


def test_arguments_have_smdebugs_names(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["mine"])
    hook.get_collection("mine").include(t=["relu_output"])
    hook.collection_manager.add(arg="other")
    training = Training(hook)
    training.train(1)
    assert training.end().names == {LOSS, "relu_output_0"}
    assert "other" in hook.get_collections()


# ---- schedules that are changed in place -----------------------------------------


def test_losses_are_switched_off_by_an_end_step(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["biases"])
    hook.get_collection("losses").save_config.end_step = 0
    training = Training(hook)
    training.train(2)
    assert training.end().names == {"Net_fc1.bias", "Net_fc2.bias"}


def test_a_schedule_that_is_changed_in_place_holds_from_the_next_step_on(
    run_dir: Path,
) -> None:
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["biases"])
    biases = hook.get_collection("biases")
    biases.save_config = smd.SaveConfig(save_interval=1)
    training = Training(hook)
    training.train(2)
    biases.save_config.get_save_config(smd.modes.TRAIN).save_interval = 3
    training.train(3)
    biases.save_config.set_save_config(smd.modes.TRAIN, smd.SaveConfigMode(1))
    training.train(2)
    found = training.end()
    assert list(found.values("Net_fc1.bias")) == [0, 1, 3, 5, 6]
    assert list(found.values(LOSS)) == list(range(7))


def test_the_schedules_of_a_hook_are_not_changed_in_place(run_dir: Path) -> None:
    given = smd.SaveConfig(save_interval=2)
    hook = smd.Hook(run_dir, save_config=given)
    with pytest.raises(exceptions.SMDebugRuntimeError, match="those of its collect"):
        hook.save_config.end_step = 0
    with pytest.raises(exceptions.SMDebugRuntimeError):
        hook.save_config.set_save_config(smd.modes.EVAL, smd.SaveConfigMode(1))
    given.save_interval = 7
    assert hook.save_config == smd.SaveConfig(save_interval=2)
    hook.get_collection("losses").save_config.save_interval = 5
    assert hook.save_config.save_interval == 2
    hook.close()


def test_a_field_that_differs_by_mode_or_does_not_exist_is_refused() -> None:
    config = smd.SaveConfig(save_interval=2)
    config.save_steps = [9, 3]
    assert config.get_save_config(smd.modes.EVAL).save_steps == [3, 9]
    config.set_save_config(smd.modes.EVAL, smd.SaveConfigMode(3))
    with pytest.raises(exceptions.SMDebugValueError, match="differs by mode"):
        _ = config.save_interval
    with pytest.raises(exceptions.SMDebugValueError, match="save_interval must be"):
        config.save_interval = 0
    with pytest.raises(exceptions.SMDebugValueError, match="follows the hook"):
        smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode()}).end_step = 0
    for target in (config, smd.SaveConfigMode()):
        with pytest.raises(AttributeError):
            target.end_stpe = 0  # type: ignore[union-attr]


# ---- collections and their files -------------------------------------------------


def test_a_manager_makes_collections_of_its_kind() -> None:
    manager = CollectionManager()
    assert {"all", "weights", "losses"} <= manager.get_collections().keys()
    manager.create_collection("mine")
    kept = manager.get("mine")
    assert isinstance(kept, smd.Collection)
    manager.create_collection(name="mine")
    assert manager.get("mine") is kept
    plain = collection_manager.CollectionManager()
    assert plain.get_collections() == {}
    plain.create_collection("mine", cls=smd.Collection)
    assert type(plain.get("mine")) is smd.Collection


def test_a_manager_survives_its_file(tmp_path: Path) -> None:
    manager = CollectionManager(create_default=False)
    manager.add(
        smd.Collection(
            "mine",
            ["relu"],
            ["a"],
            smd.ReductionConfig(["min"]),
            {smd.modes.TRAIN: smd.SaveConfigMode(2)},
        )
    )
    manager.add("default")
    manager.set_num_workers("4")
    manager.export(str(tmp_path), constants.DEFAULT_COLLECTIONS_FILE_NAME)
    (path,) = utils.list_collection_files_in_directory(str(tmp_path))
    assert path.startswith(utils.get_path_to_collections(str(tmp_path)))
    again = CollectionManager.load(path)
    assert again == manager
    assert again.get_num_workers() == 4
    assert isinstance(again.get("mine"), smd.Collection)
    again.get("mine").include("tanh")
    assert again != manager
    assert CollectionManager.load_from_string("None") is None
    content = json.loads(Path(path).read_text())
    assert content["_meta"] == {"num_workers": 4}


@pytest.mark.parametrize("text", ["[]", "{}", '{"collections": {}, "more": 1}'])
def test_a_file_that_has_no_collections_is_refused(text: str) -> None:
    with pytest.raises(exceptions.SMDebugValueError):
        CollectionManager.load_from_string(text)
    with pytest.raises(exceptions.SMDebugTypeError, match="must be a mapping"):
        CollectionManager().update_meta(3)  # type: ignore[arg-type]


# ---- modules of small things -----------------------------------------------------


def test_constants_are_smdebugs() -> None:
    assert constants.DEFAULT_SAGEMAKER_OUTDIR == "/opt/ml/output/tensors"
    assert constants.DEFAULT_COLLECTIONS_FILE_NAME == "worker_0_collections.json"
    assert DEFAULT_INCLUDE_COLLECTIONS == ["losses"]


@pytest.mark.parametrize(
    ("name", "of_all"),
    [("l1", 10.0), ("l2", 30.0**0.5), ("variance", 1.25), ("min", 1.0), ("prod", 24.0)],
)
def test_a_reduction_is_that_of_all_elements(name: str, of_all: float) -> None:
    data = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert reductions.get_numpy_reduction(name, data) == pytest.approx(of_all)
    assert reductions.get_numpy_reduction("max", -data, abs=True) == 4.0
    assert reductions.get_basic_numpy_reduction("mode", data) is None
    with pytest.raises(exceptions.SMDebugValueError, match="did you mean 'mean'"):
        reductions.get_numpy_reduction("meen", data)


def test_the_name_of_a_reduction_is_made_and_taken_apart() -> None:
    name = reductions.get_reduction_tensor_name("w/a:0", "mean", True)
    assert name == "smdebug/reductions/abs_mean/w/a"
    assert reductions.reverse_reduction_tensor_name(name) == ("w/a", "mean", True)
    with pytest.raises(exceptions.SMDebugValueError):
        reductions.reverse_reduction_tensor_name("w/a")


@pytest.mark.parametrize(
    ("found", "requested"),
    [
        (utils.flatten([1, [2, [3]], "ab"]), [1, 2, 3, "ab"]),
        (utils.split("a, b ,c"), ["a", "b", "c"]),
        (utils.merge_two_dicts({"a": 1, "b": 2}, {"b": 3}), {"a": 1, "b": 3}),
        (utils.match_inc("relu_output", ["tanh", "out"]), True),
        (utils.match_inc("relu_output", ["^out"]), False),
        (utils.index([1, 3, 5], 3), 1),
        ([utils.step_in_range((2, 4), s) for s in (1, 2, "3", 4)], [0, 1, 1, 0]),
        (utils.step_in_range((None, None), 9), True),
        (utils.is_s3("s3://b/p/q"), (True, "b", "p/q")),
        (utils.is_s3("s3://b"), (True, "b", "")),
        (utils.is_s3("/b/p"), (False, None, None)),
        (utils.make_numpy_array(3.0).tolist(), [3.0]),
        (utils.make_numpy_array((1, 2)).tolist(), [1, 2]),
        (utils.load_json_as_dict('{"a": 1}'), {"a": 1}),
        (utils.load_json_as_dict("None"), None),
        (utils.size_and_shape("abc"), (3, [3])),
        (utils.size_and_shape(np.zeros((2, 3))), (48, (2, 3))),
    ],
)
def test_a_small_function_does_what_its_name_says(found: Any, requested: Any) -> None:
    assert found == requested


def test_small_functions_on_files(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b_1.json"
    utils.ensure_dir(str(file))
    utils.ensure_dir(str(tmp_path / "c"), is_file=False)
    assert sorted(utils.get_immediate_subdirectories(str(tmp_path))) == ["a", "c"]
    file.write_text("")
    assert utils.list_files_in_directory(str(tmp_path), "b_") == [str(file)]
    assert utils.list_files_in_directory(str(tmp_path), "_1") == []
    for _ in range(2):
        utils.remove_file_if_exists(str(file))
    assert not file.exists()


@pytest.mark.parametrize(
    "call",
    [
        lambda: utils.make_numpy_array(object()),
        lambda: utils.load_json_as_dict(3),
        lambda: utils.index([1, 3], 2),
    ],
)
def test_a_bad_argument_of_a_small_function_is_named(call: Any) -> None:
    with pytest.raises(exceptions.SMDebugError):
        call()
