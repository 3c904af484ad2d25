"""The settings of the profiler: obeyed, or refused by their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdbg.config import ProfilerConfig, WindowConfig, resolve
from tdbg.config.documents import Location
from tdbg.config.profiler import parse_items
from tdbg.config.smdebug_profiler import read_smdebug_profiler
from tdbg.errors import ConfigurationError

PLACE = Location("profilerconfig.json")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TDBG_PROFILER", "TDBG_CONFIG", "SMPROFILER_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"system_interval": 0.01}, "system_interval must be from 0.05"),
        ({"system_interval": "fast"}, "system_interval.*'fast'"),
        ({"system_interval": float("nan")}, "system_interval"),
        ({"python_interval": 0}, "python_interval must be from 0.001"),
        ({"fingerprints": "some"}, "fingerprints must be"),
        ({"enabled": 1}, "enabled must be True or False, not 1"),
        ({"budget": 0}, "budget must be a share .* not 0"),
        ({"windows": "all"}, "windows must be a list of windows, not 'all'"),
        ({"windows": [3]}, "expected a WindowConfig, not 3"),
        ({"windows": [{"start": 3}]}, "unknown setting 'start'; did you mean"),
    ],
)
def test_a_bad_setting_is_refused_and_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ProfilerConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"start_step": 3, "duration": 2.0},
            "by steps or by time, not both: remove start_step, or duration",
        ),
        ({"num_steps": 0}, "num_steps must be from 1 to 10,000 steps, not 0"),
        ({"start_step": -1}, "start_step .* not -1"),
        ({"duration": -2.0}, "duration must be above 0 to 3600 seconds, not -2.0"),
        ({"num_steps": 5, "every": 5}, "every must be more steps .*5.*, not 5"),
        ({"functions": "perf"}, "functions: unknown 'perf'; valid are 'cprofile'"),
        ({"timer": "cpu_time"}, "timer='cpu_time' needs functions='cprofile'"),
        ({"operators": False}, "the window takes nothing"),
        (
            {"operators": False, "functions": "cprofile", "stacks": True},
            "stacks=True needs operators=True",
        ),
        ({"shapes": 1}, "shapes must be True or False, not 1"),
    ],
)
def test_a_bad_window_is_refused_and_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WindowConfig(**settings)


def test_a_window_without_a_length_is_one_step() -> None:
    assert WindowConfig().n_steps == 1
    assert WindowConfig(start_time=1e9).n_steps == 1


def test_every_form_makes_the_same_settings() -> None:
    window = WindowConfig(start_step=100, num_steps=5, functions="cprofile")
    config = ProfilerConfig(system_interval=0.1, windows=(window,))
    text = "system_interval=0.1, start_step=100, num_steps=5, functions=cprofile"
    assert ProfilerConfig.of(text) == config
    assert ProfilerConfig.of(json.loads(json.dumps(config.to_json()))) == config
    assert ProfilerConfig.of(config) is config
    assert not ProfilerConfig.of(False).enabled
    assert ProfilerConfig.of("on") == ProfilerConfig.of(True) == ProfilerConfig()


def test_text_that_is_no_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'of' is not a setting.*'off'"):
        ProfilerConfig.of("of")
    with pytest.raises(ConfigurationError, match="budget appears twice"):
        parse_items("budget=0.1,budget=0.2")
    with pytest.raises(ConfigurationError, match=r"start_stepp.*'start_step'"):
        ProfilerConfig.of("start_stepp=3")
    with pytest.raises(ConfigurationError, match="profiler must be True, False"):
        ProfilerConfig.of(3.5)


def test_a_running_training_changes_some_settings_only() -> None:
    changed = ProfilerConfig().changed({"system_interval": 0.1, "enabled": False})
    assert (changed.system_interval, changed.enabled) == (0.1, False)
    with pytest.raises(ConfigurationError, match="cannot change 'windows'"):
        ProfilerConfig().changed({"windows": []})


def test_an_argument_wins_against_the_variable_and_that_against_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "hook.yaml"
    own.write_text(
        "profiler:\n  system_interval: 0.2\n  python_interval: off\n"
        "  windows: [{start_step: 7}]\n"
    )
    theirs = tmp_path / "profilerconfig.json"
    theirs.write_text('{"ProfilingParameters": {}, "DisableProfiler": true}')
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(theirs))
    assert not resolve({}).profiler.enabled
    monkeypatch.setenv("TDBG_CONFIG", str(own))
    of_file = resolve({}).profiler
    assert of_file == ProfilerConfig(
        system_interval=0.2,
        python_interval=None,
        windows=(WindowConfig(start_step=7),),
    )
    monkeypatch.setenv("TDBG_PROFILER", "system_interval=0.3")
    assert resolve({}).profiler == ProfilerConfig(system_interval=0.3)
    assert resolve({"profiler": True}).profiler == ProfilerConfig()


def test_errors_name_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hook.yaml"
    file.write_text("profiler: {windows: [{start_step: 1, duration: 1.0}]}\n")
    with pytest.raises(
        ConfigurationError, match=r"profiler\.windows\[0\]: a window is given by steps"
    ):
        resolve({}, path=str(file))
    monkeypatch.setenv("TDBG_PROFILER", "system_interval=0.001")
    with pytest.raises(ConfigurationError, match=r"TDBG_PROFILER: system_interval"):
        resolve({})


# ---- smdebug's profilerconfig.json -------------------------------------------


def smdebug(**parameters: Any) -> dict[str, Any]:
    return {"ProfilingParameters": parameters}


def test_what_the_sdk_writes_is_read() -> None:
    document = {
        "S3OutputPath": "s3://bucket/profiles",
        "ProfilingIntervalInMilliseconds": 100,
        "ProfilingParameters": {
            "LocalPath": "/opt/ml/output/profiler",
            "RotateMaxFileSizeInBytes": "10485760",
            "RotateFileCloseIntervalInSeconds": "60",
            "FileOpenFailThreshold": "50",
            "DetailedProfilingConfig": '{"StartStep": 5, "NumSteps": 3}',
            "DataloaderProfilingConfig": '{"StartStep": 7, "MetricsRegex": ".*"}',
            "PythonProfilingConfig": (
                "{'StartStep': 9, 'NumSteps': 2, 'ProfilerName': 'cProfile',"
                " 'cProfileTimer': 'cpu_time'}"
            ),
            "HorovodProfilingConfig": "{}",
        },
    }
    assert read_smdebug_profiler(document, PLACE) == ProfilerConfig(
        system_interval=0.1,
        windows=(
            WindowConfig(start_step=5, num_steps=3),
            WindowConfig(
                start_step=9,
                num_steps=2,
                operators=False,
                functions="cprofile",
                timer="cpu_time",
            ),
        ),
    )


def test_the_case_of_keys_does_not_matter_and_equal_ranges_are_one_window() -> None:
    document = smdebug(
        detailedprofilingconfig="{'startstep': 2}",
        PYTHONPROFILINGCONFIG="{'startstep': 2, 'profilername': 'pyinstrument'}",
    )
    assert read_smdebug_profiler(document, PLACE).windows == (
        WindowConfig(start_step=2, functions="pyinstrument"),
    )


def test_a_window_by_time_is_read() -> None:
    range_ = "{'StartTimeInSecSinceEpoch': 1590461127.5, 'DurationInSeconds': 4}"
    document = smdebug(DetailedProfilingConfig=range_)
    assert read_smdebug_profiler(document, PLACE).windows == (
        WindowConfig(start_time=1590461127.5, duration=4.0),
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (smdebug(LocalPat="x"), "ProfilingParameters: unknown key 'LocalPat'; did you"),
        ({"Profiling": {}}, "unknown key 'Profiling'"),
        (
            smdebug(DetailedProfilingConfig='{"StartStep": 1, "DurationInSeconds": 2}'),
            "DetailedProfilingConfig: a window is given by steps or by time",
        ),
        (
            smdebug(DetailedProfilingConfig="{'Start': 1}"),
            "DetailedProfilingConfig: unknown key 'Start'",
        ),
        (smdebug(DetailedProfilingConfig="[1, 2"), "must be a mapping such as"),
        (smdebug(DetailedProfilingConfig="{" * 3000), "must be a mapping such as"),
        (smdebug(DetailedProfilingConfig="1" * 5000), "at most 4096 characters"),
        (
            smdebug(DetailedProfilingConfig="{'StartStep': 'soon'}"),
            "StartStep: must be a number of at least 0, not 'soon'",
        ),
        (smdebug(FileOpenFailThreshold="-1"), "FileOpenFailThreshold: must be"),
        (
            smdebug(HorovodProfilingConfig="{'StartStep': 13}"),
            "HorovodProfilingConfig: tdbg does not record Horovod",
        ),
        (
            smdebug(PythonProfilingConfig="{'StartStep': 1, 'ProfilerName': 'perf'}"),
            "PythonProfilingConfig: functions: unknown 'perf'",
        ),
        (
            smdebug(DataloaderProfilingConfig="{'MetricsRegex': '('}"),
            "MetricsRegex: '\\(' is no regular expression",
        ),
        ({"DisableProfiler": "perhaps"}, 'DisableProfiler: must be "true" or "false"'),
        ({"ProfilingIntervalInMilliseconds": 10}, "system_interval must be from 0.05"),
    ],
)
def test_what_smdebug_never_checked_is_refused_and_named(
    document: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_smdebug_profiler(document, PLACE)


def test_nothing_in_smdebugs_texts_is_executed(tmp_path: Path) -> None:
    """Sabotaged: `eval` in place of `literal_eval` makes the file."""
    made = tmp_path / "made"
    text = f"{{'StartStep': open({str(made)!r}, 'w').write('x')}}"
    with pytest.raises(ConfigurationError, match="must be a mapping such as"):
        read_smdebug_profiler(smdebug(DetailedProfilingConfig=text), PLACE)
    assert not made.exists()
