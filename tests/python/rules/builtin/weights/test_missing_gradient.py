"""MissingGradient, on real trainings: what has no gradient, and what looks as if."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import tdbg.pytorch as td
from tdbg.rules import MissingGradient, UnchangedTensor, check
from tdbg.run.findings import Finding, Severity, Stage
from torch_helpers import digits

N_STEPS = 24
Quantize = Callable[[Tensor], Tensor]


class Quantized(nn.Linear):
    """A layer whose weights are rounded to eighths."""

    quantize: Quantize

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.quantize(self.weight), self.bias)


def rounded(weights: Tensor) -> Tensor:
    return torch.round(weights * 8) / 8


def straight_through(weights: Tensor) -> Tensor:
    return weights + (rounded(weights) - weights).detach()


def steps_of_a_classifier(quantize: Quantize) -> tuple[nn.Module, Iterator[None]]:
    layers = [Quantized(64, 32), Quantized(32, 10)]
    for layer in layers:
        layer.quantize = quantize
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = digits(16)

    def steps() -> Iterator[None]:
        while True:
            inputs, labels = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield

    return model, steps()


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 2), nn.Linear(2, 1)

    def forward(self, noise: Tensor) -> Tensor:
        made: Tensor = self.generator(noise)
        return made


def steps_of_adversaries(*, is_cut: bool) -> tuple[nn.Module, Iterator[None]]:
    """One is frozen while the other one learns, as trainers do it."""
    model = Adversaries()
    sides = model.generator, model.critic
    optimizers = [torch.optim.Adam(each.parameters(), 1e-3) for each in sides]
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    judge = F.binary_cross_entropy_with_logits

    def step_of(i: int, loss: Callable[[], Tensor]) -> None:
        for k, side in enumerate(sides):
            side.requires_grad_(k == i)
        optimizers[i].zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizers[i].step()
        model.requires_grad_(requires_grad=True)

    def fooled() -> Tensor:
        made = model(torch.randn(16, 4))
        made = made.detach().requires_grad_() if is_cut else made
        return judge(model.critic(made), ones)

    def told() -> Tensor:
        made = model.critic(model(torch.randn(16, 4)).detach())
        return judge(made, zeros) + judge(model.critic(torch.randn(16, 2) + 2), ones)

    def steps() -> Iterator[None]:
        while True:
            step_of(0, fooled)
            step_of(1, told)
            yield

    return model, steps()


def findings(
    run_dir: Path, model: nn.Module, steps: Iterator[None]
) -> tuple[Finding, ...]:
    rules = [MissingGradient(), UnchangedTensor()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(N_STEPS):
            next(steps)
        assert hook.counters()["internal_errors"] == 0
    return tuple(check(run_dir, rules=rules).findings)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_all_weights_without_a_gradient_are_named_though_biases_have_one(
    run_dir: Path,
) -> None:
    training = steps_of_a_classifier(lambda weights: rounded(weights.detach()))
    (finding,) = findings(run_dir, *training)
    assert finding.rule == "MissingGradient"
    assert "2 of 4 parameters" in finding.message
    assert "have had no gradient for at least" in finding.message
    assert "detach()" in finding.advice
    assert finding.stage is Stage.SETUP


def test_a_gradient_that_rounding_makes_zero_is_none(run_dir: Path) -> None:
    training = steps_of_a_classifier(rounded)
    first, *others = findings(run_dir, *training)
    assert first.rule == "MissingGradient"
    assert "only zero gradients for at least 5 recorded steps" in first.message
    assert "0.weight, 2.weight. They lie behind round," in first.message
    assert "(round(x) - x).detach()" in first.advice
    assert {each.rule for each in others} == {"UnchangedTensor"}
    assert all(each.cause and each.cause.rule == first.rule for each in others)


def test_a_side_whose_optimizer_steps_without_gradients_is_named(run_dir: Path) -> None:
    (finding,) = findings(run_dir, *steps_of_adversaries(is_cut=True))
    assert finding.rule == "MissingGradient"
    assert "generator.weight, generator.bias" in finding.message
    assert "critic" not in finding.message


class Ordered(nn.Module):
    """Attends to tokens, perhaps with their places."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.tokens = nn.Embedding(20, 16)
        setattr(self, name, nn.Embedding(8, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.tokens(tokens)).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "is_of_places"),
    [("pos_embedding", True), ("wpe", True), ("position", True), ("compose", False)],
)
def test_places_that_nobody_adds_are_named(
    run_dir: Path, name: str, is_of_places: bool
) -> None:
    model = Ordered(name)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def steps() -> Iterator[None]:
        while True:
            tokens = torch.randint(20, (16, 8))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), (tokens[:, 0] > 9).long())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield

    finding = findings(run_dir, model, steps())[0]
    assert finding.rule == "MissingGradient"
    assert ("the order of the inputs" in finding.message) == is_of_places
    if is_of_places:
        assert f"Add {name} to the tokens" in finding.advice


@pytest.mark.parametrize("name", ["straight through", "adversaries"])
def test_what_has_gradients_is_silent(run_dir: Path, name: str) -> None:
    training = (
        steps_of_a_classifier(straight_through)
        if name == "straight through"
        else steps_of_adversaries(is_cut=False)
    )
    assert findings(run_dir, *training) == ()


class Averaged(nn.Module):
    """The tokens of an encoder, averaged, below a head of the program's own."""

    def __init__(self, *, is_cut: bool) -> None:
        import transformers

        super().__init__()
        config = transformers.BertConfig(
            vocab_size=16,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
        )
        self.encoder = transformers.BertModel(config)
        self.head = nn.Linear(8, 2)
        self.is_cut = is_cut

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.is_cut):
            hidden: Tensor = self.encoder(tokens).last_hidden_state
        scores: Tensor = self.head(hidden.mean(dim=1))
        return scores


def steps_of_a_reader(
    *, is_cut: bool = False, has_unused: bool = False
) -> tuple[nn.Module, Iterator[None]]:
    model = Averaged(is_cut=is_cut)
    if has_unused:
        model.unused = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def steps() -> Iterator[None]:
        while True:
            tokens = torch.randint(16, (16, 8))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), (tokens[:, 0] > 7).long())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield

    return model, steps()


@pytest.mark.needs("transformers")
def test_what_a_library_s_model_leaves_unused_is_information(run_dir: Path) -> None:
    """The pooler of BERT is of use for its first token alone."""
    (finding,) = findings(run_dir, *steps_of_a_reader())
    assert finding.rule == "MissingGradient"
    assert finding.severity is Severity.INFO
    assert "encoder.pooler.dense.weight" in finding.message
    assert "2 of " in finding.message
    assert finding.message.endswith(
        "A model of an installed package leaves them unused."
    )


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("mistake", ["is_cut", "has_unused"])
def test_what_a_program_cuts_off_or_does_not_use_is_a_warning(
    run_dir: Path, mistake: str
) -> None:
    first, *_ = findings(run_dir, *steps_of_a_reader(**{mistake: True}))
    assert first.rule == "MissingGradient"
    assert first.severity is Severity.WARNING
