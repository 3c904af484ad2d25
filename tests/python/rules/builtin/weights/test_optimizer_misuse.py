"""OptimizerMisuse, on real trainings and on healthy ones that come close."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, Adam, AdamW, Optimizer

import tdbg
import tdbg.pytorch as td
from tdbg.rules import OptimizerMisuse
from tdbg.run.findings import Finding, Severity

N = 16
Train = Callable[[Callable[[nn.Module], None]], None]


def found(run: Path, train: Train) -> list[Finding]:
    """What the rule says of a training that registers its model."""
    torch.manual_seed(0)
    hook = td.Hook(out_dir=run)
    train(hook.register_module)
    hook.close()
    return list(tdbg.rules.check(run, [OptimizerMisuse()], record=False).findings)


def mlp(*sizes: int, norm: Callable[[int], nn.Module] = nn.Identity) -> nn.Sequential:
    pairs = itertools.pairwise(sizes)
    layers = [[nn.Linear(a, b), norm(b), nn.Tanh()] for a, b in pairs]
    return nn.Sequential(*itertools.chain(*layers))


def descend(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def regress(model: nn.Module, optimizer: Optimizer) -> None:
    for _ in range(4):
        outputs = model(torch.randn(N, 8))
        descend(optimizer, F.mse_loss(outputs, torch.randn(outputs.shape)))


# ---- weight decay ------------------------------------------------------------------


def grouped(
    is_exempt: Callable[[str, Tensor], bool],
    norm: Callable[[int], nn.Module] = nn.LayerNorm,
    rates: tuple[float, float] = (0.1, 0.0),
    *others: nn.Module,
) -> Train:
    """Train with two groups of parameters, of which one is exempt from decay."""

    def train(register: Callable[[nn.Module], None]) -> None:
        model = nn.Sequential(mlp(8, 8, 8, norm=norm), *others)
        register(model)
        both: tuple[list[Tensor], list[Tensor]] = [], []
        for name, parameter in model.named_parameters():
            both[is_exempt(name, parameter)].append(parameter)
        groups = [
            {"params": group, "weight_decay": rate}
            for group, rate in zip(both, rates, strict=True)
        ]
        regress(model, AdamW(groups, 1e-3))

    return train


def test_decay_of_scales_is_named_where_biases_are_exempt(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, grouped(lambda name, _: "bias" in name))
    assert finding.severity == Severity.WARNING
    assert finding.first_step == 0
    assert "2 parameters of normalizations" in finding.message
    assert "0.1.weight, 0.4.weight" in finding.message
    assert "ndim < 2" in finding.advice


def test_decay_of_batch_normalization_is_an_info(tmp_path: Path) -> None:
    train = grouped(lambda name, _: "bias" in name, nn.BatchNorm1d)
    (finding,) = found(tmp_path, train)
    assert finding.severity == Severity.INFO


def test_one_of_several_normalizations_that_is_decayed_is_named(
    tmp_path: Path,
) -> None:
    train = grouped(lambda name, p: p.ndim < 2 and "0.4" not in name)
    (finding,) = found(tmp_path, train)
    assert "0.4.weight, 0.4.bias" in finding.message


class Frozen(nn.LayerNorm):
    """A normalization that is not trained."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.requires_grad_(requires_grad=False)


