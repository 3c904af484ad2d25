"""Functions that a training calls itself: activations, losses, and what is left."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

import tdbg.pytorch as td
from tdbg.modes import EVAL, TRAIN
from tdbg.rules import default_rules
from tdbg.rules.testing import judge
from tdbg.trial import Trial, create_trial
from torch_helpers import EVERYTHING, digits

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """The model of the scripts that are copied most."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.drop = nn.Dropout(0.1)
        self.fc1 = nn.Linear(36, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv(x), inplace=True), 2)
        x = F.relu(self.fc1(self.drop(x.flatten(1))))
        x = torch.tanh(self.fc2(x))
        return F.log_softmax(self.fc3(x), dim=1)


def fit(
    model: nn.Module,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    n_steps: int = 6,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]] | None = None,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _, (inputs, labels) in zip(
        range(n_steps), batches or digits(16, images=True), strict=False
    ):
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        optimizer.step()


def made() -> Net:
    torch.manual_seed(5)
    return Net()


def watched(
    run_dir: Path, model: nn.Module, loss_of: Any, **options: Any
) -> tuple[Trial, list[torch.Tensor]]:
    """Train under ``watch``: the run, and the weights."""
    with td.watch(model, out=run_dir, save_config=EVERYTHING, **options):
        torch.manual_seed(6)
        fit(model, loss_of)
    return create_trial(run_dir), [each.detach() for each in model.parameters()]


def losses(trial: Trial) -> set[str]:
    return set(trial.tensor_names(collection="losses"))


def test_the_most_copied_script_is_judged_by_all_rules_and_trains_the_same(
    run_dir: Path,
) -> None:
    plain, model = made(), made()
    for each in (plain, model):
        with torch.no_grad():
            each.fc1.bias.fill_(-50.0)  # Dead.
            each.fc2.bias.fill_(9.0)  # Saturated.
    batches = [
        (inputs, labels.clamp(max=1) * (torch.arange(16) == 3))
        for _, (inputs, labels) in zip(range(60), digits(16, images=True), strict=False)
    ]
    torch.manual_seed(6)
    fit(plain, F.nll_loss, 60, iter(batches))
    with td.watch(model, out=run_dir, save_config=EVERYTHING):
        torch.manual_seed(6)
        fit(model, F.nll_loss, 60, iter(batches))
        model.eval()
        with torch.no_grad():
            inputs, labels = batches[0]
            F.nll_loss(model(inputs), labels, reduction="sum")
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    trial = create_trial(run_dir)
    assert set(trial.tensor_names(regex="^[^/]*_(relu|tanh|log_softmax)_")) == {
        "conv_relu_output_0",
        "fc1_relu_output_0",
        "fc2_tanh_output_0",
        "fc3_log_softmax_output_0",
    }
    assert trial.tensor("conv_relu_output_0").stats(0, mode=TRAIN).min == 0.0
    assert losses(trial) == {"nll_loss_output_0", "nll_loss_sum_output_0"}
    assert trial.tensor("nll_loss_sum_output_0").steps(mode=EVAL) == [0]
    found = {(each.rule, each.tensor) for each in judge(run_dir, *default_rules())}
    assert {
        ("DeadRelu", "fc1_relu_output_0"),
        ("SaturatedActivation", "fc2_tanh_output_0"),
        ("ClassImbalance", "nll_loss_input_1"),
    } <= found


