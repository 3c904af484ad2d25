"""Windows of trainings in TensorFlow: its own profiler."""

from __future__ import annotations

import time

import tensorflow as tf

from tdbg.config.profiler import WindowConfig
from tdbg.profiler.windows.xspace import TensorFlowOperators


def test_operators_are_added_up_on_the_clock_of_the_run() -> None:
    x = tf.ones((64, 64))
    tf.tanh(x @ x)
    engine = TensorFlowOperators(WindowConfig(spans=True))
    begin_ns = time.monotonic_ns()
    engine.start()
    for _ in range(5):
        tf.tanh(x @ x).numpy()
    finish = engine.stop()
    end_ns = time.monotonic_ns()
    result = finish()
    (event,) = result.events
    rows = {row["name"]: row for row in event["operators"]}
    assert any("MatMul" in name for name in rows)
    assert all(row["self_ns"] <= row["total_ns"] for row in rows.values())
    for span in result.spans:
        assert begin_ns - 20_000_000 <= span.start_ns <= end_ns + 20_000_000