class Embedded(nn.Module):
    """A learned place that is added; it is exempt, as all such are."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(N, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.place


HEALTHY_GROUPS = {
    "all below two dimensions": grouped(lambda _, p: p.ndim < 2),
    "by name and class": grouped(
        lambda name, p: p.ndim < 2 or "place" in name,
        nn.LayerNorm,
        (0.1, 0.0),
        Embedded(),
    ),
    "no decay at all": grouped(lambda name, _: "bias" in name, nn.LayerNorm, (0, 0)),
    "decay of everything": grouped(
        lambda name, _: "bias" in name, nn.LayerNorm, (0.1, 0.1)
    ),
    "a new head without decay": grouped(lambda name, _: name.startswith("1."),
        nn.LayerNorm, (0.1, 0.0), nn.Linear(8, 8)),
    "a place alone without decay": grouped(
        lambda name, _: "place" in name, nn.LayerNorm, (0.1, 0.0), Embedded()
    ),
    "normalizations that are frozen": grouped(lambda name, _: "bias" in name, Frozen),
    "no normalization": grouped(lambda name, _: "bias" in name, nn.Identity),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY_GROUPS)
def test_groups_as_they_are_meant_are_no_fault(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, HEALTHY_GROUPS[name]) == []


def test_decay_of_everything_but_weights_is_named(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, grouped(lambda _, parameter: parameter.ndim > 1))
    assert "decays biases and normalizations only, and no weight" in finding.message
    assert "Exchange the two groups" in finding.advice


def test_normalizations_with_a_decay_of_their_own_are_meant(tmp_path: Path) -> None:
    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8, norm=nn.LayerNorm)
        register(model)
        groups = [
            {"params": [model[0].weight], "weight_decay": 0.1},
            {"params": [model[0].bias], "weight_decay": 0.0},
            {"params": model[1].parameters(), "weight_decay": 0.01},
        ]
        regress(model, AdamW(groups, 1e-3))

    assert found(tmp_path, train) == []


# ---- adversaries -------------------------------------------------------------------


class Adversaries:
    """A generator, its judge, and what a GAN does with both."""

    def __init__(self, register: Callable[[nn.Module], None]) -> None:
        self.generator, self.judge = mlp(8, 8, 8), mlp(8, 8, 1)
        pair = {"generator": self.generator, "judge": self.judge}
        self.both = nn.ModuleDict(pair)
        register(self.both)

    def fake(self) -> Tensor:
        return self.generator(torch.randn(N, 8))  # type: ignore[no-any-return]

    def of_judge(self, fake: Tensor) -> Tensor:
        told = self.judge(torch.cat((torch.randn(N, 8), fake.detach())))
        return F.mse_loss(told, torch.cat((torch.ones(N, 1), torch.zeros(N, 1))))

    def of_generator(self, fake: Tensor) -> Tensor:
        return F.mse_loss(self.judge(fake), torch.ones(N, 1))


def gan(
    held: Callable[[Adversaries], Iterable[Tensor]],
    more: Callable[[Tensor], Tensor] = lambda fake: fake.new_zeros(()),
) -> Train:
    def train(register: Callable[[nn.Module], None]) -> None:
        both = Adversaries(register)
        generator = Adam(held(both), 1e-3)
        judge = Adam(both.judge.parameters(), 1e-3)
        for _ in range(6):
            fake = both.fake()
            descend(judge, both.of_judge(fake))
            descend(generator, both.of_generator(fake) + more(fake))

    return train


def all_of(both: Adversaries) -> Iterator[Tensor]:
    return itertools.chain(both.generator.parameters(), both.judge.parameters())


@pytest.mark.parametrize(
    "train",
    [gan(all_of), gan(all_of, lambda fake: fake.abs().mean())],
    ids=["alone", "beside a distance"],
)
def test_a_generator_that_trains_its_judge_is_named(
    tmp_path: Path, train: Train
) -> None:
    (finding,) = found(tmp_path, train)
    assert finding.severity == Severity.WARNING
    assert "judge.0.weight" in finding.message
    assert "generator.0.weight" not in finding.message
    assert "generator.parameters()" in finding.advice


def two_networks(register: Callable[[nn.Module], None]) -> None:
    gan(lambda both: both.generator.parameters())(register)


def an_info_gan(register: Callable[[nn.Module], None]) -> None:
    """Both networks learn to tell and to show a code, with a third optimizer."""
    both = Adversaries(register)
    generator = Adam(both.generator.parameters(), 1e-3)
    judge = Adam(both.judge.parameters(), 1e-3)
    information = Adam(all_of(both), 1e-3)
    for _ in range(6):
        fake = both.fake()
        descend(generator, both.of_generator(fake))
        descend(judge, both.of_judge(fake))
        descend(information, F.mse_loss(both.judge(both.fake()), torch.rand(N, 1)))


def an_adversarial_autoencoder(register: Callable[[nn.Module], None]) -> None:
    """The encoder is trained by two losses, with an optimizer for each."""
    parts = nn.ModuleDict(
        {"encoder": mlp(8, 4), "decoder": mlp(4, 8), "judge": mlp(4, 1)}
    )
    register(parts)
    encoder, decoder, judge = parts["encoder"], parts["decoder"], parts["judge"]
    both = Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    of_judge, of_encoder = (Adam(each.parameters(), 1e-3) for each in (judge, encoder))
    for _ in range(6):
        x = torch.randn(N, 8)
        descend(both, F.mse_loss(decoder(encoder(x)), x))
        told = judge(torch.cat((torch.randn(N, 4), encoder(x).detach())))
        descend(of_judge, F.mse_loss(told, torch.ones(2 * N, 1)))
        descend(of_encoder, F.mse_loss(judge(encoder(x)), torch.ones(N, 1)))


def tasks_that_share_a_trunk(register: Callable[[nn.Module], None]) -> None:
    parts = nn.ModuleDict({"trunk": mlp(8, 8), "one": mlp(8, 1), "two": mlp(8, 1)})
    register(parts)
    trunk = parts["trunk"]
    optimizers = {
        key: Adam([*trunk.parameters(), *parts[key].parameters()], 1e-3)
        for key in ("one", "two")
    }
    for _ in range(6):
        for key, optimizer in optimizers.items():
            outputs = parts[key](trunk(torch.randn(N, 8)))
            descend(optimizer, F.mse_loss(outputs, torch.ones(N, 1)))


def an_encoder_of_a_critic(register: Callable[[nn.Module], None]) -> None:
    """As in SAC with pixels: the critic's optimizer has the encoder, too."""
    parts = nn.ModuleDict(
        {"encoder": mlp(8, 4), "critic": mlp(4, 1), "made": mlp(4, 8)}
    )
    register(parts)
    encoder = parts["encoder"]
    critic = Adam([*encoder.parameters(), *parts["critic"].parameters()], 1e-3)
    alone = Adam(encoder.parameters(), 1e-3)
    decoder = Adam(parts["made"].parameters(), 1e-3)
    for _ in range(6):
        x = torch.randn(N, 8)
        descend(critic, F.mse_loss(parts["critic"](encoder(x)), torch.ones(N, 1)))
        alone.zero_grad()
        descend(decoder, F.mse_loss(parts["made"](encoder(x)), x))
        alone.step()


