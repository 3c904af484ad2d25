"""How ``tdbg run`` finds a training, in this process: what it does and what is left."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.capture import process
from tdbg.errors import TrainingStopped
from tdbg.launch.discovery import Discovery
from tdbg.modes import TRAIN
from tdbg.pytorch import create_trial, watch
from tdbg.rules.builtin.loss.not_decreasing import LossNotDecreasing
from tdbg.rules.builtin.tensors.exploding import ExplodingTensor
from tdbg.rules.testing import judge
from tdbg.run.requests import request_stop
from torch_helpers import digits, mlp, train

pytestmark = pytest.mark.torch


@pytest.fixture
def discovery(run_dir: Path) -> Iterator[Discovery]:
    compile_before = torch.compile
    found = Discovery({"out_dir": str(run_dir), "statistics_interval": 1})
    found.start()
    yield found
    found.stop()
    process._callbacks.remove(found.print_summary)
    for hook in found.hooks:
        hook.close()
    assert is_untouched()
    assert not hasattr(Optimizer.__init__, "__wrapped__")
    assert not hasattr(torch.autograd.backward, "_tdbg_original")
    assert torch.compile is compile_before
    assert "CountedCall" not in str(torch.autograd.grad.__code__.co_consts)


def is_untouched() -> bool:
    """Whether calls of modules cost nothing."""
    return (
        not any("global hooks" in str(each[1]) for each in warnings.filters)
        and not nn.modules.module._global_forward_pre_hooks
    )


def test_modules_are_left_alone_after_a_step_and_the_loss_is_recorded_once(
    run_dir: Path, discovery: Discovery
) -> None:
    assert not is_untouched()
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, criterion, optimizer, digits(8), 3)
    assert is_untouched()
    assert discovery.hooks[0].close()
    trial = create_trial(run_dir)
    name = type(model).__name__
    for each in (f"{name}_output_0", "relu_output_0", "CrossEntropyLoss_output_0"):
        assert trial.tensor(each).steps(mode=TRAIN) == [0, 1, 2], each
    assert not trial.has_tensor("loss_output_0")


def test_a_loss_that_is_a_function_stays_watched(
    run_dir: Path, discovery: Discovery
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.functional.cross_entropy, optimizer, digits(8), 3)
    assert is_untouched()
    assert discovery.hooks[0].close()
    trial = create_trial(run_dir)
    loss = trial.tensor("cross_entropy_output_0")
    assert loss.steps(mode=TRAIN) == [0, 1, 2]
    assert not trial.has_tensor("loss_output_0")


def test_a_scaled_loss_is_recorded_before_scaling(
    run_dir: Path, discovery: Discovery
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected = []
    for _ in range(2):
        inputs, labels = next(digits(8))
        loss = -model(inputs).log_softmax(1)[torch.arange(8), labels].mean()
        expected.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert discovery.hooks[0].close()
    values = create_trial(run_dir).tensor("loss_output_0").values(TRAIN)
    assert [float(value) for value in values.values()] == expected


def test_a_stop_reaches_the_script(run_dir: Path, discovery: Discovery) -> None:
    model, criterion = mlp(), nn.CrossEntropyLoss()
    # A second one that has not stepped: the search goes on.
    late = mlp()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, late)]
    train(model, criterion, optimizers[0], digits(8), 2)
    assert discovery.is_searching, "the other optimizer has not stepped"
    request_stop(run_dir, reason="enough")

    def call_for_a_while() -> None:
        # Listeners look ten times a second, and less often where a look takes long.
        for _ in range(2000):
            late(next(digits(8))[0])
            time.sleep(0.02)

    with pytest.raises(TrainingStopped, match="enough"):
        call_for_a_while()


def test_a_run_that_cannot_be_made_leaves_the_script_alone(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir.parent.mkdir(exist_ok=True)
    run_dir.write_text("in the way")
    search = Discovery({"out_dir": str(run_dir / "run")})
    search.start()
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, criterion, optimizer, digits(8), 2)
    search.stop()
    assert [each.getMessage()[:22] for each in caplog.records] == [
        "tdbg captures nothing:"
    ]
    assert is_untouched()


def test_a_script_with_a_hook_of_its_own_keeps_it(
    run_dir: Path, discovery: Discovery, caplog: pytest.LogCaptureFixture
) -> None:
    own = run_dir.with_name("own")
    model, criterion = mlp(), nn.CrossEntropyLoss()
    with watch(model, criterion, out=own):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, criterion, optimizer, digits(8), 3)
    assert not discovery.hooks
    assert not run_dir.exists()
    assert [each.getMessage() for each in caplog.records] == [
        "tdbg captures nothing: the script has its own hook, which continues"
    ]
    assert is_untouched()
    assert create_trial(own).steps(mode=TRAIN) == [0, 1, 2]


class _ByKeyword(nn.Module):
    """A model that is given its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 24)
        self.second = nn.Linear(24, 10)

    def forward(self, *, pixels: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(pixels)))
        return result


