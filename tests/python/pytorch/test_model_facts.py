"""What a training says of its model."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tdbg.config import Needs
from tdbg.hooks.pytorch.model.mode import evaluating
from tdbg.hooks.pytorch.model.module_tree import package_models_in
from tdbg.modes import ModeKeys
from tdbg.pytorch import Hook, watch
from tdbg.rules import Evaluation, Rule, Window
from tdbg.run.model_info import ModelInfo
from tdbg.trial import Trial, create_trial
from torch_helpers import digits, mlp, train


@dataclass(frozen=True, slots=True, kw_only=True)
class Units(Rule):
    """Needs units of a module that has none by default."""

    @property
    def needs(self) -> Needs:
        return Needs(
            collections=frozenset({"outputs"}),
            modules=frozenset({"Tanh"}),
            unit_summaries=True,
            interval=1,
        )

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        del window
        yield from ()


def begin(path: Path, model: nn.Module, **options: Any) -> tuple[Hook, nn.Module]:
    hook = Hook(path, min_free_bytes=0, **options)
    hook.register_module(model)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    return hook, criterion


def step(
    model: nn.Module, criterion: nn.Module, *optimizers: torch.optim.Optimizer
) -> None:
    inputs, labels = next(digits(8))
    model.zero_grad()
    criterion(model(inputs), labels).backward()
    for optimizer in optimizers:
        optimizer.step()


def model_info_of(hook: Hook, path: Path) -> tuple[ModelInfo, ...]:
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return create_trial(path).model_info()


def test_facts_are_written_at_the_end_of_the_first_step(tmp_path: Path) -> None:
    model = mlp()
    model.fc1.bias.requires_grad_(False)  # type: ignore[union-attr]
    hook, criterion = begin(tmp_path, model)
    optimizer = torch.optim.AdamW(model.fc2.parameters(), lr=0.1)  # type: ignore[union-attr]
    step(model, criterion, optimizer)
    hook.flush()
    assert len(create_trial(tmp_path).model_info()) == 1
    for _ in range(25):
        step(model, criterion, optimizer)
    (model_info,) = model_info_of(hook, tmp_path)
    assert model_info.step == 0
    assert model_info.complete
    assert model_info.models == ("Net",)
    assert model_info.losses == ("CrossEntropyLoss",)
    assert model_info.optimizers == ("AdamW",)
    assert model_info.modules == {
        "Net": "Net",
        "fc1": "Linear",
        "relu": "ReLU",
        "fc2": "Linear",
    }
    weight, bias = (
        model_info.parameters["fc1.weight"],
        model_info.parameters["fc1.bias"],
    )
    assert (weight.shape, weight.dtype, weight.module) == (
        (24, 64),
        "float32",
        "Linear",
    )
    assert (weight.requires_grad, weight.optimizer) == (True, None)
    assert not bias.requires_grad
    assert model_info.parameters["fc2.weight"].optimizer == 0
    assert model_info.module_of("relu_output_0") == "ReLU"


def test_an_evaluation_before_the_first_step_is_told_what_is_evaluated(
    tmp_path: Path,
) -> None:
    """As that of an untrained model, with which a loop begins."""
    model = mlp()
    hook, criterion = begin(tmp_path, model)
    inputs, labels = next(digits(8))
    model.eval()
    criterion(model(inputs), labels)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, criterion, optimizer)
    first, *others = model_info_of(hook, tmp_path)
    assert first.step == 0
    assert first.modules["fc1"] == "Linear"
    assert others[-1].optimizers == ("SGD",)


def test_a_parameter_that_is_unfrozen_later_is_told(tmp_path: Path) -> None:
    model = mlp()
    model.fc1.requires_grad_(False)  # type: ignore[operator]
    hook, criterion = begin(tmp_path, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(30):
        if number == 12:
            model.fc1.requires_grad_(True)  # type: ignore[operator]
        step(model, criterion, optimizer)
    first, second = model_info_of(hook, tmp_path)
    assert not first.parameters["fc1.weight"].requires_grad
    assert second.parameters["fc1.weight"].requires_grad
    assert 12 <= second.step < 25


def test_an_optimizer_that_comes_later_is_told_at_once(tmp_path: Path) -> None:
    model = mlp()
    hook, criterion = begin(tmp_path, model)
    first_optimizer = torch.optim.SGD(model.fc1.parameters(), lr=0.1)  # type: ignore[union-attr]
    for _ in range(3):
        step(model, criterion, first_optimizer)
    other = torch.optim.Adam(model.fc2.parameters())  # type: ignore[union-attr]
    step(model, criterion, first_optimizer, other)
    step(model, criterion, first_optimizer, other)
    first, second = model_info_of(hook, tmp_path)
    assert first.optimizers == ("SGD",)
    assert first.parameters["fc2.weight"].optimizer is None
    assert second.optimizers == ("SGD", "Adam")
    assert second.parameters["fc2.weight"].optimizer == 1
    assert second.step in {3, 4}


def test_a_training_without_an_optimizer_tells_that_too(tmp_path: Path) -> None:
    model = mlp()
    hook, criterion = begin(tmp_path, model)
    for _ in range(2):
        step(model, criterion)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)  # type: ignore[arg-type]
    (model_info,) = model_info_of(hook, tmp_path)
    assert not model_info.complete
    assert model_info.parameters["fc1.weight"].optimizer is None


def test_two_models_keep_their_names(tmp_path: Path) -> None:
    first, second = mlp(), mlp()
    hook, criterion = begin(tmp_path, first)
    hook.register_module(second)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    step(nn.Sequential(first), criterion, optimizer)
    (model_info,) = model_info_of(hook, tmp_path)
    assert model_info.models == ("Net", "Net")
    assert model_info.modules["Net_2"] == "Net"
    assert model_info.modules["Net_2.fc1"] == "Linear"
    assert model_info.parameters["Net_2.fc1.weight"].optimizer == 0
    assert model_info.module_of("Net_2.relu_output_0") == "ReLU"


def test_a_model_of_many_parameters_is_told_in_parts(tmp_path: Path) -> None:
    layers = [nn.Linear(1, 1) for _ in range(4000)]
    model = nn.ModuleDict({f"{'long' * 10}{i}": each for i, each in enumerate(layers)})
    hook = Hook(tmp_path, min_free_bytes=0)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hook.forward_pass():
        layers[0](torch.ones(1)).backward()
    optimizer.step()
    (model_info,) = model_info_of(hook, tmp_path)
    assert len(model_info.parameters) == 8000
    assert len(model_info.modules) == 4001
    assert len(create_trial(tmp_path).events("configuration")) > 2


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_training_tells_the_same(whole: bool, tmp_path: Path) -> None:
    """And its rules get what they need."""
    trials: list[Trial] = []
    for compiles in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
        path = tmp_path / str(compiles)
        rules = [Units()] if whole else ["ClassImbalance"]
        hook, criterion = begin(path, model, rules=rules)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        called: Any = model
        if compiles:
            called = torch.compile(model, backend="eager")
        for _ in range(3):
            step(called, criterion, optimizer)
        assert hook.counters()["internal_errors"] == 0
        hook.close()
        trials.append(create_trial(path))
    eager, compiled = trials
    assert eager.model_info() == compiled.model_info()
    assert eager.tensor_names() == compiled.tensor_names()
    if whole:
        values = [t.tensor("unit/1_output_0").value(0) for t in trials]
        assert (values[0] == values[1]).all()
    else:
        assert "CrossEntropyLoss_input_1" in eager.tensor_names()


# ---- training in evaluation mode -------------------------------------------------


pytestmark = pytest.mark.torch


def normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(16, 10),
    )  # fmt: skip


def told(
    run_dir: Path,
    model: nn.Module,
    prepare: Callable[[nn.Module], object],
    *learning: nn.Parameter,
) -> tuple[str, ...]:
    """What is said at last of a model that was prepared so before each step."""
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(learning or model.parameters(), 0.01)
    batches = digits(8)
    for _ in range(3):
        prepare(model)
        train(model, criterion, optimizer, batches, 1)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    return create_trial(run_dir).model_info()[-1].evaluating


def test_the_layers_that_mind_are_named(run_dir: Path):
    assert told(run_dir, normed(), nn.Module.eval) == ("1", "3")


def test_of_a_model_that_trains_none_are(run_dir: Path):
    assert told(run_dir, normed(), lambda _: None) == ()


def normalization(model: nn.Module) -> None:
    """As in detection: the model trains, its normalization keeps its statistics."""
    model.train()
    model.get_submodule("1").eval()


def but_for_dropout(model: nn.Module) -> None:
    model.eval()
    model.get_submodule("3").train()


def frozen_scales(model: nn.Module) -> None:
    model.eval()
    model.get_submodule("1").requires_grad_(False)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [(normalization, ()), (but_for_dropout, ()), (frozen_scales, ("3",))],
)
def test_what_somebody_has_chosen_is_not_named(
    prepare: Callable[[nn.Module], object], expected: tuple[str, ...], run_dir: Path
):
    assert told(run_dir, normed(), prepare) == expected


def test_the_features_of_a_frozen_trunk_are_to_stay_as_they_are(run_dir: Path):
    model = normed()
    assert told(run_dir, model, nn.Module.eval, *model[4].parameters()) == ()


class Dropping(nn.Module):
    """Drops by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(this, x: torch.Tensor) -> torch.Tensor:  # noqa: N805
        out: torch.Tensor = this.fc(F.dropout(x, 0.1, training=this.training))
        return out


