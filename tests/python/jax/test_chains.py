"""JAX: chains of optax whose transformations are in the wrong order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
import pytest

import tdbg
import tdbg.jax as tj
from jax_trainings import make_step, parameters, train
from tdbg.run.findings import Finding, Severity

RULES = ("ClippingMisuse", "OptimizerMisuse")


def findings(run_dir: Path, tx: Any) -> list[Finding]:
    hook = tj.Hook(run_dir, include_collections=["gradients"])
    shown = tj.optax(tx)
    train(hook.jit(make_step(shown)), shown, 4)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    rules = [getattr(tdbg.rules, name)() for name in RULES]
    return list(tdbg.rules.check(run_dir, rules, record=False).findings)


@pytest.mark.parametrize("limit", [optax.clip(1.0), optax.clip_by_global_norm(0.5)])
def test_steps_are_clipped_instead_of_gradients(run_dir: Path, limit: Any) -> None:
    (finding,) = findings(run_dir, optax.chain(optax.adam(1e-3), limit))
    assert (finding.rule, finding.severity) == ("ClippingMisuse", Severity.WARNING)
    assert "clips no gradients" in finding.message
    assert "first: optax.chain(optax.clip" in finding.advice


def test_decay_behind_the_rate_makes_weights_grow(run_dir: Path) -> None:
    decay = optax.add_decayed_weights(1e-4)
    (finding,) = findings(run_dir, optax.chain(optax.adam(1e-3), decay))
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.WARNING)
    assert "makes the weights grow" in finding.message
    assert "optax.adamw" in finding.advice


WRONG = optax.chain(optax.adam(1e-3), optax.add_decayed_weights(1e-4))


def optimizer_of_the_closure(hook: tj.Hook) -> None:
    train(hook.jit(make_step(WRONG)), WRONG, 4)


def optimizer_of_a_class(hook: tj.Hook) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.tx = WRONG

        def update(self, params: Any, state: Any, x: Any, y: Any) -> Any:
            return make_step(self.tx)(params, state, x, y)

    train(hook.jit(Trainer().update), WRONG, 4)


@pytest.mark.parametrize("run", [optimizer_of_the_closure, optimizer_of_a_class])
def test_an_optimizer_that_nobody_has_wrapped_is_looked_at(
    run_dir: Path, run: Callable[[tj.Hook], None]
) -> None:
    hook = tj.Hook(run_dir)
    run(hook)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    rules = [tdbg.rules.OptimizerMisuse()]
    (finding,) = tdbg.rules.check(run_dir, rules, record=False).findings
    assert "makes the weights grow" in finding.message


def part(params: Any, *, is_in: bool) -> Any:
    """A mask of the first parameter, or of all others."""
    leaves, structure = jax.tree.flatten(params)
    flags = [(i == 0) == is_in for i in range(len(leaves))]
    return jax.tree.unflatten(structure, flags)


OWN = optax.GradientTransformation(
    lambda _: optax.EmptyState(),
    lambda given, state, _=None: (
        jax.tree.map(lambda each: -1e-3 * each, given),
        state,
    ),
)
MASK, OTHERS = (part(parameters(), is_in=each) for each in (True, False))
MASKED = optax.masked(optax.adam(1e-3), MASK)


@pytest.mark.parametrize(
    "tx",
    [
        MASKED,
        optax.chain(optax.clip_by_global_norm(1.0), MASKED),
        optax.chain(optax.masked(optax.add_decayed_weights(1e-4), OTHERS), MASKED),
    ],
)
def test_what_a_mask_leaves_out_is_not_frozen(run_dir: Path, tx: Any) -> None:
    (finding,) = findings(run_dir, tx)
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.WARNING)
    assert "optax.masked freezes nothing" in finding.message
    assert "set_to_zero" in finding.advice


SOUND = {
    "frozen": optax.chain(MASKED, optax.masked(optax.set_to_zero(), OTHERS)),
    "frozen first": optax.chain(optax.masked(optax.set_to_zero(), OTHERS), MASKED),
    "by two, with a schedule": optax.chain(
        MASKED,
        optax.masked(optax.sgd(optax.constant_schedule(1e-2)), OTHERS),
    ),
    "by two, of the program": optax.chain(MASKED, optax.masked(OWN, OTHERS)),
    "by two": optax.chain(MASKED, optax.masked(optax.sgd(1e-2), OTHERS)),
    "all in": optax.masked(optax.adam(1e-3), jax.tree.map(lambda _: True, MASK)),
    "a rate for all": optax.chain(
        optax.masked(optax.add_decayed_weights(1e-4), MASK), optax.sgd(1e-2)
    ),
    "steps made in parts": optax.chain(
        optax.masked(optax.scale_by_adam(), MASK), optax.scale(-1e-3)
    ),
    "clipped first": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "steps bounded closely": optax.chain(optax.adam(1e-3), optax.clip(2e-3)),
    "steps of SGD bounded": optax.chain(optax.sgd(0.1), optax.clip(1.0)),
    "adafactor": optax.adafactor(1e-3),
    "adamw": optax.adamw(1e-3, weight_decay=0.1),
    "decayed before": optax.chain(
        optax.scale_by_adam(), optax.add_decayed_weights(1e-4), optax.scale(-1e-3)
    ),
    "a penalty": optax.chain(optax.add_decayed_weights(1e-4), optax.adam(1e-3)),
    "decayed by its own rate": optax.chain(
        optax.adam(1e-3), optax.add_decayed_weights(-1e-4)
    ),
    "scaled by its rate behind": optax.chain(
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-4),
        optax.scale_by_learning_rate(1e-3),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_chains_in_order_are_not_accused(run_dir: Path, name: str) -> None:
    assert findings(run_dir, SOUND[name]) == []


@pytest.mark.parametrize(
    ("schedule", "n_steps", "is_told"),
    [
        (optax.cosine_decay_schedule(1e-2, 3), 24, True),
        (optax.linear_schedule(1e-2, 0.0, 3), 24, True),
        (optax.warmup_cosine_decay_schedule(0.0, 1e-2, 1, 3), 24, True),
        # As long as the training, or nearly; with a rate at its end; without an end.
        (optax.cosine_decay_schedule(1e-2, 24), 24, False),
        (optax.cosine_decay_schedule(1e-2, 12), 24, False),
        (optax.cosine_decay_schedule(1e-2, 3, alpha=0.1), 24, False),
        (optax.linear_schedule(0.0, 1e-2, 3), 24, False),
        (optax.exponential_decay(1e-2, 3, 0.5), 24, False),
        (lambda count: 1e-2 / (1 + count), 24, False),
        (1e-2, 24, False),
    ],
)
def test_a_schedule_that_has_been_at_zero_for_long(
    run_dir: Path, schedule: Any, n_steps: int, is_told: bool
) -> None:
    hook = tj.Hook(run_dir, include_collections=["gradients"])
    shown = tj.optax(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule)))
    train(hook.jit(make_step(shown)), shown, n_steps)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    found = tdbg.rules.check(run_dir, ["ScheduleMisuse"], record=False).findings
    assert ["The learning rate is 0" in each.message for each in found] == (
        [True] * is_told
    )
