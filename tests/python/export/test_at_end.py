"""Hooks that export to TensorBoard when their run has ended, and never before."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg.compat.smdebug.pytorch as smd
import tdbg.pytorch as td
from run_builder import RunBuilder, simple_run
from tdbg import create_trial
from tdbg.export import at_end, export_tensorboard
from tdbg.export.at_end import ExportAtEnd
from tdbg.integrations.transformers import TdbgCallback
from tensorboard_helpers import KeyValueStore, files
from torch_helpers import EVERYTHING, digits, make_hook, mlp, train

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "tensorboard_training.py"


def trained(hook: Any, n_steps: int = 4) -> list[float]:
    """Losses of a training, with an evaluation after it; then the hook is closed."""
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    hook.register_loss(criterion)
    losses = train(model, criterion, optimizer, digits(16), n_steps)
    hook.save_scalar("accuracy", 0.25)
    model.eval()
    inputs, labels = next(digits(16))
    losses.append(criterion(model(inputs), labels).item())
    assert hook.close()
    assert hook.counters()["internal_errors"] == 0
    return losses


def test_a_training_has_its_files_when_it_is_closed(run_dir: Path) -> None:
    hook = make_hook(
        run_dir, export_tensorboard=True, include_collections=["weights", "gradients"]
    )
    assert not (run_dir / "tensorboard").exists()
    losses = trained(hook)
    assert hook.counters()["failed_exports"] == 0
    name = "CrossEntropyLoss_output_0"
    train_board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    eval_board = KeyValueStore(run_dir / "tensorboard" / "EVAL")
    assert train_board.scalar_tags == {name, "scalar/accuracy"}
    found = {**train_board.scalars(name), **eval_board.scalars(name)}
    assert [found[step] for step in range(5)] == losses
    tags = {
        f"{layer}.{kind}" for layer in ("fc1", "fc2") for kind in ("weight", "bias")
    }
    weights = {tag for tag in tags if "weight" in tag}
    assert train_board.histogram_tags == {
        *(f"weights/{tag}" for tag in weights),
        *(f"gradients/gradient/{tag}" for tag in tags),
    }
    assert eval_board.histogram_tags == {f"weights/{tag}" for tag in weights}
    gradient = create_trial(run_dir).tensor("gradient/fc1.weight")
    for step, histogram in train_board.histograms(
        "gradients/gradient/fc1.weight"
    ).items():
        assert sum(histogram.bucket) == 24 * 64
        assert histogram.max == gradient.stats(step).max


def test_the_folder_histograms_and_files_of_settings_are_as_asked_for(
    run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "hook.yaml"
    out = tmp_path / "tb"
    path.write_text(
        f"{{out_dir: {run_dir}, tensorboard_dir: {out}, save_all: true,\n"
        "collections: {biases: {save_histogram: false}, all: {save_histogram: false},\n"
        "weights: {save_histogram: true}}}"
    )
    trained(td.Hook.create_from_file(path))
    board = KeyValueStore(out / "TRAIN")
    assert board.histogram_tags == {"weights/fc1.weight", "weights/fc2.weight"}
    assert not (run_dir / "tensorboard").exists()
    again = tmp_path / "again"
    trained(make_hook(again, export_tensorboard=True, save_histogram=False))
    assert KeyValueStore(again / "tensorboard" / "TRAIN").histogram_tags == set()


@pytest.mark.parametrize("make", [td.Hook, smd.Hook])
def test_without_the_package_the_training_goes_on_and_is_exported_afterwards(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    make: Any,
) -> None:
    schedule = make is smd.Hook and smd.SaveConfig(save_interval=1)
    with monkeypatch.context() as without:
        for name in ("tensorboard", "tensorboard.compat.proto.event_pb2"):
            without.setitem(sys.modules, name, None)
        hook = make(run_dir, export_tensorboard=True, save_config=schedule or None)
        (message,) = caplog.messages
        assert "pip install 'tdbg[tensorboard]'" in message
        out = run_dir / "tensorboard"
        assert f"`tdbg export tensorboard {run_dir} --out {out}`" in message
        losses = trained(hook)
    assert hook.counters()["failed_exports"] == 1
    assert hook.counters()["internal_errors"] == 0
    assert "is incomplete" in caplog.messages[-1]
    export_tensorboard(run_dir, out)
    board = KeyValueStore(out / "TRAIN")
    assert len(board.scalars("CrossEntropyLoss_output_0")) == len(losses) - 1
    smd.del_hook()


def test_the_package_may_be_installed_while_the_training_goes_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
        hook = td.Hook(run_dir, export_tensorboard=True)
        callback = TdbgCallback(run_dir, export_tensorboard=True)
    assert callback.hook is None
    losses = trained(hook)
    assert hook.counters()["failed_exports"] == 0
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    assert len(board.scalars("CrossEntropyLoss_output_0")) == len(losses) - 1


def test_an_export_that_fails_is_counted_and_logged_and_the_run_is_whole(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "tb"
    hook = make_hook(run_dir, tensorboard_dir=out)
    with caplog.at_level(logging.WARNING, "tdbg"):
        trained(hook)
    assert hook.counters()["failed_exports"] == 1
    (message,) = caplog.messages
    assert "NotADirectoryError" not in message
    assert f"cannot make {out}" in message
    assert f"`tdbg export tensorboard {run_dir} --out {out}` completes it" in message
    assert create_trial(run_dir).loaded_all_steps


def test_an_export_that_takes_too_long_is_counted(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(at_end, "SECONDS", 0.0)
    hook = make_hook(run_dir, export_tensorboard=True)
    trained(hook)
    assert hook.counters()["failed_exports"] == 1
    assert "0 s were not enough; exported 1 step" in caplog.text


def test_a_run_beside_that_of_another_training_is_exported_too(
    run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tb"
    simple_run(tmp_path / "other")
    export_tensorboard(tmp_path / "other", out)
    hook = make_hook(run_dir, tensorboard_dir=out)
    trained(hook)
    assert hook.counters()["failed_exports"] == 0
    assert sorted(name.partition("/")[0] for name in files(out)) == [
        *("EVAL", "TRAIN", "TRAIN")
    ]


def test_nothing_is_exported_where_nothing_is_written(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with td.Hook(dry_run=True, export_tensorboard=True, save_config=EVERYTHING) as hook:
        hook.register_module(mlp())
    assert hook.counters()["failed_exports"] == 0
    monkeypatch.setenv("TDBG_DISABLED", "1")
    td.Hook(run_dir, export_tensorboard=True).close()
    assert not list(tmp_path.iterdir())


def test_of_several_ranks_the_last_one_to_end_exports_what_is_missing(
    run_dir: Path,
) -> None:
    workers = [RunBuilder(run_dir, rank=rank, world_size=2) for rank in range(2)]
    for rank, worker in enumerate(workers):
        for step in range(3 - rank):
            worker.scalar(step, "scalar/x", step)
            worker.end_step(step)
        worker.flush()
    first, second = (ExportAtEnd(run_dir, leads=leads) for leads in (True, False))
    out = run_dir / "tensorboard" / "TRAIN"
    second()  # Nothing has ended.
    assert not out.exists()
    workers[0].close()
    first()
    assert list(KeyValueStore(out).scalars("scalar/x")) == [0, 1]
    workers[1].close()
    second()
    assert list(KeyValueStore(out).scalars("scalar/x")) == [0, 1, 2]
    assert (first.n_failed, second.n_failed) == (0, 0)


def run_program(how: str, run: Path) -> int:
    return subprocess.run(
        [sys.executable, str(PROGRAM), how, str(run)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    ).returncode


def test_a_training_that_never_closes_its_hook_has_its_files_and_its_children_none(
    run_dir: Path,
) -> None:
    assert run_program("exit", run_dir) == 3
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    assert list(board.scalars("CrossEntropyLoss_output_0")) == [0, 1, 2]
    notes = json.loads((run_dir.parent / "child.json").read_text())
    assert notes == {"has_exported": False, "failed_exports": 0}


def test_a_training_that_is_killed_is_exported_later(run_dir: Path) -> None:
    assert run_program("kill", run_dir) == -signal.SIGKILL
    assert not (run_dir / "tensorboard").exists()
    report = export_tensorboard(run_dir)
    assert report.steps == 3
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    assert list(board.scalars("CrossEntropyLoss_output_0")) == [0, 1, 2]
