"""LossTermMisuse, on real trainings: adversaries, limited actions, noise and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

import tdbg
import tdbg.pytorch as td
from tdbg.rules import LossTermMisuse
from tdbg.run.findings import Finding, Severity

Loss = Callable[[Tensor], Tensor]


def judged(run_dir: Path) -> list[Finding]:
    return list(tdbg.rules.check(run_dir, rules=[LossTermMisuse()]).findings)


def mlp(n_inputs: int, n_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_inputs, 16), nn.ReLU(), nn.Linear(16, n_outputs))


# ---- generators and discriminators ---------------------------------------------------


def play(
    run_dir: Path,
    of_real: Loss,
    of_fake: Loss,
    of_generator: Loss,
    *,
    anew: bool = False,
    apart: bool = False,
) -> list[Finding]:
    """Train a generator and a discriminator."""
    torch.manual_seed(0)
    generator, judge = mlp(4, 2), mlp(2, 1)
    both = nn.ModuleDict({"generator": generator, "judge": judge})
    of_g = torch.optim.Adam(generator.parameters(), 1e-3)
    of_d = torch.optim.Adam(judge.parameters(), 1e-3)
    with td.watch(both, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for _ in range(8):
            real, fake = torch.randn(32, 2) + 3, generator(torch.randn(32, 4))
            of_d.zero_grad()
            losses = [of_real(judge(real)), of_fake(judge(fake.detach()))]
            for loss in losses if apart else [losses[0] + losses[1]]:
                loss.backward()
            of_d.step()
            if anew:
                fake = generator(torch.randn(32, 4))
            of_g.zero_grad()
            of_generator(judge(fake)).backward()
            of_g.step()
    assert hook.counters()["internal_errors"] == 0
    return judged(run_dir)


def entropy(label: float) -> Loss:
    return lambda scores: F.binary_cross_entropy_with_logits(
        scores, torch.full_like(scores, label)
    )


def squares(label: float) -> Loss:
    return lambda scores: F.mse_loss(scores, torch.full_like(scores, label))


def mean(sign: float) -> Loss:
    return lambda scores: sign * scores.mean()


GAMES: dict[str, tuple[Loss, Loss, Loss]] = {
    "entropy": (entropy(1), entropy(0), entropy(1)),
    "smoothed": (entropy(0.9), entropy(0), entropy(1)),
    "labels the other way round": (entropy(0), entropy(1), entropy(0)),
    "saturating": (entropy(1), entropy(0), lambda s: -entropy(0)(s)),
    "least squares": (squares(1), squares(0), squares(1)),
    "wasserstein": (mean(-1), mean(1), mean(-1)),
    "hinge": (lambda s: F.relu(1 - s).mean(), lambda s: F.relu(1 + s).mean(), mean(-1)),
}


@pytest.mark.parametrize("name", GAMES)
def test_a_generator_that_works_against_its_discriminator_is_fine(
    tmp_path: Path, name: str
) -> None:
    assert play(tmp_path / "run", *GAMES[name]) == []


@pytest.mark.parametrize("how", ["", "anew", "apart"])
@pytest.mark.parametrize(
    "losses",
    [
        (entropy(1), entropy(0), entropy(0)),
        (mean(-1), mean(1), mean(1)),
    ],
)
def test_a_generator_with_the_labels_of_fakes_is_named(
    tmp_path: Path, losses: tuple[Loss, Loss, Loss], how: str
) -> None:
    (finding,) = play(
        tmp_path / "run", *losses, anew=how == "anew", apart=how == "apart"
    )
    assert "The generator learns what the discriminator learns" in finding.message
    assert "labels of real samples" in (finding.advice or "")


# ---- codes, errors and actions -------------------------------------------------------


def fit(
    run_dir: Path, model: nn.Module, loss_of: Callable[[int], Tensor | None]
) -> Finding | None:
    """Train, and return what is found; the loss may begin the backward pass itself."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(8):
            optimizer.zero_grad()
            if (loss := loss_of(step)) is not None:
                loss.backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    found = judged(run_dir)
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize("is_uniform", [False, True])
def test_a_code_with_uniform_noise_is_named(tmp_path: Path, is_uniform: bool) -> None:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(6, 8), nn.Linear(4, 6)
    draw = torch.rand_like if is_uniform else torch.randn_like

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 6)
        mean, log_variance = encoder(x).chunk(2, 1)
        code = mean + draw(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        return F.mse_loss(decoder(code), x) + 0.1 * divergence.mean()

    finding = fit(tmp_path / "run", nn.ModuleList([encoder, decoder]), loss_of)
    assert (finding is not None) == is_uniform
    if finding:
        assert "noise of the sampling is uniform" in finding.message


@pytest.mark.parametrize("is_uniform", [False, True])
def test_a_mask_with_uniform_numbers_is_no_noise(
    tmp_path: Path, is_uniform: bool
) -> None:
    torch.manual_seed(0)
    model = mlp(6, 6)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 6)
        scale = torch.rand(32, 6) if is_uniform else torch.randn(32, 6)
        y = model(x)
        return (y + y.exp() * scale - y.exp()).pow(2).mean() + y.exp().mean()

    assert fit(tmp_path / "run", model, loss_of) is None


