"""The file of smdebug's profiler: its windows are read, nothing in it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdbg.compat.smdebug.profiler import sagemaker
from tdbg.compat.smdebug.profiler.config import (
    MetricsCategory,
    ProfilerConfigParser,
    get_profiler_config_parser,
    reset_profiler_config_parser,
)
from tdbg.errors import ConfigurationError

DETAILED = MetricsCategory.DETAILED_PROFILING


class File:
    """The file that SMPROFILER_CONFIG_PATH names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **parameters: Any) -> ProfilerConfigParser:
        content = {"ProfilingParameters": {"LocalPath": "/P", **parameters}}
        self.path.write_text(json.dumps(content))
        return ProfilerConfigParser()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    path = tmp_path / "profilerconfig.json"
    monkeypatch.setenv("SMPROFILER_CONFIG_PATH", str(path))
    return File(path)


def test_windows_are_by_steps_or_by_time(file: File) -> None:
    parser = file.write(
        DetailedProfilingConfig="{'StartStep': 3, 'NumSteps': 2}",
        DataloaderProfilingConfig='{"StartTimeInSecSinceEpoch": 100, '
        '"DurationInSeconds": 5, "MetricsRegex": "Loader"}',
    )
    steps = [s for s in range(8) if parser.should_save_metrics(DETAILED, s)]
    assert steps == [3, 4]
    loader = MetricsCategory.DATALOADER_PROFILING
    assert parser.should_save_metrics(loader, 0, "LoaderIter", 104.0)
    assert not parser.should_save_metrics(loader, 0, "Other", 104.0)
    assert not parser.should_save_metrics(loader, 0, "LoaderIter", 105.0)


def test_a_window_without_a_beginning_begins_with_the_first_step(file: File) -> None:
    parser = file.write(DetailedProfilingConfig='{"NumSteps": "2"}')
    assert [parser.should_save_metrics(DETAILED, step) for step in (5, 6, 7)] == [
        True,
        True,
        False,
    ]


def test_a_window_by_steps_and_by_time_is_off_and_says_so(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tdbg")
    parser = file.write(
        DetailedProfilingConfig='{"StartStep": 1, "DurationInSeconds": 2}'
    )
    assert not parser.should_save_metrics(DETAILED, 1)
    assert "detailed profiling has steps and times" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('pathlib').Path('ran').touch()",
        "open('ran', 'w')",
        "[1, 2]",
        "{" * 5000,
        "",
    ],
)
def test_what_a_part_says_is_never_run(
    file: File, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parser = file.write(DetailedProfilingConfig=text)
    assert parser.profiling_enabled
    assert not parser.should_save_metrics(DETAILED, 0)
    assert not (tmp_path / "ran").exists()


def test_values_that_are_none_fall_back_and_switch_their_window_off(file: File) -> None:
    parser = file.write(
        RotateMaxFileSizeInBytes="many",
        DetailedProfilingConfig='{"StartStep": "first"}',
        PythonProfilingConfig='{"StartStep": 2, "ProfilerName": "gdb"}',
        DataloaderProfilingConfig='{"StartStep": 2, "MetricsRegex": "*"}',
    )
    assert parser.config is not None
    assert parser.config.trace_file.rotation_policy.file_max_size == 10485760
    assert not any(parser.should_save_metrics(part, 2) for part in MetricsCategory)
    assert not parser.is_python_profiling_enabled()
    message = parser.config.python_profiling_config.error_message
    assert message is not None
    assert "neither cprofile nor pyinstrument" in message


def test_the_file_is_read_again_when_it_has_changed(file: File) -> None:
    parser = file.write(DetailedProfilingConfig='{"NumSteps": 1}')
    assert parser.should_save_metrics(DETAILED, 4)
    parser.load_config()
    assert not parser.should_save_metrics(DETAILED, 5)
    file.write(DetailedProfilingConfig='{"StartStep": 9}')
    parser.load_config()
    assert parser.should_save_metrics(DETAILED, 9)
    file.path.write_text('{"DisableProfiler": true}')
    parser.load_config()
    assert not parser.profiling_enabled


@pytest.mark.parametrize("text", ["{1, 2}", "[]", "{}", '{"ProfilingParameters": 1}'])
def test_a_file_that_asks_for_nothing_leaves_the_profiler_off(
    file: File, text: str
) -> None:
    file.path.write_text(text)
    assert not ProfilerConfigParser().profiling_enabled


def test_a_process_has_one_parser(file: File) -> None:
    file.write()
    reset_profiler_config_parser()
    assert get_profiler_config_parser() is get_profiler_config_parser()
    reset_profiler_config_parser()


# --- The classes of SageMaker's SDK --------------------------------------------


def test_the_sdks_classes_are_what_a_hook_takes() -> None:
    asked = sagemaker.ProfilerConfig(
        system_monitor_interval_millis=100,
        framework_profile_params=sagemaker.FrameworkProfile(start_step=2, num_steps=7),
    )
    settings = asked.to_tdbg()
    assert settings.system_interval == 0.1
    (window,) = settings.windows
    assert (window.start_step, window.num_steps) == (2, 7)
    assert window.operators
    assert (window.functions, window.timer) == ("cprofile", "total_time")


def test_without_steps_the_sdk_takes_its_default_steps() -> None:
    profile = sagemaker.FrameworkProfile()
    settings = sagemaker.ProfilerConfig(framework_profile_params=profile).to_tdbg()
    starts = [(w.start_step, w.num_steps, w.operators) for w in settings.windows]
    assert starts == [(5, 1, True), (9, 3, False)]
    assert sagemaker.ProfilerConfig().to_tdbg().windows == ()
    assert not sagemaker.ProfilerConfig(disable_profiler=True).to_tdbg().enabled


def test_single_windows_have_times_and_profilers_of_their_own() -> None:
    python = sagemaker.PythonProfilingConfig(
        start_unix_time=1.8e9,
        duration=3,
        python_profiler=sagemaker.PythonProfiler.PYINSTRUMENT,
    )
    profile = sagemaker.FrameworkProfile(python_profiling_config=python)
    (window,) = (
        sagemaker.ProfilerConfig(framework_profile_params=profile).to_tdbg().windows
    )
    assert (window.start_time, window.duration) == (1.8e9, 3)
    assert window.functions == "pyinstrument"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: sagemaker.DetailedProfilingConfig(start_step=1, duration=2),
            "not both",
        ),
        (
            lambda: sagemaker.FrameworkProfile(
                start_step=1,
                detailed_profiling_config=sagemaker.DetailedProfilingConfig(),
            ),
            "give one window for all, or DetailedProfilingConfig",
        ),
        (
            lambda: sagemaker.ProfilerConfig(system_monitor_interval_millis=10),
            r"system_interval must be from 0\.05",
        ),
        (
            lambda: sagemaker.ProfilerConfig(
                framework_profile_params=sagemaker.FrameworkProfile(
                    horovod_profiling_config=sagemaker.HorovodProfilingConfig()
                )
            ),
            "does not record Horovod's timeline",
        ),
    ],
)
def test_what_the_sdk_cannot_have_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_the_sdks_json_is_the_file_that_is_read(file: File) -> None:
    profile = sagemaker.FrameworkProfile(start_step=3, num_steps=2)
    asked = sagemaker.ProfilerConfig(framework_profile_params=profile)
    file.path.write_text(json.dumps(asked.to_json()))
    parser = ProfilerConfigParser()
    assert [s for s in range(8) if parser.should_save_metrics(DETAILED, s)] == [3, 4]