def test_a_model_that_drops_by_a_function_is_named(run_dir: Path, tmp_path: Path):
    for path, prepare, expected in (
        (run_dir, nn.Module.eval, ("0",)),
        (tmp_path / "train", nn.Module.train, ()),
    ):
        model = nn.Sequential(Dropping())
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with watch(model, out=path):
            for inputs, labels in itertools.islice(digits(8), 3):
                prepare(model)
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        assert create_trial(path).model_info()[-1].evaluating == expected


def test_inputs_that_another_model_made_are_told(run_dir: Path):
    encoder, decoder = nn.Sequential(nn.Linear(64, 4)), nn.Sequential(nn.Linear(4, 64))
    judge = nn.Sequential(nn.Linear(64, 1))
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.01)
    with watch(encoder, out=run_dir) as hook:
        hook.register_module(decoder, name="d")
        hook.register_module(judge, name="j")
        for inputs, _ in itertools.islice(digits(8), 3):
            decoded = decoder(encoder(inputs))
            # One that is given both, as a discriminator is, is given data.
            loss = (judge(decoded) - judge(inputs)).pow(2).mean()
            optimizer.zero_grad()
            (loss + (decoded - inputs).pow(2).mean()).backward()
            optimizer.step()
        assert hook.counters()["internal_errors"] == 0
    made = create_trial(run_dir).model_info()[-1].made_inputs
    assert made == ("d_input_0",)


