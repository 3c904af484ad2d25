"""What a compiled step has taken in, and the program has replaced since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tdbg
import tdbg.jax as tj
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity

N_STEPS = 12


def batch(step: int) -> tuple[Any, Any]:
    x = np.random.default_rng(step).normal(size=(16, 4)).astype(np.float32)
    return x, x[:, 0]


def made() -> Any:
    return {"w": jnp.ones(4) * 0.1, "b": jnp.zeros(())}


def loss_of(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def findings(run: Path) -> list[Finding]:
    rules = [tdbg.rules.OptimizerMisuse()]
    return list(tdbg.rules.check(run, rules, record=False).findings)


def downhill(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda one, other: one - 0.1 * other, params, grads)


Loop = Callable[[Any], None]


def closes_over_parameters(hook: Any) -> None:
    params = made()

    @hook.jit
    def step(x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda p: loss_of(p, x, y))(params)

    for i in range(N_STEPS):
        _, grads = step(*batch(i))
        params = downhill(params, grads)


def reads_an_attribute(hook: Any) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.params = made()
            self.step = hook.jit(self.slopes)

        def slopes(self, x: Any, y: Any) -> Any:
            return jax.value_and_grad(loss_of)(self.params, x, y)

    trainer = Trainer()
    for i in range(N_STEPS):
        _, grads = trainer.step(*batch(i))
        trainer.params = downhill(trainer.params, grads)


def follows_an_old_target(hook: Any) -> None:
    params = target = made()

    def penalty(given: Any) -> Any:
        return jnp.sum((given["w"] - target["w"]) ** 2)

    @hook.jit
    def step(params: Any, x: Any, y: Any) -> Any:
        slope = jax.value_and_grad(lambda p: loss_of(p, x, y) + penalty(p))
        loss, grads = slope(params)
        return downhill(params, grads), loss

    for i in range(N_STEPS):
        params, _ = step(params, *batch(i))
        target = params if i % 2 else target


def evaluates_the_first(hook: Any) -> None:
    params = made()

    @hook.jit
    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return downhill(params, grads), loss

    @hook.jit(mode=ModeKeys.EVAL)
    def evaluate(x: Any, y: Any) -> Any:
        return loss_of(params, x, y)

    for i in range(N_STEPS):
        params, _ = step(params, *batch(i))
        evaluate(*batch(99))


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (closes_over_parameters, "params"),
        (reads_an_attribute, "self.params"),
        (follows_an_old_target, "target"),
        (evaluates_the_first, "params"),
    ],
)
def test_arrays_that_the_program_has_replaced_are_told(
    loop: Loop, name: str, tmp_path: Path
) -> None:
    with tj.Hook(tmp_path / "run") as hook:
        loop(hook)
    (finding,) = findings(tmp_path / "run")
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith(
        f"The compiled step computes with old values of {name}: jax.jit took them in"
    )
    assert finding.advice.startswith(f"Give {name} to the step as an argument")


# ---- what is right -------------------------------------------------------------------


def gives_them_as_arguments(hook: Any) -> None:
    params = made()

    @hook.jit
    def step(params: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(loss_of)(params, x, y)

    for i in range(N_STEPS):
        _, grads = step(params, *batch(i))
        params = downhill(params, grads)


def keeps_a_reference(hook: Any) -> None:
    """It stays near where it began: ``reference`` is never replaced."""
    params = reference = made()

    @hook.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        def total(given: Any) -> Any:
            apart = jnp.sum((given["w"] - reference["w"]) ** 2)
            return loss_of(given, x, y) + apart

        loss, grads = jax.value_and_grad(total)(state["params"])
        return downhill(state["params"], grads), loss

    for i in range(N_STEPS):
        params, _ = step({"params": params}, *batch(i))


def compiles_again(hook: Any) -> None:
    params = made()
    for i in range(N_STEPS):
        known = params

        @hook.jit
        def step(x: Any, y: Any, known: Any = known) -> Any:
            return jax.value_and_grad(loss_of)(known, x, y)

        _, grads = step(*batch(i))
        params = downhill(params, grads)


def has_a_table(hook: Any) -> None:
    table, params = jnp.arange(4.0), made()

    @hook.jit
    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x * table, y)
        return downhill(params, grads), loss

    for i in range(N_STEPS):
        params, _ = step(params, *batch(i))


@pytest.mark.parametrize(
    "loop",
    [gives_them_as_arguments, keeps_a_reference, compiles_again, has_a_table],
)
def test_what_is_never_replaced_is_right(loop: Loop, tmp_path: Path) -> None:
    with tj.Hook(tmp_path / "run") as hook:
        loop(hook)
    assert not findings(tmp_path / "run")


# ---- states of optimizers that the step makes ----------------------------------------


def stepping(hook: Any, *, inside: bool, n_inner: int = 1) -> None:
    tx = tj.optax(optax.adam(1e-2))

    @hook.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        state = tx.init(params) if inside else state
        for _ in range(n_inner):
            loss, grads = jax.value_and_grad(loss_of)(params, x, y)
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params, state, loss

    params = made()
    state = tx.init(params)
    for i in range(N_STEPS):
        params, state, _ = step(params, state, *batch(i))


def test_a_state_that_the_step_makes_is_told(tmp_path: Path) -> None:
    collections = ["gradients"]
    with tj.Hook(tmp_path / "run", include_collections=collections) as hook:
        stepping(hook, inside=True)
    (finding,) = findings(tmp_path / "run")
    assert "each of 8 calls made its state inside of the training step" in (
        finding.message
    )


@pytest.mark.parametrize(("inside", "n_inner"), [(False, 1), (True, 3)])
def test_states_that_go_on_and_inner_trainings_are_right(
    inside: bool, n_inner: int, tmp_path: Path
) -> None:
    collections = ["gradients"]
    with tj.Hook(tmp_path / "run", include_collections=collections) as hook:
        stepping(hook, inside=inside, n_inner=n_inner)
    assert not findings(tmp_path / "run")


# ---- numbers -------------------------------------------------------------------------


@pytest.fixture
def judged(make_hook: Any, tmp_path: Path) -> Callable[[Loop], list[Finding]]:
    def judge(loop: Loop) -> list[Finding]:
        hook = make_hook()
        loop(hook)
        hook.close(timeout=60)
        assert hook.counters()["internal_errors"] == 0
        return findings(tmp_path / "run0")

    return judge


def trained_with(
    hook: Any, rate_of: Callable[[int], float], *, as_argument: bool, n: int = N_STEPS
) -> None:
    """Train with a rate that the step reads from outside, or is given."""
    params, lr = made(), rate_of(0)

    @hook.jit
    def step(params: Any, rate: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        size = rate if as_argument else lr
        return jax.tree.map(lambda one, other: one - size * other, params, grads), loss

    for i in range(n):
        lr = rate_of(i)
        params, _ = step(params, lr, *batch(i))


def test_a_number_that_is_read_when_the_step_is_traced(judged: Any) -> None:
    (finding,) = judged(
        lambda hook: trained_with(hook, lambda i: 0.1 * 0.9**i, as_argument=False)
    )
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.WARNING)
    assert "computes with lr = 0.1, which jax.jit read when it" in finding.message
    assert "Give lr to the step as an argument" in finding.advice


def test_a_number_that_changes_after_many_calls(judged: Any) -> None:
    (finding,) = judged(
        lambda hook: trained_with(
            hook, lambda i: 0.1 if i < 40 else 0.03, as_argument=False, n=120
        )
    )
    assert "since, to 0.03" in finding.message


MEANT_NUMBERS = {
    "an argument": lambda hook: trained_with(
        hook, lambda i: 0.1 * 0.9**i, as_argument=True
    ),
    "one that stays": lambda hook: trained_with(hook, lambda _: 0.1, as_argument=False),
    "not finite": lambda hook: trained_with(
        hook, lambda _: float("inf"), as_argument=True
    ),
}


@pytest.mark.parametrize("name", MEANT_NUMBERS)
def test_numbers_that_the_step_need_not_read_again(judged: Any, name: str) -> None:
    assert judged(MEANT_NUMBERS[name]) == []
