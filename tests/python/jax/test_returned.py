"""What steps return and nobody keeps: running statistics, states of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tdbg
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity

N_STEPS = 14


class Net(nn.Module):
    """One hidden layer with batch normalization."""

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9)
        return nn.Dense(1)(nn.relu(norm(nn.Dense(8)(x))))


class State(TrainState):
    batch_stats: Any = None


NET = Net()


def batch(step: int, size: int = 16) -> tuple[Any, Any]:
    x = 3 * np.random.default_rng(step).normal(size=(size, 4)).astype(np.float32) + 2
    return x, x[:, :1]


def made() -> tuple[Any, Any]:
    variables = NET.init(jax.random.key(0), batch(0)[0], False)
    return variables["params"], variables["batch_stats"]


def loss_of(params: Any, statistics: Any, x: Any, y: Any) -> Any:
    given = {"params": params, "batch_stats": statistics}
    out, new = NET.apply(given, x, True, mutable=["batch_stats"])
    return jnp.mean((out - y) ** 2), new["batch_stats"]


def make_step(tx: Any) -> Callable[..., Any]:
    def step(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
        slope = jax.value_and_grad(loss_of, has_aux=True)
        (loss, new), grads = slope(params, statistics, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, new

    return step


def evaluate(params: Any, statistics: Any, x: Any, y: Any) -> Any:
    given = {"params": params, "batch_stats": statistics}
    return jnp.mean((NET.apply(given, x, False) - y) ** 2)


def findings(run: Path, *rules: Any) -> list[Finding]:
    chosen = rules or (tdbg.rules.RunningStatistics(), tdbg.rules.OptimizerMisuse())
    return list(tdbg.rules.check(run, list(chosen), record=False).findings)


Loop = Callable[[Any], None]


@pytest.fixture
def judged(make_hook: Any, tmp_path: Path) -> Callable[[Loop], list[Finding]]:
    def judge(loop: Loop) -> list[Finding]:
        hook = make_hook()
        loop(hook)
        hook.close(timeout=60)
        assert hook.counters()["internal_errors"] == 0
        return findings(tmp_path / "run0")

    return judge


def threaded(hook: Any, keeps: bool, tx: Any = None, **options: Any) -> Any:
    """Train; keep what is returned, or the first statistics."""
    params, statistics = made()
    tx = tx or optax.adam(1e-2)
    state = tx.init(params)
    step = hook.jit(make_step(tx), **options)
    for i in range(N_STEPS):
        params, state, _, new = step(params, state, statistics, *batch(i))
        statistics = new if keeps else statistics
    return params, statistics


def test_statistics_that_are_returned_and_not_kept(judged: Any) -> None:
    (finding,) = judged(lambda hook: threaded(hook, keeps=False))
    assert (finding.rule, finding.tensor) == ("RunningStatistics", "BatchNorm_0")
    assert finding.severity is Severity.WARNING
    assert "which no batch has ever fed" in finding.message
    assert "batch_stats" in finding.advice


def test_statistics_of_another_training_that_are_not_updated(judged: Any) -> None:
    def loop(hook: Any) -> None:
        params, _ = made()
        statistics = jax.tree.map(lambda a: a + 0.5, made()[1])
        tx = optax.sgd(1e-2)
        step = hook.jit(make_step(tx))
        state = tx.init(params)
        for i in range(N_STEPS):
            params, state, *_ = step(params, state, statistics, *batch(i))

    (finding,) = judged(loop)
    assert "the same old ones, of BatchNorm_0" in finding.message


def test_a_state_of_the_optimizer_that_is_not_kept(judged: Any) -> None:
    def loop(hook: Any) -> None:
        params, statistics = made()
        tx = optax.adam(1e-2)
        state = tx.init(params)
        step = hook.jit(make_step(tx))
        for i in range(N_STEPS):
            params, _, _, statistics = step(params, state, statistics, *batch(i))

    (finding,) = judged(loop)
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.WARNING)
    assert "begins anew" in finding.message


def test_a_state_of_the_optimizer_that_the_step_hands_on_as_it_was(judged: Any) -> None:
    def loop(hook: Any) -> None:
        params, statistics = made()
        tx = optax.adam(1e-2)
        state = tx.init(params)
        whole = make_step(tx)

        @hook.jit
        def step(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
            params, _, loss, new = whole(params, state, statistics, x, y)
            return params, state, loss, new

        for i in range(N_STEPS):
            params, state, _, statistics = step(params, state, statistics, *batch(i))

    (finding,) = judged(loop)
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.WARNING)
    assert "threw the new one away, and returned the one" in finding.message
    assert finding.advice.startswith("Return the state that the optimizer's update")


def test_a_state_that_the_step_passes_by(judged: Any) -> None:
    def loop(hook: Any) -> None:
        params, statistics = made()
        tx = optax.adam(1e-2)
        state = tx.init(params)

        @hook.jit
        def step(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
            """Steps of plain descent before the optimizer takes over."""
            slope = jax.grad(lambda *given: evaluate(*given, x, y))
            moved = jax.tree.map(
                lambda p, g: p - 1e-2 * g, params, slope(params, statistics)
            )
            return moved, state, statistics

        for i in range(N_STEPS):
            params, state, statistics = step(params, state, statistics, *batch(i))

    assert not [each for each in judged(loop) if each.rule == "OptimizerMisuse"]


def test_a_state_of_the_optimizer_that_is_made_for_each_step(judged: Any) -> None:
    def loop(hook: Any) -> None:
        params, statistics = made()
        tx = optax.adam(1e-2)
        step = hook.jit(make_step(tx))
        for i in range(N_STEPS):
            state = tx.init(params)
            params, _, _, statistics = step(params, state, statistics, *batch(i))

    (finding,) = judged(loop)
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.WARNING)
    assert "the next call got one that had counted no step" in finding.message
    assert "before the loop" in finding.advice


def local_steps(hook: Any, tx: Any, n_local: int) -> None:
    """Make a state every few steps, as clients do that begin anew in each round."""
    params, statistics = made()
    step = hook.jit(make_step(tx))
    state = tx.init(params)
    for i in range(2 * N_STEPS):
        if i % n_local == 0:
            state = tx.init(params)
        params, state, _, statistics = step(params, state, statistics, *batch(i))


MADE_AGAIN = {
    "every other step": lambda hook: local_steps(hook, optax.adam(1e-2), 2),
    "without a memory": lambda hook: local_steps(hook, optax.sgd(1e-2), 1),
    "of micro-batches": lambda hook: local_steps(
        hook, optax.MultiSteps(optax.adam(1e-2), 20), 40
    ),
    "unless not finite": lambda hook: local_steps(
        hook, optax.apply_if_finite(optax.sgd(1e-2), 3), 40
    ),
}


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_states_that_are_meant_to_begin_anew(judged: Any, name: str) -> None:
    assert judged(MADE_AGAIN[name]) == []


def make_state_step(keeps: bool) -> Callable[..., Any]:
    def step(state: Any, x: Any, y: Any) -> Any:
        slope = jax.value_and_grad(loss_of, has_aux=True)
        (loss, new), grads = slope(state.params, state.batch_stats, x, y)
        state = state.apply_gradients(grads=grads)
        return (state.replace(batch_stats=new) if keeps else state), loss

    return step


def with_train_state(hook: Any, keeps: bool, evaluates: bool = True) -> None:
    params, statistics = made()
    state = State.create(
        apply_fn=NET.apply, params=params, tx=optax.adam(1e-2), batch_stats=statistics
    )
    step = hook.jit(make_state_step(keeps), donate_argnums=0)

    def evaluation(state: Any, x: Any, y: Any) -> Any:
        return evaluate(state.params, state.batch_stats, x, y)

    judge = hook.jit(evaluation, mode=ModeKeys.EVAL)
    for i in range(N_STEPS):
        state, _ = step(state, *batch(i))
        if evaluates and i % 4 == 3:
            judge(state, *batch(99))


def test_an_evaluation_with_statistics_that_no_step_fed(judged: Any) -> None:
    (finding,) = judged(lambda hook: with_train_state(hook, keeps=False))
    assert (finding.rule, finding.tensor) == ("RunningStatistics", "BatchNorm_0")
    assert "training never fed" in finding.message


# ---- healthy neighbours ------------------------------------------------------------


def separate_pass(hook: Any) -> None:
    """Statistics are dropped by a step, and no evaluation computes with them."""
    params, statistics = made()
    tx = optax.adam(1e-2)
    state = tx.init(params)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        slope = jax.value_and_grad(lambda p: loss_of(p, statistics, x, y)[0])
        loss, grads = slope(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    def by_batch(params: Any, x: Any, y: Any) -> Any:
        return loss_of(params, statistics, x, y)[0]

    step, judge = hook.jit(step), hook.jit(by_batch, mode=ModeKeys.EVAL)
    for i in range(N_STEPS):
        params, state, _ = step(params, state, *batch(i))
        judge(params, *batch(99))


def accumulation(hook: Any) -> None:
    """Eight micro-batches see the same parameters and statistics."""
    params, statistics = made()
    tx = optax.adam(1e-2)
    state = tx.init(params)
    slope = hook.jit(jax.value_and_grad(loss_of, has_aux=True))
    for i in range(3):
        total, news = jax.tree.map(jnp.zeros_like, params), []
        for j in range(9):
            (_, new), grads = slope(params, statistics, *batch(9 * i + j))
            total = jax.tree.map(jnp.add, total, grads)
            news.append(new)
        updates, state = tx.update(total, state, params)
        params, statistics = optax.apply_updates(params, updates), news[-1]


def frozen(hook: Any) -> None:
    """Transfer learning: normalizations use their running averages throughout."""
    params, _ = made()
    statistics = jax.tree.map(lambda a: a + 0.5, made()[1])
    tx = optax.adam(1e-2)
    state = tx.init(params)

    def step(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(evaluate)(params, statistics, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, statistics

    step = hook.jit(step)
    judge = hook.jit(evaluate, mode=ModeKeys.EVAL)
    for i in range(N_STEPS):
        params, state, *_ = step(params, state, statistics, *batch(i))
        judge(params, statistics, *batch(99))


def distillation(hook: Any) -> None:
    """A random target is evaluated with the statistics that it was made with."""
    params, statistics = made()
    target = made()
    tx = optax.adam(1e-2)
    state = tx.init(params)

    def step(params: Any, state: Any, statistics: Any, x: Any, _: Any) -> Any:
        y = NET.apply({"params": target[0], "batch_stats": target[1]}, x, False)
        return make_step(tx)(params, state, statistics, x, y)

    step = hook.jit(step)
    judge = hook.jit(evaluate, mode=ModeKeys.EVAL)
    for i in range(N_STEPS):
        params, state, _, statistics = step(params, state, statistics, *batch(i))
        judge(params, statistics, *batch(99))
        judge(*target, *batch(99))


def clients(hook: Any) -> None:
    """Federated clients begin at the same parameters, with states of their own."""
    params, statistics = made()
    tx = optax.adam(1e-2)
    step = hook.jit(make_step(tx))
    start = tx.init(params)
    for i in range(2):
        news = [
            step(params, start, statistics, *batch(12 * i + j))[0] for j in range(12)
        ]
        params = jax.tree.map(lambda *each: sum(each) / len(each), *news)


def meta_learning(hook: Any) -> None:
    """Each task begins with a new optimizer, which makes several steps in a call."""
    params, statistics = made()
    tx = optax.adam(1e-2)
    one, start = make_step(tx), tx.init(params)

    def task(params: Any, state: Any, statistics: Any, x: Any, y: Any) -> Any:
        fast = params
        for _ in range(3):
            fast, state, loss, statistics = one(fast, state, statistics, x, y)
        moved = jax.tree.map(lambda p, q: p + 0.5 * (q - p), params, fast)
        return moved, state, loss, statistics

    step = hook.jit(task)
    for i in range(N_STEPS):
        params, _, _, statistics = step(params, start, statistics, *batch(i))


class Nnx(nnx.Module):
    """The same net."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.last = (
            nnx.Linear(*sizes, rngs=rngs) for sizes in ((4, 8), (8, 1))
        )
        self.norm = nnx.BatchNorm(8, rngs=rngs, momentum=0.9)

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.norm(self.first(x))))