class TwiceShared(nn.Module):
    """One layer called twice, and a model that ends with a saturated answer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(64, 64)
        self.block = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        x = F.gelu(self.shared(x))
        x = F.gelu(self.shared(x))
        return torch.tanh(self.block(x) * 1e4)


def test_a_function_is_named_after_the_module_that_finished_before_it(
    run_dir: Path,
) -> None:
    model = TwiceShared()
    with td.watch(model, out=run_dir, save_config=EVERYTHING):
        fit(model, _squares, 60, digits(16))
    trial = create_trial(run_dir)
    assert set(trial.tensor_names(regex="^[^/]*_(relu|gelu|tanh)_")) == {
        "TwiceShared_relu_output_0",
        "shared_gelu_output_0",
        "shared_gelu_output_0@2",
        "block_tanh_output_0",
    }
    assert losses(trial) == {"loss_output_0"}
    rules = [each for each in default_rules() if "Saturated" in type(each).__name__]
    assert judge(run_dir, *rules) == [], "the answer may be sure"


def _game(run_dir: Path, *, n_optimizers: int, in_one_line: bool) -> Trial:
    """Train two networks against each other, with losses computed by hand."""
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))
    critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    nets = [generator, critic]
    held = [[*each.parameters()] for each in nets]
    if n_optimizers == 1:
        held = [[*held[0], *held[1]]]
    optimizers = [torch.optim.Adam(each, lr=1e-3) for each in held]

    def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with td.watch(generator, out=run_dir, save_config=EVERYTHING) as hook:
        hook.register_module(critic)
        for _ in range(6):
            fake = generator(torch.randn(8, 5))
            loss = (1.0 - critic(fake)).log().mean()
            if in_one_line:
                update(optimizers[0], loss)
            else:
                optimizers[0].zero_grad()
                loss.backward()
                optimizers[0].step()
            right, wrong = critic(torch.ones(8, 4)), critic(fake.detach())
            loss = -(right.log() + (1.0 - wrong).log()).mean()
            if in_one_line:
                update(optimizers[-1], loss)
            else:
                optimizers[-1].zero_grad()
                loss.backward()
                optimizers[-1].step()
    return create_trial(run_dir)


def test_of_several_optimizers_each_line_that_a_backward_begins_at_is_a_loss(
    run_dir: Path,
) -> None:
    """Sabotage that it caught: one name for all."""
    trial = _game(run_dir, n_optimizers=2, in_one_line=False)
    assert losses(trial) == {"loss_output_0", "loss_2_output_0"}
    of_generator, of_critic = (
        trial.tensor(each) for each in ("loss_output_0", "loss_2_output_0")
    )
    assert of_generator.steps() == list(range(6))
    # That the critic ends the step is known when the generator's optimizer returns.
    assert of_critic.steps() == list(range(1, 6))
    assert all(of_generator.reduction_value(n, "max") < 0 for n in of_generator.steps())
    assert all(of_critic.reduction_value(n, "min") > 1 for n in of_critic.steps())


def test_passes_that_begin_at_one_line_or_for_one_optimizer_are_one_loss(
    tmp_path: Path,
) -> None:
    trial = _game(tmp_path / "line", n_optimizers=2, in_one_line=True)
    assert losses(trial) == {"loss_output_0"}
    trial = _game(tmp_path / "optimizer", n_optimizers=1, in_one_line=False)
    assert losses(trial) == {"loss_output_0"}


def _squares(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (output[torch.arange(16), labels] - 1.0).square().mean()


def _legacy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(output, labels, size_average=False)


def _variational(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(output, labels) + output.square().mean()


def _accumulated(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        F.mse_loss(output.exp().sum(1), torch.ones(16))  # A measure.
    F.l1_loss(output.detach(), torch.zeros(16, 10))
    return F.nll_loss(output, labels, reduction="none").mean() / 4


def _unregistered(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.NLLLoss()(output, labels) * 0.5


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [
        (F.nll_loss, {"nll_loss_output_0"}),
        (_legacy, {"nll_loss_sum_output_0"}),
        (_squares, {"loss_output_0"}),
        (_variational, {"nll_loss_output_0", "loss_output_0"}),
        (_accumulated, {"nll_loss_none_output_0"}),
        (_unregistered, {"NLLLoss_output_0"}),
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning")
def test_each_loss_is_recorded_once(
    run_dir: Path, loss_of: Any, expected: set[str]
) -> None:
    trial, _ = watched(run_dir, made(), loss_of)
    assert losses(trial) == expected
    for name in expected:
        assert trial.tensor(name).steps(mode=TRAIN) == list(range(6)), name
    if any("nll" in name.lower() for name in expected):
        assert len(trial.tensor_names(collection="labels")) == 1


def test_a_registered_loss_is_captured_as_before(run_dir: Path) -> None:
    criterion = nn.NLLLoss()
    trial, _ = watched(run_dir, made(), criterion, criterion=criterion)
    assert losses(trial) == {"NLLLoss_output_0"}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_functions_are_what_they_were_and_pickled_as_ever(run_dir: Path) -> None:
    functions = {name: getattr(F, name) for name in ("relu", "nll_loss", "gelu")}
    codes = {name: getattr(each, "__code__", 0) for name, each in functions.items()}
    tanh, layer = torch.tanh, nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    held: list[Any] = []

    class Holder(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held.append(pickle.loads(pickle.dumps(layer)).activation)  # noqa: S301
            return super().forward(x)

    model = Holder()
    hook = td.watch(model, out=run_dir, save_config=EVERYTHING)
    fit(model, F.nll_loss, 2)
    assert held == [F.relu, F.relu]
    assert all(getattr(F, name) is each for name, each in functions.items())
    assert torch.tanh is tanh, "outside of forwards"
    torch.jit.script(made())
    hook.close()
    assert {name: getattr(each, "__code__", 0) for name, each in functions.items()} == (
        codes
    )
    assert not hasattr(F.relu, "__signature__")


def test_what_other_threads_and_modes_do_is_no_call_of_the_model(run_dir: Path) -> None:
    class Beside(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=lambda: torch.sigmoid(F.silu(x)))
            thread.start()
            thread.join()
            return super().forward(x)

    with torch.device("cpu"):  # A mode, which passes each call on.
        trial, _ = watched(run_dir, Beside(), F.nll_loss)
    assert not trial.tensor_names(regex="silu|sigmoid|@2")
    assert losses(trial) == {"nll_loss_output_0"}


def test_a_compiled_model_is_compiled_once_and_its_functions_are_left_alone(
    run_dir: Path,
) -> None:
    torch.compiler.reset()
    n_graphs = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        n_graphs.append(1)
        return graph.forward

    model = made()
    torch._dynamo.reset()
    with td.watch(
        model, out=run_dir, save_config=td.SaveConfig(statistics_interval=3)
    ) as hook:
        compiled = torch.compile(model, backend=count, fullgraph=True)
        fit(compiled, F.nll_loss, 70)
        assert len(n_graphs) == 1
        assert hook.counters()["internal_errors"] == 0
    trial = create_trial(run_dir)
    assert len(trial.tensor("fc1_output_0").steps(mode=TRAIN)) > 50
    assert losses(trial) == {"nll_loss_output_0"}
    assert not trial.tensor_names(regex="relu|tanh")
