"""NotInOptimizer: layers that are frozen, and have never learned anything."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.rules import NotInOptimizer
from tdbg.run.findings import Finding, Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts


def trained_on(
    run_dir: Path, model: nn.Module, *learning: nn.Parameter, n_steps: int = 12
) -> list[Finding]:
    """What is said of a training of these parameters, as a hook records it."""
    rule = NotInOptimizer()
    given = list(learning) or [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(given, 0.01)
    with td.Hook(run_dir, rules=[rule]) as hook:
        hook.register_module(model)
        for _ in range(n_steps):
            optimizer.zero_grad()
            model(torch.randn(16, 24)).square().mean().backward()
            optimizer.step()
    return list(tdbg.rules.check(run_dir, rules=[rule]).findings)


def network(n_layers: int, last: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(n_layers):
        layers += [nn.Linear(24, 24), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(24, last))


def learn(model: nn.Module, n_steps: int = 30) -> nn.Module:
    """Train it on something."""
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(n_steps):
        adam.zero_grad()
        inputs = torch.randn(16, 24)
        (model(inputs) - inputs[:, :4]).square().mean().backward()
        adam.step()
    return model


def with_new_head(model: nn.Sequential) -> nn.Sequential:
    model.requires_grad_(False)
    model[-1] = nn.Linear(24, 3)
    return model


def loaded(prefix: str, n_layers: int = 3) -> nn.Sequential:
    """A network whose names are those of the checkpoint, but for a prefix."""
    learned = learn(network(n_layers)).state_dict()
    checkpoint = {f"{prefix}{name}": value for name, value in learned.items()}
    model = network(n_layers)
    model.load_state_dict(checkpoint, strict=False)
    return with_new_head(model)


def test_pretrained_weights_that_were_not_loaded_are_a_warning(tmp_path: Path):
    """Sabotaged: without a look at frozen layers there is nothing."""
    (finding,) = trained_on(tmp_path, loaded("module."))
    assert (finding.tensor, finding.step) == ("0.weight", 9)
    assert finding.severity is Severity.WARNING
    assert "6 of 8 parameters are frozen although they have never" in finding.message
    assert (
        "0.weight, 2.weight, 4.weight still have their initial values"
        in finding.message
    )
    assert "strict=False" in finding.advice


def test_parameters_that_are_cut_off_and_left_out_are_not_called_frozen(
    tmp_path: Path,
):
    class CutOff(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            *before, last = self
            return last(nn.Sequential(*before)(inputs).detach())

    model = CutOff(*network(3))
    (finding,) = trained_on(tmp_path, model, *model[-1].parameters())
    assert "6 of 8 parameters are in no optimizer and have never" in finding.message
    assert "what cuts them off from the loss: detach()" in finding.advice
    assert "requires_grad_(True) before" not in finding.advice


def test_those_that_were_loaded_are_sound(tmp_path: Path):
    assert trained_on(tmp_path, loaded("")) == []


def test_one_layer_may_be_random_features(tmp_path: Path):
    (finding,) = trained_on(tmp_path, loaded("module.", 1))
    assert finding.severity is Severity.INFO
    assert "random features" in finding.advice


@pytest.mark.parametrize("frozen", [slice(0, 3), slice(6, 7)], ids=["first", "last"])
def test_new_layers_that_are_frozen_by_mistake_are_a_warning(
    frozen: slice, tmp_path: Path
):
    model = network(3)
    model[frozen].requires_grad_(False)
    (finding,) = trained_on(tmp_path, model)
    assert finding.severity is Severity.WARNING
    assert "of 8 parameters are frozen" in finding.message
    assert "requires_grad_(True)" in finding.advice


def tuned_by_adapters(*, is_new: bool, deviation: float) -> nn.Module:
    """A pretrained trunk with a frozen head, and a layer beside it that is trained."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapter = nn.Linear(24, 24)
            self.trunk = learn(network(3))
            self.head = self.trunk[-1]
            del self.trunk[-1]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.trunk(x + self.adapter(x)))
            return scores

    model = Adapted()
    model.trunk.requires_grad_(False)
    model.head.requires_grad_(False)
    if is_new:
        nn.init.normal_(model.head.weight, std=deviation)
        nn.init.zeros_(model.head.bias)
    return model