@pytest.mark.parametrize(
    ("form", "is_named"),
    [
        (lambda e: e.clamp(-0.5, 0.5).pow(2).mean(), True),
        (lambda e: e.clamp(-0.5, 0.5).abs().mean(), True),
        (lambda e: e.pow(2).mean(), False),
        (lambda e: e.clamp(-90, 90).pow(2).mean(), False),
        (lambda e: e.pow(2).clamp(max=0.5).mean(), False),
        (lambda e: (e.detach() + e.clamp(-0.5, 0.5)).pow(2).mean(), False),
    ],
)
def test_an_error_that_is_cut_off_is_named(
    tmp_path: Path, form: Loss, is_named: bool
) -> None:
    torch.manual_seed(0)
    model = mlp(6, 1)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 6)
        return form(2 * x[:, 0] - model(x).squeeze(1))

    finding = fit(tmp_path / "run", model, loss_of)
    assert (finding is not None) == is_named
    if finding:
        assert "beyond 0.5, they have no gradient" in finding.message


@pytest.mark.parametrize(
    ("form", "is_named"),
    [
        (lambda y, t: F.mse_loss(y.clamp(0, 1), t), True),
        (lambda y, t: F.mse_loss(y.clamp(0, 1).squeeze(1), t.squeeze(1)), True),
        (lambda y, t: F.smooth_l1_loss(y.clamp(0, 1), t, beta=0.1), True),
        (F.mse_loss, False),
        (lambda y, t: F.mse_loss(y.sigmoid().clamp(1e-6, 1 - 1e-6), t), False),
        (lambda y, t: F.mse_loss(y.clamp(-90, 90), t), False),
        (lambda y, t: F.mse_loss(y, t) + 0 * y.clamp(0, 1).mean(), False),
    ],
)
def test_outputs_that_are_clamped_before_the_loss_are_named(
    tmp_path: Path, form: Callable[[Tensor, Tensor], Tensor], is_named: bool
) -> None:
    torch.manual_seed(0)
    model = mlp(6, 1)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 6)
        return form(model(x), x[:, :1].sigmoid())

    finding = fit(tmp_path / "run", model, loss_of)
    assert (finding is not None) == is_named
    if finding:
        assert "outputs are clamped (0" in finding.message


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (lambda one, two: unit(one) @ unit(two).T * 0.1, Severity.WARNING),
        (lambda one, two: (unit(one) @ unit(two).T) / 10, Severity.WARNING),
        (lambda one, two: unit(one) @ unit(two).T, Severity.INFO),
        (lambda one, two: unit(one) @ unit(two).T / 0.1, None),
        # A scale may be learned, or part of the vectors.
        (lambda one, two: unit(one) @ unit(two).T * one.sum().sigmoid(), None),
        (lambda one, two: (unit(one) / 0.1) @ unit(two).T, None),
        (lambda one, two: (one @ unit(two).T) * 0.1, None),
    ],
)
def test_similarities_that_a_softmax_cannot_tell_apart_are_named(
    tmp_path: Path,
    form: Callable[[Tensor, Tensor], Tensor],
    told: Severity | None,
) -> None:
    torch.manual_seed(0)
    model = mlp(6, 8)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 6)
        one, two = (model(x + 0.1 * torch.randn(32, 6)) for _ in range(2))
        return F.cross_entropy(form(one, two), torch.arange(32))

    finding = fit(tmp_path / "run", model, loss_of)
    assert (finding and finding.severity) == told
    if told is Severity.WARNING:
        assert "cannot fall below 3.27; chance is 3.47" in finding.message


