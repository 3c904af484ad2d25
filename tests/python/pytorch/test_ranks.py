"""Who a process is among the ranks of a training, and which of them write."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.capture.ranks import AttemptId, find_attempt, launch_name, launched_rank
from tdbg.config import Collection
from tdbg.config.options import parse_workers
from tdbg.errors import ConfigurationError
from tdbg.hooks.pytorch.device.distributed import TorchStore
from tdbg.hooks.pytorch.model.module_tree import class_name, named_modules, unwrapped
from tdbg.pytorch import Hook
from tdbg.run.directory import create_run, writer_directories
from tdbg.trial import create_trial
from torch_helpers import digits, make_hook, mlp, parts, train

_VARIABLES = (
    *("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"),
    *("SLURM_PROCID", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"),
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3"}, (1, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (3, 8)),
        # torchrun on each node of a Slurm job: its own variables count.
        (
            {
                "RANK": "5",
                "WORLD_SIZE": "16",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
            },
            (5, 16),
        ),
        # What a batch script or an allocation sets around a training of one process.
        ({"SLURM_PROCID": "0"}, (0, 1)),
        ({"SLURM_NTASKS": "4"}, (0, 1)),
    ],
)
def test_the_place_is_that_of_the_launchers_variables(
    variables: dict[str, str], expected: tuple[int, int]
) -> None:
    assert launched_rank(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK='1' is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE='2' is set and RANK is not"),
        ({"RANK": "two", "WORLD_SIZE": "4"}, "RANK='two'"),
        ({"RANK": "0", "WORLD_SIZE": "-4"}, "WORLD_SIZE='-4'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 is not below"),
        ({"PMI_RANK": "1"}, "PMI_SIZE is not"),
        ({"SLURM_PROCID": "x", "SLURM_NTASKS": "2"}, "SLURM_PROCID='x'"),
    ],
)
def test_variables_that_make_no_sense_are_an_error(
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    run_dir: Path,
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        launched_rank(variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Hook(run_dir)


def test_a_start_of_a_training_goes_by_its_launchers_name() -> None:
    assert launch_name({}) == ""
    elastic = {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert launch_name(elastic) == "a/1"
    assert launch_name({"SLURM_JOB_ID": "7"}) == "7/"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("one", (0,)), ("all", (0, 1, 2, 3)), ([2], (2,)), ((3, 1, 1), (1, 3))],
)
def test_the_workers_that_write(given: Any, expected: tuple[int, ...]) -> None:
    assert parse_workers(given, 4) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("al", "did you mean 'all'"),
        (4, "unknown 4"),
        ([4], "no rank 4"),
        ([-1], "no rank -1"),
        ([True], "True is not a rank"),
        (["1"], "'1' is not a rank"),
        ([], "an empty list"),
    ],
)
def test_workers_that_are_none_are_an_error(
    given: Any, message: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Hook(run_dir, include_workers=given)
    assert not run_dir.exists()


def test_the_hook_of_a_rank_that_does_not_write_is_valid_and_inert(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    hook = make_hook(
        run_dir,
        save_all=True,
        rules=["DeadRelu", "VanishingGradient"],
        collections=[Collection("mine", "fc1")],
    )
    model, criterion, optimizer, batches = parts()
    hook.register_module(model)
    hook.register_loss(criterion)
    assert hook.register_loss(nn.functional.mse_loss)(torch.ones(2), torch.ones(2)) == 0
    hook.register_optimizer(optimizer)
    train(model, criterion, optimizer, batches, 2)
    hook.save_scalar("s", 1.0)
    hook.save_tensor("t", torch.ones(2), ["new"])
    hook.record_tensor_value("my_loss", torch.ones(1))
    assert hook.get_collection("mine").name == "mine"
    assert set(hook.get_collections()) > {"mine", "losses"}
    hook.add_collection(Collection("more", "fc2"))
    hook.set_mode(None)
    assert not hook.should_stop
    assert hook.stop_reason is None
    assert hook.counters()["offered"] == 0
    assert hook.counters()["internal_errors"] == 0
    assert hook.device_state() == {}
    assert hook.overhead() is not None
    hook.flush()
    # No module is watched from inside.
    assert not any(m._forward_hooks for m in model.modules() if m is not model)
    assert hook.close()
    assert not run_dir.exists()
    with pytest.raises(ConfigurationError):
        make_hook(run_dir, include_collections=["weigths"])


def test_a_hook_made_before_the_process_group_finds_its_rank(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with make_hook(run_dir, include_workers=[0, 2]) as hook:
        hook.save_scalar("s", 1.0)
    (writer,) = writer_directories(run_dir)
    assert writer.rank == 2


class KeyValueStore:
    """Settles in memory."""

    def __init__(self) -> None:
        self.settled: dict[str, str] = {}

    def post(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    def look(self, key: str) -> bytes | None:
        raise NotImplementedError

    def settle(self, key: str, value: str) -> str:
        return self.settled.setdefault(key, value)

    def keep_pace(self) -> bool:
        raise NotImplementedError


def test_a_rank_does_not_run_ahead_of_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By more than from one look to the look after the next."""
    log: list[str] = []
    capturing = [False]

    class Event:
        n_made = 0

        def __init__(self, *, blocking: bool) -> None:
            assert blocking, "a processor that spins is of no use to others"
            self.name = str(Event.n_made)
            Event.n_made += 1

        def record(self) -> None:
            log.append(f"ask {self.name}")

        def synchronize(self) -> None:
            log.append(f"wait {self.name}")

    rank_store = TorchStore("pace")
    assert not rank_store.keep_pace()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for number in range(4):
        capturing[0] = number == 2  # Where waiting is an error.
        assert rank_store.keep_pace()
    assert log == ["ask 0", "ask 1", "wait 0", "ask 2", "wait 1"]


