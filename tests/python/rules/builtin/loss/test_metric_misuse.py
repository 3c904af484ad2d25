"""MetricMisuse, on real trainings: what evaluations make of outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg
import tdbg.pytorch as td
from tdbg.hooks.pytorch.checks.data import evaluated_outputs
from tdbg.run.findings import Finding, Severity

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_compiled")]


N = 48
Metric = Callable[[Tensor, Tensor], Any]


class Net(nn.Module):
    """A small network, perhaps with a last activation."""

    def __init__(self, n_outputs: int, last: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, n_outputs))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs if self.last is None else self.last(outputs)


def found(
    run_dir: Path,
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    targets: Tensor,
    metric: Metric,
    *,
    parts: int = 1,
) -> list[Finding]:
    """Train, evaluate as the metric does, and return what is found."""
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(12):
            loss = loss_of(model(x), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 == 3:
                model.eval()
                with torch.no_grad():
                    for some, y in zip(
                        x.chunk(parts), targets.chunk(parts), strict=True
                    ):
                        metric(model(some), y)
                model.train()
    assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.MetricMisuse()]).findings)


def labels(n_classes: int = 2) -> Tensor:
    return torch.randint(n_classes, (N,), generator=torch.Generator().manual_seed(2))


BITS = labels().float()[:, None]
BCE, LOGITS = F.binary_cross_entropy, F.binary_cross_entropy_with_logits


def above(threshold: float) -> Metric:
    return lambda out, y: ((out > threshold).float() == y).float().mean()


def swept(out: Tensor, y: Tensor) -> None:
    for threshold in (0.5, 0.0, -0.5, 1.0):
        ((out > threshold) == y.bool()).sum()


SCORES_AS_PROBABILITIES: dict[str, Metric] = {
    "compared": above(0.5),
    "by its complement": lambda out, y: out.lt(0.5) != y.bool(),
    "by a function": lambda out, y: torch.ge(out, 0.5).eq(y.bool()),
    "rounded": lambda out, y: torch.round(out) == y,
    "in another shape": lambda out, y: (out.squeeze(1).cpu() > 0.5) == y[:, 0].bool(),
    "as a selected column": lambda out, y: (out[:, 0] > 0.5) == y[:, 0].bool(),
}


@pytest.mark.parametrize("metric", SCORES_AS_PROBABILITIES)
def test_scores_that_are_read_as_probabilities_are_found(
    tmp_path: Path, metric: str
) -> None:
    (said,) = found(tmp_path, Net(1), LOGITS, BITS, SCORES_AS_PROBABILITIES[metric])
    assert said.severity == Severity.WARNING
    assert "with 0.5, as if they were probabilities" in said.message
    assert "outputs > 0" in said.advice


def test_scores_are_known_by_a_sigmoid_before_the_loss(tmp_path: Path) -> None:
    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return BCE(torch.sigmoid(out), y)

    assert found(tmp_path, Net(1), loss_of, BITS, above(0.5))


def test_scores_that_are_collected_first_are_known(tmp_path: Path) -> None:
    collected: list[Tensor] = []

    def metric(out: Tensor, _: Tensor) -> None:
        collected.append(out.detach())
        (torch.cat(collected) > 0.5).sum()

    assert found(tmp_path, Net(1), LOGITS, BITS, metric, parts=3)


def changed(out: Tensor, y: Tensor) -> Tensor:
    return (out.sigmoid_() > 0.5) == y.bool()


MEANT_OF_SCORES: dict[str, Metric] = {
    "zero": above(0.0),
    "a chosen threshold": above(0.3),
    "a sigmoid first": lambda out, y: (torch.sigmoid(out) > 0.5) == y.bool(),
    "a rounded sigmoid": lambda out, y: out.sigmoid().round() == y,
    "a sigmoid in place": changed,
    "several thresholds": swept,
    "a scaled output": lambda out, _: out * 2 > 0.5,
}


@pytest.mark.parametrize("metric", MEANT_OF_SCORES)
def test_what_may_be_meant_of_scores_is_silent(tmp_path: Path, metric: str) -> None:
    assert not found(tmp_path, Net(1), LOGITS, BITS, MEANT_OF_SCORES[metric])


def test_probabilities_are_compared_with_one_half(tmp_path: Path) -> None:
    model = Net(1, nn.Sigmoid())
    assert not found(tmp_path, model, BCE, BITS, above(0.5))


def test_outputs_of_a_regression_are_compared_with_anything(tmp_path: Path) -> None:
    assert not found(tmp_path, Net(1), F.mse_loss, BITS, above(0.5))


SAME_ANSWER: dict[str, Metric] = {
    "lie between 0 and 1": above(0.0),
    "lie between 0.5 and 0.731": lambda out, y: (torch.sigmoid(out) > 0.5) == y.bool(),
    "whole numbers": lambda out, y: out.long() == y,
}


@pytest.mark.parametrize("words", SAME_ANSWER)
def test_the_same_answer_for_all_is_found(tmp_path: Path, words: str) -> None:
    model = Net(1, nn.Sigmoid())
    (said,) = found(tmp_path, model, BCE, BITS, SAME_ANSWER[words])
    assert words in said.message


SAME_OF_ONE: dict[str, Metric] = {
    "axis of size 1": lambda out, y: out.argmax(dim=1) == y[:, 0],
    "softmax over a single number": lambda out, _: F.softmax(out, dim=1) > 0.5,
    "cuts off": lambda out, y: torch.sigmoid(out).int() == y,
}


@pytest.mark.parametrize("words", SAME_OF_ONE)
def test_the_same_answer_of_a_single_score_is_found(tmp_path: Path, words: str) -> None:
    (said,) = found(tmp_path, Net(1), LOGITS, BITS, SAME_OF_ONE[words])
    assert words in said.message


def curve(out: Tensor, y: Tensor) -> None:
    for threshold in torch.linspace(0, 1, 5):
        ((out > threshold) == y.bool()).sum()


MEANT_OF_PROBABILITIES: dict[str, Metric] = {
    "a curve": curve,
    "in percent": lambda out, _: (100 * out).int(),
    "rounded": lambda out, y: out.round().int() == y,
    "high": above(0.9),
}


@pytest.mark.parametrize("metric", MEANT_OF_PROBABILITIES)
def test_what_may_be_meant_of_probabilities_is_silent(
    tmp_path: Path, metric: str
) -> None:
    model = Net(1, nn.Sigmoid())
    assert not found(tmp_path, model, BCE, BITS, MEANT_OF_PROBABILITIES[metric])


OVER_SAMPLES: dict[str, Metric] = {
    "one argmax of all outputs": lambda out, y: out.argmax() == y,
    "along dim=0": lambda out, y: out.softmax(0).argmax(1) == y,
}


@pytest.mark.parametrize("words", OVER_SAMPLES)
def test_readings_over_the_samples_are_found(tmp_path: Path, words: str) -> None:
    metric = OVER_SAMPLES[words]
    (said,) = found(tmp_path, Net(3), F.cross_entropy, labels(3), metric)
    assert words in said.message


MEANT_OF_CLASSES: dict[str, Metric] = {
    "the largest": lambda out, y: out.argmax(1) == y,
    "of one sample": lambda out, y: out[0].argmax() == y[0],
    "a softmax": lambda out, y: F.softmax(out, dim=-1).argmax(1) == y,
    "the most certain": lambda out, _: divmod(int(out.argmax()), 3),
    "above one half": lambda out, _: out.softmax(1) > 0.5,
}


@pytest.mark.parametrize("metric", MEANT_OF_CLASSES)
def test_what_may_be_meant_of_classes_is_silent(tmp_path: Path, metric: str) -> None:
    said = MEANT_OF_CLASSES[metric]
    assert not found(tmp_path, Net(3), F.cross_entropy, labels(3), said)


def test_a_table_of_all_pairs_is_found(tmp_path: Path) -> None:
    (said,) = found(
        tmp_path,
        Net(1),
        lambda out, y: F.mse_loss(out[:, 0], y),
        torch.randn(N),
        lambda out, y: (out - y).abs().mean(),
    )
    assert "48 times 48" in said.message
    assert "squeeze(1)" in said.advice


def test_answers_that_are_compared_with_all_labels_are_found(tmp_path: Path) -> None:
    (said,) = found(
        tmp_path,
        Net(1),
        lambda out, y: LOGITS(out, y[:, None].float()),
        labels(),
        lambda out, y: ((out > 0).long() == y).float().mean(),
    )
    assert "== makes a table" in said.message


MEANT_PAIRS: dict[str, Metric] = {
    "one by one": lambda out, y: out[:, 0] - y,
    "of themselves": lambda out, _: out - out[:, 0],
    "an axis that is added": lambda out, y: out[:, 0][:, None] - y,
    "with the places": lambda out, _: (out > 0).long() == torch.arange(len(out)),
    "with another number": lambda out, _: out - torch.zeros(7),
}


@pytest.mark.parametrize("metric", MEANT_PAIRS)
def test_pairs_that_may_be_meant_are_silent(tmp_path: Path, metric: str) -> None:
    assert not found(
        tmp_path,
        Net(1),
        lambda out, y: F.mse_loss(out[:, 0], y),
        torch.randn(N),
        MEANT_PAIRS[metric],
    )


class Keeper:
    """Keeps a score, with the defaults of a class for losses."""

    def __init__(self, sign: float) -> None:
        self.sign, self.best = sign, float("inf")

    def see(self, accuracy: float) -> None:
        self.best = min(self.best, self.sign * accuracy)


def kept(run_dir: Path, sign: float, scale: float = 1.0) -> list[Finding]:
    """Train, and keep the accuracy of a validation that gets better."""
    torch.manual_seed(0)
    keeper, model = Keeper(sign), Net(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    x = torch.randn(200, 4)
    y = x[:, :3].argmax(1)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(61):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 1:
                model.eval()
                with torch.no_grad():
                    outputs = model(x)
                    _, answers = torch.max(outputs, 1)
                keeper.see(scale * float((answers == y).float().mean()))
                model.train()
    assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.MetricMisuse()]).findings)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_a_lowest_accuracy_that_is_called_the_best_is_found(
    tmp_path: Path, scale: float
) -> None:
    (said,) = kept(tmp_path, 1.0, scale)
    assert "the lowest accuracy" in said.message
    assert 'mode="max"' in said.advice


def test_a_best_accuracy_is_the_highest(tmp_path: Path) -> None:
    assert not kept(tmp_path, -1.0)


def test_operations_are_put_back_when_training_goes_on(tmp_path: Path) -> None:
    model = Net(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(vars(torch.Tensor)), torch.argmax, torch.Tensor.__gt__
    with td.watch(model, out=tmp_path, budget="off", min_free_bytes=0):
        for _ in range(3):
            LOGITS(model(torch.randn(N, 4)), BITS).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                outputs = model(torch.randn(N, 4))
            assert torch.argmax is not before[1]
            assert torch.equal(outputs > 0.5, before[2](outputs, 0.5))
            model.train()
    assert dict(vars(torch.Tensor)) == before[0]
    assert torch.argmax is before[1]
    assert torch.Tensor.__gt__ is before[2]


def test_operations_are_put_back_if_a_program_evaluates_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluated_outputs, "_MOST_NOTED", 10)
    model, before = Net(1), torch.Tensor.__gt__
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.watch(model, out=tmp_path, budget="off", min_free_bytes=0):
        LOGITS(model(torch.randn(N, 4)), BITS).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = model(torch.randn(N, 4))
            assert torch.Tensor.__gt__ is not before
            for _ in range(12):
                assert (outputs > 0).dtype is torch.bool
            assert torch.Tensor.__gt__ is before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # The compiler's own.
@pytest.mark.parametrize(("threshold", "is_told"), [(0.5, True), (0.0, False)])
def test_evaluations_are_followed_beside_compiled_functions_that_stay_compiled(
    tmp_path: Path, threshold: float, is_told: bool
) -> None:
    n_compiled: list[int] = []

    def backend(module: Any, _: Any) -> Any:
        n_compiled.append(1)
        return module.forward

    @torch.compile(backend=backend)
    def entropy(given: Tensor) -> Tensor:
        answers = torch.softmax(given, 1)
        is_largest = torch.argmax(given, 1) == torch.max(given, 1).indices
        return torch.cat([answers, answers]).mean() + (given > 0.5).sum() * is_largest

    x = torch.randn(N, 3)
    with torch.no_grad():
        entropy(x)
    assert n_compiled == [1]

    def metric(out: Tensor, y: Tensor) -> Tensor:
        entropy(x)
        return ((out > threshold) == y.bool()).float().mean()

    said = found(tmp_path, Net(1), LOGITS, BITS, metric)
    assert ["with 0.5" in each.message for each in said] == [True] * is_told
    assert n_compiled == [1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_scripting_in_an_evaluation_is_as_before(tmp_path: Path) -> None:
    class Scripted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.argmax(torch.sigmoid(x), 1)

    model = Net(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.watch(model, out=tmp_path, budget="off", min_free_bytes=0):
        F.cross_entropy(model(torch.randn(N, 4)), labels()).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = model(torch.randn(N, 4))
        scripted = torch.jit.script(Scripted())
        assert torch.equal(scripted(outputs), outputs.argmax(1))
