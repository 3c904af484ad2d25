"""ReplicaDivergence, on real ranks with gloo: faults, and trainings close to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tdbg.pytorch as td
from ranks import read_notes, run_ranks, write_note
from tdbg.rules import Finding, Severity, check
from tdbg.run.directory import writer_directories

N_STEPS = 70


class Net(nn.Module):
    """A model with a method besides forward(), and a buffer that it updates."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 4)
        self.late: nn.Module = nn.Identity()
        self.register_buffer("codes", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.late(self.head(self.body(x)))
        return result


class Training:
    """The training of one rank; a program changes what it needs.

    Args:
        rank: Of this process.
        folder: Where the runs lie.
        name: Of the run.
    """

    wraps: Any = DistributedDataParallel
    options: dict[str, Any] = {}  # noqa: RUF012
    workers: Any = "one"

    def __init__(self, rank: int, folder: Path, name: str) -> None:
        self.rank, self.world = rank, distributed.get_world_size()
        torch.manual_seed(self.seed())
        self.model = Net()
        self.before_wrapping()
        self.ddp = self.wrap()
        self.after_wrapping()
        self.optimizer = self.make_optimizer()
        torch.manual_seed(self.data_seed())
        loss = nn.MSELoss()
        with td.Hook(
            folder / name, include_workers=self.workers, min_free_bytes=0
        ) as hook:
            hook.register_module(self.model)
            hook.register_loss(loss)
            for step in range(self.n_steps()):
                self.optimizer.zero_grad()
                with self.around(step):
                    x = torch.randn(4, 8)
                    loss(self.call(x), torch.zeros(4, 4)).backward()
                self.after_backward(step)
                self.update(step)
                self.after_step(step)
            distributed.barrier()
            counters = hook.counters()
        write_note(folder, name, rank, counters)

    def seed(self) -> int:
        return 0

    def data_seed(self) -> int:
        return 100 + self.rank

    def n_steps(self) -> int:
        return N_STEPS

    def before_wrapping(self) -> None: ...

    def wrap(self) -> nn.Module:
        return DistributedDataParallel(self.model, **self.options)

    def after_wrapping(self) -> None: ...

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)

    @contextlib.contextmanager
    def around(self, step: int) -> Iterator[None]:  # noqa: ARG002
        yield

    def call(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.ddp(x)
        return result

    def after_backward(self, step: int) -> None: ...

    def update(self, step: int) -> None:  # noqa: ARG002
        self.optimizer.step()

    def after_step(self, step: int) -> None: ...

    def reduce(self, parameters: Any) -> None:
        for each in parameters:
            distributed.all_reduce(each)
            each.div_(self.world)


# ---- faults ----------------------------------------------------------------------


class Bypassed(Training):
    def call(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(x)
        return result


class Unsynced(Training):
    @contextlib.contextmanager
    def around(self, step: int) -> Iterator[None]:  # noqa: ARG002
        with self.ddp.no_sync():
            yield


class Late(Training):
    def after_wrapping(self) -> None:
        self.model.late = nn.Linear(4, 4)


class Unfrozen(Training):
    def before_wrapping(self) -> None:
        self.model.body[0].weight.requires_grad_(False)

    def after_step(self, step: int) -> None:
        if step == 3:
            self.model.body[0].weight.requires_grad_(True)


class Start(Training):
    def after_wrapping(self) -> None:
        torch.manual_seed(self.rank)
        self.model.head.reset_parameters()


class FlippedBit(Training):
    def after_step(self, step: int) -> None:
        if step == 15 and self.rank == 1:
            with torch.no_grad():
                self.model.head.weight.view(torch.int32).view(-1)[5] ^= 1 << 20


class Skips(Training):
    def update(self, step: int) -> None:
        if not (step == 5 and self.rank == 1):
            self.optimizer.step()


class Clips(Training):
    def after_backward(self, step: int) -> None:  # noqa: ARG002
        if self.rank == 1:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)


class OtherRate(Training):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05 * (1 + self.rank))


class DriftingBuffer(Training):
    options = {"broadcast_buffers": False}  # noqa: RUF012

    def after_backward(self, step: int) -> None:  # noqa: ARG002
        self.model.codes += torch.rand(3)


class ForgetsToReduce(Training):
    """It reduces gradients itself, but from some step on no longer."""

    def wrap(self) -> nn.Module:
        return self.model

    def after_backward(self, step: int) -> None:
        if step < 20:
            self.reduce([each.grad for each in self.model.parameters()])


