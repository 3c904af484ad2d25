"""Rules about what a model computes: faulty models, and sound ones that come close."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg.pytorch
from tdbg.rules import Severity, check
from tdbg.rules.builtin.data.label_shift import LabelShift
from tdbg.rules.builtin.weights.batch_dependence import BatchDependence
from tdbg.rules.builtin.weights.mask_leak import MaskLeak
from tdbg.rules.builtin.weights.nondeterministic_evaluation import (
    NondeterministicEvaluation,
)
from tdbg.rules.builtin.weights.wrong_dimension import WrongDimension
from tdbg.run.findings import Finding

pytestmark = pytest.mark.torch

RULES = (BatchDependence(), LabelShift(), MaskLeak(), NondeterministicEvaluation())
N_TOKENS, PLACES = 12, 16
Loss = Callable[[nn.Module], Tensor]


def found(run: Path, model: nn.Module, loss: Loss) -> list[Finding]:
    """Train for 60 steps; return what the rules say of it at the end."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with tdbg.pytorch.watch(model, out=run, probes=True, min_free_bytes=0):
        for _ in range(60):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
    return [*check(run, RULES, record=False).findings]


def accused(findings: list[Finding]) -> dict[str, Severity]:
    return {each.rule: each.severity for each in findings}


# ---- classifiers -------------------------------------------------------------


def classify(model: nn.Module) -> Tensor:
    x = torch.randn(16, 8)
    return F.cross_entropy(model(x), (x[:, 0] > 0).long())


class Classifier(nn.Module):
    """Computes something between its layers."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)
        self.norm = nn.BatchNorm1d(16)
        self.positions = nn.Parameter(torch.randn(16, 16))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.between(self, self.first(x)))
        return logits


def dropped_always(_: nn.Module, x: Tensor) -> Tensor:
    return nn.Dropout(0.5)(x)


def dropped_by_default(_: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(
        x,
        0.5,
    )


def dropped_by_a_name(_: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.dropout(input=x, p=0.5)


def dropped_on_purpose(_: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, training=True)


def dropped_by_settings(_: nn.Module, x: Tensor) -> Tensor:
    settings = {"training": True}
    return F.dropout(x, 0.5, **settings)


class MonteCarlo:
    """A dropout that was told the mode elsewhere, under the same name."""

    dropout = staticmethod(functools.partial(F.dropout, p=0.5, training=True))


def dropped_by_a_partial(_: nn.Module, x: Tensor) -> Tensor:
    dropped: Tensor = MonteCarlo.dropout(x)
    return dropped


def dropped_in_training(model: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, model.training)


def normalized_over_samples(_: nn.Module, x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def softmax_over_samples(_: nn.Module, x: Tensor) -> Tensor:
    return x.softmax(0) * len(x)


def some_over_samples(_: nn.Module, x: Tensor) -> Tensor:
    """Fewer units than samples, so that the graph tells both apart."""
    return torch.cat([x[:, :12].softmax(0) * len(x), x[:, 12:]], 1)


def positions_of_samples(model: nn.Module, x: Tensor) -> Tensor:
    positions: Tensor = model.positions[: len(x)]  # type: ignore[index]
    return x + positions


def normalized(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model.norm(x)  # type: ignore[operator]
    return y.relu()


def noisy(_: nn.Module, x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


def softmax_over_units(_: nn.Module, x: Tensor) -> Tensor:
    return x.softmax(-1)


def test_dropout_that_stays_on_is_a_warning(run_dir: Path) -> None:
    (finding,) = found(run_dir, Classifier(dropped_always), classify)
    assert finding.rule == "NondeterministicEvaluation"
    assert finding.severity is Severity.WARNING
    assert "nn.ModuleList" in finding.advice


@pytest.mark.parametrize("between", [dropped_by_default, dropped_by_a_name])
def test_dropout_that_is_not_told_the_mode_is_a_warning(
    run_dir: Path, between: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    (finding,) = found(run_dir, Classifier(between), classify)
    assert finding.severity is Severity.WARNING
    assert "dropout without the argument training" in finding.message
    assert "training=self.training" in finding.advice


@pytest.mark.parametrize(
    "between",
    [noisy, dropped_on_purpose, dropped_by_settings, dropped_by_a_partial],
)
def test_noise_that_may_be_meant_is_a_note(
    run_dir: Path, between: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    assert accused(found(run_dir, Classifier(between), classify)) == {
        "NondeterministicEvaluation": Severity.INFO
    }


@pytest.mark.parametrize(
    ("between", "on"),
    [
        (normalized_over_samples, "on the other samples"),
        (softmax_over_samples, "on the other samples"),
        (positions_of_samples, "on its place"),
    ],
)
def test_samples_that_are_mixed_are_a_warning(
    run_dir: Path, between: Callable[[nn.Module, Tensor], Tensor], on: str
) -> None:
    torch.manual_seed(0)
    (finding,) = found(run_dir, Classifier(between), classify)
    assert (finding.rule, finding.severity) == ("BatchDependence", Severity.WARNING)
    assert on in finding.message


def test_what_the_graph_explains_is_not_said_twice(run_dir: Path) -> None:
    torch.manual_seed(0)
    assert found(run_dir, Classifier(some_over_samples), classify) == []
    (said,) = check(run_dir, rules=[WrongDimension()]).findings
    assert "A softmax goes over the wrong dimension" in said.message


@pytest.mark.parametrize(
    "between", [dropped_in_training, normalized, softmax_over_units]
)
def test_a_sound_classifier_is_not_accused(
    run_dir: Path, between: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    assert found(run_dir, Classifier(between), classify) == []


# ---- models of other kinds that mix samples, or are random, on purpose --------


class Autoencoder(nn.Module):
    """A variational autoencoder, which samples in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logarithm = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * logarithm).exp()
        return self.decoder(z), mean, logarithm


