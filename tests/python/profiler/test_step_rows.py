"""Each step has a row, whose phases add up to the time since the step before it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import tdbg.pytorch as td
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import PHASE_COLUMNS, STEP, Phase
from tdbg.trial import create_trial

#: Truth and row may differ by this share of the time.
POINTS = 0.02
# The first steps are longer: tdbg reads the graphs of their losses, and probes the
# model after the second.
LAST_OF_BEGINNING = 20


class Truth:
    """What a program does, timed by itself."""

    def __init__(self) -> None:
        self.ns: Counter[Phase] = Counter()

    @contextlib.contextmanager
    def of(self, phase: Phase) -> Iterator[None]:
        """Time what runs inside."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.ns[phase] += time.monotonic_ns() - start

    def sleep(self, phase: Phase, seconds: float) -> None:
        """Sleep in a phase."""
        with self.of(phase):
            time.sleep(seconds)


class Sleeps(torch.autograd.Function):
    """Sleeps 3 ms forward and 6 ms backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, truth: Truth) -> torch.Tensor:
        """Return the input."""
        ctx.truth = truth
        truth.sleep(Phase.FORWARD, 0.003)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient."""
        ctx.truth.sleep(Phase.BACKWARD, 0.006)
        return gradient, None


class SlowNet(nn.Module):
    """Takes its time."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.truth = truth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward; in evaluation, it sleeps 2 ms."""
        if not self.training:
            self.truth.sleep(Phase.EVALUATION, 0.002)
            return self.layer(x)  # type: ignore[no-any-return]
        return Sleeps.apply(self.layer(x), self.truth)  # type: ignore[no-any-return]