def test_ranks_share_the_attempt_that_the_first_of_them_settled(run_dir: Path) -> None:
    run = create_run(run_dir)
    rank_store = KeyValueStore()
    first = find_attempt(run, 0, rank_store)
    (run_dir / "w" / "train-0-1").mkdir()
    assert find_attempt(run, 1, rank_store) == first
    # The next start: another one, above whatever any rank has written.
    later = find_attempt(run, 1, KeyValueStore())
    assert (first.ordinal, later.ordinal) == (0, 1)
    assert first.uuid != later.uuid


def test_ranks_of_other_runs_do_not_share_an_attempt(tmp_path: Path) -> None:
    rank_store = KeyValueStore()
    runs = [create_run(tmp_path / name) for name in "ab"]
    found = {find_attempt(run, 0, rank_store).uuid for run in runs}
    assert len(found) == 2


def test_without_a_board_a_launcher_names_the_attempt(run_dir: Path) -> None:
    run = create_run(run_dir)
    found = [find_attempt(run, rank, None, "job/0") for rank in (0, 1)]
    assert found[0] == found[1]
    (run_dir / "w" / "train-0-1").mkdir()
    again = find_attempt(run, 0, None, "job/0")
    assert again.ordinal == 1
    assert again.uuid != found[0].uuid, "the same name, but another start"
    assert find_attempt(run, 0) != find_attempt(run, 0)
    assert isinstance(again, AttemptId)


def test_wrappers_leave_no_trace_in_names() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.DataParallel(nn.Linear(2, 2)))
    model = nn.DataParallel(inner)
    assert unwrapped(model) is inner
    names = [path for path, _ in named_modules(model)]
    assert names == ["", "0", "1"]
    kinds = [type(module) for _, module in named_modules(model)]
    assert kinds == [nn.Sequential, nn.Linear, nn.Linear]
    assert class_name(inner) == "Sequential"


class FullyShardedDataParallel(nn.Module):
    """Stands for PyTorch's, which needs a process group."""

    def __init__(self, module: nn.Module, strategy: str) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module
        self.sharding_strategy = SimpleNamespace(name=strategy)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._fsdp_wrapped_module(x)
        return result


