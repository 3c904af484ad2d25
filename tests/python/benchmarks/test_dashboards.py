"""The benchmark of dashboards: its series, its checks and its servers, without peers.

What others show takes their packages and many minutes, and is what
``python -m benchmarks.ui`` is for.
"""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks._harness import WrongAnswer
from benchmarks.ui import __main__ as program
from benchmarks.ui import targets
from benchmarks.ui._many_runs import many_runs
from benchmarks.ui._proxy import counted
from benchmarks.ui._series import SERIES, SPIKE, Series
from benchmarks.ui._server import served
from benchmarks.ui._shown import Shown, of_points
from benchmarks.ui.contenders import (
    CONTENDERS,
    Contender,
    aim_page,
    load,
    tdbg_ui,
    tensorboard_page,
    trackio_page,
)
from browser import browser, new_page
from tdbg.trial import create_trial

__all__ = ["browser"]

SMALL = SERIES["quick"]


def points(
    series: Series, steps: list[int]
) -> list[tuple[str, list[int], list[float | None]]]:
    columns = [series.values(step).tolist() for step in steps]
    return [
        (name, steps, [column[i] for column in columns])
        for i, name in enumerate(series.names)
    ]


def test_a_series_has_each_planted_value_once_and_nothing_else_like_it() -> None:
    values = np.array([SMALL.values(step) for step in range(SMALL.n_steps)])
    assert values.shape == (200, len(SMALL.names))
    holes = np.argwhere(np.isnan(values)).tolist()
    assert sorted(holes) == sorted([at, i] for i, at in SMALL.holes.items())
    usual = np.nanmedian(values, axis=0)
    spikes = np.argwhere(values > SPIKE / 3 * usual).tolist()
    assert sorted(spikes) == sorted([at, i] for i, at in SMALL.spikes.items())
    assert len(holes) == len(spikes) == SMALL.n_planted


@pytest.mark.parametrize("name", [*SERIES])
def test_what_is_planted_is_neither_first_nor_last(name: str) -> None:
    series = SERIES[name]
    planted = [*series.spikes.values(), *series.holes.values()]
    assert len(set(planted)) == len(planted) == 2 * series.n_planted
    assert all(0 < step < series.n_steps - 1 for step in planted)
    assert len(set(series.names)) == series.n_tensors


def test_who_shows_every_point_shows_all_that_is_planted() -> None:
    every = list(range(SMALL.n_steps))
    assert of_points(SMALL, points(SMALL, every)) == Shown(12, 200, 6, 6)
    without = [s for s in every if s not in {*SMALL.spikes.values()}]
    assert of_points(SMALL, points(SMALL, without)) == Shown(12, 194, 0, 6)


@pytest.mark.parametrize("wrong", [0.0, None, "NaN", math.inf])
def test_a_point_that_is_not_of_the_series_ends_the_benchmark(wrong: Any) -> None:
    given = points(SMALL, [3, 4])
    given[5][2][1] = wrong
    with pytest.raises(WrongAnswer, match="step 4"):
        of_points(SMALL, given)


def test_a_number_where_a_nan_is_ends_the_benchmark() -> None:
    (tensor, step), *_ = SMALL.holes.items()
    given = points(SMALL, [step])
    given[tensor][2][0] = 1.0
    with pytest.raises(WrongAnswer, match="not NaN"):
        of_points(SMALL, given)


def answer_of(contender: str, given: Any) -> bytes:
    """The points as a contender's server answers them."""
    if contender == "TensorBoard":
        charts = [
            {"tag": n, "runToSeries": {"run": [{"step": s, "value": v}]}}
            for n, steps, values in given
            for s, v in zip(steps, values, strict=True)
        ]
        return json.dumps(charts).encode()
    if contender == "Aim":
        metrics = [{"name": n, "iters": s, "values": v} for n, s, v in given]
        return json.dumps(metrics).encode()
    steps = given[0][1]
    rows = [
        {"step": step, **{name: values[j] for name, _, values in given}}
        for j, step in enumerate(steps)
    ]
    return json.dumps({"data": [{"run": "run", "logs": rows}]}).encode()


