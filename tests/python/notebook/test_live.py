"""The widget without a front end: when it makes pictures, and when it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tdbg
from run_builder import RunBuilder
from tdbg.errors import ConfigurationError
from tdbg.notebook import live
from tdbg.notebook.widget import Live
from tdbg.ui.packing import unpack

PATIENCE = 30.0


class Training:
    """A run that a test writes step by step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = RunBuilder(path)
        self.n_steps = 0

    def step(self) -> None:
        array = np.full(4, self.n_steps + 1, np.float32)
        self.run.save(self.n_steps, "gradient/fc.weight", array, what="statistics")
        self.run.end_step(self.n_steps)
        self.run.capture.flush()
        self.n_steps += 1


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    found = Training(tmp_path / "run")
    found.step()
    yield found
    found.run.close()


def steps_of(view: Live) -> int:
    header, _ = unpack(view.picture)
    return int(header["steps"])


def until(view: Live, holds: Callable[[], bool]) -> None:
    """Wait for pictures, not for time."""
    new = threading.Event()
    view.observe(lambda _: new.set(), "picture")
    while not holds():
        assert new.wait(PATIENCE), "no picture came"
        new.clear()
    view.unobserve_all("picture")


def test_the_picture_follows_a_run_until_the_training_has_ended(
    training: Training,
) -> None:
    view = live(tdbg.create_trial(training.path))
    assert view.is_following
    assert steps_of(view) == 1
    training.step()
    until(view, lambda: steps_of(view) == 2)
    training.step()
    training.run.close()
    assert view.wait(PATIENCE)
    assert steps_of(view) == 3
    assert view.error is None
    assert unpack(view.picture)[0]["state"] == "closed"


def test_of_many_steps_the_newest_picture_is_shown_and_few_are_made(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    go_on = threading.Event()

    def wait(self: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "tdbg live view" and timeout is not None:
            waits.append(timeout)
            return original(go_on)
        return original(self, timeout)

    original = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", wait)
    view = live(tdbg.create_trial(training.path))
    for _ in range(50):
        training.step()
    before = view.n_pictures
    training.run.close()
    go_on.set()
    assert view.wait(PATIENCE)
    assert steps_of(view) == 51
    # However many steps: one picture a look, and between looks a tenth of a second.
    assert view.n_pictures - before <= 2
    assert waits
    assert min(waits) >= 0.1


def test_closing_the_view_ends_the_updates(training: Training) -> None:
    view = live(tdbg.create_trial(training.path))
    view.close()
    assert view.wait(PATIENCE)
    training.step()
    assert steps_of(view) == 1
    assert view.error is None


def test_a_view_that_no_cell_shows_reads_nothing_until_one_does(
    training: Training,
) -> None:
    view = live(tdbg.create_trial(training.path))
    view._told(view, {"viewers": 1}, [])
    view._told(view, {"viewers": -1}, [])
    training.step()
    assert not view._watched.is_set()
    view._told(view, {"viewers": 1}, [])
    until(view, lambda: steps_of(view) == 2)
    view.close()
    assert view.wait(PATIENCE)


@pytest.mark.parametrize("content", [None, [], {"viewers": 7}, {"other": 1}])
def test_a_message_of_somebody_else_changes_nothing(
    training: Training, content: object
) -> None:
    view = live(tdbg.create_trial(training.path))
    view._told(view, content, [])
    assert view._watched.is_set()
    view.close()
    assert view.wait(PATIENCE)


def test_a_run_that_has_ended_needs_no_thread(training: Training) -> None:
    training.run.close()
    view = live(tdbg.create_trial(training.path))
    assert not view.is_following
    assert view.wait(0.0)
    assert steps_of(view) == 1


def test_an_output_has_the_widget_and_what_shows_without_one(
    training: Training,
) -> None:
    view = live(tdbg.create_trial(training.path))
    bundle = view._repr_mimebundle_()
    assert bundle is not None
    data, _ = bundle
    shown = data["application/vnd.jupyter.widget-view+json"]
    assert shown["model_id"] == view.model_id
    assert "<table>" in data["text/html"]
    assert data["text/plain"].startswith("Trial(")
    view.close()
    assert view.wait(PATIENCE)


def test_damage_while_it_follows_ends_the_updates_and_raises_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = live(tdbg.create_trial(training.path))
    failure = tdbg.errors.StorageError("gone")

    def fail(*_: object) -> bytes:
        raise failure

    monkeypatch.setattr("tdbg.notebook.widget.picture", fail)
    training.step()
    assert view.wait(PATIENCE)
    assert view.error is failure


def test_without_anywidget_the_error_names_the_extra(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = tdbg.create_trial(training.path)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "tdbg.notebook.widget")
    with pytest.raises(ConfigurationError, match=r"pip install 'tdbg\[notebook\]'"):
        live(trial)


def test_importing_the_module_loads_no_widget() -> None:
    code = (
        "import sys, tdbg; tdbg.notebook.live\n"
        "assert not {'anywidget', 'ipywidgets', 'starlette'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