def without_bias(*, is_new: bool) -> nn.Module:
    """The same, whose head has no bias, and is drawn by default if it is new."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapter = nn.Linear(24, 24)
            self.trunk = nn.Sequential(nn.Linear(24, 24), nn.Tanh())
            self.head = nn.Linear(24, 4, bias=False)
            learn(nn.Sequential(self.trunk, self.head), 300)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.trunk(x + self.adapter(x)))
            return scores

    torch.manual_seed(0)
    model = Adapted()
    if is_new:
        model.head = nn.Linear(24, 4, bias=False)
    model.trunk.requires_grad_(False)
    model.head.requires_grad_(False)
    return model


def test_a_new_head_without_a_bias_that_is_frozen_is_a_warning(tmp_path: Path):
    """A distribution with a bound tells drawn weights from trained ones."""
    (finding,) = trained_on(tmp_path / "new", without_bias(is_new=True), n_steps=110)
    assert (finding.tensor, finding.severity) == ("head.weight", Severity.WARNING)
    assert finding.message.endswith("its weights are as they were drawn.")
    assert trained_on(tmp_path / "old", without_bias(is_new=False), n_steps=110) == []


@pytest.mark.parametrize("deviation", [0.02, 0.2])
def test_a_new_head_that_is_frozen_beside_a_trained_trunk_is_a_warning(
    deviation: float, tmp_path: Path
):
    """However small its weights were drawn: its bias is exactly zero."""
    model = tuned_by_adapters(is_new=True, deviation=deviation)
    (finding,) = trained_on(tmp_path / "new", model)
    assert finding.severity is Severity.WARNING
    assert finding.tensor == "head.weight"
    assert "The last layer, head, is frozen" in finding.message
    assert "modules_to_save" in finding.advice
    learned = tuned_by_adapters(is_new=False, deviation=deviation)
    assert trained_on(tmp_path / "learned", learned) == []


def test_layers_that_are_kept_from_the_gradient_are_frozen_too(tmp_path: Path):
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = network(3)[:-1], nn.Linear(24, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.trunk(x).detach())
            return out

    model = Detached()
    (finding,) = trained_on(tmp_path, model, *model.head.parameters())
    assert (finding.tensor, finding.severity) == ("trunk.0.weight", Severity.WARNING)


class Recurrent(nn.Module):
    """A recurrent network and a head."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = kind(6, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x.view(16, 4, 6))[0])
        return out


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_have_a_bound_of_their_own(kind: type, tmp_path: Path):
    model = Recurrent(kind)
    model.body.requires_grad_(False)
    (finding,) = trained_on(tmp_path, model, *model.head.parameters())
    assert (finding.tensor, finding.severity) == (
        "body.weight_ih_l0",
        Severity.WARNING,
    )


def normed(draw: Callable[[torch.Tensor], object]) -> nn.Sequential:
    """A network of normalized layers whose weights are drawn otherwise."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU()]
        draw(layers[-3].weight)  # type: ignore[arg-type]
    return nn.Sequential(*layers, nn.Linear(24, 4))


def test_scales_of_one_tell_it_where_weights_are_drawn_otherwise(tmp_path: Path):
    """As in torchvision's networks, by He's normal distribution."""
    model = with_new_head(normed(nn.init.kaiming_normal_))
    (finding,) = trained_on(tmp_path, model)
    assert finding.severity is Severity.WARNING
    assert "1.weight, 4.weight, 7.weight" in finding.message


def flax_normal(weight: torch.Tensor) -> None:
    """LeCun's normal distribution, cut at two deviations, as Flax draws kernels."""
    deviation = weight.shape[1] ** -0.5 / 0.87962566
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


@pytest.mark.parametrize("draw", [nn.init.xavier_uniform_, flax_normal])
def test_what_other_frameworks_draw_is_known(
    draw: Callable[[torch.Tensor], object], tmp_path: Path
):
    def drawn() -> nn.Sequential:
        model = network(3)
        for layer in model[::2]:
            draw(layer.weight)  # type: ignore[arg-type]
        return model

    (finding,) = trained_on(tmp_path / "drawn", with_new_head(drawn()))
    assert finding.severity is Severity.WARNING
    learned = with_new_head(learn(drawn(), 200))  # type: ignore[arg-type]
    assert trained_on(tmp_path / "learned", learned) == []


def test_scales_that_have_learned_are_sound(tmp_path: Path):
    model = learn(normed(lambda _: None))
    assert trained_on(tmp_path, with_new_head(model)) == []  # type: ignore[arg-type]


def test_weights_of_somebodys_own_distribution_are_not_judged(tmp_path: Path):
    """As random features are drawn."""
    model = network(4)
    for layer in model[:-1:2]:
        nn.init.normal_(layer.weight)  # type: ignore[arg-type]
    assert trained_on(tmp_path, with_new_head(model)) == []


class Followed(nn.Module):
    """An online network, and a target that begins as its copy and follows it."""

    def __init__(self, *, is_first: bool) -> None:
        super().__init__()
        online, target = network(3), network(3).requires_grad_(False)
        parts = [("target", target), ("online", online)]
        for name, part in parts if is_first else parts[::-1]:
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        online, target = self.get_submodule("online"), self.get_submodule("target")
        out: torch.Tensor = online(x) - target(x)
        return out


@pytest.mark.parametrize("is_first", [True, False])
def test_a_target_network_is_no_trunk(is_first: bool, tmp_path: Path):
    assert trained_on(tmp_path, Followed(is_first=is_first)) == []


def test_what_an_optimizer_holds_will_be_thawed(tmp_path: Path):
    model = with_new_head(network(3))
    (finding,) = trained_on(tmp_path, model, *model.parameters())
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize("prefix", ["module.", ""])
def test_what_an_optimizer_holds_is_thawed_soon_or_was_to_learn(
    prefix: str, tmp_path: Path
):
    model = loaded(prefix)
    findings = trained_on(tmp_path, model, *model.parameters(), n_steps=130)
    assert len(findings) == bool(prefix)
    for finding in findings:
        assert finding.severity is Severity.WARNING
        assert finding.step >= 100


