"""Several trainings of one program, and trainings without an optimizer of torch."""

from __future__ import annotations

import copy
import gc
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

from tdbg.capture import process
from tdbg.launch import discovery as launch
from tdbg.launch.discovery import Discovery
from tdbg.launch.family import existing
from tdbg.modes import TRAIN
from tdbg.pytorch import create_trial
from tdbg.run.directory import is_run
from torch_helpers import digits, mlp, train

pytestmark = pytest.mark.torch


def run_of(run_dir: Path, number: int) -> Path:
    return run_dir if number == 1 else run_dir.with_name(f"{run_dir.name}-{number}")


def steps_of(run_dir: Path, discovery: Discovery) -> list[list[int]]:
    """The training steps of all runs."""
    for hook in discovery.hooks:
        hook.close()
    found = []
    while is_run(run_of(run_dir, len(found) + 1)):
        trial = create_trial(run_of(run_dir, len(found) + 1))
        assert trial.loaded_all_steps
        found.append(trial.steps(mode=TRAIN))
    return found


def fit(model: nn.Module, n_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(8), n_steps)


def fit_by_hand(
    n_steps: int, *parts: nn.Module, criterion: Callable[..., torch.Tensor]
) -> None:
    for _, (inputs, labels) in zip(range(n_steps), digits(8), strict=False):
        outputs = inputs
        for part in parts:
            outputs = part(outputs)
        for part in parts:
            part.zero_grad()
        criterion(outputs, labels).backward()
        with torch.no_grad():
            for part in parts:
                for parameter in part.parameters():
                    parameter.sub_(0.1 * parameter.grad)


def test_each_fold_is_a_run(run_dir: Path, discovery: Discovery) -> None:
    for n_steps in (3, 4, 5):
        model = mlp()
        fit(model, n_steps)
        assert not discovery.is_searching
        model.eval()
        with torch.no_grad():
            model(next(digits(8))[0])
    assert [hook.is_closed for hook in discovery.hooks] == [True, True, False]
    steps = steps_of(run_dir, discovery)
    assert [len(each) for each in steps] == [3, 4, 5]
    trial = create_trial(run_of(run_dir, 3))
    assert trial.tensor("CrossEntropyLoss_output_0").steps(mode=TRAIN) == steps[2]


def test_folds_that_share_a_loss_have_only_their_own_losses(
    run_dir: Path, discovery: Discovery
) -> None:
    criterion = nn.CrossEntropyLoss()
    seen: list[list[float]] = []
    for _ in range(3):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen.append([])
        for _, (inputs, labels) in zip(range(4), digits(8), strict=False):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            seen[-1].append(loss.item())
    assert steps_of(run_dir, discovery) == [[0, 1, 2, 3]] * 3
    for number, losses in enumerate(seen, 1):
        trial = create_trial(run_of(run_dir, number))
        assert trial.tensor_names(collection="losses") == ["CrossEntropyLoss_output_0"]
        loss_of_run = trial.tensor("CrossEntropyLoss_output_0")
        found = [float(loss_of_run.value(step)) for step in loss_of_run.steps()]
        assert found == losses, number


def test_an_encoder_that_was_trained_before_is_part_of_the_second_run(
    run_dir: Path, discovery: Discovery
) -> None:
    encoder, decoder, head = nn.Linear(64, 8), nn.Linear(8, 64), nn.Linear(8, 10)
    whole = nn.Sequential(encoder, decoder)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for _, (inputs, _labels) in zip(range(3), digits(8), strict=False):
        functional.mse_loss(whole(inputs), inputs).backward()
        optimizer.step()
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _, (inputs, labels) in zip(range(4), digits(8), strict=False):
        functional.cross_entropy(head(encoder(inputs)), labels).backward()
        optimizer.step()
    assert steps_of(run_dir, discovery) == [[0, 1, 2], [0, 1, 2, 3]]
    names = create_trial(run_of(run_dir, 2)).tensor_names(regex="^gradient/")
    assert len(names) == 4, names


def test_a_further_optimizer_of_the_same_model_goes_on_with_its_run(
    run_dir: Path, discovery: Discovery
) -> None:
    model = mlp()
    fit(model, 2)
    fit(model, 3)
    assert steps_of(run_dir, discovery) == [[0, 1, 2, 3, 4]]