def reconstruct(model: nn.Module) -> Tensor:
    x = torch.randn(16, 8)
    y, mean, logarithm = model(x)
    divergence: Tensor = (mean**2 + logarithm.exp() - logarithm - 1).mean()
    return F.mse_loss(y, x) + 0.1 * divergence


class Contrasting(nn.Module):
    """Returns the similarities of all pairs of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        z = F.normalize(self.layer(x), dim=-1)
        return 5 * z @ z.t()


def contrast(model: nn.Module) -> Tensor:
    x = torch.randn(16, 8)
    return F.cross_entropy(model(x), torch.arange(16))


class Graph(nn.Module):
    """Passes messages between all nodes; the samples are the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.register_buffer("edges", torch.rand(16, 16).softmax(-1))

    def forward(self, nodes: Tensor) -> Tensor:
        logits: Tensor = self.edges @ self.layer(nodes)
        return logits


NODES = torch.randn(16, 8)


def of_nodes(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(NODES), (NODES[:, 0] > 0).long())


class Forecast(nn.Module):
    """A recurrent layer, whose first dimension is time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.GRU(1, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layer(x)[0])
        return y


def forecast(model: nn.Module) -> Tensor:
    waves = torch.sin(torch.linspace(0, 6, 17)[:, None] + 6 * torch.rand(8))[..., None]
    return F.mse_loss(model(waves[:-1]), waves[1:])


class Critic(nn.Module):
    """Looks at the spread of a batch, as critics of generators do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(9, 1)

    def forward(self, x: Tensor) -> Tensor:
        spread = x.std(0).mean().expand(len(x), 1)
        score: Tensor = self.layer(torch.cat([x, spread], 1))
        return score


def criticize(model: nn.Module) -> Tensor:
    real, made = torch.randn(16, 8), 0.5 * torch.randn(16, 8)
    return F.softplus(-model(real)).mean() + F.softplus(model(made)).mean()


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (Autoencoder, reconstruct),
        (Contrasting, contrast),
        (Graph, of_nodes),
        (Forecast, forecast),
        (Critic, criticize),
    ],
)
def test_what_is_meant_is_at_most_a_note(
    run_dir: Path, make: Callable[[], nn.Module], loss: Loss
) -> None:
    torch.manual_seed(0)
    severities = {each.severity for each in found(run_dir, make(), loss)}
    assert severities <= {Severity.INFO}


# ---- models of sequences -----------------------------------------------------


class Language(nn.Module):
    """A layer of attention over tokens and places."""

    def __init__(self, mask: Callable[[], Tensor | None]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_TOKENS, 16)
        self.places = nn.Embedding(PLACES, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, N_TOKENS)
        self.mask = mask

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        mask = self.mask()
        seen = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        logits: Tensor = self.last(x + seen)
        return logits


def causal() -> Tensor:
    return torch.triu(torch.ones(PLACES, PLACES, dtype=torch.bool), 1)


def upside_down() -> Tensor:
    return torch.tril(torch.ones(PLACES, PLACES, dtype=torch.bool), -1)


