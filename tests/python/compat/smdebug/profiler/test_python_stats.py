"""Recordings of cProfile and pyinstrument in smdebug's folders."""

from __future__ import annotations

import cProfile
import json
import marshal
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tdbg.compat.smdebug.profiler import ProfilerFileError
from tdbg.compat.smdebug.profiler.analysis.python_stats import (
    Metrics,
    PyinstrumentAnalysis,
    PythonProfileModes,
    StepPhase,
    cProfileAnalysis,
)
from tdbg.compat.smdebug.profiler.profile_dump import function_stats
from tdbg.errors import ConfigurationError, StorageError

T = 1_600_000_000_000_000
TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
PLACES = {
    "before": f"prestepzero-*-start-{T}.0_train-0-stepstart-{T + 10}.0",
    "first": f"train-0-stepstart-{T + 10}.0_train-0-stepend-{T + 20}.0",
    "between": f"train-0-stepend-{T + 20}.0_train-1-stepstart-{T + 30}.0",
    "to_eval": f"train-1-stepend-{T + 30}.0_eval-0-stepstart-{T + 40}.0",
    "eval": f"eval-0-stepstart-{T + 40}.0_eval-0-stepend-{T + 50}.0",
    "after": f"eval-0-stepend-{T + 50}.0_posthookclose-*-end-{T + 60}.0",
}


