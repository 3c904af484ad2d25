"""Data-parallel training in real processes with gloo."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tdbg.compat.smdebug.pytorch as smd
from ranks import read_notes, run_ranks, write_note
from tdbg import _core
from tdbg.capture import budget
from tdbg.config.schedules import Default
from tdbg.errors import TrainingStopped
from tdbg.pytorch import Hook, SaveConfig
from tdbg.run.directory import writer_directories
from tdbg.run.requests import request_stop
from tdbg.trial import create_trial
from torch_helpers import digits, make_hook, mlp

WORLD = 3
BATCH = 4  # On each rank.
N_STEPS = 2
N_ALONE = 24  # Steps without the leader.
PARAMETERS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")


def batches(rank: int, n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share of each batch."""
    source = digits(WORLD * BATCH)
    part = slice(rank * BATCH, (rank + 1) * BATCH)
    whole = [next(source) for _ in range(n)]
    return [(inputs[part], labels[part]) for inputs, labels in whole]


class Branched(nn.Module):
    """A part of it is used in every second step only, another one never."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.seldom = nn.Linear(10, 10)
        self.never = nn.Linear(10, 10)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        result: torch.Tensor = self.body(x)
        return self.seldom(result) if self.count % 2 == 0 else result


def train(
    rank: int,
    model: nn.Module,
    hook: Hook,
    *,
    micro_batches: int = 1,
    first: bool = False,
    **options: Any,
) -> dict[str, list[float]]:
    """Train, hooked before it is wrapped or after; the norms of all gradients."""
    if first:
        hook.register_module(model)
    ddp = DistributedDataParallel(model, **options)
    if not first:
        hook.register_module(ddp)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = iter(batches(rank, N_STEPS * micro_batches))
    norms: dict[str, list[float]] = {}
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        for number in range(micro_batches):
            inputs, labels = next(data)
            if number + 1 < micro_batches:
                with ddp.no_sync():
                    criterion(ddp(inputs), labels).backward()
            else:
                criterion(ddp(inputs), labels).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                norm = float(parameter.grad.double().norm())
                norms.setdefault(name, []).append(norm)
        optimizer.step()
    hook.close()
    return norms


VARIANTS: dict[str, dict[str, Any]] = {
    "after": {},
    "before": {"first": True},
    "accumulating": {"micro_batches": 2},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
}


def data_parallel(rank: int, folder: Path) -> None:
    for name, options in VARIANTS.items():
        hook = make_hook(folder / name, include_workers="all")
        model = Branched() if name == "unused" else mlp()
        norms = train(rank, model, hook, **options)
        write_note(folder, name, rank, {"norms": norms, "counters": hook.counters()})
    hook = make_hook(folder / "one")
    train(rank, mlp(), hook)
    write_note(folder, "one", rank, hook.counters())
    with make_hook(folder / "some", include_workers=[1, 2]) as hook:
        train(rank, mlp(), hook)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    run_ranks(data_parallel, WORLD, folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_the_optimizer_uses(runs: Path, variant: str) -> None:
    trial = create_trial(runs / variant)
    notes = read_notes(runs, variant)
    expected = notes[0]["norms"]
    assert len(expected) >= 4
    for name, norms in expected.items():
        handle = trial.tensor(f"gradient/{name}")
        assert [note["norms"][name] for note in notes.values()] == [norms] * WORLD
        for step, norm in zip(handle.steps(), norms, strict=True):
            for worker in (None, "worker_0", "worker_2"):
                found = handle.stats(step, worker=worker)
                assert found.l2 == pytest.approx(norm, rel=1e-6)
                assert found.count == handle.value(step).size
    for note in notes.values():
        counters = note["counters"]
        assert (counters["refused_tensors"], counters["internal_errors"]) == (0, 0)


def whole_batches(n: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    parts = [batches(rank, n) for rank in range(WORLD)]
    for of_ranks in zip(*parts, strict=True):
        inputs, labels = zip(*of_ranks, strict=True)
        yield torch.cat(inputs), torch.cat(labels)


@pytest.mark.parametrize("variant", ["after", "before", "static", "views"])
def test_what_is_recorded_is_that_of_one_process_with_the_whole_batch(
    runs: Path, variant: str
) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial = create_trial(runs / variant)
    for step, (inputs, labels) in enumerate(whole_batches(N_STEPS)):
        optimizer.zero_grad()
        output = model(inputs)
        loss = criterion(output, labels)
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            weight = trial.tensor(name).value(step)
            gradient = trial.tensor(f"gradient/{name}").value(step)
            assert np.allclose(weight, parameter.detach(), atol=1e-6)
            assert np.allclose(gradient, parameter.grad, atol=1e-6)
        # The batch is in parts, and the loss a mean of each part.
        assert trial.tensor("CrossEntropyLoss_output_0").stats(step).mean == (
            pytest.approx(float(loss.detach()), rel=1e-5)
        )
        found = trial.tensor("Net_output_0").stats(step)
        assert found.count == output.numel()
        assert found.l2 == pytest.approx(
            float(output.detach().double().norm()), rel=1e-5
        )
        optimizer.step()


def test_names_do_not_know_of_the_wrapper(runs: Path) -> None:
    names = [create_trial(runs / each).tensor_names() for each in ("after", "before")]
    assert names[0] == names[1]
    assert not any("module" in name or "Distributed" in name for name in names[0])
    assert {"Net_input_0", "fc1_output_0", *PARAMETERS} <= set(names[0])


def test_accumulated_micro_batches_of_all_ranks_are_one_step(runs: Path) -> None:
    trial = create_trial(runs / "accumulating")
    assert trial.steps() == [0, 1]
    # It is called from two lines, one of them inside of no_sync().
    for name in ("CrossEntropyLoss_output_0", "CrossEntropyLoss_2_output_0"):
        losses = trial.tensor(name)
        assert losses.stats(0).count == WORLD
        assert losses.stats(0, worker="worker_1").count == 1
    assert trial.tensor("Net_output_0").stats(0).count == 2 * WORLD * BATCH * 10


def test_gradients_that_a_step_does_not_have_are_not_recorded(runs: Path) -> None:
    trial = create_trial(runs / "unused")
    assert trial.tensor("gradient/body.fc1.weight").steps() == [0, 1]
    assert trial.tensor("gradient/seldom.weight").steps() == [1]
    assert "gradient/never.weight" not in trial.tensor_names()
    assert trial.tensor("never.weight").steps() == [0, 1]


def test_one_writer_a_rank_and_only_those_that_are_included(runs: Path) -> None:
    def ranks(name: str) -> list[int]:
        return [writer.rank for writer in writer_directories(runs / name)]

    assert ranks("after") == [0, 1, 2]
    assert ranks("one") == [0]
    assert ranks("some") == [1, 2]
    counters = read_notes(runs, "one")
    assert counters[0]["written"] > 0
    assert all(counters[rank]["offered"] == 0 for rank in (1, 2))
    for name in ("one", "some"):
        trial = create_trial(runs / name)
        assert trial.steps() == [0, 1]
        assert trial.step_table()["complete"].all()
        assert trial.tensor("fc1.weight").stats(0).count == 24 * 64


def test_replicated_weights_count_once_and_batches_together(runs: Path) -> None:
    statistics = create_trial(runs / "after").statistics(["fc1.weight", "Net_output_0"])
    expected = [[24 * 64] * 2, [WORLD * BATCH * 10] * 2]
    assert statistics.count.tolist() == expected


def test_all_ranks_share_one_attempt(runs: Path) -> None:
    readers = [
        _core.RunReader(str(each.path)) for each in writer_directories(runs / "after")
    ]
    assert len(readers) == WORLD
    assert len({reader.identity()["attempt"] for reader in readers}) == 1
    assert [a.world_size for a in create_trial(runs / "after").attempts()] == [WORLD]


# --- Stopping -------------------------------------------------------------


def ask_at(n: int) -> Callable[[int, Path], None]:
    """Asks, on the first rank, before step *n*, as if from outside."""

    def ask(step: int, run_dir: Path) -> None:
        if step == n and distributed.get_rank() == 0:
            request_stop(run_dir, reason="enough")

    return ask


def train_until_stopped(hook: Hook | None, before: Callable[[int], None]) -> int:
    """A collective in every step; the step before which it was stopped."""
    model = mlp()
    if hook is not None:
        hook.register_module(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    (inputs, labels) = batches(distributed.get_rank(), 1)[0]
    for step in range(5000):
        before(step)
        try:
            output = ddp(inputs)
        except TrainingStopped:
            return step
        optimizer.zero_grad()
        nn.functional.cross_entropy(output, labels).backward()
        optimizer.step()
    return -1


# The one of smdebug's face.
SMDEBUG = 3


def stop(rank: int, folder: Path) -> None:
    chance = random.Random(rank)
    for trial in range(4):
        run_dir = folder / f"stop{trial}"
        workers = ("one", "all")[trial % 2]
        hook: Any = (
            smd.Hook(run_dir, include_workers=workers)
            if trial == SMDEBUG
            else make_hook(run_dir, include_workers=workers, include_collections=[])
        )
        ask = ask_at(trial)

        def before(
            step: int, run_dir: Path = run_dir, ask: Callable[..., None] = ask
        ) -> None:
            ask(step, run_dir)
            time.sleep(chance.choice((0, 0, 0.002)))

        # Evaluation of one rank alone must not shift anything.
        if rank == 0 and trial == 2:
            other = mlp().eval()
            hook.register_module(other)
            for _ in range(3):
                other(torch.zeros(1, 64))
        stopped = train_until_stopped(hook, before)
        write_note(folder, f"stop{trial}", rank, [stopped, hook.stop_reason])
        hook.close()
        distributed.barrier()
    flag(rank, folder / "flag", folder)
    die(rank, folder / "die", folder)


def flag(rank: int, run_dir: Path, folder: Path) -> None:
    """Only the first rank has a hook; the training has a flag of its own."""
    hook = None
    if rank == 0:
        hook = make_hook(run_dir, on_stop="flag", include_collections=[])

    class Over(Exception):
        pass

    def before(step: int) -> None:
        ask_at(1)(step, run_dir)
        should_stop = torch.tensor(float(hook is not None and hook.should_stop))
        distributed.broadcast(should_stop, 0)
        if should_stop:
            raise Over(str(step))

    try:
        train_until_stopped(hook, before)
    except Over as over:
        write_note(folder, "flag", rank, int(str(over)))
    if hook is not None:
        hook.close()
    distributed.barrier()


def die(rank: int, run_dir: Path, folder: Path) -> None:
    """The rank that leads, and serves the store, dies; the others go on alone."""
    hook = make_hook(run_dir, include_workers="all", include_collections=["weights"])

    def before(step: int) -> None:
        if rank == 0 and step == 3:
            hook.flush()
            os._exit(0)

    with contextlib.suppress(RuntimeError):  # Of the collective.
        train_until_stopped(hook, before)
    model = mlp()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = time.monotonic()
    for _ in range(N_ALONE):
        optimizer.zero_grad()
        model(torch.zeros(1, 64)).sum().backward()
        optimizer.step()
    content = [time.monotonic() - start, hook.counters()["internal_errors"]]
    write_note(folder, "die", rank, [*content, hook.close()])
    os._exit(0)  # Whoever waits for the dead would wait long.


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stop")
    run_ranks(stop, WORLD, folder)
    return folder


@pytest.mark.parametrize("trial", range(4))
def test_all_ranks_stop_at_the_same_step(stopped: Path, trial: int) -> None:
    """Whether they write or not, however they are apart within a step."""
    found = read_notes(stopped, f"stop{trial}")
    assert sorted(found) == [0, 1, 2]
    assert found[0][0] > 0, "nobody was stopped"
    assert list(found.values()) == [[found[0][0], "enough"]] * WORLD
    if trial == SMDEBUG:
        assert len(create_trial(stopped / f"stop{trial}").attempts()) == 1


def test_a_hook_on_the_first_rank_alone_hangs_nobody(stopped: Path) -> None:
    found = read_notes(stopped, "flag")
    assert sorted(found) == [0, 1, 2]
    assert len(set(found.values())) == 1


def test_a_rank_that_dies_leaves_the_others_and_its_data(stopped: Path) -> None:
    found = read_notes(stopped, "die")
    assert sorted(found) == [1, 2]
    for seconds, n_errors, all_written in found.values():
        # PyTorch waits five minutes for one.
        assert seconds < 240, "a dead store was waited for"
        assert n_errors == 0
        assert all_written
    trial = create_trial(stopped / "die")
    weight = trial.tensor("fc1.weight")
    assert weight.steps()[:3] == [0, 1, 2]
    assert weight.stats(1, worker="worker_0").count == 24 * 64
    assert trial.steps(what="any")[-1] >= N_ALONE


# ---- the budget ------------------------------------------------------------------


def _keep_budget(rank: int, folder: Path) -> None:
    """A training of which any capture is too expensive, by a clock of its leader."""
    budget.AUTO_HORIZON_NS, budget.AUTO_SHARE = 0, 1e-4
    budget.FLOOR_STEPS = 1
    hook = make_hook(
        folder,
        include_workers="all",
        include_collections=["weights"],
        save_config=SaveConfig(statistics_interval=Default(2)),
        budget="auto",
    )
    model = mlp()
    hook.register_module(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for inputs, _ in itertools.islice(digits(4), 300):
        ddp(inputs).sum().backward()
        optimizer.step()
    counters = hook.counters()
    write_note(
        folder,
        "budget",
        rank,
        {
            "budget": hook.overhead().budget,
            "left_out": hook.overhead().left_out,
            "errors": counters["internal_errors"],
        },
    )
    hook.close()


def test_the_first_rank_keeps_the_budget_and_all_capture_the_same_steps(
    run_dir: Path,
) -> None:
    run_ranks(_keep_budget, 2, run_dir)
    notes = read_notes(run_dir, "budget")
    leader, other = notes[0], notes[1]
    assert leader["budget"] == 1e-4
    assert "instead of 2" in leader["left_out"]
    assert other["budget"] is None
    assert leader["errors"] == other["errors"] == 0
    trial = create_trial(run_dir)
    weight = trial.tensor("fc1.weight")
    steps = weight.steps()
    for step in steps:
        assert sorted(weight.workers(step)) == ["worker_0", "worker_1"], step
    assert steps[0] == 0
    assert len(steps) < 100  # Of the 150 that were asked for.
