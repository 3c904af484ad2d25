"""A dry run: what it says would be written is what is written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.errors import ConfigurationError
from torch_helpers import EVERYTHING, Recorded, digits, mlp, train

pytestmark = pytest.mark.torch

ROW = 112 + 120  # docs/format.md: in its shard, and in the column of its tensor.


def trained(n_steps: int, **options: Any) -> td.Hook:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = td.Hook(min_free_bytes=0, profiler=False, **options)
    hook.register_module(model)
    hook.register_loss(criterion)
    train(model, criterion, optimizer, digits(16), n_steps)
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    return hook


def folder_size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


@pytest.mark.parametrize(
    "options",
    [
        {"save_all": True, "codec": "none", "save_config": EVERYTHING},
        {
            "include_collections": ["weights", "gradients"],
            "save_histogram": True,
            "codec": "none",
            "save_config": td.SaveConfig(save_interval=5, statistics_interval=2),
        },
        {
            "save_all": True,
            "reduction_config": td.ReductionConfig(),
            "save_config": td.SaveConfig(statistics_interval=1),
        },
        {
            "save_all": True,
            "reduction_config": td.ReductionConfig(),
            "save_config": td.SaveConfig(statistics_interval=10),
        },
    ],
)
def test_a_thousand_steps_take_what_a_dry_run_of_two_says(
    run_dir: Path, options: dict[str, Any]
) -> None:
    trained(250, out_dir=run_dir, **options)
    told = trained(2, dry_run=True, **options).dry_run_summary()
    expected = told.part("total").bytes_per_1000_steps / 4
    # The rest is padding, definitions and events; in histograms, what they hold.
    assert folder_size(run_dir) == pytest.approx(expected, rel=0.12)


def test_numbers_alone_take_what_a_dry_run_says(run_dir: Path) -> None:
    def told(n_steps: int, **options: Any) -> td.Hook:
        model = nn.Linear(4, 1)
        with td.Hook(min_free_bytes=0, **options) as hook:
            hook.register_module(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            hook.register_optimizer(optimizer)
            for _ in range(n_steps):
                model(torch.ones(2, 4)).sum().backward()
                for number in range(20):
                    hook.save_scalar(f"number_{number}", 0.5)
                optimizer.step()
        return hook

    told(250, out_dir=run_dir)
    summary = told(2, dry_run=True).dry_run_summary()
    expected = summary.part("total").bytes_per_1000_steps / 4
    assert folder_size(run_dir) == pytest.approx(expected, rel=0.12)


def test_what_begins_later_is_known_at_once(run_dir: Path) -> None:
    def late(begins: int) -> dict[str, Any]:
        return {
            "save_config": td.SaveConfig(
                save_interval=20, statistics_interval=5, start_step=begins
            ),
            "save_all": True,
            "codec": "none",
        }

    trained(250, out_dir=run_dir, **late(150))
    told = trained(2, dry_run=True, **late(900)).dry_run_summary()
    always = trained(2, dry_run=True, **late(0)).dry_run_summary()
    assert [each.name for each in told.parts] == [each.name for each in always.parts]
    for part, other in zip(told.parts, always.parts, strict=True):
        assert part.raw_bytes == other.raw_bytes
        assert part.statistics_bytes == other.statistics_bytes
        assert part.bytes_per_1000_steps < other.bytes_per_1000_steps / 5
    # The same hundred steps.
    expected = told.part("total").bytes_per_1000_steps
    assert folder_size(run_dir) == pytest.approx(expected, rel=0.12)


def test_what_never_comes_is_not_told() -> None:
    never = td.SaveConfig(end_step=0)
    hook = trained(2, dry_run=True, save_all=True, save_config=never)
    assert sum(part.tensors for part in hook.dry_run_summary().parts) == 0


def test_names_rows_and_raw_bytes_are_those_of_a_real_run(run_dir: Path) -> None:
    options = {"include_collections": ["weights", "gradients"], "codec": "none"}
    trained(1, out_dir=run_dir, save_config=EVERYTHING, **options)
    told = trained(1, dry_run=True, save_config=EVERYTHING, **options).dry_run_summary()
    recorded = Recorded(run_dir)
    for collection, names in (
        ("weights", ["fc1.weight", "fc2.weight"]),
        (
            "gradients",
            [f"gradient/fc{i}.{k}" for i in (1, 2) for k in ("weight", "bias")],
        ),
        ("losses", ["CrossEntropyLoss_output_0"]),
    ):
        part = told.part(collection)
        values = [value for name in names for value in recorded.values(name).values()]
        rows = [row for name in names for row in recorded.rows(name)[0]]
        assert part.tensors == len(names)
        assert part.raw_bytes == sum(value.nbytes for value in values)
        assert part.statistics_bytes == ROW * len(rows)
    total = told.part("total")
    assert total.tensors == len(recorded.names)
    assert told.steps == {td.ModeKeys.TRAIN: 1}


def test_what_compresses_is_told_smaller() -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    nn.init.zeros_(model.fc1.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(dry_run=True, include_collections=["weights"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, digits(16), 1)
        part = hook.dry_run_summary().part("weights")
    assert part.value_bytes < part.raw_bytes / 3


def test_each_mode_and_each_collection_has_its_part_and_a_tensor_counts_once() -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(dry_run=True, save_all=True, include_collections=["weights"]) as hook:
        hook.register_module(model)
        train(model, criterion, optimizer, digits(16), 1)
        hook.save_scalar("accuracy", 0.5)
        model.eval()
        model(next(digits(16))[0])
        model.train()
        train(model, criterion, optimizer, digits(16), 1)
    told = hook.dry_run_summary()
    # The second step of training saved nothing.
    assert told.steps == {td.ModeKeys.TRAIN: 1, td.ModeKeys.EVAL: 1}
    total, everything = told.part("total"), told.part("all")
    assert total.raw_bytes == everything.raw_bytes
    assert told.part("weights").raw_bytes == 4 * (24 * 64 + 10 * 24)
    # Evaluation has no gradients, and its activations.
    evaluation = told.part("total", td.ModeKeys.EVAL)
    assert 0 < evaluation.tensors < total.tensors
    content = json.loads(json.dumps(told.as_json()))
    assert content["steps"] == {"TRAIN": 1, "EVAL": 1}
    assert len(content["parts"]) == len(told.parts)


def test_tensors_of_odd_layouts_are_measured_too() -> None:
    with td.Hook(dry_run=True, include_regex="x", save_histogram=True) as hook:
        hook.save_tensor("x1", torch.arange(12.0).reshape(3, 4).t())
        hook.save_tensor("x2", torch.zeros(0, 3))
        hook.save_tensor("x3", torch.ones(3, 4, dtype=torch.bfloat16)[:, ::2])
        hook.save_tensor("x4", torch.ones(1).expand(5))
    told = hook.dry_run_summary().part("default")
    assert hook.counters()["internal_errors"] == 0
    assert told.tensors == 4
    assert told.raw_bytes == 48 + 0 + 12 + 20
    assert told.histogram_bytes > 0


def test_it_is_logged_once_when_the_hook_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "tdbg"):
        hook = trained(1, dry_run=True, include_collections=["weights"])
        hook.close()
    (message,) = caplog.messages
    assert message == str(hook.dry_run_summary())
    assert "weights" in message
    assert "1000 steps" in message
    nothing = td.Hook(dry_run=True)
    assert str(nothing.dry_run_summary()) == "dry run: nothing was captured"
    nothing.close()


def test_a_hook_that_writes_has_no_summary(run_dir: Path) -> None:
    with (
        td.Hook(run_dir) as hook,
        pytest.raises(ConfigurationError, match=r"Hook\(dry_run=True\)"),
    ):
        hook.dry_run_summary()