def one_optimizer_after_another(register: Callable[[nn.Module], None]) -> None:
    model = mlp(8, 8, 8)
    register(model)
    regress(model, Adam(model[3].parameters(), 1e-3))
    regress(model, SGD(model.parameters(), 1e-3))


def micro_batches_for_one_of_two(register: Callable[[nn.Module], None]) -> None:
    """One of two optimizers steps at every second batch only."""
    model = mlp(8, 8, 8)
    register(model)
    often, rarely = SGD(model[0].parameters(), 0.1), SGD(model[3].parameters(), 0.1)
    for i in range(8):
        F.mse_loss(model(torch.randn(N, 8)), torch.ones(N, 8)).backward()  # type: ignore[no-untyped-call]
        for each in (often, rarely) if i % 2 else (often,):
            each.step()
            each.zero_grad()


def a_loss_for_each_of_two(register: Callable[[nn.Module], None]) -> None:
    """The judge's two losses add up, and its gradients are cleared before."""
    both = Adversaries(register)
    generator = Adam(both.generator.parameters(), 1e-3)
    judge = Adam(both.judge.parameters(), 1e-3)
    for _ in range(6):
        fake = both.fake()
        judge.zero_grad()
        F.mse_loss(both.judge(torch.randn(N, 8)), torch.ones(N, 1)).backward()  # type: ignore[no-untyped-call]
        F.mse_loss(both.judge(fake.detach()), torch.zeros(N, 1)).backward()  # type: ignore[no-untyped-call]
        judge.step()
        descend(generator, both.of_generator(fake))


