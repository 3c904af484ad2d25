"""A step that is compiled anew for another shape is no cost that the budget charges."""

from __future__ import annotations

from typing import Any

import optax
import pytest

import tdbg.jax as tj
from jax_trainings import batch, make_step, parameters
from tdbg.capture.budget import Throttling
from tdbg.capture.overhead import OverheadMeter


def test_each_new_shape_is_compiled_with_taps_once_and_charged_to_nobody(
    make_hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: charged, and three shapes take what the first minute may cost."""
    once: list[int] = []
    charged: list[float] = []
    spend_once, end_step = OverheadMeter.spend_once, Throttling.end_step

    def spend(meter: OverheadMeter, spent_ns: int) -> None:
        once.append(spent_ns)
        spend_once(meter, spent_ns)

    def end(self: Throttling, step: Any, capture_ns: float, rest_ns: float) -> Any:
        charged.append(capture_ns)
        return end_step(self, step, capture_ns, rest_ns)

    monkeypatch.setattr(OverheadMeter, "spend_once", spend)
    monkeypatch.setattr(Throttling, "end_step", end)
    tx = optax.sgd(1e-2)
    include = ["weights", "gradients", "outputs"]
    hook = make_hook(include_collections=include, budget="auto")
    step = hook.jit(make_step(tj.optax(tx)))
    params = parameters()
    state = tx.init(params)
    for i in range(60):
        x, y = batch(i)
        n = len(x) - i // 20  # Three shapes: two of them are new in mid-training.
        params, state, _ = step(params, state, x[:n], y[:n])
    meter = hook._session.meter
    overhead = hook.overhead()
    assert len(once) == 3
    assert sum(charged) + sum(once) <= meter.spent_ns
    assert meter.once_ns == 0
    assert (overhead.changes, overhead.left_out) == (0, "")
