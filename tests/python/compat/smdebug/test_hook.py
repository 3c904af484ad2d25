"""smdebug's hook: its constructor, methods and names, without its defects."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg
import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug.core.hook import BaseHook
from tdbg.compat.smdebug.core.singleton_utils import set_hook as set_core_hook
from tdbg.compat.smdebug.exceptions import (
    SMDebugError,
    SMDebugRuntimeError,
    SMDebugTypeError,
)
from tdbg.errors import ConfigurationError
from tdbg.export import export_tensorboard
from tensorboard_helpers import KeyValueStore
from torch_helpers import Recorded, digits, mlp, train


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


EVERY = smd.SaveConfig(save_interval=1)


def run(
    run_dir: Path, model: nn.Module | None = None, n_steps: int = 4, **options: Any
) -> Recorded:
    """Train a little with a hook of these options; what it recorded."""
    model = model or mlp()
    hook = smd.Hook(run_dir, **{"save_config": EVERY, **options})
    criterion = nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, criterion, optimizer, digits(16), n_steps)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return Recorded(run_dir)


def test_losses_are_saved_every_500_steps_by_default(run_dir: Path) -> None:
    found = run(run_dir, n_steps=3, save_config=None)
    assert found.names == {"CrossEntropyLoss_output_0"}
    assert sorted(found.values("CrossEntropyLoss_output_0")) == [0]
    assert len(found.rows("CrossEntropyLoss_output_0")) == 1


def test_save_all_saves_what_smdebug_saved_under_its_names(run_dir: Path) -> None:
    found = run(run_dir, save_all=True)
    parameters = {f"Net_fc{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")}
    modules = {
        f"{path}_{direction}_0"
        for path in ("Net", "fc1", "fc2", "relu")
        for direction in ("input", "output")
    }
    loss = {f"CrossEntropyLoss_{name}" for name in ("input_0", "input_1", "output_0")}
    gradients = {f"gradient/{name}" for name in parameters}
    assert found.names == parameters | gradients | modules | loss


def test_statistics_come_at_the_steps_of_values_and_no_others(run_dir: Path) -> None:
    config = smd.SaveConfig(save_interval=3)
    found = run(run_dir, n_steps=8, save_config=config, include_collections=["weights"])
    for name in ("Net_fc1.weight", "CrossEntropyLoss_output_0"):
        assert sorted(found.values(name)) == [0, 3, 6]
        assert len(found.rows(name)) == 3


def test_reductions_replace_raw_values_but_not_those_of_losses(run_dir: Path) -> None:
    reduction = smd.ReductionConfig(reductions=["mean"], norms=["l2"])
    found = run(run_dir, reduction_config=reduction, include_collections=["weights"])
    assert found.values("Net_fc1.weight") == {}
    assert len(found.rows("Net_fc1.weight")) == 4
    assert len(found.values("CrossEntropyLoss_output_0")) == 4


def test_out_dir_is_needed_and_every_argument_may_stand_by_position(
    run_dir: Path,
) -> None:
    with pytest.raises(SMDebugRuntimeError, match="out_dir"):
        smd.Hook()
    hook = smd.Hook(
        str(run_dir), False, None, True, None, None, "relu", ["weights"], False, "one"
    )
    assert hook.dry_run
    assert sorted(hook.include_collections) == ["default", "losses", "weights"]
    hook.close()
    with pytest.raises(ConfigurationError, match="include_workers"):
        smd.Hook(run_dir, include_workers="some")
    with pytest.raises(SMDebugTypeError, match="include_collections"):
        smd.Hook(run_dir, include_collections=[3])
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        smd.Hook(run_dir, include_regex="(")


def test_there_is_one_hook_of_the_process(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert smd.get_hook() is None
    hook = smd.Hook(run_dir, dry_run=True)
    assert smd.get_hook() is hook
    monkeypatch.setenv("USE_SMDEBUG", "0")
    assert smd.get_hook() is None
    monkeypatch.delenv("USE_SMDEBUG")
    other = smd.Hook(run_dir, dry_run=True)
    assert smd.get_hook() is other
    smd.set_hook(hook)
    assert smd.get_hook() is hook
    smd.del_hook()
    assert smd.get_hook() is None
    with pytest.raises(SMDebugTypeError):
        set_core_hook("hook")  # type: ignore[arg-type]
    assert isinstance(hook, BaseHook)
    hook.close()
    other.close()


def test_a_collection_is_made_when_it_is_asked_for(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, dry_run=True)
    with pytest.raises(SMDebugError, match="no collection 'relu'"):
        hook.get_collection("relu", create=False)
    hook.get_collection("relu").include("relu_output")
    assert hook.get_collections()["relu"] is hook.get_collection("relu")
    with pytest.raises(SMDebugTypeError, match="expected a Collection"):
        hook.add_collection(3)
    hook.export_collections()
    assert not hook.has_default_hook_configuration(["losses", "relu"])
    assert hook.has_default_configuration()  # It is not included.
    hook.close()


def test_a_collection_is_saved_if_it_was_included(run_dir: Path) -> None:
    model = mlp()
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["relu", ["bn"]])
    hook.register_module(model)
    hook.get_collection("relu").include(["relu_output"])
    hook.add_collection(smd.Collection("other", include_regex="fc1_output"))
    hook.add_collection(smd.Collection("bn", include_regex="fc2_input"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(16), 2)
    hook.close()
    assert Recorded(run_dir).names == {"relu_output_0", "fc2_input_0"}


def test_a_collection_that_selects_nothing_is_told_not_raised(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tdbg"):
        run(run_dir, include_collections=["forgotten"])
    assert sum("'forgotten'" in record.message for record in caplog.records) == 1


def test_a_product_without_values_is_told(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tdbg"):
        run(run_dir, reduction_config=smd.ReductionConfig(["prod"]))
    assert any("do not include prod" in record.message for record in caplog.records)


@pytest.mark.parametrize("registered_first", [True, False])
def test_tensors_of_single_modules_are_a_collection(
    run_dir: Path, registered_first: bool
) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10), nn.ReLU())
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["picked"])
    if registered_first:
        hook.register_module(model)
    picked = hook.get_collection("picked")
    picked.add_module_tensors(model[1], inputs=True, outputs=False)
    picked.add_module_tensors(model)
    assert set(picked.modules) == {model[1], model}
    if not registered_first:
        hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(16), 2)
    hook.close()
    assert Recorded(run_dir).names == {"1_input_0", "Sequential_output_0"}
    with pytest.raises(SMDebugTypeError, match=r"nn\.Module"):
        picked.add_module_tensors("fc1")


def test_what_is_recorded_by_hand_has_smdebugs_names_and_schedules(
    run_dir: Path,
) -> None:
    model = mlp()
    hook = smd.Hook(
        run_dir,
        save_config=smd.SaveConfig(save_interval=2),
        include_regex="hidden_output",
    )
    hook.register_hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = digits(16)
    for step in range(4):
        inputs, labels = next(batches)
        optimizer.zero_grad()
        output = model(inputs)
        loss = nn.functional.cross_entropy(output, labels)
        hook.record_tensor_value(tensor_name="nll_loss", tensor_value=loss)
        hook.record_tensor_value(tensor_name="nll_loss", tensor_value=2 * loss)
        hook.record_tensor_value("hidden", output)
        hook.record_tensor_value("unwanted", output)
        loss.backward()
        optimizer.step()
        hook.save_scalar("rate", np.array([0.1 * step]), True, timestamp=1e9 + step)
        assert (hook.step, hook.mode_steps[smd.modes.TRAIN]) == (step, step)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    found = Recorded(run_dir)
    assert found.names == {
        "nll_loss_output_0",
        "nll_loss_output_1",
        "hidden_output_0",
        "scalar/rate",
    }
    for name in ("nll_loss_output_0", "nll_loss_output_1", "hidden_output_0"):
        assert sorted(found.values(name)) == [0, 2]
    for step, first in found.values("nll_loss_output_0").items():
        assert found.values("nll_loss_output_1")[step] == 2 * first
    # A scalar is saved at every step, at the time that was given.
    series = smd.create_trial(run_dir)._trial.scalars()["scalar/rate"]
    assert series.steps.tolist() == [0, 1, 2, 3]
    assert series.wall_ns.tolist() == [int((1e9 + step) * 1e9) for step in range(4)]


def test_a_tensor_is_saved_into_every_collection_it_is_given(run_dir: Path) -> None:
    model = mlp()
    hook = smd.Hook(run_dir, save_config=EVERY)
    hook.register_module(model)
    model(torch.zeros(2, 64))
    hook.save_tensor("mine", torch.ones(3), ["c1", "c2"])
    hook.save_tensor(tensor_name="other", tensor_value=np.ones(2))
    hook.close()
    trial = smd.create_trial(run_dir)
    assert trial.tensor_names(collection="c1") == ["mine"]
    assert trial.tensor_names(collection="c2") == ["mine"]
    assert trial.tensor_names(collection="default") == ["other"]


def test_two_models_of_one_class_have_names_of_their_own(run_dir: Path) -> None:
    first, second = mlp(), mlp()
    hook = smd.Hook(run_dir, save_config=EVERY, include_collections=["weights"])
    hook.register_module(first)
    hook.register_module(second)
    hook.register_module(first)  # Once more: no error, and nothing twice.
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    inputs, _ = next(digits(8))
    (first(inputs) + second(inputs)).sum().backward()
    optimizer.step()
    hook.close()
    found = Recorded(run_dir)
    names = {f"{root}_fc{i}.weight" for root in ("Net", "Net_2") for i in (1, 2)}
    assert found.names == names
    assert all(len(found.rows(name)) == 1 for name in names)


def test_any_callable_is_a_loss_and_may_be_registered_twice(run_dir: Path) -> None:
    class Mine(nn.Module):
        def forward(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output, labels)

    model, criterion = mlp(), Mine()
    hook = smd.Hook(run_dir, save_config=EVERY)
    hook.register_module(model)
    hook.register_loss(criterion)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, criterion, optimizer, digits(16), 2)
    hook.close()
    found = Recorded(run_dir)
    assert found.names == {"Mine_output_0"}
    assert len(found.rows("Mine_output_0")) == 2


def test_what_is_saved_at_a_step_can_be_asked(run_dir: Path) -> None:
    hook = smd.Hook(
        run_dir,
        dry_run=True,
        save_config=smd.SaveConfig(save_interval=2),
        include_collections=["custom"],
    )
    hook.get_collection("custom").include("relu")
    assert not hook.should_save_tensor_or_collection("relu_output_0", "custom")
    model = mlp()
    hook.register_module(model)
    hook.set_mode(smd.modes.EVAL)
    for step in range(4):
        model(torch.zeros(1, 64))
        expected = step % 2 == 0
        ask = hook.should_save_tensor_or_collection
        assert ask("relu_output_0", "custom") is expected
        assert not ask("fc1_output_0", "custom")
        assert hook.mode is smd.modes.EVAL
    with pytest.raises(ValueError, match="set_mode"):
        hook.set_mode("EVAL")
    hook.close()


def test_trace_events_are_spans_of_the_run(run_dir: Path) -> None:
    hook = smd.Hook(run_dir)
    model = mlp()
    hook.register_module(model)
    model(torch.zeros(1, 64))
    now = time.time()
    hook.record_trace_events(now, "DataIterator", "load", duration=0.25, pid=1)
    hook.record_trace_events(now, op_name="alone")
    hook.record_trace_events(now, "DataIterator", "mark", phase="i")
    hook.record_trace_events("when", "bad", "time")  # type: ignore[arg-type]
    hook.close()
    profile = tdbg.create_trial(run_dir).profile
    spans = profile.spans()
    assert sorted(spans["name"]) == ["DataIterator/load", "alone"]
    (span,) = spans[spans["name"] == "DataIterator/load"]
    assert span["duration_ns"] == 250_000_000
    began = profile.wall_ns(span["start_ns"]) / 1e9
    assert began == pytest.approx(now, abs=5)
    assert hook.counters()["internal_errors"] == 1


def test_what_belongs_to_the_profiler_is_accepted(run_dir: Path) -> None:
    hook = smd.Hook(run_dir, dry_run=True)
    hook.record_trace_events(1.0, training_phase="forward", op_name="x", tid=3)
    assert hook.should_save_dataloader_metrics("x") is False
    assert hook.count_parameters(mlp()) == 64 * 24 + 24 + 24 * 10 + 10
    hook._cleanup()


def test_a_pickled_hook_captures_nothing(run_dir: Path) -> None:
    hook = smd.Hook(run_dir)
    again = pickle.loads(pickle.dumps(hook))  # noqa: S301
    again.register_module(mlp())
    again.save_scalar("x", 1.0)
    assert again.counters()["is_live"] == 0
    assert smd.get_hook() is hook
    hook.close()


def test_histograms_are_stored_where_tensorboard_was_asked_for(
    run_dir: Path, tmp_path: Path
) -> None:
    hook = smd.Hook(
        run_dir,
        tensorboard_dir=str(tmp_path / "somewhere"),
        save_config=EVERY,
        include_collections=["weights", "biases"],
    )
    hook.get_collection("biases").save_histogram = False
    model = mlp()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(16), 1)
    hook.close()
    trial = smd.create_trial(run_dir)._trial
    assert trial.tensor("Net_fc1.weight").steps(what="histograms") == [0]
    assert trial.tensor("Net_fc1.bias").steps(what="histograms") == []
    # The tags that smdebug gave them; raw values are saved of the biases, too.
    board = KeyValueStore(tmp_path / "somewhere" / "TRAIN")
    assert board.histogram_tags == {f"weights/Net_fc{n}.weight" for n in (1, 2)}
    export_tensorboard(run_dir, tmp_path / "later")
    assert (
        KeyValueStore(tmp_path / "later" / "TRAIN").histogram_tags
        == board.histogram_tags
    )


def test_scalars_and_losses_are_exported_beside_the_run_by_default(
    run_dir: Path,
) -> None:
    found = run(run_dir, n_steps=3, export_tensorboard=True)
    name = "CrossEntropyLoss_output_0"
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    assert board.scalar_tags == {name}
    values = found.values(name)
    assert board.scalars(name) == {step: float(x) for step, x in values.items()}
    hook = smd.Hook(run_dir.parent / "b", export_tensorboard=True)
    assert hook.tensorboard_dir == str(run_dir.parent / "b" / "tensorboard")
    hook.close()