def test_a_copy_of_the_weights_is_as_learned_as_they_are(tmp_path: Path):
    model, file = learn(network(3)), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert trained_on(tmp_path, with_new_head(again)) == []


def frozen_run(
    n_steps: int = 6, lossless: Callable[[int], bool] = lambda _: True
) -> FakeRun:
    """Three layers as PyTorch makes them, and a head that is trained."""
    run = FakeRun(every=10)
    weights = {
        f"{name}.weight": network(1)[0].weight.detach().numpy() for name in "abc"
    }
    for step in range(n_steps):
        rows = {**weights, "gradient/d.weight": [1.0, 2.0]}
        run.step(step, rows, lossless=lossless(step))
    run.known_facts = [
        ModelInfo(
            step=0,
            parameters={
                f"{name}.weight": ParameterFacts(
                    shape=(24, 24),
                    dtype="float32",
                    requires_grad=name == "d",
                    module="Linear",
                    optimizer=0 if name == "d" else None,
                )
                for name in "abcd"
            },
            complete=True,
        )
    ]
    return run


def test_the_cut_into_windows_changes_nothing():
    (finding,) = whole = judge(frozen_run(), NotInOptimizer())
    assert (finding.tensor, finding.step) == ("a.weight", 1)
    assert judge_in_parts(frozen_run(), range(6), NotInOptimizer()) == whole


def test_weights_of_which_the_beginning_was_lost_are_not_judged():
    run = frozen_run(lossless=lambda step: step > 0)
    assert judge(run, NotInOptimizer()) == []


def test_later_weights_are_not_looked_at():
    run = frozen_run()
    for step in range(1, 6):
        run.step(step, {"a.weight": [9.0] * 576})
    assert len(judge(run, NotInOptimizer())) == 1


# ---- parameters with gradients that no optimizer has -----------------------------


def left_out(
    run_dir: Path, model: nn.Sequential, learning: list[nn.Parameter], by_hand: float
) -> list[Finding]:
    """What is said if the others are moved by hand, at this rate."""
    rule, optimizer = NotInOptimizer(), torch.optim.SGD(learning, 0.01)
    others = [p for p in model.parameters() if all(p is not q for q in learning)]
    with td.Hook(run_dir, rules=[rule]) as hook:
        hook.register_module(model)
        for _ in range(20):
            model.zero_grad()
            model(torch.randn(16, 24)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for each in others:
                    if each.grad is not None and by_hand:
                        each.sub_(by_hand * each.grad)
    return list(tdbg.rules.check(run_dir, rules=[rule]).findings)


@pytest.mark.parametrize("by_hand", [0.0, 0.01], ids=["left", "by hand"])
def test_what_the_program_updates_itself_is_not_left_out(
    by_hand: float, tmp_path: Path
):
    """Sabotaged: without a look at later rows, both are reported."""
    model = network(3)
    found = left_out(tmp_path, model, list(model[:4].parameters()), by_hand)
    expected = [] if by_hand else [Severity.WARNING]
    assert [each.severity for each in found] == expected


@pytest.mark.parametrize("held", ["weight", "bias"])
def test_biases_are_forgotten_and_weights_left_out(held: str, tmp_path: Path):
    """The groups with and without decay, of which the second was never made."""
    model = network(3)
    learn(model, 200)
    chosen = [p for name, p in model.named_parameters() if name.endswith(held)]
    (finding,) = left_out(tmp_path, model, chosen, 0.0)
    is_forgotten = held == "weight"
    assert finding.severity is (Severity.WARNING if is_forgotten else Severity.INFO)
    assert ("leave them as they are" in finding.advice) is not is_forgotten


@pytest.mark.parametrize(("scale", "is_new"), [(1.0, True), (1.3, False)])
def test_what_randn_draws_is_new(scale: float, is_new: bool, tmp_path: Path):
    model = learn(network(2), 100)
    with torch.no_grad():
        model[0].weight.copy_(scale * torch.randn(24, 24))
    chosen = [p for p in model.parameters() if p is not model[0].weight]
    (finding,) = left_out(tmp_path, model, chosen, 0.0)
    assert finding.severity is (Severity.WARNING if is_new else Severity.INFO)


def test_weights_may_be_recorded_more_seldom_than_gradients():
    """Sabotaged: without the last row of a weight, a live verdict does not see it."""
    run = FakeRun(every=10)
    for step in range(40):
        rows: dict[str, object] = {f"gradient/{name}": [1.0] for name in "ab"}
        if step % 7 == 0:
            rows |= {name: [1.0 + step] for name in "ab"}
        run.step(step, rows)
    parameters = {
        name: ParameterFacts(
            shape=(4, 4),
            dtype="float32",
            requires_grad=True,
            module="Linear",
            optimizer=0 if name == "b" else None,
        )
        for name in "ab"
    }
    run.known_facts = [ModelInfo(step=0, parameters=parameters, complete=True)]
    rule = NotInOptimizer(patience=8)
    assert judge(run, rule) == judge_in_parts(run, range(40), rule) == []
