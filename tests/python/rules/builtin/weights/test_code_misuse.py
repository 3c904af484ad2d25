"""CodeMisuse, on real trainings: lines that do nothing, and wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch


def fit(run_dir: Path, model: nn.Module, *, probes: bool = True) -> list[Finding]:
    """Train for a few steps, and return what is found."""
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with td.watch(
        model, out=run_dir, budget="off", min_free_bytes=0, probes=probes
    ) as hook:
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    return judged(run_dir)


def judged(run_dir: Path) -> list[Finding]:
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.CodeMisuse()]).findings)


class Net(nn.Module):
    """Layers that each test uses in its own way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6, elementwise_affine=False)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(6, 2)


# ---- results that nobody takes -------------------------------------------------------


class NormDropped(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        self.norm(x)
        return self.last(x)


class ReluDropped(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        F.relu(x)
        return self.last(x)


class MaskDropped(Net):
    def forward(self, x: Tensor) -> Any:
        return self.last(self.attend(self.first(x), x > 2))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        x.masked_fill(mask, 0.0)
        return x


class DropoutUnread(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        dropped = self.drop(x)  # noqa: F841 - the mistake
        return self.last(x)


class ResidualForgotten(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        residual = x  # noqa: F841 - the mistake
        x = self.second(self.norm(x).relu())
        return self.last(x)


class Doubled(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        x = x + x
        return self.last(x)


@pytest.mark.parametrize(
    ("model", "where", "text"),
    [
        (NormDropped, "NormDropped.forward", "`self.norm(x)`"),
        (ReluDropped, "ReluDropped.forward", "`F.relu(x)`"),
        (MaskDropped, "MaskDropped.attend", "`x.masked_fill(mask, 0.0)`"),
        (DropoutUnread, "DropoutUnread.forward", "sets `dropped`, and no line reads"),
        (ResidualForgotten, "ResidualForgotten.forward", "sets `residual`"),
        (Doubled, "Doubled.forward", "`x + x`"),
    ],
)
def test_a_forward_that_drops_a_result_is_named_with_its_line(
    tmp_path: Path, model: Callable[[], nn.Module], where: str, text: str
) -> None:
    (finding,) = fit(tmp_path / "run", model())
    assert finding.severity is Severity.WARNING
    assert finding.tensor == where
    assert text in finding.message
    assert "of test_code_misuse.py" in finding.message


class Meant(Net):
    """Results that are used, or that nobody needs."""

    scale = 2

    def forward(self, x: Tensor) -> Any:
        seen: list[Tensor] = []
        size = self.scale + self.scale
        residual = x
        x = self.first(x)
        self.relu(x)
        seen.append(x)
        self.remember(x)
        F.relu(x.detach().clone(), inplace=True)
        torch.clamp(x.detach(), -1, 1, out=torch.empty(24, 6))
        x = self.norm(self.second(x)) + residual / size
        _unused = self.drop(x)
        doubled = 2 * x
        both = torch.cat([doubled, doubled]).chunk(2)[0]
        return self.last(self.drop(both))

    def remember(self, x: Tensor) -> Tensor:
        self.latest = x.detach()
        return x

    def not_called(self, x: Tensor) -> None:
        F.relu(x)


def test_results_that_are_used_and_layers_in_place_are_fine(tmp_path: Path) -> None:
    assert fit(tmp_path / "run", Meant()) == []


class Followed(Net):
    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        self.norm(x)
        return self.last(x)


def test_a_layer_whose_output_a_hook_takes_may_be_called_for_it(tmp_path: Path) -> None:
    model, seen = Followed(), list[Tensor]()
    model.norm.register_forward_hook(lambda *call: seen.append(call[2]))
    assert fit(tmp_path / "run", model) == []


class Attempts(Net):
    def forward(self, x: Tensor) -> Any:
        try:
            F.relu(x)
        except TypeError:
            x = x.float()
        return self.last(self.first(x))


class Switched(Net):
    """Has lines that this run never takes, and some that it does."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = self.first(x)
        if self.kind == "dropped":
            F.relu(x)
        elif self.kind == "unknown" and x.sum() > 9:
            F.gelu(x)
        else:
            x = F.relu(x)
        if mask is not None and self.kind != "unknown":
            x = x * mask
        return self.last(x)


@pytest.mark.parametrize("kind", ["dropped", "kept", "unknown"])
def test_only_lines_that_run_are_named(tmp_path: Path, kind: str) -> None:
    findings = fit(tmp_path / "run", Switched(kind))
    assert len(findings) == (kind == "dropped")


def test_a_call_that_is_tried_may_be_made_for_its_error(tmp_path: Path) -> None:
    assert fit(tmp_path / "run", Attempts()) == []


# ---- programs ------------------------------------------------------------------------


def train(run_dir: Path, kind: str) -> list[Finding]:
    """Train as a program does that has one mistake, or none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(24, 6)
    y = (x[:, 0] > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = list[float]()
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        for _ in range(8):
            losses = {
                "clamp": clamps,
                "eval": evaluates,
                "grad": computes,
                "numpy": appends,
                "frozen": freezes,
                "ended": ends_early,
            }.get(kind, means_it)(model, x, y)
            log.append(losses)
            optimizer.step()
    return judged(run_dir)


def clamps(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.grad.clamp(-1, 1)  # type: ignore[union-attr]
    return float(loss.detach())


def evaluates(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval  # noqa: B018 - the mistake
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return float(loss.detach())


def computes(model: nn.Module, x: Tensor, y: Tensor) -> float:
    torch.no_grad()
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return float(loss.detach())


def appends(model: nn.Module, x: Tensor, y: Tensor) -> float:
    every = np.zeros(0)
    np.append(every, 1.0)
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return float(loss.detach() + every.sum())


def freezes(model: nn.Module, x: Tensor, y: Tensor) -> float:
    for p in model[0].parameters():  # type: ignore[index]
        p.requires_grad == False  # noqa: B015, E712 - the mistake
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return float(loss.detach())


def ends_early(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return float(loss.detach()) + error_of(model, x, y)


def error_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    total = 0.0
    for some, its in zip(x.chunk(4), y.chunk(4), strict=True):
        with torch.no_grad():
            total += float(F.cross_entropy(model(some), its))
        return total / 4
    return 0.0


def first_of(x: Tensor) -> Tensor:
    for some in x.chunk(4):
        size = some.sum()
        return some / size
    return x


def sum_of(x: Tensor) -> float:
    total = 0.0
    for some in x.chunk(4):
        total += float(some.sum())
        if total > 9:
            return total
    return total


def means_it(model: nn.Module, x: Tensor, y: Tensor) -> float:
    seen = {0}
    seen.add(1)
    order = np.arange(len(x))
    np.random.default_rng(0).shuffle(order)
    order.sort()
    text = "a"
    text.replace("a", "b")
    first_of(x)
    sum_of(x)
    model.eval()
    with torch.no_grad():
        model(x)
    torch.set_grad_enabled(True)
    model.train().zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.grad.clamp_(-1, 1)  # type: ignore[union-attr]
        p.grad.data.mul_(1.0)  # type: ignore[union-attr]
    return float(loss.detach())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("clamp", "`p.grad.clamp(-1, 1)`"),
        ("eval", "`model.eval`"),
        ("grad", "`torch.no_grad()`"),
        ("numpy", "`np.append(every, 1.0)`"),
        ("frozen", "`p.requires_grad == False`"),
        ("ended", "A loop ends in its first round: `return total / 4`"),
    ],
)
def test_a_loop_that_drops_a_result_is_named_with_its_line(
    tmp_path: Path, kind: str, text: str
) -> None:
    (finding,) = train(tmp_path / "run", kind)
    assert text in finding.message


def test_calls_for_their_effects_are_fine(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "none") == []


def test_a_seed_that_is_assigned_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "manual_seed", torch.manual_seed)

    class Seeded(Net):
        def forward(self, x: Tensor) -> Any:
            return self.last(x)

    def program() -> list[Finding]:
        model = Seeded()
        torch.manual_seed = 0  # type: ignore[assignment]
        return fit(tmp_path / "run", model)

    (finding,) = program()
    assert "takes the place of the function" in finding.message


# ---- gradients of one's own ----------------------------------------------------------


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class SwishByHalf(Swish):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 - s)


class SwishOfOnes(Swish):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ARG004 - the mistake
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return s + x * s * (1 - s)


class MeanOfPairs(torch.autograd.Function):
    """A mean over pairs whose gradient is that of the sum."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, 2).mean(2).repeat(1, 2)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        n = grad.shape[1] // 2
        return (grad[:, :n] + grad[:, n:]).repeat_interleave(2, 1)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return torch.round(4 * x) / 4

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return -0.1 * grad


class Quantized(torch.autograd.Function):
    """Numbers in steps of the largest one, as networks of few bits have them."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True) / 7
        return (x / scale).round() * scale

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad


class Limited(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad.clamp(-1e-3, 1e-3)


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0] * 2


CALLS: list[int] = []


class Counting(torch.autograd.Function):
    """Wrong, but it has effects, so nobody else may call it."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        CALLS.append(1)
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad


class OwnGradient(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.function.apply(self.first(x)))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (SwishByHalf, "is not the derivative of its forward: at"),
        (SwishOfOnes, "ignores the gradient that it gets"),
        (MeanOfPairs, "returns 2 times the derivative"),
    ],
)
def test_a_backward_that_is_not_the_derivative_is_named(
    tmp_path: Path, function: Any, text: str
) -> None:
    given = function.forward
    (finding,) = fit(tmp_path / "run", OwnGradient(function))
    assert finding.severity is Severity.WARNING
    assert finding.tensor == function.__name__
    assert text in finding.message
    assert function.forward is given


@pytest.mark.parametrize(
    "function", [Swish, Round, Clamp, Reverse, Quantized, Limited, Noisy, Counting]
)
def test_gradients_that_are_right_or_meant_are_fine(
    tmp_path: Path, function: Any
) -> None:
    CALLS.clear()
    assert fit(tmp_path / "run", OwnGradient(function)) == []
    assert len(CALLS) in {0, 8}


def test_without_probes_no_function_is_called(tmp_path: Path) -> None:
    assert fit(tmp_path / "run", OwnGradient(SwishByHalf), probes=False) == []


def test_a_probe_leaves_the_generators_as_they_were(tmp_path: Path) -> None:
    states = []
    for probes in (False, True):
        fit(tmp_path / str(probes), OwnGradient(Noisy), probes=probes)
        states.append(torch.random.get_rng_state())
    assert torch.equal(*states)
