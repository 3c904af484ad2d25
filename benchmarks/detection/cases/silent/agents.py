"""Agents: what is bootstrapped, what is rewarded, whose target it is."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.harm import conclude
from benchmarks.detection.kit.loops import descend, mean
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training

#: A corridor of places; a step to the right of the last ends it, with a reward of 1.
N_PLACES, DISCOUNT = 8, 0.9


def seen(places: Tensor) -> Tensor:
    """What the agent sees: its place."""
    return functional.one_hot(places, N_PLACES).float()


def moved(places: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next places, rewards, and whether the corridor has ended; 1 is right."""
    ends = (places == N_PLACES - 1) & (actions == 1)
    after = (places + 2 * actions - 1).clamp(0, N_PLACES - 1)
    return after, ends.float(), ends


def true_values() -> Tensor:
    """What going right is worth at each place."""
    return DISCOUNT ** torch.arange(N_PLACES - 1, -1, -1).float()


def valued(t: Training, kind: str) -> None:
    """Learn values of the corridor from random moves, with a target network."""
    online = mlp([N_PLACES, 64, 2])
    alias = t.sick and kind == "alias"
    target = online if alias else copy.deepcopy(online)
    begin = copy.deepcopy(online[0].weight.data)
    optimizer = Adam(online.parameters(), 3e-3)
    t.watch(online)
    for step in t.steps(500):
        places = torch.randint(N_PLACES, (64,), generator=t.order)
        actions = torch.randint(2, (64,), generator=t.order)
        after, rewards, ends = moved(places, actions)
        goes_on = torch.ones(64) if t.sick and kind == "terminal" else (~ends).float()
        with torch.no_grad():
            ahead = target(seen(after)).max(1).values
        wanted = rewards + DISCOUNT * ahead * goes_on
        told = online(seen(places)).gather(1, actions[:, None])[:, 0]
        descend(optimizer, functional.mse_loss(told, wanted))
        if step % 20 == 19 and not (t.sick and kind == "never"):
            target.load_state_dict(online.state_dict())
    with torch.no_grad():
        values = online(seen(torch.arange(N_PLACES)))[:, 1]
    off = float((values - true_values()).abs().mean())
    t.note(off=off, highest=float(values.max()))
    fault = {
        "terminal": values.max() > 1.5,
        "never": torch.equal(target[0].weight, begin),
        "alias": target[0].weight.data_ptr() == online[0].weight.data_ptr(),
    }[kind]
    conclude(t, fault=fault, reached=off < 0.1, harms=kind != "alias")


@sixth.silent("terminal states", "the target goes on past the end of an episode")
def values_past_the_end(t: Training) -> None:
    """``r + gamma * max Q(s')`` without ``(1 - done)``.

    Source: github.com/anthonytorlucci/rlevo/pull/358 and issues/170; forum threads on
    the done mask of DQN.
    Visible: a value exceeds 1.5 where the return is at most 1.
    """
    valued(t, "terminal")


@sixth.silent("average of weights", "the target network is never updated")
def target_never_updated(t: Training) -> None:
    """The line that copies the weights to the target network is missing.

    Source: forum threads on DQN; PyTorch's tutorial updates its target in each step.
    Visible: the target's weights are those of the beginning; values are off by 0.1.
    """
    valued(t, "never")


@sixth.silent("average of weights", "the target network is the network")
def target_by_assignment(t: Training) -> None:
    """``target_net = policy_net``.

    Source: forum threads on copying a model for DQN.
    Visible: both networks have the same memory.
    """
    valued(t, "alias")


def paid(actions: Tensor, luck: torch.Generator) -> Tensor:
    """Rewards of four arms; the third is the best by a little, all are noisy."""
    worth = torch.tensor([0.40, 0.45, 0.60, 0.50])
    return worth[actions] + 0.4 * torch.randn(actions.shape, generator=luck)


