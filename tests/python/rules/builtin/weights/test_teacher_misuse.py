"""TeacherMisuse, on real trainings: teachers that learn or drop, and healthy ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch


def network(p: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 4))


class Both(nn.Module):
    """A teacher and a student."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.teacher, self.student = network(), network(0.0)


def freeze(both: Both) -> None:
    both.teacher.requires_grad_(False).eval()


def answers(both: Both, x: Tensor) -> Tensor:
    with torch.no_grad():
        answer: Tensor = both.teacher(x)
    return answer


def distance(both: Both, x: Tensor) -> Tensor:
    return functional.mse_loss(both.student(x), answers(both, x))


def judged(
    run_dir: Path,
    both: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    n_steps: int = 25,
) -> list[Finding]:
    optimizer = torch.optim.SGD(
        [each for each in both.parameters() if each.requires_grad], 0.01
    )
    with td.watch(both, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for _ in range(n_steps):
            loss = loss_of(torch.randn(16, 8))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    rule = tdbg.rules.TeacherMisuse()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


def mean_square(student: Tensor, teacher: Tensor) -> Tensor:
    return functional.mse_loss(student, teacher)


def by_hand(student: Tensor, teacher: Tensor) -> Tensor:
    return 0.5 * (student - teacher).pow(2).mean()


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    return functional.kl_div(
        student.log_softmax(1), teacher.softmax(1), reduction="batchmean"
    )


@pytest.mark.parametrize("compare", [mean_square, by_hand, divergence])
def test_a_teacher_that_learns(
    run_dir: Path, compare: Callable[[Tensor, Tensor], Tensor]
) -> None:
    both = Both()
    both.teacher.eval()
    (finding,) = judged(
        run_dir, both, lambda x: compare(both.student(x), both.teacher(x))
    )
    assert (finding.tensor, finding.severity) == ("teacher", Severity.WARNING)
    assert "The teacher is trained" in finding.message
    assert "eval() does not stop gradients" in finding.advice


def test_a_teacher_that_drops_units(run_dir: Path) -> None:
    both = Both()
    freeze(both)
    both.train()
    (finding,) = judged(run_dir, both, lambda x: distance(both, x))
    assert finding.tensor == "teacher"
    assert "teacher.eval()" in finding.advice


def test_a_teacher_outside_the_model_that_drops_units(run_dir: Path) -> None:
    teacher, student = network().requires_grad_(False), network(0.0)
    (finding,) = judged(
        run_dir, student, lambda x: functional.mse_loss(student(x), teacher(x))
    )
    assert finding.tensor == "Sequential"


def healthy(name: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return a model and its loss."""
    both = Both()
    x_of = both.student
    if name == "distillation":
        freeze(both)
        return both, lambda x: distance(both, x)
    if name == "mutual":
        return both, lambda x: mean_square(both.student(x), both.teacher(x))
    if name == "both_in_eval":
        both.eval()
        return both, lambda x: mean_square(both.student(x), both.teacher(x))
    if name == "detached":
        both.teacher.eval()
        return both, lambda x: mean_square(x_of(x), both.teacher(x).detach())
    if name == "siamese":
        return both, lambda x: mean_square(x_of(x), x_of(-x))
    if name == "mean_teacher":
        both.teacher.requires_grad_(False)

        def follow(x: Tensor) -> Tensor:
            with torch.no_grad():
                pairs = zip(
                    both.teacher.parameters(), both.student.parameters(), strict=True
                )
                for ours, theirs in pairs:
                    ours.lerp_(theirs, 0.01)
            return distance(both, x)

        return both, follow
    frozen = nn.Sequential(network().requires_grad_(False), nn.Linear(4, 2))
    if name == "frozen_part":
        return frozen, lambda x: frozen(x).square().mean()
    frozen[0].eval()
    return frozen, lambda x: frozen(x).square().mean()


@pytest.mark.parametrize(
    "name",
    [
        "distillation",
        "detached",
        "siamese",
        "mean_teacher",
        "frozen_part",
        "frozen_part_in_eval",
    ],
)
def test_healthy_teachers(run_dir: Path, name: str) -> None:
    model, loss_of = healthy(name)
    assert judged(run_dir, model, loss_of) == []


@pytest.mark.parametrize("name", ["mutual", "both_in_eval"])
def test_a_teacher_in_the_students_mode_may_learn_on_purpose(
    run_dir: Path, name: str
) -> None:
    """Its name says that it teaches; two models may teach each other."""
    (finding,) = judged(run_dir, *healthy(name))
    assert (finding.tensor, finding.severity) == ("teacher", Severity.INFO)
    assert "the optimizer has the weights of teacher" in finding.message


class Peers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(), network()


def test_peers_that_teach_each_other(run_dir: Path) -> None:
    both = Peers()
    findings = judged(
        run_dir, both, lambda x: mean_square(both.first(x), both.second(x))
    )
    assert findings == []


def normalized() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    )


def learned_from(teacher: nn.Module, student: nn.Module) -> Callable[[Tensor], Tensor]:
    def loss_of(x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        return functional.mse_loss(student(x), wanted)

    return loss_of


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_teacher_that_normalizes_by_its_batch(
    run_dir: Path, *, is_frozen: bool
) -> None:
    teacher, student = normalized().requires_grad_(not is_frozen), network(0.0)
    (finding,) = judged(run_dir, student, learned_from(teacher, student))
    assert finding.severity is Severity.WARNING
    assert "depend on the other samples of the batch" in finding.message


@pytest.mark.parametrize("kind", ["eval", "target", "trained", "plain"])
def test_models_that_are_asked_as_they_should_be(run_dir: Path, kind: str) -> None:
    teacher, student = normalized(), network(0.0)
    others = []
    if kind == "eval":
        teacher.eval()
    elif kind == "plain":
        teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    elif kind == "target":
        student = normalized()
        teacher = copy.deepcopy(student)
    else:
        others.append(torch.optim.SGD(teacher.parameters(), 0.01))
    assert judged(run_dir, student, learned_from(teacher, student)) == []


def test_an_evaluation_of_a_copy_is_no_teaching(run_dir: Path) -> None:
    student = network()

    def loss_of(x: Tensor) -> Tensor:
        snapshot = copy.deepcopy(student).requires_grad_(False)
        with torch.no_grad():
            snapshot(x)
        loss: Tensor = student(x).square().mean()
        return loss

    assert judged(run_dir, student, loss_of) == []
