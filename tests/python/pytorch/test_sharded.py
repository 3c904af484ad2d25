"""Sharded training in real processes with gloo: FSDP2, hybrid, tensor-parallel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from ranks import read_notes, run_ranks, write_note
from tdbg.errors import TensorUnavailableForStep
from tdbg.trial import create_trial
from torch_helpers import digits, make_hook

# Four ranks, of six kinds.
pytestmark = [pytest.mark.torch, pytest.mark.slow]

WORLD = 4
BATCH = 4  # On each rank.
N_STEPS = 2
CLIPPED = ["gradients", "unclipped_gradients", "updates"]


def network() -> nn.Module:
    """Parts that four ranks share evenly, unevenly, and so that one has nothing."""
    torch.manual_seed(3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(64, 24)
            self.relu = nn.ReLU()
            self.fc2 = nn.Linear(24, 10)
            self.fc3 = nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.fc3(self.fc2(self.relu(self.fc1(x))))
            return result

    return Net()


def fully_sharded(mesh: DeviceMesh) -> nn.Module:
    model = network()
    for part in model.children():
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(mesh: DeviceMesh, *, keeps_shards: bool = False) -> nn.Module:
    columns = ColwiseParallel(use_local_output=not keeps_shards)
    plan = {"fc1": columns, "fc2": RowwiseParallel()}
    return parallelize_module(network(), mesh, plan)


def train(
    rank: int,
    model: nn.Module,
    folder: Path,
    name: str,
    *,
    splits: int = WORLD,
    shard: Callable[[], None] = lambda: None,
    clip: float | None = None,
) -> None:
    """Train on this rank's share, and note what the whole gradients are."""
    requested: dict[str, Any] = {} if clip is None else {"include_collections": CLIPPED}
    hook = make_hook(folder / name, include_workers="all", **requested)
    hook.register_module(model)
    shard()
    hook.register_loss(nn.CrossEntropyLoss())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = digits(splits * BATCH)
    at = rank * splits // WORLD * BATCH
    truth: list[dict[str, Any]] = []
    for _ in range(N_STEPS):
        inputs, labels = (each[at : at + BATCH] for each in next(source))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels % 3)
        loss.backward()
        of_step: dict[str, Any] = {}
        for path, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None
            found: dict[str, Any] = {"local": float(gradient.norm().item())}
            if isinstance(gradient, DTensor):
                found["placements"] = [str(each) for each in gradient.placements]
                gradient = gradient.full_tensor()
            weight = parameter.detach()
            if isinstance(weight, DTensor):
                weight = weight.full_tensor()
            found["norm"] = float(gradient.double().norm())
            found["gradient"] = gradient.tolist()
            found["weight"] = weight.tolist()
            of_step[path] = found
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        truth.append(of_step)
        optimizer.step()
    write_note(folder, name, rank, {"truth": truth, "counters": hook.counters()})
    hook.close()


def strange(rank: int, folder: Path, mesh: DeviceMesh) -> None:
    """DTensors given by hand."""
    with make_hook(folder / "strange", include_workers="all") as hook:
        local = torch.full((2, 3), float(rank))
        given = {
            "partial": DTensor.from_local(local, mesh, [Partial()]),
            "columns": DTensor.from_local(local, mesh, [Shard(1)]),
            "same": DTensor.from_local(torch.ones(2), mesh, [Replicate()]),
        }
        for name, tensor in given.items():
            hook.save_tensor(name, tensor)
        hook.save_scalar("same", DTensor.from_local(torch.ones(1), mesh, [Replicate()]))
        before = hook.counters()["refused_tensors"]
        part = DTensor.from_local(torch.ones(1), mesh, [Partial()])
        hook.save_scalar("partial", part)
        # A result that nobody has waited for yet.
        on_its_way = all_gather_tensor(local, 0, mesh)
        kind = type(on_its_way).__name__
        hook.save_tensor("waited", on_its_way)
        refused = [before, hook.counters()["refused_tensors"]]
        hook.flush()
        write_note(folder, "strange", rank, {"refused": refused, "kind": kind})