@sixth.silent("entropy bonus", "the entropy is added to the loss, not subtracted")
def entropy_is_penalized(t: Training) -> None:
    """``loss = policy_loss + 0.5 * entropy``.

    Source: github.com/google-deepmind/open_spiel/issues/962,
    github.com/DLR-RM/stable-baselines3/issues/127, nebuly-ai/optimate/pull/250.
    Visible: the policy is certain (an entropy below 0.05) after 100 steps, where the
    bonus keeps it above 0.5.
    """
    policy = nn.Linear(1, 4)
    nn.init.zeros_(policy.weight)
    optimizer = Adam(policy.parameters(), 0.03)
    t.watch(policy)
    entropies: list[float] = []
    for _ in t.steps(200):
        told = torch.distributions.Categorical(logits=policy(torch.ones(32, 1)))
        actions = told.sample()
        rewards = paid(actions, t.order)
        gain = (told.log_prob(actions) * (rewards - rewards.mean())).mean()
        entropy = told.entropy().mean()
        sign = 1 if t.sick else -1
        descend(optimizer, -gain + sign * 0.1 * entropy)
        entropies.append(float(entropy.detach()))
    late = mean(entropies[-20:])
    t.note(entropy=late)
    conclude(t, fault=late < 0.1, reached=late > 0.5)


@sixth.silent(
    "returns and advantages", "returns are summed from the beginning, not the end"
)
def returns_from_the_beginning(t: Training) -> None:
    """The loop over rewards is not reversed: what is past counts, not what comes.

    Source: forum threads on REINFORCE; pytorch/examples' reinforce.py goes over the
    rewards from the end.
    Visible: the value of the last place before the end is not the largest, and values
    are off by more than 0.2.
    """
    critic = mlp([N_PLACES, 32, 1])
    optimizer = Adam(critic.parameters(), 5e-3)
    t.watch(critic)
    for _ in t.steps(300):
        begin = int(torch.randint(N_PLACES, (), generator=t.order))
        places = torch.arange(begin, N_PLACES)
        rewards = [0.0] * (len(places) - 1) + [1.0]
        total, returns = 0.0, []
        for reward in rewards if t.sick else reversed(rewards):
            total = reward + DISCOUNT * total
            returns.append(total)
        if not t.sick:
            returns.reverse()
        told = critic(seen(places))[:, 0]
        descend(optimizer, functional.mse_loss(told, torch.tensor(returns)))
    with torch.no_grad():
        values = critic(seen(torch.arange(N_PLACES)))[:, 0]
    off = float((values - true_values()).abs().mean())
    t.note(off=off, first=float(values[0]), last=float(values[-1]))
    conclude(t, fault=off > 0.2, reached=off < 0.1)


@sixth.silent("returns and advantages", "the old policy is the new one: the ratio is 1")
def ratio_is_always_one(t: Training) -> None:
    """Old log-probabilities are computed again in each update: nothing is clipped.

    Source: threads on PPO reimplementations; Huang et al., "The 37 implementation
    details of PPO": the first update's ratio must be 1, the others' must not.
    Visible: the ratio is exactly 1 in all four updates of a batch.
    """
    policy = mlp([N_PLACES, 32, 2])
    optimizer = Adam(policy.parameters(), 1e-2)
    t.watch(policy)
    apart = 0.0
    kept: tuple[Tensor, ...] = ()
    for step in t.steps(200):
        if step % 4 == 0:
            places = torch.randint(N_PLACES, (64,), generator=t.order)
            with torch.no_grad():
                told = torch.distributions.Categorical(logits=policy(seen(places)))
                actions = told.sample()
                old = told.log_prob(actions)
            gain = (actions == 1).float() - 0.5
            kept = (places, actions, old, gain)
        places, actions, old, gain = kept
        told = torch.distributions.Categorical(logits=policy(seen(places)))
        new = told.log_prob(actions)
        ratio = (new - (new.detach() if t.sick else old)).exp()
        apart = max(apart, float((ratio.detach() - 1).abs().max()))
        clipped = ratio.clamp(0.8, 1.2)
        descend(optimizer, -torch.minimum(ratio * gain, clipped * gain).mean())
    with torch.no_grad():
        right = policy(seen(torch.arange(N_PLACES))).softmax(1)[:, 1].mean()
    t.note(apart=apart, right=float(right))
    conclude(t, fault=apart == 0, reached=right > 0.9, harms=False)
