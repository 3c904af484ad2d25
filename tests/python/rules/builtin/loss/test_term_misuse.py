"""LossTermMisuse, on real trainings: policies, focal losses and sampled codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse
from tdbg.run.findings import Finding, Severity

N_STEPS = 12
Loss = Callable[[nn.Module, int], Tensor]


def states(step: int, n: int = 32) -> Tensor:
    luck = torch.Generator().manual_seed(step)
    return torch.randn(n, 4, generator=luck)


def rewards(step: int, n: int = 32) -> Tensor:
    return states(step, n)[:, 0]


def policy_gradient(entropy: Callable[[Categorical], Tensor]) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        told = Categorical(logits=model(states(step)))
        gain = told.log_prob(told.sample()) * rewards(step)
        return -gain.mean() + entropy(told)

    return loss


def bonus(told: Categorical) -> Tensor:
    return -0.1 * told.entropy().mean()


def penalty(told: Categorical) -> Tensor:
    return 0.1 * told.entropy().mean()


def penalty_by_hand(told: Categorical) -> Tensor:
    chances, logs = (
        functional.softmax(told.logits, -1),
        functional.log_softmax(told.logits, -1),
    )
    return -0.1 * (chances * logs).sum(-1).mean()


def of_numbers(sign: float) -> Loss:
    """A policy that chooses numbers."""

    def loss(model: nn.Module, step: int) -> Tensor:
        mean, scale = model(states(step)).chunk(2, 1)
        told = Normal(mean, scale.exp())
        gain = told.log_prob(told.sample()).sum(1) * rewards(step)
        return -gain.mean() + sign * 0.1 * told.entropy().sum(1).mean()

    return loss


def least_entropy(model: nn.Module, step: int) -> Tensor:
    """Adapts to new data without labels; there is no policy."""
    return Categorical(logits=model(states(step))).entropy().mean()


def with_labels(model: nn.Module, step: int) -> Tensor:
    """Labelled samples, and unlabelled ones that should be certain."""
    scores = model(states(step))
    certain = Categorical(logits=model(states(step + 1))).entropy().mean()
    return functional.cross_entropy(scores, labels(step)) + 0.1 * certain


def soft_actor(model: nn.Module, step: int) -> Tensor:
    """Discrete SAC: the entropy is part of what is maximized."""
    scores = model(states(step))
    chances, logs = scores.softmax(1), scores.log_softmax(1)
    return (chances * (0.2 * logs - states(step + 1))).sum(1).mean()


def labels(step: int) -> Tensor:
    return states(step).argmax(1)


def smoothed(model: nn.Module, step: int) -> Tensor:
    return functional.cross_entropy(
        model(states(step)), labels(step), label_smoothing=0.1
    )


class Proximal:
    """Updates of a policy, *n* on the same samples, by the ratio to an older one."""

    def __init__(self, n: int, *, anew: bool, parts: int = 1) -> None:
        self.n, self.anew, self.parts = n, anew, parts
        self.actions = self.old = torch.zeros(0)

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        rollout = step // self.n
        inputs, gains = states(rollout, 64), rewards(rollout, 64)
        told = Categorical(logits=model(inputs))
        if step % self.n == 0:
            self.actions = told.sample()
            self.old = told.log_prob(self.actions).detach()
        rows = torch.arange(64)
        if self.parts > 1:
            luck = torch.Generator().manual_seed(step // self.parts)
            order = torch.randperm(64, generator=luck)
            rows = order.chunk(self.parts)[step % self.parts]
        new = Categorical(logits=model(inputs[rows])).log_prob(self.actions[rows])
        old = new.detach() if self.anew else self.old[rows]
        ratio = (new - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        return -torch.minimum(ratio * gains[rows], clipped * gains[rows]).mean()


def focal(model: nn.Module, step: int, *, reduction: str) -> Tensor:
    error = functional.cross_entropy(
        model(states(step)), labels(step), reduction=reduction
    )
    return (0.25 * (1 - (-error).exp()) ** 2 * error).mean()


def focal_of_mean(model: nn.Module, step: int) -> Tensor:
    return focal(model, step, reduction="mean")


def focal_of_samples(model: nn.Module, step: int) -> Tensor:
    return focal(model, step, reduction="none")


def sampled(scale: Callable[[Tensor], Tensor]) -> Loss:
    """A code of two numbers with a divergence, sampled with *scale* of the second."""

    def loss(model: nn.Module, step: int) -> Tensor:
        inputs = states(step)
        mean, log_variance = model(inputs).chunk(2, 1)
        code = mean + scale(log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return ((code - inputs[:, :2]) ** 2).mean() + 0.1 * divergence.mean()

    return loss


def sampled_by_deviation(model: nn.Module, step: int) -> Tensor:
    inputs = states(step)
    mean, log_scale = model(inputs).chunk(2, 1)
    told = Normal(mean, log_scale.exp())
    apart = kl_divergence(told, Normal(0.0, 1.0)).sum(1).mean()
    return ((told.rsample() - inputs[:, :2]) ** 2).mean() + 0.1 * apart


def coded(sign: float) -> Loss:
    """A code whose divergence is added, or subtracted."""

    def loss(model: nn.Module, step: int) -> Tensor:
        mean, log_variance = model(states(step)).chunk(2, 1)
        z = mean + (0.5 * log_variance).exp() * torch.randn(mean.shape)
        apart = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return (z - states(step)[:, :2]).pow(2).mean() + sign * 0.1 * apart.mean()

    return loss


def uncertain(model: nn.Module, step: int) -> Tensor:
    """A normal likelihood: the logarithm of the variance, and its exponential."""
    mean, log_variance = model(states(step)).chunk(2, 1)
    error = (mean - states(step)[:, :2]) ** 2
    return (0.5 * (log_variance + error * (-log_variance).exp())).mean()


# ---- where gradients go -------------------------------------------------------------


def follows(step: int) -> tuple[Tensor, Tensor]:
    """Rewards, and whether episodes go on."""
    return rewards(step), (states(step)[:, 1] < 1).float()


def values_of_choices(*, detached: bool) -> Loss:
    """Learn the values of choices from those of the next states."""

    def loss(model: nn.Module, step: int) -> Tensor:
        paid, goes_on = follows(step)
        target = paid + 0.9 * goes_on * model(states(step + 1)).max(1).values
        told = model(states(step)).gather(1, labels(step)[:, None])[:, 0]
        return functional.smooth_l1_loss(told, target.detach() if detached else target)

    return loss


def errors_of_values(*, detached: bool) -> Loss:
    """Learn values of states, by squares of temporal differences."""

    def loss(model: nn.Module, step: int) -> Tensor:
        paid, goes_on = follows(step)
        ahead = model(states(step + 1))[:, 0]
        ahead = ahead.detach() if detached else ahead
        return (paid + 0.95 * ahead * goes_on - model(states(step))[:, 0]).pow(2).mean()

    return loss


def consistent(model: nn.Module, step: int) -> Tensor:
    """Two views of a state get the same answer: both learn."""
    one, other = model(states(step)), model(states(step) + 0.1)
    return functional.mse_loss(one, other) + (one.std(0) - 1).pow(2).mean()


def residual(model: nn.Module, step: int) -> Tensor:
    """Steps of equal size from two states must meet: both learn."""
    one, other = states(step), states(step) + 0.1
    return functional.mse_loss(one + 0.9 * model(one), other + 0.9 * model(other))


def actor_critic(*, detached: bool, standardized: bool = False) -> Loss:
    """A policy, and a critic of its own."""
    critic = nn.Linear(4, 1)

    def loss(model: nn.Module, step: int) -> Tensor:
        told = Categorical(logits=model(states(step)))
        advantage = rewards(step) - critic(states(step))[:, 0]
        error = advantage.pow(2).mean()
        if standardized:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        weight = advantage.detach() if detached else advantage
        return 0.5 * error - (told.log_prob(told.sample()) * weight).mean()

    return loss


def experts(model: nn.Module, step: int) -> Tensor:
    """Likelihoods of labels, each by the share of an expert that learns."""
    scores, gate = model(states(step)).split([3, 1], 1)
    chosen = functional.log_softmax(scores, 1).gather(1, labels(step)[:, None] % 3)
    return -(chosen * gate.sigmoid()).mean() + gate.pow(2).mean()


def penalized(penalty: Callable[[nn.Module, int], Tensor | float]) -> Loss:
    """Learn labels, with a further term."""

    def loss(model: nn.Module, step: int) -> Tensor:
        error = functional.cross_entropy(model(states(step)), labels(step))
        return error + 0.01 * penalty(model, step)

    return loss


def squares_of_data(model: nn.Module, _: int) -> Tensor:
    return torch.stack([each.data.pow(2).sum() for each in model.parameters()]).sum()


def squares(model: nn.Module, _: int) -> Tensor:
    return torch.stack([each.pow(2).sum() for each in model.parameters()]).sum()


def reconstruction_as_number(model: nn.Module, step: int) -> float:
    return functional.mse_loss(model(states(step)), states(step)).item()


def a_number(_: nn.Module, __: int) -> float:
    return 30.0


def rare_classes(step: int) -> Tensor:
    """Labels of three classes: 72 %, 20 % and 8 % of all."""
    luck = torch.Generator().manual_seed(step)
    return torch.multinomial(torch.tensor([0.72, 0.2, 0.08]), 64, True, generator=luck)


def weighed(weights: list[float], classes: Callable[[int], Tensor]) -> Loss:
    """Learn classes, each with a weight."""

    def loss(model: nn.Module, step: int) -> Tensor:
        scores = model(states(step, 64))[:, :3]
        weight = torch.tensor(weights) if weights else None
        return functional.cross_entropy(scores, classes(step), weight)

    return loss


def equal_classes(_: int) -> Tensor:
    return torch.arange(64) % 3


def weighed_positives(weight: float) -> Loss:
    """Tell one in ten from the others."""

    def loss(model: nn.Module, step: int) -> Tensor:
        found = (torch.arange(64) % 10 == step % 10).float()
        return functional.binary_cross_entropy_with_logits(
            model(states(step, 64))[:, 0], found, pos_weight=torch.tensor(weight)
        )

    return loss


def flooded(model: nn.Module, step: int) -> Tensor:
    error = functional.cross_entropy(model(states(step)), labels(step))
    level = 0.2 + 0.01 * step
    return (error - level).abs() + level


def critic(*, with_graph: bool) -> Loss:
    """A critic of two distributions whose slope is to be 1."""

    def loss(model: nn.Module, step: int) -> Tensor:
        real, fake = states(step), states(step + 1) * 2
        between = ((real + fake) / 2).requires_grad_()
        scores = model(between)[:, 0].sum()
        (slope,) = torch.autograd.grad(scores, between, create_graph=with_graph)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        gain = model(fake)[:, 0].mean() - model(real)[:, 0].mean()
        return gain + 10 * penalty

    return loss


def adversarial(model: nn.Module, step: int) -> Tensor:
    """Inputs that are changed along their gradients, which needs no graph."""
    inputs = states(step).requires_grad_()
    error = functional.cross_entropy(model(inputs), labels(step))
    (slope,) = torch.autograd.grad(error, inputs)
    changed = (inputs + 0.1 * slope.sign()).detach()
    clean = functional.cross_entropy(model(states(step)), labels(step))
    return 0.5 * clean + 0.5 * functional.cross_entropy(model(changed), labels(step))


def judged(run_dir: Path, loss: Loss) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    rules = [LossTermMisuse()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for step in range(N_STEPS):
            optimizer.zero_grad()
            found = loss(model, step)
            found.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.save_scalar("loss", float(found.detach()))
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (policy_gradient(penalty), "entropy bonus has the wrong sign"),
        (policy_gradient(penalty_by_hand), "entropy bonus has the wrong sign"),
        (of_numbers(1.0), "entropy bonus has the wrong sign"),
        (Proximal(4, anew=True), "always exactly 1"),
        (Proximal(8, anew=True, parts=2), "always exactly 1"),
        (focal_of_mean, "one weight for the whole batch"),
        (sampled(lambda x: x), "multiplies noise by a variance"),
        (sampled(torch.exp), "multiplies noise by a variance"),
        (coded(-1.0), "divergence in the loss has the wrong sign"),
        (values_of_choices(detached=False), "target in the loss has a gradient"),
        (errors_of_values(detached=False), "target in the loss has a gradient"),
        (actor_critic(detached=False), "advantage in the policy loss has a gradient"),
        (actor_critic(detached=False, standardized=True), "the advantage in the"),
        (penalized(squares_of_data), "a term of the loss has no gradient"),
        (penalized(reconstruction_as_number), "a term of the loss has no gradient"),
        (critic(with_graph=False), "create_graph=True"),
        (weighed([0.72, 0.2, 0.08], rare_classes), "weights of the loss are upside"),
        (weighed_positives(0.11), "class 0, with"),
    ],
    ids=[
        "entropy", "by hand", "of numbers", "ratio", "ratio of parts", "focal",
        "logarithm", "variance", "divergence", "choices", "values", "advantage",
        "standardized", "data", "number", "slope", "counts", "positives",
    ],
)  # fmt: skip
def test_a_term_that_does_not_do_what_its_form_says(
    run_dir: Path, loss: Loss, said: str
) -> None:
    (finding,) = judged(run_dir, loss)
    assert finding.severity is Severity.WARNING
    assert said.lower() in finding.message.lower()


@pytest.mark.parametrize(
    "loss",
    [
        policy_gradient(bonus),
        policy_gradient(lambda told: 0.0 * told.logits.sum()),
        of_numbers(-1.0),
        least_entropy,
        with_labels,
        soft_actor,
        smoothed,
        Proximal(4, anew=False),
        Proximal(8, anew=False, parts=2),
        Proximal(1, anew=True),
        focal_of_samples,
        sampled(lambda x: (0.5 * x).exp()),
        sampled_by_deviation,
        coded(1.0),
        uncertain,
        values_of_choices(detached=True),
        errors_of_values(detached=True),
        consistent,
        residual,
        actor_critic(detached=True),
        actor_critic(detached=True, standardized=True),
        experts,
        penalized(squares),
        penalized(a_number),
        flooded,
        weighed([], rare_classes),
        weighed([0.46, 1.7, 4.2], rare_classes),
        weighed([0.5, 0.9, 1.6], rare_classes),
        weighed([1.1, 1.0, 0.9], rare_classes),
        weighed([0.72, 0.2, 0.08], equal_classes),
        weighed_positives(9.0),
        weighed_positives(0.8),
        critic(with_graph=True),
        adversarial,
    ],
    ids=[
        "bonus", "no bonus", "of numbers", "adaptation", "half labelled", "SAC",
        "smoothed", "ratio", "ratio of parts", "samples used once", "focal",
        "deviation", "logarithm of the deviation", "divergence", "likelihood",
        "choices", "values", "views", "residual", "advantage", "standardized",
        "experts", "squares", "a number", "flooded", "no weights", "inverse", "root",
        "nearly equal", "equal classes", "rare positives", "some", "slope",
        "adversarial",
    ],
)  # fmt: skip
def test_a_term_as_it_should_be(run_dir: Path, loss: Loss) -> None:
    assert judged(run_dir, loss) == []