def of_nnx(hook: Any) -> None:
    model = Nnx()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return jnp.mean((model(x) - y) ** 2)

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_of)(model, x, y)
        optimizer.update(model, grads)
        return loss

    step = hook.jit(step, jit=nnx.jit)
    judge = hook.jit(loss_of, jit=nnx.jit, mode=ModeKeys.EVAL)
    for i in range(N_STEPS):
        model.train()
        step(model, optimizer, *batch(i))
        model.eval()
        judge(model, *batch(99))


MULTI = optax.multi_transform(
    {"a": optax.adam(1e-2), "b": optax.set_to_zero()},
    {"Dense_0": "b", "BatchNorm_0": "a", "Dense_1": "a"},
)
HEALTHY: dict[str, Loop] = {
    "linen": lambda hook: threaded(hook, keeps=True),
    "donated": lambda hook: threaded(hook, keeps=True, donate_argnums=(0, 1, 2)),
    "multi_transform": lambda hook: threaded(hook, keeps=True, tx=MULTI),
    "MultiSteps": lambda hook: threaded(
        hook, keeps=True, tx=optax.MultiSteps(optax.adam(1e-2), 4)
    ),
    "stateless": lambda hook: threaded(hook, keeps=True, tx=optax.sgd(1e-2)),
    "train state": lambda hook: with_train_state(hook, keeps=True),
    "nothing evaluated": lambda hook: with_train_state(hook, False, evaluates=False),
    "statistics of the batch": separate_pass,
    "accumulation": accumulation,
    "frozen": frozen,
    "distillation": distillation,
    "clients": clients,
    "meta-learning": meta_learning,
    "nnx": of_nnx,
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_nothing_is_said_of_a_training_that_keeps_what_it_needs(
    judged: Any, kind: str
) -> None:
    assert judged(HEALTHY[kind]) == []


@pytest.mark.parametrize("keeps", [True, False])
def test_the_training_stays_the_same_to_the_last_bit(
    make_hook: Any, keeps: bool
) -> None:
    class Plain:
        jit = staticmethod(jax.jit)

    with_tdbg = threaded(make_hook(), keeps)
    without = threaded(Plain, keeps)
    for one, other in zip(*map(jax.tree.leaves, (with_tdbg, without)), strict=True):
        assert np.array_equal(one, other)


def test_looks_are_over_after_two_calls(make_hook: Any) -> None:
    hook = make_hook()
    step = hook.jit(make_step(optax.adam(1e-2)))
    params, statistics = made()
    state = optax.adam(1e-2).init(params)
    looks = []
    for i in range(3):
        looks.append(step._returned.is_on)
        params, state, _, statistics = step(params, state, statistics, *batch(i))
    assert looks == [True, True, False]


# ---- copies on several devices -----------------------------------------------------


def on_devices(hook: Any, reduces: bool, check: bool = False, tx: Any = None) -> None:
    """Train on four devices by shard_map, with gradients of each or of all."""
    params, tx = {"w": jnp.ones((4, 1)), "b": jnp.zeros(1)}, tx or optax.sgd(1e-2)
    mesh = Mesh(np.array(jax.devices()), "d")

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

        if check:
            params = jax.lax.pcast(params, "d", to="varying")
        loss, grads = jax.value_and_grad(loss_of)(params)
        if reduces:
            loss, grads = jax.lax.pmean((loss, grads), "d")
        updates, state = tx.update(grads, state)
        return updates, state, loss

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), P(), P("d"), P("d")),
        out_specs=P(),
        check_vma=check,
    )

    def whole(params: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state, loss = mapped(params, state, x, y)
        return optax.apply_updates(params, updates), state, loss

    compiled, state = hook.jit(whole), tx.init(params)
    for i in range(6):
        params, state, _ = compiled(params, state, *batch(i))


def by_sharding(hook: Any) -> None:
    """Parallel by the placement of batches; XLA reduces the gradients."""
    mesh = Mesh(np.array(jax.devices()), "d")
    params, statistics = made()
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    params, statistics = jax.device_put((params, statistics), everywhere)
    tx = optax.adam(1e-2)
    step, state = hook.jit(make_step(tx)), tx.init(params)
    for i in range(6):
        given = jax.device_put(batch(i), split)
        params, state, _, statistics = step(params, state, statistics, *given)


def copies_of(run: Path) -> list[Finding]:
    return findings(run, tdbg.rules.ReplicaDivergence())


def test_devices_that_train_on_their_own_data_alone(
    judged: Any, tmp_path: Path
) -> None:
    judged(lambda hook: on_devices(hook, reduces=False))
    (finding,) = copies_of(tmp_path / "run0")
    assert finding.severity is Severity.ERROR
    assert "2 of 2 tensors" in finding.message
    assert "differ between devices 0, 1, 2, 3" in finding.message
    assert "pmean" in finding.advice


PARALLEL: dict[str, Loop] = {
    "pmean": lambda hook: on_devices(hook, reduces=True),
    "checked": lambda hook: on_devices(hook, reduces=True, check=True),
    "adam": lambda hook: on_devices(hook, reduces=True, tx=optax.adam(1e-2)),
    "sharding": by_sharding,
}


@pytest.mark.parametrize("kind", PARALLEL)
def test_devices_that_share_gradients_are_equal(
    judged: Any, tmp_path: Path, kind: str
) -> None:
    assert judged(PARALLEL[kind]) == []
    assert copies_of(tmp_path / "run0") == []
