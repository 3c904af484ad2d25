"""LossMisuse and UnregisteredParameter, on real trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossMisuse, UnchangedTensor, UnregisteredParameter
from tdbg.run.findings import Finding, Severity
from torch_helpers import digits

Criterion = Callable[[Tensor, Tensor], Tensor]


class Stack(nn.Module):
    """A classifier of digits; its hidden layers are registered or in a plain list."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(64, 32), nn.Linear(32, 32)]
        self.hidden = nn.ModuleList(layers) if registered else layers
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)  # type: ignore[no-any-return]


class Margin(nn.Module):
    """A loss with weights of its own, over a network that judges."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = nn.Linear(10, 10)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.judge(scores), labels)


def trained(
    out: Path,
    criterion: Criterion = F.cross_entropy,
    *,
    rate: float = 0.05,
    registered: bool = True,
    others: nn.Module | None = None,
    n_steps: int = 70,
) -> list[Finding]:
    torch.manual_seed(0)
    model = Stack(registered=registered)
    held = [*model.parameters(), *(others.parameters() if others else ())]
    optimizer = torch.optim.SGD(held, rate)
    hook = td.watch(model, out=out)
    for _, (inputs, labels) in zip(range(n_steps), digits(32), strict=False):
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    hook.close()
    rules = [LossMisuse(), UnregisteredParameter()]
    return list(tdbg.rules.check(out, rules, record=False).findings)


def test_a_loss_that_takes_the_softmax_twice_is_named_at_the_first_step(
    tmp_path: Path,
) -> None:
    (finding,) = trained(
        tmp_path / "run", lambda s, y: F.cross_entropy(s.softmax(1), y), n_steps=12
    )
    assert (finding.rule, finding.step) == ("LossMisuse", 0)
    assert finding.severity is Severity.WARNING
    assert "cannot fall below 1.46" in finding.message


def test_a_training_as_it_should_be_has_no_finding(tmp_path: Path) -> None:
    assert trained(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("rate", "severity"), [(0.02, Severity.INFO), (3.0, Severity.WARNING)]
)
def test_a_sum_over_the_batch_is_a_warning_where_it_does_harm(
    tmp_path: Path, rate: float, severity: Severity
) -> None:
    found = trained(
        tmp_path / "run",
        lambda s, y: F.cross_entropy(s, y, reduction="sum"),
        rate=rate,
    )
    assert {each.rule for each in found} == {"LossMisuse"}
    assert max(each.severity for each in found) is severity
    assert "about 32 times" in found[0].message


def test_a_sum_that_falls_at_once_does_no_harm(tmp_path: Path) -> None:
    """Sabotage that it caught: its first value compared with the next ones only."""
    found = trained(
        tmp_path / "run",
        lambda s, _: F.mse_loss(s, torch.full_like(s, 10.0), reduction="sum"),
        rate=0.0002,
    )
    assert {each.severity for each in found} == {Severity.INFO}


def likelihood(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean logarithm of a Gaussian density of the labels, but for a constant."""
    off = F.one_hot(labels, 10) - scores
    return -0.5 * (off * off).sum(1).mean()


def test_a_loss_that_falls_without_end_is_named_from_its_beginning_on(
    tmp_path: Path,
) -> None:
    (finding,) = trained(tmp_path / "run", likelihood, rate=0.1)
    assert (finding.rule, finding.first_step) == ("LossMisuse", 0)
    assert finding.severity is Severity.WARNING
    assert finding.step < 60
    assert "The loss falls without end" in finding.message
    assert "Check the sign" in finding.advice


def test_a_negative_likelihood_may_come_below_zero(tmp_path: Path) -> None:
    def density(scores: Tensor, labels: Tensor) -> Tensor:
        return -likelihood(scores, labels) - 5.0

    assert trained(tmp_path / "run", density, rate=0.2) == []


def test_layers_in_a_plain_list_are_named(tmp_path: Path) -> None:
    (finding,) = trained(tmp_path / "run", registered=False)
    assert finding.rule == "UnregisteredParameter"
    assert finding.severity is Severity.WARNING
    assert "4 parameters" in finding.message
    assert "Stack.hidden[0].weight" in finding.message
    assert "ModuleList" in finding.advice


def test_a_loss_whose_weights_nobody_trains_is_named(tmp_path: Path) -> None:
    (finding,) = trained(tmp_path / "run", Margin())
    assert finding.rule == "UnregisteredParameter"
    assert finding.severity is Severity.WARNING
    assert "(10, 10)" in finding.message


def test_a_loss_whose_weights_an_optimizer_has_is_not(tmp_path: Path) -> None:
    margin = Margin()
    assert trained(tmp_path / "run", margin, others=margin) == []


def test_a_network_in_eval_that_judges_is_an_info(tmp_path: Path) -> None:
    (finding,) = trained(tmp_path / "run", Margin().eval())
    assert finding.severity is Severity.INFO
    assert "requires_grad_(False)" in finding.advice


@pytest.mark.parametrize("is_written", [True, False])
def test_a_copy_that_the_program_writes_to_is_nobodys_mistake(
    tmp_path: Path, *, is_written: bool
) -> None:
    """Its numbers stay the same, as those of the model that it is a copy of do."""
    torch.manual_seed(0)
    model, reference = Stack(registered=True), Stack(registered=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    hook = td.watch(model, out=tmp_path / "run")
    for _, (inputs, labels) in zip(range(25), digits(32), strict=False):
        if is_written:
            reference.load_state_dict(model.state_dict())
        F.cross_entropy(reference(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    hook.close()
    rules = [UnregisteredParameter()]
    found = list(tdbg.rules.check(tmp_path / "run", rules, record=False).findings)
    assert len(found) == (not is_written)


def after_another(out: Path, *, of_student: bool) -> list[Finding]:
    """A teacher is trained; then a student by its answers, with an optimizer anew."""
    torch.manual_seed(0)
    teacher, student = Stack(registered=True), Stack(registered=True)
    hook = td.watch(teacher, out=out)
    batches = digits(32)

    def fit(model: Stack, rate: float) -> None:
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _, (inputs, labels) in zip(range(25), batches, strict=False):
            optimizer.zero_grad()
            if model is teacher and teacher.training:
                loss = F.cross_entropy(teacher(inputs), labels)
            else:
                with torch.no_grad():
                    answers = teacher(inputs).softmax(1)
                loss = F.cross_entropy(student(inputs), answers)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    fit(teacher, 0.1)
    teacher.eval()
    fit(student if of_student else teacher, 0.1)
    hook.close()
    rules = [LossMisuse(), UnregisteredParameter(), UnchangedTensor()]
    return list(tdbg.rules.check(out, rules, record=False).findings)


def test_an_optimizer_that_was_given_the_parameters_of_another_model_is_the_cause(
    tmp_path: Path,
) -> None:
    found = after_another(tmp_path / "run", of_student=False)
    (first,) = (each for each in found if each.rule == "UnregisteredParameter")
    assert 24 <= first.first_step <= 28
    assert "6 parameters that never change, in no optimizer" in first.message
    assert "with the parameters of the model you train" in first.advice
    others = [each for each in found if each is not first]
    assert {each.rule for each in others} == {"UnchangedTensor"}
    assert {each.cause and each.cause.rule for each in others} == {first.rule}


def test_a_student_that_its_optimizer_has_is_trained(tmp_path: Path) -> None:
    assert after_another(tmp_path / "run", of_student=True) == []
