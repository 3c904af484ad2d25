"""MaskLeak, on masks that are given to attention and do something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.weights.mask_leak import MaskLeak
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

N, PLACES, TOKENS, WIDTH = 16, 16, 30, 16
Masks = Callable[[Tensor], Tensor | None]


class Heads(nn.Module):
    """Classifies texts by ``nn.MultiheadAttention``."""

    def __init__(self, padding: Masks, among: Masks, *, is_causal: bool) -> None:
        super().__init__()
        self.padding, self.among, self.is_causal = padding, among, is_causal
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.inside = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        given = self.tokens(x)
        found, _ = self.inside(
            given,
            given,
            given,
            key_padding_mask=self.padding(x),
            attn_mask=self.among(x),
            is_causal=self.is_causal,
            need_weights=False,
        )
        scores: Tensor = self.head(found.mean(1))
        return scores


class Products(nn.Module):
    """Classifies texts by ``scaled_dot_product_attention``."""

    def __init__(self, mask: Masks) -> None:
        super().__init__()
        self.mask = mask
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        given = self.tokens(x)[:, None]
        found = F.scaled_dot_product_attention(given, given, given, self.mask(x))
        scores: Tensor = self.head(found[:, 0].mean(1))
        return scores


class Translator(nn.Module):
    def __init__(self, *, masks_memory: bool) -> None:
        super().__init__()
        self.masks_memory = masks_memory
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.inside = nn.Transformer(WIDTH, 2, 1, 1, 32, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        is_padding = x == 0
        found = self.inside(
            self.tokens(x),
            self.tokens(x[:, :4]),
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding if self.masks_memory else None,
        )
        scores: Tensor = self.head(found[:, 0])
        return scores


def texts(width: int) -> Tensor:
    lengths = [width, *torch.randint(5, width, (N - 1,)).tolist()]
    rows = [torch.randint(1, TOKENS, (n,)) for n in lengths]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def found(run: Path, model: nn.Module) -> list[Finding]:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, out=run, probes=True, min_free_bytes=0):
        for step in range(4):
            x = texts(PLACES - step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, 0] % 2).backward()
            optimizer.step()
    return [*check(run, [MaskLeak()], record=False).findings]


def none(_: Tensor) -> None:
    return None


def square(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1])


def heads(padding: Masks, among: Masks = none, *, is_causal: bool = False) -> nn.Module:
    return Heads(padding, among, is_causal=is_causal)


def window(x: Tensor) -> Tensor:
    return (square(x).tril(-4) + square(x).triu(1)).bool()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (heads(lambda x: x != 0), "sees padding only"),
        (Products(lambda x: (x == 0)[:, None, None]), "sees padding only"),
        (Products(lambda x: square(x).triu(1).bool()), "sees later places only"),
        (Products(lambda x: square(x).tril()), "causal mask of Products masks nothing"),
        (heads(lambda x: (x == 0).float()), "padding mask of Heads masks nothing"),
        (heads(none, window, is_causal=True), "then ignores the mask"),
    ],
)
def test_a_mask_without_its_effect_is_an_error(
    run_dir: Path, model: nn.Module, message: str
) -> None:
    (finding,) = found(run_dir, model)
    assert (finding.rule, finding.severity) == ("MaskLeak", Severity.ERROR)
    assert message in finding.message


def test_a_decoder_that_attends_to_padding_is_a_warning(run_dir: Path) -> None:
    (finding,) = found(run_dir, Translator(masks_memory=False))
    assert finding.severity is Severity.WARNING
    assert "memory_key_padding_mask" in str(finding.advice)


@pytest.mark.parametrize(
    "model",
    [
        heads(lambda x: x == 0),
        heads(lambda x: (x == 0).float() * -1e9),
        heads(lambda x: x == 0, window, is_causal=True),
        heads(lambda x: x == 0, lambda x: square(x).triu(1).bool(), is_causal=True),
        Products(lambda x: (x != 0)[:, None, None]),
        Products(lambda x: (x != 0)[:, None, None] & square(x).tril().bool()),
        Products(lambda x: -square(x).cumsum(1) + (x == 0)[:, None, None] * -1e9),
        Translator(masks_memory=True),
    ],
)
def test_a_mask_that_hides_padding_is_sound(run_dir: Path, model: nn.Module) -> None:
    assert [each for each in found(run_dir, model) if "mask" in each.message] == []