class SameBatches(Training):
    """All ranks load the same data in the same order."""

    def data_seed(self) -> int:
        return 100


class SameBatchesOnAll(SameBatches):
    """The same, where each rank writes what it is given."""

    workers = "all"


class SameBatchesSharded(SameBatches):
    """The same, where ranks share out the model."""

    def wrap(self) -> nn.Module:
        fully_shard(self.model)
        return self.model


# ---- healthy ---------------------------------------------------------------------


class Healthy(Training):
    pass


class HealthyOnAll(Training):
    workers = "all"


class Accumulates(Training):
    def call(self, x: torch.Tensor) -> torch.Tensor:
        with self.ddp.no_sync():
            self.ddp(x).square().mean().backward()
        return super().call(x)


class Evaluates(Training):
    """The first rank alone evaluates in between, past the wrapper."""

    def after_step(self, step: int) -> None:
        if self.rank == 0 and step % 5 == 0:
            self.model.eval()
            with torch.no_grad():
                self.model(torch.randn(4, 8))
            self.model.train()


class OwnStatistics(Training):
    """BatchNorm's running statistics are each rank's own."""

    options = {"broadcast_buffers": False}  # noqa: RUF012


class Reduces(Training):
    """It reduces gradients itself."""

    def wrap(self) -> nn.Module:
        return self.model

    def after_backward(self, step: int) -> None:  # noqa: ARG002
        self.reduce([each.grad for each in self.model.parameters()])


class BypassesAndReduces(Bypassed):
    """The wrapper only makes weights equal; gradients are reduced by hand."""

    def after_backward(self, step: int) -> None:  # noqa: ARG002
        self.reduce([each.grad for each in self.model.parameters()])


class LocalSGD(Unsynced):
    """Weights are averaged every four steps."""

    def after_step(self, step: int) -> None:
        if step % 4 == 3:
            with torch.no_grad():
                self.reduce(self.model.parameters())


class Federated(Training):
    """Clients train alone, from equal weights, and average them every 20 steps."""

    def wrap(self) -> nn.Module:
        return self.model

    def after_step(self, step: int) -> None:
        if step % 20 == 19:
            with torch.no_grad():
                self.reduce(self.model.parameters())


class OwnSeeds(Training):
    """Each rank trains a model of its own."""

    def seed(self) -> int:
        return self.rank

    def wrap(self) -> nn.Module:
        return self.model


class SameSeeds(Training):
    """Ranks try learning rates, from equal weights."""

    def wrap(self) -> nn.Module:
        return self.model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05 * (1 + self.rank))