def test_trainings_that_take_turns_are_both_captured_to_the_end(
    run_dir: Path, discovery: Discovery
) -> None:
    models = [mlp(), mlp()]
    optimizers = []
    for n_rounds in (2, 3):
        model = models[len(optimizers)]
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(n_rounds):
            for each, optimizer in zip(models, optimizers, strict=False):
                inputs, labels = next(digits(8))
                functional.cross_entropy(each(inputs), labels).backward()
                optimizer.step()
    assert not any(hook.is_closed for hook in discovery.hooks)
    assert [len(each) for each in steps_of(run_dir, discovery)] == [5, 3]
    for number, n_steps in ((1, 5), (2, 3)):
        loss = create_trial(run_of(run_dir, number)).tensor("cross_entropy_output_0")
        assert len(loss.steps(mode=TRAIN)) == n_steps, number


def test_updates_by_hand_are_a_training_from_its_second_step_on(
    run_dir: Path, discovery: Discovery
) -> None:
    model = mlp()
    fit_by_hand(6, model, criterion=functional.cross_entropy)
    assert not discovery.is_searching
    assert steps_of(run_dir, discovery) == [[0, 1, 2, 3, 4]]
    trial = create_trial(run_dir)
    assert len(trial.tensor_names(regex="^gradient/")) == 4
    assert trial.tensor("cross_entropy_output_0").steps(mode=TRAIN) == [0, 1, 2, 3, 4]


def test_two_models_that_are_trained_together_by_hand_are_one_run(
    run_dir: Path, discovery: Discovery
) -> None:
    parts = nn.Linear(64, 16), nn.Linear(16, 10)
    fit_by_hand(6, *parts, criterion=functional.cross_entropy)
    assert [len(each) for each in steps_of(run_dir, discovery)] == [5]
    assert len(create_trial(run_dir).tensor_names(regex="^gradient/")) == 4


def test_a_second_training_by_hand_is_found(
    run_dir: Path, discovery: Discovery
) -> None:
    fit(mlp(), 3)
    fit_by_hand(8, mlp(), criterion=functional.cross_entropy)
    first, second = steps_of(run_dir, discovery)
    assert len(first) <= 4, "one backward pass of the second at most"
    assert len(second) >= 5


def test_a_model_that_only_infers_is_no_training(
    run_dir: Path, discovery: Discovery, capfd: pytest.CaptureFixture[str]
) -> None:
    model = mlp()
    for _ in range(5):
        model(next(digits(8))[0])
    discovery.print_summary()
    assert not run_dir.exists()
    assert (
        "the program created no optimizer and began no backward pass"
        in capfd.readouterr().err
    )


def test_a_model_that_judges_what_is_optimized_is_no_training(
    run_dir: Path, discovery: Discovery, capfd: pytest.CaptureFixture[str]
) -> None:
    judge, picture = mlp(), torch.zeros(8, 64, requires_grad=True)
    optimizer = torch.optim.SGD([picture], lr=0.1)
    for _ in range(5):
        judge(picture).sum().backward()
        optimizer.step()
    discovery.print_summary()
    assert not run_dir.exists()
    assert (
        "the program called no module with an optimizer's parameters"
        in capfd.readouterr().err
    )


