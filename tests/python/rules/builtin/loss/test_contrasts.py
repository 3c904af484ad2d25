"""LossTermMisuse, on contrastive losses in several styles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse, check
from tdbg.run.findings import Finding, Severity

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
N = 32


def view(x: Tensor) -> Tensor:
    return x + 0.3 * torch.randn_like(x)


def both_views(x: Tensor, *, is_one: bool = False) -> Tensor:
    first = view(x)
    return torch.cat([first, first if is_one else view(x)])


def codes(model: nn.Module, x: Tensor) -> Tensor:
    return functional.normalize(model(x), dim=1)


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda z: z @ z.t(),
    "cosine": lambda z: functional.cosine_similarity(z[:, None], z[None], dim=2),
    "einsum": lambda z: torch.einsum("id,jd->ij", z, z),
    "sum": lambda z: (z.unsqueeze(0) * z.unsqueeze(1)).sum(-1),
    "distance": lambda z: -torch.cdist(z, z),
}


def in_one_matrix(
    how: str = "product",
    *,
    is_one: bool = False,
    masked: bool = True,
    zeros: bool = False,
) -> Loss:
    """SimCLR: all views of a batch against all."""

    def loss(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        scores = SCORES[how](codes(model, both_views(x, is_one=is_one))) / 0.2
        if masked:
            scores = scores.masked_fill(torch.eye(2 * N, dtype=torch.bool), -1e9)
        match = torch.arange(2 * N).roll(N)
        return functional.cross_entropy(scores, 0 * match if zeros else match)

    return loss


def by_hand(*, is_one: bool = False, masked: bool = True) -> Loss:
    def loss(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        z = codes(model, both_views(x, is_one=is_one))
        chances = torch.exp(torch.mm(z, z.t().contiguous()) / 0.5)
        if masked:
            chances = chances * (1 - torch.eye(2 * N))
        positive = torch.exp((z[:N] * z[N:]).sum(1) / 0.5).repeat(2)
        return -torch.log(positive / chances.sum(1)).mean()

    return loss


def of_two_towers(
    *, is_one: bool = False, zeros: bool = False, both_ways: bool = True
) -> Loss:
    """CLIP: each view of one kind against all of the other."""

    def loss(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        first = view(x)
        one, other = codes(model, first), codes(model, first if is_one else view(x))
        scores = 10 * one @ other.t()
        match = torch.arange(N) * (0 if zeros else 1)
        found = functional.cross_entropy(scores, match)
        return found + functional.cross_entropy(scores.t(), match) * both_ways

    return loss


def of_classes(n_classes: int = 10, *, masked: bool = True) -> Loss:
    """Several samples match: those of the same class."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        labels = (y % n_classes).repeat(2)
        z = codes(model, both_views(x))
        scores, others = z @ z.t() / 0.2, 1 - torch.eye(2 * N)
        matches = (labels[:, None] == labels[None]).float() * others
        chances = scores.exp() * (others if masked else 1.0)
        logs = scores - chances.sum(1, keepdim=True).log()
        return -((matches * logs).sum(1) / matches.sum(1).clamp(min=1)).mean()

    return loss