def a_waiting_generator(register: Callable[[nn.Module], None]) -> None:
    """The judge is trained first; its optimizer alone steps."""
    both = Adversaries(register)
    generator = Adam(both.generator.parameters(), 1e-3)
    judge = Adam(both.judge.parameters(), 1e-3)
    for _ in range(30):
        descend(judge, both.of_judge(both.fake()))
    descend(generator, both.of_generator(both.fake()))


def an_optimizer_that_was_replaced(register: Callable[[nn.Module], None]) -> None:
    model = mlp(8, 8, 8)
    first = Adam(model.parameters(), 1e-3)
    register(model)
    optimizer = SGD(model.parameters(), 1e-3)
    for _ in range(8):
        regress(model, optimizer)
    del first


HEALTHY: list[Train] = [
    two_networks,
    an_info_gan,
    an_adversarial_autoencoder,
    tasks_that_share_a_trunk,
    an_encoder_of_a_critic,
    one_optimizer_after_another,
    micro_batches_for_one_of_two,
    a_loss_for_each_of_two,
    a_waiting_generator,
    an_optimizer_that_was_replaced,
]


@pytest.mark.parametrize("train", HEALTHY, ids=lambda each: each.__name__)
def test_several_optimizers_as_they_are_meant_are_no_fault(
    tmp_path: Path, train: Train
) -> None:
    assert found(tmp_path, train) == []


def test_gradients_of_the_generators_loss_in_the_judge_are_named(
    tmp_path: Path,
) -> None:
    def train(register: Callable[[nn.Module], None]) -> None:
        both = Adversaries(register)
        generator = Adam(both.generator.parameters(), 1e-3)
        judge = Adam(both.judge.parameters(), 1e-3)
        for _ in range(6):
            fake = both.fake()
            both.of_judge(fake).backward()  # type: ignore[no-untyped-call]
            judge.step()
            judge.zero_grad()
            descend(generator, both.of_generator(fake))

    (finding,) = found(tmp_path, train)
    assert "uses gradients of another loss" in finding.message
    assert "judge.0.weight" in finding.message
    assert "right before the backward pass" in finding.advice


def test_an_optimizer_that_never_steps_is_named(tmp_path: Path) -> None:
    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8, 8)
        register(model)
        first, last = SGD(model[0].parameters(), 0.1), SGD(model[3].parameters(), 0.1)
        for _ in range(25):
            first.zero_grad()
            last.zero_grad()
            F.mse_loss(model(torch.randn(N, 8)), torch.ones(N, 8)).backward()  # type: ignore[no-untyped-call]
            first.step()
        alive.extend([model, first, last])

    alive: list[object] = []
    (finding,) = found(tmp_path, train)
    assert "never stepped in 25 steps" in finding.message
    assert "3.weight, 3.bias get gradients" in finding.message


# ---- optimizers that are made anew --------------------------------------------------

Make = Callable[[nn.Module, int], Optimizer]


def renewed(make: Make, *, keeps_state: bool = False, n: int = 8) -> Train:
    """Train with a new optimizer in each epoch."""

    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8)
        register(model)
        last: Optimizer | None = None
        for epoch in range(n):
            optimizer = make(model, epoch)
            if keeps_state and last is not None:
                optimizer.load_state_dict(last.state_dict())
            regress(model, optimizer)
            last = optimizer

    return train


@pytest.mark.parametrize(
    "make",
    [
        lambda model, _: Adam(model.parameters(), 1e-3),
        lambda model, epoch: Adam(model.parameters(), 1e-3 * 0.9**epoch),
        lambda model, _: SGD(model.parameters(), 1e-2, momentum=0.9),
    ],
    ids=["Adam", "with another rate", "momentum"],
)
def test_an_optimizer_that_is_made_in_each_epoch_is_noted(
    tmp_path: Path, make: Make
) -> None:
    (finding,) = found(tmp_path, renewed(make))
    assert finding.severity == Severity.INFO
    assert "again and again" in finding.message
    assert "before the loop over epochs" in finding.advice


