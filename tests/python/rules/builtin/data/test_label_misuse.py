"""LabelMisuse, on trainings whose labels count where they should not, or do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.label_misuse import LabelMisuse
from tdbg.rules.builtin.data.label_shift import LabelShift
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

RULES = (LabelMisuse(), LabelShift())
N, PLACES, VOCABULARY = 16, 20, 32
PAD, END, MASK = 0, 1, 2
Loss = Callable[[nn.Module], Tensor]


class Language(nn.Module):
    """Guesses tokens by those before them; the mask may be without effect."""

    def __init__(self, padding: int | None = None, n_classes: int = VOCABULARY) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16, padding_idx=padding)
        self.cell = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, n_classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        scores: Tensor = self.head(self.cell(self.tokens(x))[0])
        return scores


def found(
    run: Path, model: nn.Module, loss: Loss, *, criterion: Any = None, n_steps: int = 12
) -> list[Finding]:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with td.watch(model, criterion, out=run, probes=False, min_free_bytes=0):
        for _ in range(n_steps):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
    return [*check(run, RULES, record=False).findings]


def texts(end: tuple[int, ...] = (), padding: int = PAD) -> Tensor:
    """Return padded texts of several lengths."""
    rows = [
        torch.cat([torch.randint(4, VOCABULARY, (int(n),)), torch.tensor(end).long()])
        for n in torch.randint(5, int(torch.randint(10, PLACES, ())), (N,))
    ]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)


def flat(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **settings)


def next_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :-1], x[:, 1:]


# ---- padding that counts -----------------------------------------------------


def counts_padding(model: nn.Module) -> Tensor:
    x, y = next_tokens(texts((END,)))
    return flat(model(x), y)


def counts_masked_padding(model: nn.Module) -> Tensor:
    x = texts((END,))
    return flat(model(x, (x != PAD).long())[:, :-1], x[:, 1:])


def counts_padding_of_tags(model: nn.Module) -> Tensor:
    x = texts()
    return F.cross_entropy(model(x, x == PAD).transpose(1, 2), x % 4)


@pytest.mark.parametrize(
    ("loss", "model", "message"),
    [
        (counts_padding, Language(PAD), "padding_idx"),
        (counts_masked_padding, Language(), "your mask says"),
        (counts_padding_of_tags, Language(n_classes=4), "your mask says"),
    ],
)
def test_padding_that_counts_is_a_warning(
    run_dir: Path, loss: Loss, model: nn.Module, message: str
) -> None:
    (finding,) = found(run_dir, model, loss)
    assert (finding.rule, finding.severity) == ("LabelMisuse", Severity.WARNING)
    assert message in finding.message
    assert "count though" in finding.message


def of_packed_texts(model: nn.Module) -> Tensor:
    """Texts one behind the other: PAD ends each of them, and nothing is padded."""
    x = torch.randint(1, 20, (N, PLACES))
    x[:, 3::7] = PAD
    inputs, labels = next_tokens(x)
    return flat(model(inputs), labels)


def with_dropped_words(model: nn.Module) -> Tensor:
    """Words that are hidden on purpose, and are to be said all the same."""
    x = torch.randint(1, 20, (N, PLACES))
    inputs, labels = next_tokens(x)
    return flat(model(inputs.masked_fill(torch.rand(inputs.shape) < 0.1, PAD)), labels)


def test_a_token_of_texts_that_is_padding_idx_is_a_warning(run_dir: Path) -> None:
    (finding,) = found(run_dir, Language(PAD), of_packed_texts)
    assert finding.severity is Severity.WARNING
    assert "Token 0 is the padding_idx of an embedding, but no pad" in finding.message
    assert "Leave out padding_idx" in finding.advice


@pytest.mark.parametrize(
    ("padding", "loss"), [(None, of_packed_texts), (PAD, with_dropped_words)]
)
def test_a_row_that_is_trained_or_hides_words_is_not_accused(
    run_dir: Path, padding: int | None, loss: Loss
) -> None:
    assert found(run_dir, Language(padding), loss) == []


@pytest.mark.parametrize(("end", "n_findings"), [(None, 1), (PAD, 0)])
def test_padding_that_the_settings_name_is_known_unless_it_ends_texts(
    run_dir: Path, end: int | None, n_findings: int
) -> None:
    model: Any = Language()
    model.config = SimpleNamespace(pad_token_id=PAD, eos_token_id=end)
    findings = found(run_dir, model, counts_padding)
    assert len(findings) == n_findings
    assert all("pad_token_id" in each.message for each in findings)


def test_padding_that_nobody_calls_so_is_no_padding(run_dir: Path) -> None:
    assert found(run_dir, Language(), counts_padding) == []


@pytest.mark.parametrize(
    "criterion",
    [nn.CrossEntropyLoss(ignore_index=PAD), lambda *given: flat(*given) * 1.0],
)
def test_a_loss_that_ignores_it_or_that_nobody_knows_is_not_accused(
    run_dir: Path, criterion: Any
) -> None:
    class Flat(Language):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask).transpose(1, 2)

    hook = td.Hook(run_dir, min_free_bytes=0)
    model = Flat(PAD)
    hook.register_module(model)
    loss = hook.register_loss(criterion)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(12):
        x, y = next_tokens(texts((END,)))
        optimizer.zero_grad()
        logits = model(x)
        is_own = isinstance(loss, nn.Module)
        (loss(logits, y) if is_own else loss(logits.transpose(1, 2), y)).backward()
        optimizer.step()
    hook.close()
    assert not [*check(run_dir, RULES, record=False).findings]


# ---- tokens that were not masked ---------------------------------------------


def masked(model: nn.Module, *, counts_all: bool) -> Tensor:
    x = torch.randint(4, VOCABULARY, (N, PLACES))
    is_chosen = torch.rand(x.shape) < 0.15
    draws = torch.rand(x.shape)
    shown = x.masked_fill(is_chosen & (draws < 0.8), MASK)
    is_other = is_chosen & (draws > 0.9)
    shown = shown.where(~is_other, torch.randint(4, VOCABULARY, x.shape))
    labels = x if counts_all else x.masked_fill(~is_chosen, -100)
    return flat(model(shown), labels)


def test_tokens_that_are_not_masked_and_count_are_a_warning(run_dir: Path) -> None:
    (finding,) = found(run_dir, Language(), lambda each: masked(each, counts_all=True))
    assert (finding.rule, finding.severity) == ("LabelMisuse", Severity.WARNING)
    assert "token 2 masks 1" in finding.message


def test_a_model_of_masked_tokens_is_not_accused(run_dir: Path) -> None:
    assert not found(run_dir, Language(), lambda each: masked(each, counts_all=False))


# ---- a class that never counts -----------------------------------------------


def classify(model: nn.Module, ignored: int, n_classes: int = 5) -> Tensor:
    x = torch.randn(N, 8)
    labels = x[:, :n_classes].argmax(1)
    return F.cross_entropy(model(x), labels, ignore_index=ignored)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_a_class_that_is_ignored_is_a_warning(run_dir: Path, n_classes: int) -> None:
    (finding,) = found(
        run_dir, nn.Linear(8, n_classes), lambda each: classify(each, 0, n_classes)
    )
    assert (finding.rule, finding.severity) == ("LabelMisuse", Severity.WARNING)
    assert "ignores class 0" in finding.message


@pytest.mark.parametrize("ignored", [-100, 255])
def test_a_number_that_is_no_class_may_be_ignored(run_dir: Path, ignored: int) -> None:
    assert found(run_dir, nn.Linear(8, 5), lambda each: classify(each, ignored)) == []


# ---- an end that never counts ------------------------------------------------


class WithSettings(Language):
    """A model that knows which token ends texts."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.config = type("Config", (), {"eos_token_id": end})()