def sharded(rank: int, folder: Path) -> None:
    flat = init_device_mesh("cpu", (WORLD,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    train(rank, fully_sharded(flat), folder, "fsdp")
    train(rank, fully_sharded(grid), folder, "hybrid")
    train(rank, fully_sharded(flat), folder, "clipped", clip=1e-2)
    late = network()

    def shard_late() -> None:
        fully_shard(late, mesh=flat)

    train(rank, late, folder, "late", shard=shard_late)
    train(rank, tensor_parallel(grid["tp"]), folder, "tensor", splits=2)
    model = tensor_parallel(grid["tp"], keeps_shards=True)
    train(rank, model, folder, "activations", splits=2)
    both = tensor_parallel(grid["tp"])
    for part in both.children():
        fully_shard(part, mesh=grid["dp"])
    fully_shard(both, mesh=grid["dp"])
    train(rank, both, folder, "both", splits=2)
    strange(rank, folder, flat)
    # One writer alone sees one shard.
    with make_hook(folder / "one", include_collections=["weights"]) as hook:
        model = fully_sharded(flat)
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.zeros(2, 64)).sum().backward()
        optimizer.step()
    distributed.barrier()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    run_ranks(sharded, WORLD, folder)
    return folder


SHARDED = ["fsdp", "hybrid", "late", "tensor", "activations", "both"]


@pytest.mark.parametrize("kind", SHARDED)
def test_rows_and_values_of_shards_are_those_of_the_whole(
    runs: Path, kind: str
) -> None:
    trial = create_trial(runs / kind)
    notes = read_notes(runs, kind)
    for note in notes.values():
        counters = note["counters"]
        assert (counters["refused_tensors"], counters["internal_errors"]) == (0, 0)
    for step, of_step in enumerate(notes[0]["truth"]):
        for name, truth in of_step.items():
            gradient = trial.tensor(f"gradient/{name}")
            found = gradient.stats(step)
            whole = np.array(truth["gradient"], np.float32)
            # In a group of its own each replica has seen its own batch.
            assert found.count == whole.size
            assert found.l2 == pytest.approx(truth["norm"], rel=1e-6), name
            assert np.array_equal(gradient.value(step), whole)
            assert gradient.shape(step) == whole.shape
            weight = trial.tensor(name)
            assert np.array_equal(weight.value(step), np.float32(truth["weight"]))


def test_the_norm_of_a_shard_is_not_that_of_the_gradient(runs: Path) -> None:
    """What ``gradient.norm().item()`` answers is of this rank's shard alone."""
    trial = create_trial(runs / "fsdp")
    truth = read_notes(runs, "fsdp")[0]["truth"][0]["fc1.weight"]
    assert truth["placements"] == ["S(0)"]
    assert abs(truth["local"] / truth["norm"] - 1) > 1e-3
    handle = trial.tensor("gradient/fc1.weight")
    assert handle.stats(0).l2 == pytest.approx(truth["norm"], rel=1e-6)
    of_rank = handle.stats(0, worker="worker_0").l2
    assert of_rank == pytest.approx(truth["local"], rel=1e-6)


@pytest.mark.parametrize("kind", ["fsdp", "hybrid", "both"])
def test_states_of_the_optimizer_and_updates_are_those_of_the_whole(
    runs: Path, kind: str
) -> None:
    """With AdamW's first step the moments follow from the gradient."""
    trial = create_trial(runs / kind)
    truth = read_notes(runs, kind)[0]["truth"]
    before, after = (np.array(each["fc1.weight"]["weight"]) for each in truth)
    update = trial.tensor("update/fc1.weight")
    assert np.allclose(update.value(0), after - before, atol=1e-7)
    assert update.stats(0).count == 24 * 64
    moment = trial.tensor("optimizer/exp_avg/fc1.weight")
    step = moment.steps()[-1]
    assert moment.stats(step).count == 24 * 64
    assert moment.value(step).shape == (24, 64)


def test_gradients_before_clipping_and_updates_are_those_of_the_whole(
    runs: Path,
) -> None:
    """Rows of shards merged; each rank clips by the norm of the whole."""
    trial = create_trial(runs / "clipped")
    notes = read_notes(runs, "clipped")
    truth = notes[0]["truth"]
    squares = 0.0
    for path, of_tensor in truth[0].items():
        before = trial.tensor(f"gradient_unclipped/{path}")
        assert before.stats(0).l2 == pytest.approx(of_tensor["norm"], rel=1e-6)
        whole = np.float32(of_tensor["gradient"])
        assert np.array_equal(before.value(0), whole)
        after = trial.tensor(f"gradient/{path}").stats(0)
        assert after.count == whole.size
        squares += after.l2**2
        update = trial.tensor(f"update/{path}")
        step = np.float64(truth[1][path]["weight"]) - np.float64(of_tensor["weight"])
        assert update.stats(0).l2 == pytest.approx(np.linalg.norm(step), rel=1e-4)
        assert update.stats(0).count == whole.size
        assert update.stats(0).max == pytest.approx(step.max(), rel=1e-4)
    assert squares**0.5 == pytest.approx(1e-2, rel=1e-3)
    for note in notes.values():
        assert note["counters"]["refused_tensors"] == 0


def test_uneven_and_empty_shards(runs: Path) -> None:
    trial = create_trial(runs / "fsdp")
    counts = [
        trial.tensor("fc3.bias").stats(0, worker=f"worker_{rank}").count
        for rank in range(WORLD)
    ]
    assert counts == [1, 1, 1, 0]
    assert trial.tensor("fc3.bias").shape(0, worker="worker_3") == (0,)
    rows = [trial.tensor("fc2.weight").shape(0, worker=w)[0] for w in trial.workers()]
    assert rows == [3, 3, 3, 1]


def test_names_are_those_of_the_model_before_it_was_sharded(runs: Path) -> None:
    names = set(create_trial(runs / "fsdp").tensor_names())
    assert {"Net_input_0", "fc1.weight", "gradient/fc3.bias"} <= names
    assert not any("FSDP" in name for name in names)


@pytest.mark.parametrize("kind", SHARDED)
def test_facts_are_of_the_whole_model(runs: Path, kind: str) -> None:
    shapes = {name: tuple(each.shape) for name, each in network().named_parameters()}
    (model_info,) = create_trial(runs / kind).model_info()
    assert {name: each.shape for name, each in model_info.parameters.items()} == shapes
    assert {each.module for each in model_info.parameters.values()} == {"Linear"}
    assert {each.optimizer for each in model_info.parameters.values()} == {0}
    assert model_info.modules == {
        "Net": "Net",
        "relu": "ReLU",
        **dict.fromkeys(("fc1", "fc2", "fc3"), "Linear"),
    }
    assert model_info.complete


def test_activations_of_all_ranks_are_the_whole_batch(runs: Path) -> None:
    found = create_trial(runs / "fsdp").tensor("Net_output_0").stats(0)
    assert found.count == WORLD * BATCH * 3


def test_sharded_activations_count_once_for_each_part_of_the_batch(
    runs: Path,
) -> None:
    """Two groups of two ranks that have half of the columns each."""
    trial = create_trial(runs / "activations")
    handle = trial.tensor("fc1_output_0")
    assert handle.stats(0).count == 2 * BATCH * 24
    assert handle.stats(0, worker="worker_1").count == BATCH * 12
    assert handle.value(0).shape == (BATCH, 24)
    # The batch is that of the group of the first rank.
    model = network()
    inputs, _ = next(digits(2 * BATCH))
    expected = model.fc1(inputs[:BATCH]).detach()
    assert np.allclose(handle.value(0), expected, atol=1e-5)


def test_parts_of_sums_are_refused_and_counted(runs: Path) -> None:
    trial = create_trial(runs / "strange")
    for note in read_notes(runs, "strange").values():
        assert note["refused"] == [1, 2]
        assert note["kind"] == "AsyncCollectiveTensor"
    assert "partial" not in trial.tensor_names()
    assert "scalar/partial" not in trial.tensor_names()
    assert trial.tensor("scalar/same").value(0) == 1.0
    expected = np.repeat([[0.0, 1, 2, 3]] * 2, 3, axis=1)
    assert np.array_equal(trial.tensor("columns").value(0), expected)
    assert trial.tensor("same").stats(0).count == 2
    waited = trial.tensor("waited").value(0)
    assert waited.shape == (2 * WORLD, 3)
    assert np.array_equal(waited[:, 0], np.repeat(np.arange(WORLD), 2))


def test_one_writer_of_a_sharded_model_has_one_part(runs: Path) -> None:
    handle = create_trial(runs / "one").tensor("fc1.weight")
    with pytest.raises(TensorUnavailableForStep, match="1 of 4 parts saved"):
        handle.value(0)
    assert handle.value(0, worker="worker_0").shape == (6, 64)


def watch_one(rank: int, folder: Path) -> None:
    """Only rank 0 has a hook, of a model whose layers checks compare with later."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    copy = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    copy.load_state_dict(model.state_dict())
    mesh = init_device_mesh("cpu", (2,))
    for each in (model, copy):
        fully_shard(each, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = None
    if rank == 0:
        hook = make_hook(folder / "watched")
        hook.register_module(model)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(8, 4)
        (model(x) - copy(x).detach()).square().mean().backward()
        optimizer.step()
    if hook is not None:
        write_note(folder, "watched", rank, hook.counters()["internal_errors"])
        hook.close()


def test_no_rank_waits_for_one_that_has_a_hook(tmp_path: Path) -> None:
    run_ranks(watch_one, 2, tmp_path, seconds=120)
    assert read_notes(tmp_path, "watched") == {0: 0}