def test_optimizers_that_follow_each_other_as_they_are_meant(tmp_path: Path) -> None:
    def momentum(model: nn.Module, _: int) -> Optimizer:
        return Adam(model.parameters(), 1e-3)

    trains = {
        "plain": renewed(lambda model, _: SGD(model.parameters(), 1e-2)),
        "its state": renewed(momentum, keeps_state=True),
        "phases": renewed(momentum, n=3),
        "by turns": renewed(lambda m, i: (Adam, AdamW)[i % 2](m.parameters(), 1e-3)),
        "thawed": renewed(lambda m, i: Adam([*m.parameters()][-1 - i % 2 :], 1e-3)),
    }
    for name, train in trains.items():
        assert found(tmp_path / name, train) == [], name


# ---- flags that nobody reads ---------------------------------------------------------


def flagged(mark: Callable[[nn.Sequential], None]) -> Train:
    """Train a model after something was done to it to freeze its first layer."""

    def train(register: Callable[[nn.Module], None]) -> None:
        model = mlp(8, 8, 8)
        mark(model)
        register(model)
        regress(model, SGD(model.parameters(), 1e-2))

    return train


def misspelt_by_hand(model: nn.Sequential) -> None:
    for parameter in model[0].parameters():
        parameter.require_grad = False  # type: ignore[attr-defined]


def misspelt_by_name(model: nn.Sequential) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith("0."):
            setattr(parameter, "requires_gradient", False)  # noqa: B010


def set_on_the_module(model: nn.Sequential) -> None:
    model[0].requires_grad = False  # type: ignore[assignment]


def set_on_a_part_of_the_module(model: nn.Sequential) -> None:
    part = nn.Sequential(model[0], model[1])
    part.requires_grad = False
    model[0] = part  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (misspelt_by_hand, "require_grad = False on parameters (0.weight, 0.bias)"),
        (misspelt_by_name, "requires_gradient = False on parameters"),
        (set_on_the_module, "requires_grad = False on a module (0.weight, 0.bias)"),
        (set_on_a_part_of_the_module, "requires_grad = False on a module (0.0.weight"),
    ],
)
def test_a_flag_that_freezes_nothing_is_named(
    tmp_path: Path, mark: Callable[[nn.Sequential], None], said: str
) -> None:
    (finding,) = found(tmp_path, flagged(mark))
    assert finding.severity == Severity.WARNING
    assert "2 parameters by a name that PyTorch does not read" in finding.message
    assert "stay trained" in finding.message
    assert said in finding.message
    assert "requires_grad_(False)" in finding.advice


def test_a_flag_that_unfreezes_nothing_is_named(tmp_path: Path) -> None:
    def mark(model: nn.Sequential) -> None:
        model[0].requires_grad_(requires_grad=False)
        model[0].weight.require_grad = True  # type: ignore[union-attr]

    (finding,) = found(tmp_path, flagged(mark))
    assert "1 parameter by a name that PyTorch does not read" in finding.message
    assert "it stays frozen" in finding.message


def frozen_both_ways(model: nn.Sequential) -> None:
    """Like a perceptual loss that keeps its argument."""
    model[0].requires_grad = False  # type: ignore[assignment]
    model[0].requires_grad_(requires_grad=False)


def other_attributes(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_numbers = [0, 1]  # type: ignore[attr-defined]
        parameter.require_grad = True  # type: ignore[attr-defined]
        parameter.is_expert = False  # type: ignore[attr-defined]
    model[0].required = False  # type: ignore[assignment]


@pytest.mark.parametrize("mark", [frozen_both_ways, other_attributes])
def test_flags_that_agree_and_other_attributes_are_not_accused(
    tmp_path: Path, mark: Callable[[nn.Sequential], None]
) -> None:
    assert found(tmp_path, flagged(mark)) == []