def without_the_diagonal(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """The positive stands first, so all labels are zeros."""
    z = codes(model, both_views(x))
    scores = z @ z.t() / 0.2
    is_match = torch.eye(2 * N).roll(N, 0).bool()
    is_other = ~(torch.eye(2 * N).bool() | is_match)
    positive = scores[is_match].view(2 * N, 1)
    ordered = torch.cat([positive, scores[is_other].view(2 * N, -1)], 1)
    return functional.cross_entropy(ordered, torch.zeros(2 * N, dtype=torch.int64))


def diagonal_subtracted(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    z = codes(model, both_views(x))
    chances = torch.exp(z @ z.t() / 0.5)
    positive = torch.exp((z[:N] * z[N:]).sum(1) / 0.5).repeat(2)
    return -torch.log(positive / (chances.sum(1) - chances.diag())).mean()


def of_a_queue(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """MoCo: zeros are right."""
    bank = torch.randn(N - 1, 16, generator=torch.Generator().manual_seed(0))
    query = codes(model, view(x))
    with torch.no_grad():
        key = codes(model, view(x))
    positive = (query * key).sum(1, keepdim=True)
    scores = torch.cat([positive, query @ functional.normalize(bank, dim=1).t()], 1)
    return functional.cross_entropy(scores / 0.2, torch.zeros(N, dtype=torch.int64))


PROTOTYPES = nn.Parameter(torch.randn(N, 16))


def of_prototypes(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """As many classes as samples, and a batch with one class."""
    scores = codes(model, x) @ functional.normalize(PROTOTYPES, dim=1).t()
    return functional.cross_entropy(5 * scores, torch.full((N,), 3))


def by_dropout(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """SimCSE: the same sample twice, with other units dropped."""
    one, other = (codes(model, functional.dropout(x, 0.3)) for _ in range(2))
    return functional.cross_entropy(one @ other.t() / 0.1, torch.arange(N))


def redundant(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """Barlow twins."""
    views: list[Tensor] = [model(view(x)) for _ in range(2)]
    one, other = ((each - each.mean(0)) / each.std(0) for each in views)
    return (one.t() @ other / N - torch.eye(16)).square().mean()


def pulled_away(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """The term of energy-based GANs: the mean of all similarities."""
    z = codes(model, x)
    apart = ((z @ z.t()).sum() - N) / (N * (N - 1))
    return 0.1 * apart + (model(x) - x[:, :16]).square().mean()


def as_similar(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """Samples are to be as similar to each other as those of a teacher."""
    z, teacher = codes(model, x), functional.normalize(x, dim=1)
    told = functional.log_softmax(z @ z.t() / 0.2, 1)
    target = functional.softmax(teacher @ teacher.t() / 0.2, 1)
    return functional.kl_div(told, target, reduction="batchmean")


def attending(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Each sample takes in others, itself above all."""
    z = codes(model, x)
    mixed = torch.softmax(5 * z @ z.t(), 1) @ z
    return functional.cross_entropy(z + mixed, y)


def judged(run_dir: Path, loss: Loss) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))
    optimizer = torch.optim.Adam([*model.parameters(), PROTOTYPES], 2e-3)
    x, y = torch.rand(400, 64), torch.randint(10, (400,))
    with td.Hook(run_dir, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(14):
            rows = torch.randperm(400)[:N]
            optimizer.zero_grad()
            found = loss(model, x[rows], y[rows])
            found.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return list(check(run_dir, [LossTermMisuse()]).findings)


ITSELF, EQUAL, ALL = "away from itself", "views of each pair are the same", "same match"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        *((in_one_matrix(how, masked=False), ITSELF) for how in SCORES),
        (by_hand(masked=False), ITSELF),
        (of_classes(masked=False), ITSELF),
        *((in_one_matrix(how, is_one=True), EQUAL) for how in ("product", "cosine")),
        (by_hand(is_one=True), EQUAL),
        (of_two_towers(is_one=True), EQUAL),
        (of_two_towers(is_one=True, both_ways=False), EQUAL),
        (in_one_matrix(zeros=True), ALL),
        (of_two_towers(zeros=True), ALL),
        (of_two_towers(zeros=True, both_ways=False), ALL),
    ],
)
def test_pairs_that_nobody_means(run_dir: Path, loss: Loss, said: str) -> None:
    (finding,) = judged(run_dir, loss)
    assert finding.severity is Severity.WARNING
    assert said in finding.message


@pytest.mark.torch
@pytest.mark.parametrize(
    "loss",
    [
        *map(in_one_matrix, SCORES),
        by_hand(),
        of_two_towers(),
        of_two_towers(both_ways=False),
        of_classes(),
        of_classes(2),
        without_the_diagonal,
        diagonal_subtracted,
        of_a_queue,
        of_prototypes,
        by_dropout,
        redundant,
        pulled_away,
        as_similar,
        attending,
    ],
)
def test_pairs_as_they_should_be(run_dir: Path, loss: Loss) -> None:
    assert judged(run_dir, loss) == []