def recorded(name: str, path: Path) -> None:
    """Record a function of that name with cProfile."""

    def work() -> int:
        return sum(range(100))

    work.__code__ = work.__code__.replace(co_name=name)
    profile = cProfile.Profile()
    profile.runcall(work)
    path.parent.mkdir(parents=True)
    profile.dump_stats(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "framework" / "pytorch" / "cprofile"
    for name, place in PLACES.items():
        recorded(name, root / "7-algo-1" / place / "python_stats")
    return root


def names(stats: Any) -> set[str]:
    found = {each.function_name for each in stats.function_stats_list}
    return {name for name in PLACES for each in found if each.endswith(f"({name})")}


QUESTIONS: dict[str, tuple[Callable[[cProfileAnalysis], Any], set[str]]] = {
    "before step 0": (lambda a: a.fetch_pre_step_zero_profile_stats(), {"before"}),
    "after close": (lambda a: a.fetch_post_hook_close_profile_stats(), {"after"}),
    "a step": (lambda a: a.fetch_profile_stats_by_step(0), {"first"}),
    "between steps": (
        lambda a: a.fetch_profile_stats_by_step(
            0, 1, start_phase=StepPhase.STEP_END, end_phase=StepPhase.STEP_START
        ),
        {"between"},
    ),
    "a step of evaluation": (
        lambda a: a.fetch_profile_stats_by_step(0, mode=EVAL),
        {"eval"},
    ),
    "between modes": (
        lambda a: a.fetch_profile_stats_between_modes(TRAIN, EVAL),
        {"to_eval"},
    ),
    "a time": (
        lambda a: a.fetch_profile_stats_by_time(T / 1e6 + 45e-6, T / 1e6 + 47e-6),
        {"eval"},
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_recordings_are_found_by(question: str, folder: Path) -> None:
    ask, expected = QUESTIONS[question]
    assert names(ask(cProfileAnalysis(folder))) == expected


def test_recordings_are_summed_by_phases(folder: Path) -> None:
    analysis = cProfileAnalysis(folder)
    by_mode = analysis.fetch_profile_stats_by_training_phase()
    assert names(by_mode[TRAIN, TRAIN]) == {"first", "between"}
    by_part = analysis.fetch_profile_stats_by_job_phase()
    assert {part: names(stats) for part, stats in by_part.items()} == {
        "initialization": {"before"},
        "training_loop": {"first", "between", "to_eval", "eval"},
        "finalization": {"after"},
    }


def test_recordings_are_listed_with_their_nodes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = cProfileAnalysis(folder)
    table = analysis.list_profile_stats()
    assert table["framework"].unique().tolist() == ["pytorch"]
    assert table["start_step"].tolist() == [-1, 0, 0, 1, 0, 0]
    assert analysis.list_available_node_ids() == ["7-algo-1"]
    assert analysis.fetch_profile_stats_by_step(99) is None
    assert "No stats were found" in capsys.readouterr().out
    stats = analysis.fetch_profile_stats_by_step(0)
    assert stats.get_function_stats().columns[0] == "function name"
    stats.print_top_n_functions(Metrics.CUMULATIVE_TIME, n=3)
    with pytest.raises(ConfigurationError, match="by='cumtime'"):
        stats.print_top_n_functions("cumtime")


def test_folders_of_releases_before_1_are_read(tmp_path: Path) -> None:
    root = tmp_path / "framework" / "tensorflow" / "cProfile"
    recorded("first", root / f"{T}.0_{T + 10}.0_151-algo-1_2" / "python_stats")
    recorded("before", root / f"{T - 9}.0_{T}.0_151-algo-1_-1" / "python_stats")
    analysis = cProfileAnalysis(root)
    assert names(analysis.fetch_profile_stats_by_step(2)) == {"first"}
    assert names(analysis.fetch_pre_step_zero_profile_stats()) == {"before"}


def test_a_dump_is_read_as_python_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    profile = cProfile.Profile()
    profile.runcall(lambda: json.loads(json.dumps({"ü": [1, {"a": None}]})))
    profile.dump_stats(path)
    expected = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    assert function_stats(path) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"{" * 100,
        marshal.dumps({"a": 1}),
        marshal.dumps([1, 2]),
        marshal.dumps({("f", 1, "g"): (1, 1, 0.1, "x", {})}),
        b"\xdb\x05\x00\x00\x00",
        b"(\xff\xff\xff\xff",
        b"r\x05\x00\x00\x00",
        b"l\xff\xff\xff\x7f",
    ],
)
def test_a_dump_that_is_none_is_a_typed_error_that_names_it(
    tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "stats"
    path.write_bytes(data)
    with pytest.raises(ProfilerFileError, match=str(path)):
        function_stats(path)


def test_every_cut_of_a_dump_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "a" / "stats"
    recorded("work", path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ProfilerFileError):
            function_stats(path)


def test_one_damaged_recording_takes_nothing_from_the_others(folder: Path) -> None:
    damaged = folder / "7-algo-1" / PLACES["first"] / "python_stats"
    damaged.write_bytes(b"no dump")
    analysis = cProfileAnalysis(folder)
    phases = analysis.fetch_profile_stats_between_modes(TRAIN, TRAIN)
    assert names(phases) == {"between"}
    with pytest.raises(ProfilerFileError, match="no dump of cProfile"):
        analysis.fetch_profile_stats_by_step(0)


def test_recordings_of_pyinstrument_are_trees(tmp_path: Path) -> None:
    root = tmp_path / "framework" / "pytorch" / "pyinstrument"
    place = root / "7-algo-1" / PLACES["first"]
    place.mkdir(parents=True)
    tree = {"root_frame": {"function": "main", "children": []}}
    (place / "python_stats.json").write_text(json.dumps(tree))
    (place / "python_stats.html").write_text("<html>")
    analysis = PyinstrumentAnalysis(root)
    (stats,) = analysis.fetch_profile_stats_by_step(0)
    assert stats.json_stats == tree
    assert stats.html_file_path == str(place / "python_stats.html")
    (place / "python_stats.json").write_text('{"root')
    with pytest.raises(ProfilerFileError, match=r"python_stats\.json"):
        analysis.fetch_profile_stats_by_step(0)


def test_folders_with_other_names_are_told_and_passed_over(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded("work", folder / "7-algo-1" / "mine" / "python_stats")
    assert len(cProfileAnalysis(folder).python_profile_stats) == len(PLACES)
    assert "mine is no recording of smdebug" in caplog.text


def test_a_missing_folder_and_s3_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        cProfileAnalysis(tmp_path / "none")
    with pytest.raises(NotImplementedError, match="aws s3 sync s3://b/k"):
        cProfileAnalysis(tmp_path, s3_path="s3://b/k")