def next_token(shift: int) -> Loss:
    def loss(model: nn.Module) -> Tensor:
        text = torch.randint(0, N_TOKENS, (16, PLACES + 2))
        tokens, labels = text[:, :PLACES], text[:, shift : shift + PLACES]
        return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())

    return loss


def guess_masked(model: nn.Module) -> Tensor:
    """The loss of a masked model, which may see all tokens."""
    text = torch.randint(1, N_TOKENS, (16, PLACES))
    is_masked = torch.rand(16, PLACES) < 0.3
    logits = model(text.masked_fill(is_masked, 0))
    return F.cross_entropy(logits[is_masked], text[is_masked])


def test_a_causal_mask_that_is_missing_is_an_error(run_dir: Path) -> None:
    (finding,) = found(run_dir, Language(lambda: None), next_token(1))
    assert (finding.rule, finding.severity) == ("MaskLeak", Severity.ERROR)
    assert "it is not causal" in finding.message


def test_a_mask_that_is_upside_down_is_an_error(run_dir: Path) -> None:
    (finding,) = found(run_dir, Language(upside_down), next_token(1))
    assert (finding.rule, finding.severity) == ("MaskLeak", Severity.ERROR)


@pytest.mark.parametrize(("shift", "message"), [(0, "not shifted"), (2, "by two")])
def test_labels_at_the_wrong_offset_are_a_warning(
    run_dir: Path, shift: int, message: str
) -> None:
    (finding,) = found(run_dir, Language(causal), next_token(shift))
    assert (finding.rule, finding.severity) == ("LabelShift", Severity.WARNING)
    assert message in finding.message


@pytest.mark.parametrize(
    ("mask", "loss"), [(causal, next_token(1)), (lambda: None, guess_masked)]
)
def test_a_sound_model_of_sequences_is_not_accused(
    run_dir: Path, mask: Callable[[], Tensor | None], loss: Loss
) -> None:
    assert found(run_dir, Language(mask), loss) == []