class OwnHeads(Training):
    """Each rank has a head of its own, outside of the wrapper."""

    def wrap(self) -> nn.Module:
        return DistributedDataParallel(self.model.body)

    def call(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model.head(self.ddp(x))
        return result


class Ignored(Training):
    """The wrapper was told to leave the head alone."""

    def before_wrapping(self) -> None:
        names = ["head.weight", "head.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            self.model, names
        )


class Sharded(Training):
    workers = "all"

    def wrap(self) -> nn.Module:
        fully_shard(self.model)
        return self.model


class ShardedByOneRank(Sharded):
    """The same, where one rank writes."""

    workers = "one"


class OneShardEach(SameBatches):
    """A mesh with a second dimension, whose ranks share batches on purpose."""

    def wrap(self) -> nn.Module:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        fully_shard(self.model, mesh=mesh["data"])
        return self.model


class Gossip(Training):
    """A communication hook of the user's own reduces nothing, on purpose."""

    def after_wrapping(self) -> None:
        def keep(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        keep.__annotations__.clear()  # They are texts, which PyTorch refuses.
        self.ddp.register_comm_hook(None, keep)  # type: ignore[operator]


FAULTS: dict[type[Training], tuple[Severity, str, str]] = {
    Bypassed: (Severity.ERROR, "nothing has ever called it", "ddp.module(x)"),
    Unsynced: (Severity.WARNING, "no_sync()", "Leave no_sync()"),
    Late: (Severity.WARNING, "late.weight", "then wrap"),
    Unfrozen: (Severity.WARNING, "body.0.weight", "unfreeze parameters first"),
    Start: (Severity.ERROR, "when you wrap the model", "before you wrap"),
    FlippedBit: (Severity.ERROR, "one element", "memory of that rank's device"),
    Skips: (Severity.ERROR, "leaves out steps", "all-reduce the condition"),
    Clips: (Severity.ERROR, "clips or scales", "same limit"),
    OtherRate: (Severity.ERROR, "another update", "same learning rate"),
    DriftingBuffer: (Severity.INFO, "buffer/codes", "broadcast_buffers"),
    ForgetsToReduce: (Severity.WARNING, "not reduced", "past the wrapper"),
}
HEALTHY: tuple[type[Training], ...] = (
    Healthy,
    HealthyOnAll,
    Accumulates,
    Evaluates,
    OwnStatistics,
    Reduces,
    BypassesAndReduces,
    LocalSGD,
    Federated,
    OwnSeeds,
    SameSeeds,
    OwnHeads,
    Ignored,
    Sharded,
    ShardedByOneRank,
    OneShardEach,
    Gossip,
)
SAME_BATCHES = (SameBatches, SameBatchesOnAll, SameBatchesSharded)
# With a majority, these name the rank that differs.
OF_THREE = (FlippedBit, Skips, Clips)


def train(rank: int, folder: Path, programs: tuple[type[Training], ...]) -> None:
    for each in programs:
        each(rank, folder, each.__name__)


Runs = Callable[[type[Training]], Path]


def _made(folder: Path, n: int, programs: tuple[type[Training], ...]) -> Path:
    run_ranks(train, n, folder, programs, seconds=600)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made(tmp_path_factory.mktemp("two"), 2, (*FAULTS, *SAME_BATCHES, *HEALTHY))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made(tmp_path_factory.mktemp("three"), 3, (*OF_THREE, Healthy, Sharded))


def findings(run: Path, rule: str = "ReplicaDivergence") -> list[Finding]:
    return list(check(run, rule, record=False).findings)


@pytest.mark.parametrize("program", FAULTS)
def test_a_fault_is_named_with_its_reason(two: Path, program: type[Training]) -> None:
    severity, reason, advice = FAULTS[program]
    (finding,) = findings(two / program.__name__)
    assert finding.severity is severity
    assert reason in finding.message
    assert advice in finding.advice


@pytest.mark.parametrize("program", HEALTHY)
def test_a_healthy_training_is_not_accused(two: Path, program: type[Training]) -> None:
    assert findings(two / program.__name__) == []
    assert findings(two / program.__name__, "SampleCoverage") == []


@pytest.mark.parametrize("program", SAME_BATCHES)
def test_ranks_with_the_same_batches_are_named_whoever_writes(
    two: Path, program: type[Training]
) -> None:
    assert findings(two / program.__name__) == []
    (finding,) = findings(two / program.__name__, "SampleCoverage")
    assert finding.severity is Severity.WARNING
    assert "equal on 2 ranks at each of" in finding.message
    assert "DistributedSampler" in finding.advice


@pytest.mark.parametrize("program", [*FAULTS, *HEALTHY])
def test_nothing_fails_inside(two: Path, program: type[Training]) -> None:
    for counters in read_notes(two, program.__name__).values():
        assert counters["internal_errors"] == 0


@pytest.mark.parametrize("program", OF_THREE)
def test_a_majority_says_which_rank_differs(
    three: Path, program: type[Training]
) -> None:
    (finding,) = findings(three / program.__name__)
    assert "on rank 1 from ranks 0, 2, which agree" in finding.message


@pytest.mark.parametrize("program", [Healthy, Sharded])
def test_three_healthy_ranks_are_not_accused(
    three: Path, program: type[Training]
) -> None:
    assert findings(three / program.__name__) == []


def test_a_finding_begins_at_the_first_look_that_shows_it(two: Path) -> None:
    (finding,) = findings(two / "Skips")
    assert "equal at step 4, and no longer at step 8" in finding.message
    (finding,) = findings(two / "Bypassed")
    assert "equal at step 0, and no longer at step 1" in finding.message


def test_a_flipped_bit_is_told_by_its_number(two: Path) -> None:
    (finding,) = findings(two / "FlippedBit")
    assert "head.weight differs" in finding.message
    assert "in one bit, number 20" in finding.message
    assert "element 5 of the flat tensor" in finding.message


def test_ranks_that_capture_nothing_write_no_files(two: Path) -> None:
    assert [each.rank for each in writer_directories(two / "Healthy")] == [0]