class SlowOptimizer(torch.optim.SGD):
    """Sleeps 2 ms a step."""

    truth: Truth

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step."""
        self.truth.sleep(Phase.OPTIMIZER, 0.002)
        return super().step(closure)


def steps_of(run_dir: Path) -> NDArray[Any]:
    """The rows of a run."""
    return create_trial(run_dir).profile.steps()


def phase_sum(rows: NDArray[Any]) -> NDArray[Any]:
    """The sum of all phases of each row."""
    return np.sum([rows[column] for column in PHASE_COLUMNS.values()], axis=0)


def of_mode(rows: NDArray[Any], mode: ModeKeys) -> NDArray[Any]:
    """The rows of a mode."""
    return rows[rows["mode"] == mode.value]


@pytest.mark.parametrize("is_watched", [True, False])
def test_shares_are_those_that_the_program_measures(
    run_dir: Path, is_watched: bool
) -> None:
    truth = Truth()
    model = SlowNet(truth)
    optimizer = SlowOptimizer(model.parameters(), lr=0.01)
    optimizer.truth = truth
    if is_watched:
        hook = td.watch(model, out=run_dir, rules=())
    else:
        hook = td.Hook(run_dir)
        hook.register_module(model)
    start, n = 0, 60
    for i in range(n):
        loss = functional.cross_entropy(
            model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)
        )
        loss.backward()
        time.sleep(0.002)
        optimizer.step()
        if i == LAST_OF_BEGINNING:
            start, truth.ns = time.monotonic_ns(), Counter()
        if i == n // 2:
            model.eval()
            for _ in range(3):
                with torch.no_grad():
                    model(torch.randn(5, 4))
            model.train()
    total = time.monotonic_ns() - start
    hook.close()
    rows = steps_of(run_dir)
    assert (phase_sum(rows) == rows["duration_ns"]).all()
    trained = of_mode(rows, ModeKeys.TRAIN)
    assert list(trained["mode_step"]) == list(range(n))
    assert (trained["samples"] == 8).all()
    assert (trained["micro_batches"] == 1).all()
    measured = trained[LAST_OF_BEGINNING + 1 :]
    assert abs(measured["duration_ns"].sum() / total - 1) < POINTS
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION):
        told = measured[PHASE_COLUMNS[phase]].sum()
        # The phase is longer than the sleep by what PyTorch and tdbg's hooks take.
        assert -POINTS < (told - truth.ns[phase]) / total < 0.12, phase
    evaluated = of_mode(rows, ModeKeys.EVAL)
    assert list(evaluated["mode_step"]) == [0, 1, 2]
    assert (evaluated["samples"] == 5).all()
    assert evaluated["evaluation_ns"].sum() == measured["evaluation_ns"].sum()


def test_micro_batches_and_tokens_belong_to_one_row(run_dir: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(10):
            for _ in range(3):
                model(torch.zeros(4, 7, dtype=torch.long)).sum().backward()
            optimizer.step()
    rows = steps_of(run_dir)
    assert (rows["micro_batches"] == 3).all()
    assert (rows["samples"] == 12).all()
    assert (rows["tokens"] == 84).all()
    assert (rows["copied_bytes"] == -1).all()
    assert len(rows) == 10


def test_a_batch_is_known_if_it_is_given_by_name(run_dir: Path) -> None:
    class Net(nn.Linear):
        def forward(self, *, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(inputs["x"])

    model = Net(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(5):
            model(inputs={"x": torch.ones(6, 4)}).sum().backward()
            optimizer.step()
    assert (steps_of(run_dir)["samples"] == 6).all()


def test_several_optimizers_and_a_closure_have_one_row_a_step(run_dir: Path) -> None:
    model, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    both = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (critic, model)]
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        hook.register_module(critic)
        for _ in range(20):
            for optimizer in both:
                critic(model(torch.ones(2, 4))).sum().backward()
                optimizer.step()
        made = hook.n_steps
    rows = steps_of(run_dir)
    assert len(rows) == made
    assert (phase_sum(rows) == rows["duration_ns"]).all()


def test_what_a_closure_computes_is_no_time_of_the_optimizer(run_dir: Path) -> None:
    truth = Truth()
    model = SlowNet(truth)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            return loss

        for _ in range(5):
            optimizer.step(closure)
    rows = steps_of(run_dir)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert rows[PHASE_COLUMNS[phase]].sum() >= truth.ns[phase]
    assert len(rows) == 5


def test_a_forward_that_fails_ends_its_phase(run_dir: Path) -> None:
    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 1:
                raise ValueError
            return super().forward(x)

    model = Fails(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        for i in range(12):
            with contextlib.suppress(ValueError):
                model(torch.ones(1 if i % 4 == 1 else 2, 4)).sum().backward()
                optimizer.step()
            assert hook._session.clock.phase == Phase.OTHER
    rows = steps_of(run_dir)
    assert (phase_sum(rows) == rows["duration_ns"]).all()


def test_checkpoints_and_collections_are_phases_and_events(
    run_dir: Path, tmp_path: Path
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save, callbacks = torch.save, list(gc.callbacks)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            gc.collect()
            optimizer.step()
            torch.save(model.state_dict(), tmp_path / "a.pt")
    assert torch.save is save
    assert gc.callbacks == callbacks
    rows = steps_of(run_dir)
    assert (rows["gc_ns"] > 0).all()
    assert (rows["checkpoint_ns"] > 0).tolist() == [False, True, True, True]
    changes = [each.data for each in create_trial(run_dir).events()]
    saved = [each for each in changes if each.get("what") == "checkpoint"]
    assert [each["by"] for each in saved] == ["torch.save"] * 4


def test_no_rows_where_the_profiler_is_off(run_dir: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(run_dir, profiler=False) as hook:
        hook.register_module(model)
        assert not hook._session.clock.is_on
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert len(steps_of(run_dir)) == 0


def test_the_rows_of_the_core_are_those_of_the_table() -> None:
    from tdbg import _core

    clock = _core.StepClock()
    clock.start()
    clock.end_step(3, 2, 1, 5)
    (row,) = np.frombuffer(clock.take_rows(), STEP)
    assert row["global_step"], row["mode_step"] == (3, 2)
    assert (row["mode"], row["micro_batches"]) == (1, 5)
    assert (row["samples"], row["gpu_ns"], row["borders"]) == (-1, -1, -1)
    with pytest.raises(ValueError, match="99"):
        clock.enter(99)


def test_clipping_is_time_of_the_optimizer(run_dir: Path) -> None:
    from torch.nn.utils import clip_grad, clip_grad_norm_

    original = clip_grad._get_total_norm
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        spent = []
        for clip in (clip_grad_norm_, nn.utils.clip_grad_value_) * 9:
            model(torch.ones(2, 64)).sum().backward()
            start = time.monotonic_ns()
            clip(model.parameters(), 1.0)
            spent.append(time.monotonic_ns() - start)
            optimizer.step()
    rows = steps_of(run_dir)
    assert (phase_sum(rows) == rows["duration_ns"]).all()
    # On a busy machine, some of these calls wait for a processor.
    shares = rows["optimizer_ns"] / np.array(spent)
    assert min(np.median(shares[::2]), np.median(shares[1::2])) > 0.7
    assert clip_grad._get_total_norm is original