class Comparable(torch.optim.SGD):
    """An optimizer of somebody's own, which cannot be a key of a dictionary."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comparable)

    __hash__ = None  # type: ignore[assignment]


def test_an_optimizer_that_the_search_cannot_handle_trains_as_without_it(
    discovery: Discovery, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    optimizer = Comparable(model.parameters(), lr=0.1)
    weight = next(model.parameters())
    before = weight.detach().clone()
    train(model, nn.CrossEntropyLoss(), optimizer, digits(8), 2)
    assert not torch.equal(before, weight)
    assert "tdbg captures nothing: unhashable type" in caplog.text
    assert not discovery.is_searching


def test_modules_are_looked_at_once_while_a_program_infers(
    discovery: Discovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[nn.Module] = []
    is_root = Discovery._is_root

    def count(found: Discovery, module: nn.Module) -> bool:
        looked_at.append(module)
        return is_root(found, module)

    monkeypatch.setattr(Discovery, "_is_root", count)
    model = mlp()
    inputs, _ = next(digits(8))
    for _ in range(3):
        model(inputs)
    with torch.no_grad():
        model(inputs)
    assert len(looked_at) == len(list(model.modules()))
    assert discovery.is_searching


def test_trainings_beyond_the_most_are_counted(
    run_dir: Path,
    discovery: Discovery,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launch, "MOST_TRAININGS", 2)
    for _ in range(5):
        fit(mlp(), 2)
    discovery.print_summary()
    assert [len(each) for each in steps_of(run_dir, discovery)] == [2, 2]
    printed = capfd.readouterr().err
    assert "captured 2 trainings, each in its own run" in printed
    assert "3 more trainings were not captured" in printed


def test_models_beyond_the_most_of_a_training_are_counted(
    run_dir: Path, discovery: Discovery, capfd: pytest.CaptureFixture[str]
) -> None:
    models = [nn.Linear(64, 10) for _ in range(launch.MOST_ROOTS + 3)]
    parameters = [each for model in models for each in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    inputs, _labels = next(digits(8))
    torch.stack([model(inputs) for model in models]).sum().backward()
    optimizer.step()
    discovery.print_summary()
    assert "3 calls of other models were not captured" in capfd.readouterr().err
    assert len(steps_of(run_dir, discovery)) == 1


def train_in_a_child(n_steps: int) -> None:
    fit(mlp(), n_steps)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_children_that_are_forked_have_runs_of_their_own(
    run_dir: Path, discovery: Discovery, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(mlp(), 2)
    context = multiprocessing.get_context("fork")
    for n_steps in (3, 4):
        child = context.Process(target=train_in_a_child, args=(n_steps,))
        child.start()
        child.join()
        assert child.exitcode == 0
    printed = capfd.readouterr().err
    assert [len(each) for each in steps_of(run_dir, discovery)] == [2, 3, 4]
    assert f"captured 3 steps; the run is in {run_of(run_dir, 2)}" in printed
    assert f"captured 4 steps; the run is in {run_of(run_dir, 3)}" in printed


def test_a_restart_joins_the_runs_of_the_launch_before(run_dir: Path) -> None:
    for number in (1, 2):
        found = Discovery(
            {
                "out_dir": str(run_dir),
                "existing": existing(run_dir),
                "statistics_interval": 1,
            }
        )
        found.start()
        fit(mlp(), 2)
        fit(mlp(), 2)
        found.stop()
        process._callbacks.remove(found.print_summary)
        for hook in found.hooks:
            hook.close()
        for run in (run_dir, run_of(run_dir, 2)):
            assert len(create_trial(run).attempts()) == number
    assert not run_of(run_dir, 3).exists()


@pytest.mark.usefixtures("discovery")
def test_a_script_with_hooks_of_its_own_on_all_optimizers_trains_on():
    """The search ends in a hook of this kind, which torch is going through then."""
    seen: list[object] = []
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(None))
    try:
        fit(mlp(), 3)
    finally:
        handle.remove()
    assert len(seen) == 3


class SelfTrained(nn.Linear):
    """A layer that trains by itself, and calls its own forward()."""

    def fit(self, n_steps: int) -> None:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for _, (inputs, labels) in zip(range(n_steps), digits(8), strict=False):
            optimizer.zero_grad()
            functional.cross_entropy(self.forward(inputs), labels).backward()
            optimizer.step()


def test_a_layer_whose_forward_is_called_by_itself_is_captured(
    run_dir: Path, discovery: Discovery, capsys: pytest.CaptureFixture[str]
):
    layer = SelfTrained(64, 10)
    layer.fit(20)
    discovery.print_summary()
    assert "backward passes followed no" not in capsys.readouterr().err
    # The first two steps show that nothing calls the module.
    (steps,) = steps_of(run_dir, discovery)
    assert len(steps) == 18
    trial = create_trial(run_dir)
    expected = {"cross_entropy_output_0", "gradient/weight", "SelfTrained_output_0"}
    assert expected <= set(trial.tensor_names())


def test_layers_that_train_one_after_the_other_are_a_run_each(
    run_dir: Path, discovery: Discovery
):
    """Their optimizers are made at the beginning."""
    layers = [nn.Linear(64, 64), nn.Linear(64, 64)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in layers]
    for layer, optimizer in zip(layers, optimizers, strict=True):
        for _, (inputs, _) in zip(range(30), digits(8), strict=False):
            optimizer.zero_grad()
            functional.mse_loss(layer(inputs), inputs).backward()
            optimizer.step()
    assert [len(steps) for steps in steps_of(run_dir, discovery)] == [30, 30]
    assert "gradient/weight" in create_trial(run_of(run_dir, 2)).tensor_names()


def test_fine_tuning_a_part_of_the_model_is_a_run_of_its_own(
    run_dir: Path, discovery: Discovery
):
    """Once the optimizer that trained all of it is gone."""
    model = mlp()
    fit(model, 10)
    optimizer = torch.optim.SGD(list(model.parameters())[-2:], lr=0.1)
    train(model, nn.CrossEntropyLoss(), optimizer, digits(8), 12)
    assert [len(steps) for steps in steps_of(run_dir, discovery)] == [10, 12]


def test_another_optimizer_of_the_same_parameters_goes_on_with_the_run(
    run_dir: Path, discovery: Discovery
):
    model = mlp()
    fit(model, 10)
    fit(model, 12)
    assert [len(steps) for steps in steps_of(run_dir, discovery)] == [22]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_copies_of_such_a_layer_have_the_forward_of_their_class(
    discovery: Discovery, tmp_path: Path
):
    layer = SelfTrained(64, 10)
    layer.fit(3)
    assert "forward" in vars(layer)
    torch.save(layer, tmp_path / "layer.pt")
    with torch.serialization.safe_globals([SelfTrained]):
        loaded = torch.load(tmp_path / "layer.pt", weights_only=True)
    x = torch.ones(1, 64)
    for copied in (loaded, copy.deepcopy(layer)):
        assert "forward" not in vars(copied)
        assert torch.equal(copied(x), layer(x))
    assert torch.equal(torch.jit.script(layer)(x), layer(x))
    discovery.stop()
    assert "forward" not in vars(layer)


def test_a_forward_whose_module_has_hooks_of_the_script_stays_as_it_is(
    discovery: Discovery, capsys: pytest.CaptureFixture[str]
):
    """They would be called where they are not today."""
    layer = SelfTrained(64, 10)
    seen: list[object] = []
    layer.register_forward_hook(lambda *_: seen.append(None))
    layer.fit(20)
    assert seen == []
    discovery.print_summary()
    assert (
        "nothing was captured: the program called no module" in capsys.readouterr().err
    )


class Called(nn.Module):
    """The base class of a library whose modules are called past all hooks."""

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.forward(*inputs)  # type: ignore[no-any-return]


class CalledLayer(Called):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(10, 64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self.weight)


def test_a_module_with_a_call_of_its_own_is_captured(
    run_dir: Path, discovery: Discovery
) -> None:
    """As all of GPyTorch are; also those of a later training."""
    models = CalledLayer(), CalledLayer()
    for model in models:
        fit(model, 9)
        assert not discovery.is_searching
    first, second = steps_of(run_dir, discovery)
    assert min(len(first), len(second)) >= 5
    for number in (1, 2):
        trial = create_trial(run_of(run_dir, number))
        assert trial.has_tensor("gradient/weight")
        assert trial.has_tensor("CalledLayer_output_0")
    discovery.stop()
    assert all("forward" not in vars(model) for model in models)
    copied = copy.deepcopy(models[0])
    inputs = torch.randn(2, 64)
    torch.testing.assert_close(copied(inputs), models[0](inputs), rtol=0, atol=0)


def test_optimizers_that_are_made_when_they_step_begin_a_training(
    run_dir: Path, discovery: Discovery
) -> None:
    """As Pyro makes one of each parameter that it meets."""
    fit(mlp(), 5)
    model = mlp()
    made: dict[nn.Parameter, torch.optim.Optimizer] = {}
    for _, (inputs, labels) in zip(range(5), digits(8), strict=False):
        loss: torch.Tensor = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        for parameter in model.parameters():
            if parameter not in made:
                made[parameter] = torch.optim.SGD([parameter], lr=0.1)
            made[parameter].step()
            made[parameter].zero_grad()
    assert not discovery.is_searching
    first, second = steps_of(run_dir, discovery)
    assert (len(first), len(second)) == (5, 4)


class Sharpness(torch.optim.Optimizer):
    """Steps by a base optimizer of its own, and never itself, as SAM does."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)

    def second_step(self) -> None:
        self.base.step()


def test_an_optimizer_that_never_steps_itself_does_not_join_the_next_training(
    run_dir: Path, discovery: Discovery
) -> None:
    """It is gone by then, and the base with it."""
    for _ in range(2):
        model = mlp()
        optimizer = Sharpness(model.parameters())
        for _, (inputs, labels) in zip(range(30), digits(8), strict=False):
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.second_step()
            optimizer.zero_grad()
        del model, optimizer
        gc.collect()
    assert steps_of(run_dir, discovery) == [[*range(30)], [*range(30)]]
