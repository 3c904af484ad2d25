"""Windows of trainings in JAX: its own profiler, without a library beside it."""

from __future__ import annotations

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import tdbg.jax as tdj
from tdbg.config.profiler import WindowConfig
from tdbg.profiler.windows.engine import Unavailable
from tdbg.profiler.windows.xspace import JaxOperators, read_xspace
from tdbg.trial import create_trial


def test_operators_are_added_up_on_the_clock_of_the_run() -> None:
    function = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    function(x).block_until_ready()
    engine = JaxOperators(WindowConfig(spans=True))
    begin_ns = time.monotonic_ns()
    engine.start()
    for _ in range(5):
        function(x).block_until_ready()
    finish = engine.stop()
    end_ns = time.monotonic_ns()
    result = finish()
    (event,) = result.events
    assert event["device"] == "cpu"
    # Each call is seen as a whole, and as what it consists of.
    assert any(row["calls"] % 5 == 0 for row in event["operators"])
    assert all(row["self_ns"] <= row["total_ns"] for row in event["operators"])
    assert result.spans
    for span in result.spans:
        assert begin_ns - 20_000_000 <= span.start_ns <= end_ns + 20_000_000


def test_what_the_profiler_cannot_tell_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"shapes are not available .* JAX"):
        JaxOperators(WindowConfig(shapes=True)).start()


def test_a_message_that_is_cut_is_an_error() -> None:
    with pytest.raises(ValueError, match="is cut"):
        list(read_xspace(b"\x0a\x7f\x12\x03cpu"))
    with pytest.raises(ValueError, match="is cut"):
        list(read_xspace(b"\x0a\xff"))
    assert list(read_xspace(b"")) == []


def test_a_window_takes_steps_of_a_compiled_function(run_dir: Path) -> None:
    window = tdj.WindowConfig(start_step=20, num_steps=3)
    hook = tdj.Hook(run_dir, profiler=tdj.ProfilerConfig(windows=(window,)))

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.square(x @ w).mean())(weights)
        return weights - 0.1 * gradient, loss

    compiled = hook.jit(step)
    weights, x = jnp.ones((8, 8)), jnp.ones((4, 8))
    for _ in range(60):
        weights, _ = compiled(weights, x)
    hook.close()
    told = [
        event.data
        for event in create_trial(run_dir).events()
        if event.data.get("what") in ("profile_window", "operators")
    ]
    states = [each.get("state", each["what"]) for each in told]
    assert states == ["accepted", "started", "operators", "ended"]
    assert (told[-1]["first_step"], told[-1]["last_step"]) == (20, 22)