def test_what_the_first_call_is_given_comes_before_what_it_computes(
    run_dir: Path, discovery: Discovery
) -> None:
    model, criterion = _ByKeyword(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, labels) in zip(range(3), digits(8), strict=False):
        if step == 0:
            inputs[0, 0] = float("nan")
        optimizer.zero_grad()
        criterion(model(pixels=inputs), labels).backward()
        optimizer.step()
    assert discovery.hooks[0].close()
    trial = create_trial(run_dir)
    for name in ("_ByKeyword_input_0", "CrossEntropyLoss_input_0"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2], name
    (finding,) = judge(run_dir, ExplodingTensor())
    assert finding.tensor == "_ByKeyword_input_0"


def test_a_training_by_transforms_is_captured_from_its_second_step_on(
    run_dir: Path, discovery: Discovery
) -> None:
    model, batches = mlp(), digits(8)
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss_of(
        given: dict[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        answer = torch.func.functional_call(model, given, (inputs,))
        return nn.functional.cross_entropy(answer, labels)

    for _ in range(4):
        found = torch.func.grad(loss_of)(parameters, *next(batches))
        parameters = {
            name: each - 0.1 * found[name] for name, each in parameters.items()
        }
    (hook,) = discovery.hooks
    assert hook.close()
    trial = create_trial(run_dir)
    for name in ("fc1.weight", "gradient/fc1.weight", "cross_entropy_output_0"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2], name


@pytest.mark.filterwarnings("ignore:.*vmap")
def test_gradients_by_transforms_that_an_optimizer_uses_make_steps_of_it(
    run_dir: Path, discovery: Discovery
) -> None:
    model, batches = mlp(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(
        given: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        answer = torch.func.functional_call(model, given, (one[None],))
        return nn.functional.cross_entropy(answer, label[None])

    for _ in range(3):
        given = {name: each.detach() for name, each in model.named_parameters()}
        found = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(
            given, *next(batches)
        )
        for name, parameter in model.named_parameters():
            parameter.grad = found[name].mean(0)
        optimizer.step()
        optimizer.zero_grad()
    (hook,) = discovery.hooks
    assert hook.close()
    trial = create_trial(run_dir)
    for name in ("fc1.weight", "gradient/fc1.weight"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2], name


def test_a_training_by_returned_gradients_is_captured_from_its_second_step_on(
    run_dir: Path, discovery: Discovery
) -> None:
    model, batches = mlp(), digits(8)
    for _ in range(4):
        inputs, labels = next(batches)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        found = torch.autograd.grad(loss, model.parameters())
        with torch.no_grad():
            for parameter, each in zip(model.parameters(), found, strict=True):
                parameter.sub_(0.1 * each)
    (hook,) = discovery.hooks
    assert hook.close()
    trial = create_trial(run_dir)
    for name in ("fc1.weight", "gradient/fc1.weight", "cross_entropy_output_0"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2], name


def test_gradients_of_plain_tensors_by_transforms_are_told(
    discovery: Discovery, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.func.grad(lambda given: given.square().sum())(torch.ones(3))
    discovery.print_summary()
    told = capsys.readouterr().err
    assert "torch.func computed gradients 1 time, but of no parameters" in told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # The compiler's own.
@pytest.mark.parametrize("of_all", [False, True])
def test_a_training_in_a_compiled_function_is_captured(
    run_dir: Path, discovery: Discovery, of_all: bool
) -> None:
    torch.compiler.reset()
    model, batches = mlp(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs), labels)

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(inputs, labels).backward()
        optimizer.step()

    if of_all:
        step = torch.compile(step, backend="eager")
    else:
        loss_of = torch.compile(loss_of, backend="eager")
    for _ in range(3):
        step(*next(batches))
    (hook,) = discovery.hooks
    assert hook.close()
    trial = create_trial(run_dir)
    for name in ("fc1.weight", "gradient/fc1.weight", "cross_entropy_output_0"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2], name


@pytest.mark.parametrize("is_trained", [True, False])
def test_an_optimizer_of_a_model_that_is_not_captured_may_be_an_adversary(
    run_dir: Path, discovery: Discovery, is_trained: bool
) -> None:
    """Made in the loop, when the search for trainings is over."""
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    fooled, real, forged = (nn.BCEWithLogitsLoss() for _ in range(3))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    judging = torch.optim.Adam(critic.parameters(), 2e-3)
    making: Optimizer | None = None
    for _ in range(60):
        made = maker(torch.randn(64, 8))
        found = critic(torch.randn(64, 2) * 0.1 + 2)
        loss = real(found, ones) + forged(critic(made.detach()), zeros)
        judging.zero_grad()
        loss.backward()
        judging.step()
        loss = fooled(critic(made), ones)
        if is_trained:
            making = making or torch.optim.Adam(maker.parameters(), 2e-4)
            making.zero_grad()
            loss.backward()
            making.step()
    assert discovery.hooks[0].close()
    trial = create_trial(run_dir)
    assert trial.model_info()[-1].has_several_optimizers is is_trained
    found_rising = judge(trial, LossNotDecreasing())
    assert bool(found_rising) is not is_trained
