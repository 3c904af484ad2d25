"""Trainers of others, and smdebug's face, on two ranks, as torchrun starts them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tdbg.compat.smdebug.pytorch as smd
from ranks import read_notes, run_ranks, write_note
from tdbg.modes import EVAL, TRAIN
from tdbg.run.directory import writer_directories
from tdbg.run.requests import request_stop
from tdbg.trial import create_trial
from torch_helpers import digits, make_hook, mlp
from torch_helpers import train as train_plainly

pytestmark = [pytest.mark.torch, pytest.mark.slow]
WORLD = 2
BATCH = 8  # Of Lightning, on each rank.


def rank_main(rank: int, folder: Path) -> None:
    os.environ |= {
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    warnings.simplefilter("ignore")
    clipped(rank, folder)
    smdebug(rank, folder)
    lightning(rank, folder)
    distributed.barrier()
    transformers(rank, folder)


def clipped(rank: int, folder: Path) -> None:
    requested = ["gradients", "unclipped_gradients"]
    hook = make_hook(
        folder / "clipped", include_workers="all", include_collections=requested
    )
    model = mlp()
    ddp = DistributedDataParallel(model)
    hook.register_module(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    inputs, labels = next(digits(WORLD * BATCH))
    loss = nn.functional.cross_entropy(ddp(inputs[rank::WORLD]), labels[rank::WORLD])
    loss.backward()
    norms = {
        name: float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
    optimizer.step()
    write_note(folder, "clipped", rank, norms)
    hook.close()


def smdebug(rank: int, folder: Path) -> None:
    hook = smd.Hook(
        str(folder / "smdebug"),
        save_config=smd.SaveConfig(save_interval=1),
        include_collections=["gradients", "losses"],
        include_workers="all",
    )
    ddp = DistributedDataParallel(mlp())
    hook.register_module(ddp)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    batches = (
        (inputs[rank::WORLD], labels[rank::WORLD])
        for inputs, labels in digits(WORLD * BATCH)
    )
    train_plainly(ddp, criterion, optimizer, batches, 3)
    gradient = ddp.module.fc1.weight.grad
    write_note(folder, "smdebug", rank, gradient.tolist())
    hook.close()


def lightning(rank: int, folder: Path) -> None:
    import tests.python.integrations.test_lightning as given

    tdbg = given.callback(folder / "lightning", include_workers="all")
    model = given.Digits()
    options = {"accelerator": "cpu", "devices": WORLD, "strategy": "ddp"}
    work = given.trainer(folder, tdbg, **options)
    work.fit(model, given.loader(4, BATCH), given.loader(2, BATCH))
    content = {"steps": work.global_step, "net.0.weight": model.net[0].weight.tolist()}
    write_note(folder, "lightning", rank, content)

    class Ask(given.L.Callback):  # type: ignore[misc]
        def on_train_batch_end(
            self, _: Any, __: Any, ___: Any, ____: Any, n: int
        ) -> None:
            if rank == 0 and n == 2:
                request_stop(folder / "stop", reason="enough")

    tdbg = given.callback(folder / "stop")
    options["callbacks"] = [tdbg, Ask()]
    work = given.trainer(folder, tdbg, **options, max_epochs=50)
    work.fit(given.Digits(), given.loader(40, BATCH))
    write_note(folder, "stop", rank, [work.global_step, work.should_stop])


def transformers(rank: int, folder: Path) -> None:
    import tests.python.integrations.test_transformers as given

    tdbg = given.callback(folder / "transformers", include_workers="all")
    work = given.trainer(folder, tdbg, eval_strategy="steps", eval_steps=2)
    work.train()
    note = {"steps": work.state.global_step, "parallel": str(work.args.parallel_mode)}
    write_note(folder, "transformers", rank, note)

    class Ask(given.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if rank == 0 and state.global_step == 3:
                request_stop(folder / "stop_transformers", reason="enough")

    tdbg = given.callback(folder / "stop_transformers")
    work = given.trainer(folder, tdbg, max_steps=500)
    work.add_callback(Ask())
    work.train()
    write_note(folder, "stop_transformers", rank, work.state.global_step)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainers")
    run_ranks(rank_main, WORLD, folder, seconds=180)
    return folder


def check_parallel(runs: Path, name: str, weight: str, n_steps: int) -> Any:
    """Each rank has written, and gradients are the reduced ones on all."""
    trial = create_trial(runs / name)
    assert [each.rank for each in writer_directories(runs / name)] == [0, 1]
    assert len(trial.attempts()) == 1
    assert trial.steps(mode=TRAIN) == list(range(n_steps))
    assert trial.step_table()["complete"].all()
    gradient = trial.tensor(f"gradient/{weight}")
    assert gradient.steps(mode=TRAIN) == list(range(n_steps))
    for step in range(n_steps):
        rows = [
            gradient.stats(step, mode=TRAIN, worker=f"worker_{rank}")
            for rank in range(WORLD)
        ]
        assert rows[0].l2 == rows[1].l2 > 0
        assert rows[0].count == gradient.stats(step, mode=TRAIN).count
    return trial


def test_gradients_before_clipping_are_reduced_ones(runs: Path) -> None:
    """They are copied when the backward is over, and so is their reduction."""
    trial = create_trial(runs / "clipped")
    notes = read_notes(runs, "clipped")
    assert notes[0] == notes[1]
    assert len(notes[0]) == 4
    for name, norm in notes[0].items():
        assert trial.tensor(f"gradient/{name}").stats(0).l2 < 1.01e-2 < norm
        before = trial.tensor(f"gradient_unclipped/{name}")
        for worker in (None, "worker_0", "worker_1"):
            found = before.stats(0, worker=worker).l2
            assert found == pytest.approx(norm, rel=1e-6)


def test_the_face_of_smdebug_under_data_parallelism(runs: Path) -> None:
    trial = smd.create_trial(str(runs / "smdebug"))
    assert trial.steps() == [0, 1, 2]
    assert trial.workers() == ["worker_0", "worker_1"]
    (name,) = trial.tensor_names(regex="^gradient/.*fc1.weight$")
    (loss,) = trial.tensor_names(collection="losses")
    losses = set()
    for rank, gradient in read_notes(runs, "smdebug").items():
        worker = f"worker_{rank}"
        found = trial.tensor(name).value(2, worker=worker)
        assert np.array_equal(found, np.float32(gradient)), "reduced"
        losses.add(float(trial.tensor(loss).value(2, worker=worker)))
    assert len(losses) == WORLD, "each has its share of the batch"


def test_lightning_under_data_parallelism(runs: Path) -> None:
    trial = check_parallel(runs, "lightning", "net.0.weight", 2)
    notes = read_notes(runs, "lightning")
    assert {note["steps"] for note in notes.values()} == {2}
    output = trial.tensor("net.0_output_0")
    assert output.stats(0, mode=TRAIN).count == WORLD * BATCH * 24
    # One step more than the last weights that were captured, by SGD.
    weight = trial.tensor("net.0.weight").value(1, mode=TRAIN)
    gradient = trial.tensor("gradient/net.0.weight").value(1, mode=TRAIN)
    after = torch.tensor(weight) - 0.1 * torch.tensor(gradient)
    for note in notes.values():
        assert torch.allclose(after, torch.tensor(note["net.0.weight"]), atol=1e-6)
    loss = trial.tensor("loss_output_0")
    of_ranks = [loss.value(0, mode=TRAIN, worker=f"worker_{r}") for r in range(WORLD)]
    assert of_ranks[0] != of_ranks[1], "each has its share of the batch"
    assert trial.steps(mode=EVAL) == [0, 1]  # One of the sanity check.


def test_transformers_under_data_parallelism(runs: Path) -> None:
    weight = "classifier.weight"
    trial = check_parallel(runs, "transformers", weight, 4)
    notes = read_notes(runs, "transformers")
    expected = {"steps": 4, "parallel": "ParallelMode.DISTRIBUTED"}
    assert list(notes.values()) == [expected] * WORLD
    loss = trial.tensor("loss_output_0")
    assert loss.steps(mode=TRAIN) == [0, 1, 2, 3]
    assert loss.stats(0, mode=TRAIN).count == WORLD
    assert trial.tensor("classifier_output_0").stats(0, mode=TRAIN).count == 2 * 4 * 10
    assert len(trial.steps(mode=EVAL)) > 0


def test_a_stop_ends_trainers_of_all_ranks_at_one_step(runs: Path) -> None:
    notes = read_notes(runs, "stop")
    ((step, should_stop),) = {tuple(note) for note in notes.values()}
    assert len(notes) == WORLD
    assert should_stop
    assert 2 < step < 50 * 20
    steps = list(read_notes(runs, "stop_transformers").values())
    assert len(steps) == WORLD
    assert len(set(steps)) == 1
    assert 3 < steps[0] < 500