@pytest.mark.parametrize(
    ("strategy", "n_warnings"), [("FULL_SHARD", 1), ("NO_SHARD", 0)]
)
def test_a_wrapper_that_says_nothing_of_its_parts_is_warned_of_once(
    strategy: str, n_warnings: int, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = FullyShardedDataParallel(nn.Linear(2, 2), strategy)
    model = FullyShardedDataParallel(nn.Sequential(inner, nn.ReLU()), strategy)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        model(torch.ones(1, 2))
        assert hook.counters()["internal_errors"] == 0
    assert caplog.text.count("use fully_shard") == n_warnings


def test_a_module_that_is_only_called_module_keeps_its_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    assert [path for path, _ in named_modules(Net())] == ["", "module"]
    assert [path for path, _ in named_modules(nn.DataParallel(Net()))] == ["", "module"]


# ---- DataParallel: copies of a model in one process ------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_data_parallel_without_devices_is_the_model_itself(
    run_dir: Path, first: bool
) -> None:
    model, criterion, optimizer, batches = parts()
    wrapped = nn.DataParallel(model)
    with make_hook(run_dir) as hook:
        hook.register_module(model if first else wrapped)
        hook.register_loss(criterion)
        train(wrapped, criterion, optimizer, batches, 2)
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1]
    assert trial.tensor("fc1_output_0").stats(0).count == 16 * 24
    assert trial.tensor("gradient/fc1.weight").stats(1).count == 24 * 64
    assert not any("module" in name for name in trial.tensor_names())


def copies(model: nn.Module) -> list[nn.Module]:
    """Copies on two devices, as DataParallel makes them; the second has no memory."""
    found = []
    for device in ("cpu", "meta"):
        of_module = {
            each: each._replicate_for_data_parallel() for each in model.modules()
        }
        for each, copy in of_module.items():
            for name, child in each._modules.items():
                assert child is not None
                copy._modules[name] = of_module[child]
            for name, parameter in each._parameters.items():
                assert parameter is not None
                given = parameter if device == "cpu" else parameter.to("meta")
                setattr(copy, name, given.view_as(given))
        found.append(of_module[model])
    return found


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait(240)


def test_copies_of_the_model_are_one_forward(run_dir: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_optimizer(optimizer)
        for (inputs, labels), _ in zip(digits(8), range(3), strict=False):
            optimizer.zero_grad()
            outputs: list[torch.Tensor] = [torch.empty(0)] * 2

            def call(
                index: int,
                copy: nn.Module,
                given: torch.Tensor,
                outputs: list[torch.Tensor] = outputs,
            ) -> None:
                outputs[index] = copy(given)

            # Both are inside at once, as they are on devices.
            both = threading.Barrier(2)
            meeting = model.relu.register_forward_hook(lambda *_, b=both: _meet(b))
            pair = copies(model)
            shares = (inputs[:4], inputs[4:].to("meta"))
            threads = [
                threading.Thread(target=call, args=(i, pair[i], shares[i]))
                for i in (1, 0)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            meeting.remove()
            nn.functional.cross_entropy(outputs[0], labels[:4]).backward()
            optimizer.step()
        counters = hook.counters()
    assert (counters["refused_tensors"], counters["internal_errors"]) == (0, 0)
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 1, 2]
    table = trial.step_table()
    assert table["micro_batches"].tolist() == [1, 1, 1]
    assert trial.tensor("gradient/fc1.weight").steps() == [0, 1, 2]
    assert "fc1_output_0" not in trial.tensor_names(), "whose would it be?"
    # What is called by itself again is captured as ever.
    with make_hook(run_dir.parent / "after") as hook:
        hook.register_module(model)
        model(torch.zeros(1, 64))
    after = create_trial(run_dir.parent / "after")
    assert after.tensor("fc1_output_0").stats(0).count == 24
