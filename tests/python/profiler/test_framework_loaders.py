"""Waits for batches of tf.data, Keras and others are in the step rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profiled_data import FakeSession
from tdbg.profiler import framework_loaders, loaders
from tdbg.trial import create_trial

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "waiting_keras.py"
SECOND = 10**9


def train(out: Path, kind: str, backend: str) -> Any:
    """Train on 12 batches that take 30 ms each; return the profile."""
    variables = {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(out)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return create_trial(out).profile


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("loop", "tensorflow"),
        ("fit", "jax"),
        ("fit_loader", "jax"),
        ("fit", "torch"),
    ],
)
def test_waits_for_data_are_told(run_dir: Path, kind: str, backend: str) -> None:
    profile = train(run_dir, kind, backend)
    steps, batches = profile.steps(), profile.workers()
    assert len(steps) == 12
    # The first batch may come before the run begins.
    waits = steps["data_wait_ns"][1:]
    interrupted = (steps["gc_ns"] + steps["capture_ns"])[1:]
    assert (waits + interrupted >= batches["wait_ns"][-11:]).all()
    if kind in {"fit", "fit_loader"}:  # tf.data works ahead.
        assert (waits >= 0.03 * SECOND).all()
    phases = [name for name in steps.dtype.names if name.endswith("_ns")]
    parts = sum(steps[name] for name in phases if name not in {"duration_ns", "gpu_ns"})
    assert (parts == steps["duration_ns"]).all()
    assert len(set(batches["loader"])) == 1
    assert len(set(batches["epoch"])) >= 2


@pytest.mark.slow
def test_what_a_compiled_step_of_tensorflow_takes_itself_is_part_of_it(
    run_dir: Path,
) -> None:
    """The batch is taken in the compiled function, where no Python runs."""
    steps = train(run_dir, "fit", "tensorflow").steps()
    assert len(steps) == 12
    assert (steps["data_wait_ns"] + steps["compute_ns"] >= 0.02 * SECOND).sum() > 6


class Fetching:
    """An iterator as Keras on JAX has it."""

    data_adapter = None

    def _get_iterator(self) -> Any:
        return iter([1, 2, 3])


def fake(monkeypatch: pytest.MonkeyPatch, iterator: type) -> None:
    module: Any = ModuleType("keras.src.backend.jax.trainer")
    module.JAXEpochIterator = iterator
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for place in framework_loaders._PLACES:
        if place.module != module.__name__:
            monkeypatch.delitem(sys.modules, place.module, raising=False)


def test_batches_are_measured_until_the_last_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(monkeypatch, Fetching)
    before = Fetching._get_iterator
    sessions: list[Any] = [FakeSession(), FakeSession()]
    parts = [loaders.Loaders(each) for each in sessions]
    measuring = [framework_loaders.start(each, None) for each in sessions]  # type: ignore[arg-type]
    unused, used = Fetching()._get_iterator(), Fetching()._get_iterator()
    assert list(used) == [1, 2, 3]
    measuring.pop().close()
    parts.pop().close()
    assert list(unused) == [1, 2, 3]
    measuring.pop().close()
    assert Fetching._get_iterator is before
    parts.pop().close()
    assert [len(each.rows()) for each in sessions] == [6, 3]
    assert set(sessions[0].rows()["epoch"]) == {0}
    assert len(set(sessions[0].rows()["loader"])) == 2


def test_a_framework_that_has_changed_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other:
        def _get_iterator(self, more: int) -> None: ...

    fake(monkeypatch, Other)
    before = dict(vars(Other))
    session: Any = FakeSession()
    framework_loaders.start(session, None).close()  # type: ignore[arg-type]
    (event,) = session.events
    assert event["part"] == "framework_loaders"
    assert "JAXEpochIterator._get_iterator: it takes" in event["off"]
    assert dict(vars(Other)) == before