class Writer(nn.Module):
    """Reads a few symbols, and writes them backwards."""

    def __init__(self, *, shifts: bool = False, posterior: bool = False) -> None:
        super().__init__()
        self.shifts, self.posterior = shifts, posterior
        self.embedding = nn.Embedding(N_TOKENS + 1, 16)
        self.encoder, self.decoder = (
            nn.GRU(16, 24, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(24, N_TOKENS)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        _, state = self.encoder(self.embedding(read))
        if self.posterior:
            state = state + self.encoder(self.embedding(written))[1]
        if self.shifts or self.posterior:
            written = F.pad(written[:, :-1], (1, 0), value=N_TOKENS)
        logits: Tensor = self.head(self.decoder(self.embedding(written), state)[0])
        return logits


class Translator(nn.Module):
    """The same by attention."""

    def __init__(self, *, is_batch_first: bool = True) -> None:
        super().__init__()
        self.is_batch_first = is_batch_first
        self.embedding = nn.Embedding(N_TOKENS + 1, 16)
        self.positions = nn.Embedding(PLACES, 16)
        self.between = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=is_batch_first)
        self.head = nn.Linear(16, N_TOKENS)

    def embedded(self, tokens: Tensor) -> Tensor:
        axis = 1 if self.is_batch_first else 0
        positions = self.positions(torch.arange(tokens.shape[axis]))
        embedded: Tensor = self.embedding(tokens) + positions.unsqueeze(1 - axis)
        return embedded

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        n = written.shape[1 if self.is_batch_first else 0]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        given = self.embedded(read), self.embedded(written)
        logits: Tensor = self.head(self.between(*given, tgt_mask=mask))
        return logits


def write_backwards(*, shifted: bool, is_batch_first: bool = True) -> Loss:
    def loss(model: nn.Module) -> Tensor:
        read = torch.randint(N_TOKENS, (32, 4))
        target = read.flip(1)
        before = F.pad(target[:, :-1], (1, 0), value=N_TOKENS)
        given = read, before if shifted else target
        if not is_batch_first:
            given, target = (given[0].t(), given[1].t()), target.t()
        logits = model(*given)
        return F.cross_entropy(logits.reshape(-1, N_TOKENS), target.reshape(-1))

    return loss


@pytest.mark.parametrize("make", [Writer, Translator])
def test_a_decoder_that_is_given_its_target_is_a_warning(
    run_dir: Path, make: Callable[[], nn.Module]
) -> None:
    (finding,) = found(run_dir, make(), write_backwards(shifted=False))
    assert (finding.rule, finding.severity) == ("LabelShift", Severity.WARNING)
    assert "not shifted at all" in finding.message


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_places_may_come_before_samples(run_dir: Path) -> None:
    loss = write_backwards(shifted=False, is_batch_first=False)
    (finding,) = found(run_dir, Translator(is_batch_first=False), loss)
    assert (finding.rule, finding.severity) == ("LabelShift", Severity.WARNING)


@pytest.mark.parametrize(
    ("make", "shifted"),
    [
        (Writer, True),
        (Translator, True),
        (functools.partial(Writer, shifts=True), False),
        (functools.partial(Writer, posterior=True), False),
    ],
)
def test_a_decoder_that_reads_what_comes_before_is_fine(
    run_dir: Path, make: Callable[[], nn.Module], shifted: bool
) -> None:
    assert found(run_dir, make(), write_backwards(shifted=shifted)) == []


class Reader(nn.Module):
    """Averages over tokens, or over those that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(N_TOKENS, 16), nn.Linear(16, 2)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = torch.ones_like(tokens) if mask is None else mask
        x = self.tokens(tokens) * seen[..., None]
        logits: Tensor = self.last(x.sum(1) / seen.sum(1, keepdim=True))
        return logits


def padded(width: int) -> Tensor:
    lengths = torch.randint(4, width - 3, (16,))
    text = torch.randint(1, N_TOKENS, (16, width))
    return text * (torch.arange(width) < lengths[:, None])


def padded_alike(model: nn.Module) -> Tensor:
    tokens = padded(20)
    return F.cross_entropy(model(tokens), tokens[:, 0] % 2)


def padded_longer_later(model: nn.Module) -> Tensor:
    """The first batches have one width by chance, as those of similar texts do."""
    n_calls: Any = getattr(model, "n_calls", 0) + 1
    model.n_calls = n_calls
    tokens = padded(20 + (n_calls > 5))
    return F.cross_entropy(model(tokens), tokens[:, 0] % 2)


def evaluated_with_more_padding(model: nn.Module) -> Tensor:
    """Each tenth step, as if a validation had padded its texts to its own longest."""
    n_calls: Any = getattr(model, "n_calls", 0) + 1
    model.n_calls = n_calls
    if n_calls % 10 == 0:
        with torch.no_grad():
            model.eval()(padded(24))
        model.train()
    return padded_alike(model)


def continues_without_padding(model: nn.Module) -> Tensor:
    """Each tenth step, texts that fill their places are written on."""
    n_calls: Any = getattr(model, "n_calls", 0) + 1
    model.n_calls = n_calls
    if n_calls % 10 == 0:
        with torch.no_grad():
            model.eval()(torch.randint(1, N_TOKENS, (16, n_calls)))
        model.train()
    return padded_alike(model)


def mask_is_left_in_the_batch(model: nn.Module) -> Tensor:
    tokens = padded(20)
    batch = {"input_ids": tokens, "attention_mask": (tokens != 0).long()}
    return F.cross_entropy(model(batch["input_ids"]), tokens[:, 0] % 2)


def mask_is_passed(model: nn.Module) -> Tensor:
    tokens = padded(20)
    batch = {"tokens": tokens, "mask": (tokens != 0).long()}
    return F.cross_entropy(model(**batch), tokens[:, 0] % 2)


@pytest.mark.parametrize(
    "loss",
    [padded_longer_later, evaluated_with_more_padding, mask_is_left_in_the_batch],
)
def test_padding_that_is_seen_is_a_warning(run_dir: Path, loss: Loss) -> None:
    (finding,) = found(run_dir, Reader(), loss)
    assert (finding.rule, finding.severity) == ("MaskLeak", Severity.WARNING)
    has_mask = loss is mask_is_left_in_the_batch
    assert ("(attention_mask), and does not pass it" in finding.message) == has_mask


@pytest.mark.parametrize("loss", [padded_alike, continues_without_padding])
def test_padding_of_one_width_is_a_note(run_dir: Path, loss: Loss) -> None:
    expected = {"MaskLeak": Severity.INFO}
    assert accused(found(run_dir, Reader(), loss)) == expected


def test_padding_that_a_mask_leaves_out_is_none(run_dir: Path) -> None:
    assert found(run_dir, Reader(), mask_is_passed) == []


def test_a_model_that_was_not_probed_has_no_verdict(run_dir: Path) -> None:
    model = Classifier(dropped_always)
    model.register_forward_hook(lambda *_: None)
    assert found(run_dir, model, classify) == []
    statuses = check(run_dir, RULES, record=False).statuses
    assert all("not probed" in each.message for each in statuses)