def ends_ignored(model: nn.Module) -> Tensor:
    """The end is the padding, and all of it is left out."""
    x = texts((END,), END)
    labels = x.masked_fill(x == END, -100)
    return flat(model(x, None)[:, :-1], labels[:, 1:])


def ends_ignored_with_a_mask(model: nn.Module) -> Tensor:
    x = texts((END,), END)
    n_behind = (x == END).sum(1)[:, None]
    is_text = torch.arange(x.shape[1]) <= x.shape[1] - n_behind
    labels = x.masked_fill(x == END, -100)
    return flat(model(x, is_text.long())[:, :-1], labels[:, 1:])


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (WithSettings(END), ends_ignored, "settings say so"),
        (Language(), ends_ignored_with_a_mask, "your mask counts"),
        (Language(), ends_ignored, "the longest text"),
    ],
)
def test_an_end_that_never_counts_is_a_warning(
    run_dir: Path, model: nn.Module, loss: Loss, message: str
) -> None:
    (finding,) = found(run_dir, model, loss)
    assert (finding.rule, finding.severity) == ("LabelMisuse", Severity.WARNING)
    assert message in finding.message


def test_texts_that_end_with_another_token_are_not_accused(run_dir: Path) -> None:
    """A chat ends with its own token; the one of the settings only pads."""

    def loss(model: nn.Module) -> Tensor:
        x = texts((3,), END)
        labels = x.masked_fill(x == END, -100)
        return flat(model(x)[:, :-1], labels[:, 1:])

    assert found(run_dir, WithSettings(END), loss) == []


def test_padding_behind_texts_without_an_end_is_not_accused(run_dir: Path) -> None:
    def loss(model: nn.Module) -> Tensor:
        x = texts()
        labels = x.masked_fill(x == PAD, -100)
        return flat(model(x, (x != PAD).long())[:, :-1], labels[:, 1:])

    assert found(run_dir, Language(PAD), loss) == []


# ---- the next token but one --------------------------------------------------


def test_labels_that_skip_a_token_are_found_without_a_probe(run_dir: Path) -> None:
    def loss(model: nn.Module) -> Tensor:
        x = torch.randint(0, VOCABULARY, (N, PLACES))
        return flat(model(x)[:, :-2], x[:, 2:])

    (finding,) = found(run_dir, Language(), loss)
    assert finding.rule == "LabelShift"
    assert "by two places" in finding.message


def test_a_head_that_looks_two_ahead_beside_the_next_is_sound(run_dir: Path) -> None:
    def loss(model: nn.Module) -> Tensor:
        x = torch.randint(0, VOCABULARY, (N, PLACES))
        logits = model(x)
        return flat(logits[:, :-1], x[:, 1:]) + flat(logits[:, :-2], x[:, 2:])

    assert found(run_dir, Language(), loss) == []