PACKAGE = """
from torch import nn

class Encoder(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.pooler = nn.Linear(2, 2)
"""


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize("has_init", [True, False])
def test_what_a_package_has_made_of_a_model_is_known(
    has_init: bool,
    is_installed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    package = f"encoders_{has_init}_{is_installed}"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "encoder.py").write_text(PACKAGE)
    if has_init:
        (folder / "__init__.py").touch()
    if is_installed:
        (tmp_path / f"{package}-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    encoder = importlib.import_module(f"{package}.encoder").Encoder(nn.Linear(2, 2))
    model = nn.ModuleDict({"encoder": encoder, "head": nn.Linear(2, 2)})
    paths = ("encoder", "encoder.body", "encoder.body.0", "encoder.pooler")
    expected = dict.fromkeys(paths, "encoder") if is_installed else {}
    assert package_models_in(model) == expected
    # Of what the program put in the package has made nothing.
    encoder.body.append(Dropping())
    assert not package_models_in(model).keys() & {"encoder.body.1"}


class Block(nn.Module):
    """Layers that mind, or do not, by how they are made."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(64, 10)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.first(x)
        return out


class DropPath(nn.Module):
    """Of another package."""

    drop_prob = 0.1


def test_a_model_that_trains_has_chosen_which_layers_do_not():
    """Though its own mode is not that of the training: another was registered first."""
    model = normed()[:3]
    model[1].eval()
    parameters = {id(each) for each in model.parameters()}
    assert evaluating(model, parameters, set()) == []
    assert evaluating(model.eval(), parameters, set()) == ["1"]


def test_which_layers_mind(run_dir: Path):
    mind = [
        nn.BatchNorm1d(2, affine=False),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.LSTM(2, 2, 2, dropout=0.1),
        nn.MultiheadAttention(2, 1, dropout=0.1),
        nn.RReLU(),
        nn.Dropout2d(0.1),
        DropPath(),
    ]
    do_not = [
        nn.BatchNorm1d(2, track_running_stats=False),
        nn.InstanceNorm1d(2),
        nn.LSTM(2, 2, 2),
        nn.LSTM(2, 2),
        nn.MultiheadAttention(2, 1),
        nn.Dropout(0.0),
        nn.LayerNorm(2),
        nn.GELU(),
    ]
    model = Block(*mind, *do_not)
    model.add_module("own", nn.Linear(1, 1))
    expected = tuple(f"layers.{i}" for i in range(len(mind)))
    assert told(run_dir, model, nn.Module.eval) == expected


def test_without_such_layers_there_is_nothing_to_say(run_dir: Path):
    assert told(run_dir, mlp(), nn.Module.eval) == ()


def test_it_is_said_from_the_step_on_at_which_it_is_so(run_dir: Path):
    model = normed()
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion, batches = nn.CrossEntropyLoss(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for mode in (True, False, True):
        model.train(mode)
        train(model, criterion, optimizer, batches, 4)
    hook.close()
    model_info = create_trial(run_dir).model_info()
    assert [(each.step, each.evaluating) for each in model_info] == [
        (0, ()),
        (4, ("1", "3")),
        (8, ()),
    ]


def test_a_teacher_in_evaluation_mode_is_not_what_is_trained(run_dir: Path):
    """Registered first, so that the mode is its mode."""
    teacher, student = normed().eval().requires_grad_(False), normed()
    optimizer = torch.optim.SGD(student.parameters(), 0.01)
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(teacher)
    hook.register_module(student)
    batches = digits(8)
    for _ in range(4):
        inputs = next(batches)[0]
        with torch.no_grad():
            said = teacher(inputs)
        (student(inputs) - said).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close()
    assert create_trial(run_dir).model_info()[-1].evaluating == ()


def test_who_goes_in_and_out_of_it_at_every_step_means_it(run_dir: Path):
    """And the run does not grow by all that is known of the model at every step."""
    model = normed()
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion, batches = nn.CrossEntropyLoss(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(120):
        model.train(step % 2 == 0)
        train(model, criterion, optimizer, batches, 1)
    hook.close()
    model_info = create_trial(run_dir).model_info()
    assert (model_info[1].step, model_info[1].evaluating) == (1, ("1", "3"))
    assert model_info[-1].evaluating == ()
    assert len(model_info) <= 65


def test_who_says_the_mode_later_has_the_last_word(run_dir: Path):
    model = normed().eval()
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(model)
    criterion, batches = nn.CrossEntropyLoss(), digits(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train(model, criterion, optimizer, batches, 3)
    hook.set_mode(ModeKeys.TRAIN)
    train(model, criterion, optimizer, batches, 3)
    hook.close()
    model_info = create_trial(run_dir).model_info()
    assert [(each.step, each.evaluating) for each in model_info] == [
        (0, ("1", "3")),
        (3, ()),
    ]


def test_a_model_that_the_step_has_not_called_is_not_what_is_trained(run_dir: Path):
    """A generator in evaluation mode, whose mode it is, beside what learns."""
    generator, learner = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64)), normed()
    of_generator = torch.optim.SGD(generator.parameters(), 0.01)
    optimizer = torch.optim.SGD(learner.parameters(), 0.01)
    hook = Hook(run_dir, min_free_bytes=0)
    hook.register_module(generator)
    hook.register_module(learner)
    hook.register_optimizer(of_generator)
    hook.register_optimizer(optimizer, defines_step=True)
    generator.eval()
    for _ in range(3):
        learner(generator(torch.randn(8, 4)).detach()).sum().backward()
        optimizer.step()
    hook.close()
    assert {each.evaluating for each in create_trial(run_dir).model_info()} == {()}


@pytest.mark.parametrize("way", ["one loss", "two losses", "their sum", "a share"])
def test_losses_that_no_backward_begins_at_are_said(way: str, run_dir: Path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first, second = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)
    with watch(model, out=run_dir, min_free_bytes=0):
        for inputs, labels in itertools.islice(digits(16), 12):
            optimizer.zero_grad()
            one = first(model(inputs), labels)
            two = second(model(inputs), labels)
            if way == "two losses":
                one.backward()
                two.backward()
            elif way == "their sum":
                (one + 0.1 * two).backward()
            else:
                (one / 4 if way == "a share" else one).backward()
            optimizer.step()
    info = create_trial(run_dir).model_info()[-1]
    is_idle = way in {"one loss", "a share"}
    assert info.idle_losses == (("CrossEntropyLoss_2",) if is_idle else ())
