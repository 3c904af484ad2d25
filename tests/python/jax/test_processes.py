"""The handler and Python: locks, ends of processes, forks, and errors of tdbg's own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tdbg.jax as tj
from jax_trainings import batch, make_step, parameters, train
from tdbg import _core
from tdbg.trial import create_trial

EVERY = {
    "include_collections": ["weights", "gradients", "outputs"],
    "save_config": tj.SaveConfig(save_interval=1),
}


def run_script(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


TRAINING = """
    import os, sys
    import jax, jax.numpy as jnp, numpy as np, optax
    import tdbg.jax as tj

    hook = tj.Hook(
        sys.argv[1],
        include_collections=["weights", "gradients", "outputs"],
        save_config=tj.SaveConfig(save_interval=1),
        min_free_bytes=0,
    )

    @hook.jit
    def step(w, x):
        def loss_of(w):
            return (tj.tap(x @ w, "h") ** 2).mean()

        loss, grad = jax.value_and_grad(loss_of)(w)
        return w - 0.01 * grad, loss

    w, x = jnp.ones((600, 600)) / 600, jnp.ones((600, 600))
"""


def test_the_handler_needs_no_python_while_a_thread_holds_the_gil() -> None:
    done = run_script(
        """
        import ctypes, sys
        import jax, jax.numpy as jnp, numpy as np
        from tdbg import _core
        from tdbg.hooks.jax.primitive import PASSES, show, when_done

        tap, inf = 5, float("inf")
        request = (tap * PASSES, True, 0, False, -inf, inf, False)
        plan = _core.TapPlan([request], False, 1)
        ticket = _core.open_tap_step(plan)
        operand, x = np.array([ticket, 0], np.int32), jnp.ones((1500, 1500))

        @jax.jit
        def program(ticket, x):
            return show(x @ x, ticket, tap), when_done(ticket)

        compiled = program.lower(operand, x).compile()
        sys.setswitchinterval(1000)  # Nobody else runs Python from here.
        sleep = ctypes.PyDLL(None).usleep  # Keeps the GIL, as Python's own functions.
        result, done = compiled(operand, x)
        for _ in range(4000):
            if done.is_ready():
                break
            sleep(5000)
        assert done.is_ready(), "the program waits for Python"
        print("rows", len(_core.close_tap_step(ticket, plan, _core.TapTensors())[0]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "rows 1" in done.stdout


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "raise SystemExit(3)"])
def test_a_process_may_end_while_programs_are_under_way(
    tmp_path: Path, end: str
) -> None:
    script = textwrap.dedent(TRAINING) + textwrap.dedent(
        f"""
        for _ in range(20):
            w, loss = step(w, x)
        {end}
        """
    )
    done = run_script(script, tmp_path / "run")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    trial = create_trial(str(tmp_path / "run"))
    if "os._exit" not in end:
        assert trial.tensor("h").steps() == list(range(20))


def test_a_forked_child_trains_without_capture(tmp_path: Path) -> None:
    script = textwrap.dedent(TRAINING) + textwrap.dedent(
        """
        w, loss = step(w, x)
        hook.flush()
        pid = os.fork()
        if pid == 0:
            # JAX does not work in a forked child; the hook must not touch it.
            assert not hook._session.is_live
            assert hook.close()
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        w, loss = step(w, x)
        hook.close()
        """
    )
    done = run_script(script, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert create_trial(str(tmp_path / "run")).tensor("h").steps() == [0, 1]


def test_rows_come_to_their_step_however_far_the_program_is_behind(
    make_hook: Any, read: Any
) -> None:
    hook = make_hook(**EVERY)

    @hook.jit
    def step(x: Any, i: Any) -> Any:
        slow = jax.lax.fori_loop(0, 30, lambda _, y: y @ y / 300, x)
        return tj.tap(slow * 0 + i, "number").mean()

    x = jnp.ones((300, 300))
    for i in range(10):
        step(x, np.float32(i))
    trial = read(hook)
    means = [trial.tensor("number").reduction_value(i, "mean") for i in range(10)]
    assert means == list(range(10))


def test_more_steps_than_may_be_open_are_refused_and_train_on(make_hook: Any) -> None:
    hook = make_hook(**EVERY)
    step = hook.jit(lambda x: tj.tap(x, "x").sum())
    plan = _core.TapPlan([], False, 1)
    tickets = [_core.open_tap_step(plan) for _ in range(100)]
    try:
        assert float(step(jnp.ones(3))) == 3
        assert hook.counters()["refused_tensors"] == 1
    finally:
        for ticket in filter(None, tickets):
            _core.close_tap_step(ticket, plan, _core.TapTensors())
    assert float(step(jnp.ones(3))) == 3
    assert hook.counters()["refused_tensors"] == 1


def test_no_step_stays_open_and_nothing_is_lost(make_hook: Any) -> None:
    lost = _core.n_taps_lost()
    tx = tj.optax(optax.adam(1e-2))
    hook = make_hook(**EVERY)
    train(hook.jit(make_step(tx)), tx, 5)
    hook.close(timeout=60)
    assert _core.n_tap_steps_open() == 0
    assert _core.n_taps_lost() == lost


def broken(*_: Any, **__: Any) -> Any:
    msg = "an error of tdbg's own"
    raise RuntimeError(msg)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "where",
    [
        "tdbg.hooks.jax.arguments.ArgumentReader.read",
        "tdbg.hooks.jax.step_capture.StepCapture.choose",
        "tdbg.hooks.jax.step_capture.StepCapture.take",
        "tdbg.hooks.jax.step_capture.StepCapture.open",
        "tdbg.hooks.jax.step_capture.StepCapture.expect",
        "tdbg.hooks.jax.step_capture.StepCapture.record_loss",
        "tdbg.hooks.jax.sites.Sites.add",
        "tdbg.hooks.jax.sites.Sites.plan",
        "tdbg.hooks.jax.sites.Sites.deliver",
        "tdbg.hooks.jax.tracing.CaptureTrace.show",
        "tdbg.capture.session.Session.optimizer_begins",
    ],
)
def test_an_error_of_tdbg_leaves_the_training_alive(
    make_hook: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    tx = tj.optax(optax.adam(1e-2))
    plain = train(jax.jit(make_step(tx)), tx, 4)
    monkeypatch.setattr(where, broken)
    hook = make_hook(**EVERY)
    losses = train(hook.jit(make_step(tx)), tx, 4)
    np.testing.assert_allclose(losses, plain, rtol=1e-5)
    hook.close()


def test_memory_that_a_step_takes_over_is_not_kept_by_the_hook(make_hook: Any) -> None:
    tx = tj.optax(optax.adam(1e-2))
    hook = make_hook(**EVERY)
    step = hook.jit(make_step(tx), donate_argnums=(0, 1))
    params, state = parameters(), tx.init(parameters())
    kernel = params["params"]["d1"]["kernel"]
    address = kernel.unsafe_buffer_pointer()
    params, state, _ = step(params, state, *batch(0))
    assert kernel.is_deleted()
    jax.block_until_ready(params)
    assert params["params"]["d1"]["kernel"].unsafe_buffer_pointer() == address


def test_the_rank_is_the_process_of_jax_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tdbg.hooks.jax.adapter import JaxAdapter

    assert JaxAdapter().process_rank() is None
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    assert JaxAdapter().process_rank() == (2, 4)