def density(kind: str, told: Normal, number: Tensor, action: Tensor) -> Tensor:
    if kind == "missing":
        return told.log_prob(number).sum(1)
    if kind == "twice":
        action = torch.tanh(action)
    if kind == "softplus":
        stretch = 2 * (0.6931 - number - F.softplus(-2 * number))
    elif kind == "cosh":
        stretch = -2 * torch.log(torch.cosh(number))
    else:
        stretch = torch.log(1 - action.pow(2) + 1e-6)
    return (told.log_prob(number) - stretch).sum(1)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("missing", "is that of the number before its tanh"),
        ("twice", "corrected for a second tanh"),
        ("logarithm", ""),
        ("softplus", ""),
        ("cosh", ""),
        ("not limited", ""),
    ],
)
def test_the_density_of_a_limited_action_is_that_of_the_action(
    tmp_path: Path, kind: str, text: str
) -> None:
    torch.manual_seed(0)
    actor, critic = mlp(3, 4), mlp(5, 1)

    def loss_of(_: int) -> Tensor:
        states = torch.randn(32, 3)
        mean, log_scale = actor(states).chunk(2, 1)
        told = Normal(mean, log_scale.clamp(-5, 2).exp())
        number = told.rsample()
        action = torch.tanh(number)
        if kind == "not limited":
            action, chance = number, told.log_prob(number).sum(1)
        else:
            chance = density(kind, told, number, action)
        value = critic(torch.cat([states, action], 1)).squeeze(1)
        return (0.2 * chance - value).mean()

    finding = fit(tmp_path / "run", actor, loss_of)
    assert (finding.message if finding else "").count(text or "?") == bool(text)


@pytest.mark.parametrize("kind", ["again", "taken", "own", "part"])
def test_chances_of_other_actions_than_those_taken_are_named(
    tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(0)
    policy = mlp(3, 4)

    def learn(_: int) -> None:
        states = torch.randn(32, 3)
        with torch.no_grad():
            told = Categorical(logits=policy(states))
            actions = told.sample()
            old_log_probs = told.log_prob(actions)
        rewards = torch.randn(32)
        told = Categorical(logits=policy(states))
        if kind == "own":  # Actions of its own, whose values it asks for.
            new_actions = told.sample()
            gain = rewards + 0.1 * new_actions
            (-(told.log_prob(new_actions) * gain).mean()).backward()
            return
        chosen = told.sample() if kind == "again" else actions
        if kind == "part":
            some = torch.randperm(32)
            told = Categorical(logits=policy(states[some]))
            chosen, rewards = actions[some], rewards[some]
            old_log_probs = old_log_probs[some]
        ratio = (told.log_prob(chosen) - old_log_probs).exp()
        del chosen
        clipped = ratio.clamp(0.8, 1.2)
        (-torch.min(ratio * rewards, clipped * rewards).mean()).backward()

    finding = fit(tmp_path / "run", policy, learn)
    assert (finding is not None) == (kind == "again")
    if finding:
        assert "other actions than `actions`" in finding.message