@pytest.mark.parametrize(
    "contender", [tensorboard_page, aim_page, trackio_page], ids=lambda m: m.__name__
)
def test_answers_of_peers_are_read_and_their_values_checked(contender: Any) -> None:
    (name,) = (n for n, m in CONTENDERS.items() if contender.__name__.endswith(m))
    given = points(SMALL, [2, 90, 150])
    answer = answer_of(name, given)
    assert contender.shown(SMALL, [answer]) == Shown(12, 3, 0, 0)
    assert contender.newest(answer) == 150
    given[7][2][1] = 5.0
    with pytest.raises(WrongAnswer, match="step 90"):
        contender.shown(SMALL, [answer_of(name, given)])


def test_no_contender_needs_its_packages_where_only_its_pages_are_opened() -> None:
    for name in CONTENDERS:
        found = load(name)
        assert found.COMMAND
        assert found.DRAWN
        path = Path(program.__file__).parents[1] / "environments"
        if found.ENVIRONMENT:
            pins = (path / f"{found.ENVIRONMENT}.txt").read_text()
            assert all(f"\n{package}==" in pins for package in found.PACKAGES)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of the small series, as the benchmark writes it."""
    return program.written("tdbg", tmp_path, SMALL)


def test_a_run_is_written_once_and_holds_the_series(home: Path, tmp_path: Path) -> None:
    assert program.written("tdbg", tmp_path, SMALL) == home
    trial = create_trial(home / "run")
    assert sorted(trial.tensor_names()) == sorted(SMALL.names)
    name, step = SMALL.names[0], SMALL.spikes[0]
    found = trial.tensor(name).reduction_value(step, "l2")
    assert found == pytest.approx(float(SMALL.values(step)[0]))


def test_the_page_of_tdbg_is_opened_and_shows_all_that_is_planted(
    home: Path, browser: Any
) -> None:
    contender = load("tdbg")
    with served(contender, home) as server:
        assert server.memory().rss >= server.memory().pss > 10
        assert server.cpu_seconds() > 0
        address = program.address("tdbg", home, server)
        with counted(server.port) as proxy:
            through = program.address("tdbg", home, server, proxy.port)
            with new_page(browser, through) as watched:
                canvas = watched.page.locator("canvas.map-canvas[data-drawn]")
                with watched.page.expect_response(
                    lambda response: tdbg_ui.ANSWER in response.url
                ) as answered:
                    canvas.wait_for()
                answer = answered.value.body()
                assert watched.page.evaluate(tdbg_ui.DRAWN) == "0 200"
            assert proxy.sent > len(answer) > proxy.asked / 100 > 0
        assert tdbg_ui.shown(SMALL, [answer]) == Shown(12, 200, 6, 6)
        assert tdbg_ui.newest(answer) == 199
        other = Series("other", 12, 200)
        with pytest.raises(WrongAnswer, match="where there is none"):
            tdbg_ui.shown(other, [answer])
        port = server.port
    assert address.startswith(f"http://127.0.0.1:{port}/#t=")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_server_that_ends_at_once_is_said_so(tmp_path: Path) -> None:
    ending = SimpleNamespace(
        ENVIRONMENT="", COMMAND=("{python}", "-c", "raise SystemExit(3)"), VARIABLES={}
    )
    with (
        pytest.raises(WrongAnswer, match="exit status 3"),
        served(cast("Contender", ending), tmp_path),
    ):
        pass


def test_a_list_of_runs_is_visited_at_first_sight_from_the_cache_and_from_afar(
    browser: Any, tmp_path: Path
) -> None:
    data: dict[str, Any] = {}
    rows = dict(many_runs(browser, tmp_path / "runs", 3, data))
    assert "3 runs listed, at first sight" in rows
    for one in data["runs"].values():
        assert 0 < one["listed"] <= one["all"]
        assert 0 < one["in_sequence"] <= one["requests"]
    far = data["runs"]["from the cache, 20 ms away"]
    # The page, its script, the list: each waits for the one before.
    assert far["listed"] > 3 * 0.02


def test_zooms_and_readings_are_timed_on_the_page(tmp_path: Path, browser: Any) -> None:
    # More steps than columns: else a closer look has nothing to ask for.
    home = targets.written(tmp_path, Series("long", 40, 4000))
    data: dict[str, Any] = {}
    targets.zoom(browser, home, 2, data)
    targets.hover(browser, home, 2, data)
    assert len(data["zoom"]) == len(data["hover"]["rows"]) == 2
    assert min(data["zoom"] + data["hover"]["reading"]) > 0
