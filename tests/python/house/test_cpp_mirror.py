"""Every C++ header has a test of its name in tests/cpp, or a reason to have none."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

# Headers without a test of their own -> the tests that run them.  A name in tests/cpp
# unless it says where it is.
COVERED = {
    # Declarations, constants and wrappers without a decision in them.
    "base/clock.h": "process_test.cc",
    "base/host_device.h": "cuda_statistics_test.cc",
    "base/mutex.h": "record_queue_test.cc",
    "capture/capture_item.h": "capture_test.cc",
    "format/names.h": "writer_test.cc",
    "reader/problem.h": "damage_test.cc",
    "reader/tables.h": "run_reader_test.cc",
    "tensor/dtype.h": "tensor_view_test.cc",
    "writer/completion.h": "writer_completion_test.cc",
    # Parts of one concept, tested through its face.
    "base/huge_memory.h": "staging_test.cc",
    "capture/captured_view.h": "capture_test.cc",
    "capture/device_results.h": "device_capture_test.cc",
    "capture/staging_lock.h": "device_memory_test.cc",
    "capture/unit_summary_spec.h": "capture_test.cc",
    "format/frames.h": "plane_codec_test.cc",
    "format/index_builder.h": "index_test.cc",
    "format/index_file.h": "format_test.cc",
    "format/index_tables.h": "index_test.cc",
    "format/plane_kernels.h": "plane_codec_test.cc",
    "format/sample.h": "plane_codec_test.cc",
    "reader/commit_reader.h": "reader_cache_test.cc",
    "reader/definitions.h": "run_reader_test.cc",
    "reader/envelope_reader.h": "envelope_test.cc",
    "reader/expected_reads.h": "remote_files_test.cc",
    "reader/index_comparison.h": "index_reader_test.cc",
    "reader/input_file.h": "reader_attack_test.cc",
    "reader/liveness.h": "reader_cache_test.cc",
    "reader/local_*.h": "directory_test.cc",
    "reader/mapped_file.h": "reader_cache_test.cc",
    "reader/run_files.h": "run_reader_test.cc",
    "reader/saved_steps.h": "run_reader_test.cc",
    "reader/shard*.h": "damage_test.cc",
    "reader/step_range.h": "run_reader_test.cc",
    "reader/value_buffer.h": "tensor_values_test.cc",
    "sampler/gpus.h": "sampler_gpus_test.cc",
    "sampler/machine_*.h": "system_sampler_test.cc",
    "sampler/node_file.h": "sampler_fork_test.cc",
    "sampler/pacer.h": "sampler_threads_test.cc",
    "sampler/profile_rows.h": "sampler_threads_test.cc",
    "sampler/row_sink.h": "sampler_threads_test.cc",
    "sampler/sampling_threads.h": "sampler_threads_test.cc",
    "sampler/sources.h": "system_sampler_test.cc",
    "sampler/training_processes.h": "system_sampler_test.cc",
    **dict.fromkeys(
        (
            "sampler/devices.h",
            "sampler/host_memory.h",
            "sampler/kernel_file.h",
            "sampler/package_energy.h",
            "sampler/process_files.h",
            "sampler/processors.h",
            "sampler/text.h",
        ),
        "sampler_sources_test.cc",
    ),
    "tensor/extremes-inl.h": "summary_test.cc",
    "writer/commit_writer.h": "writer_live_test.cc",
    "writer/definition_table.h": "writer_limits_test.cc",
    "writer/index_writer.h": "index_reader_test.cc",
    "writer/previous_values.h": "tensor_encoder_test.cc",
    "writer/retention_options.h": "retention_test.cc",
    "writer/sealed_shard.h": "retention_test.cc",
    "writer/shard_copy.h": "retention_test.cc",
    "writer/shard_log.h": "writer_fault_test.cc",
    "writer/writer_directory.h": "writer_fork_test.cc",
    "writer/writer_state.h": "writer_test.cc",
    "writer/writer_thread.h": "writer_live_test.cc",
    # The statistics pass: every implementation is run against the same reference.
    "reducers/bin*.h": "histogram_test.cc",
    "reducers/unit_kernels*.h": "unit_counts_test.cc",
    "reducers/byte_values.h": "unit_counts_test.cc",
    "reducers/segments.h": "reduce_threads_test.cc",
    "reducers/*-inl.h": "reduce_test.cc",
    "reducers/element_walk.h": "reduce_test.cc",
    "reducers/finish.h": "reduce_hard_cases_test.cc",
    "reducers/flush_to_zero.h": "reduce_hard_cases_test.cc",
    "reducers/implementation.h": "reduce_test.cc",
    "reducers/moments.h": "reduce_test.cc",
    # Kernels run in the emulator, what starts them against a driver made for tests.
    "reducers/cuda/bins-inl.h": "cuda_counts_test.cc",
    "reducers/cuda/units-inl.h": "cuda_counts_test.cc",
    "reducers/cuda/*-inl.h": "cuda_statistics_test.cc",
    "reducers/cuda/device_rows.h": "cuda_statistics_test.cc",
    "reducers/cuda/kernel_abi.h": "cuda_table_test.cc",
    "reducers/cuda/device*.h": "device_memory_test.cc",
    "reducers/cuda/driver.h": "device_driver_test.cc",
    "reducers/cuda/entries.h": "device_engine_test.cc",
    "reducers/cuda/fatbin.h": "device_driver_test.cc",
    "reducers/cuda/result_ring.h": "device_memory_test.cc",
    "reducers/cuda/scratch.h": "device_memory_test.cc",
    "reducers/cuda/table_cache.h": "device_memory_test.cc",
    # What sees Python is tested from Python.
    "python_capture/tensor_shard.h": "tests/python/core/test_round_trip.py",
    "python_capture/gil.h": "tests/python/core/test_exit.py",
    "python_capture/*.h": "tests/python/pytorch/test_quick.py",
    "bindings/*.h": "tests/python/core/test_tables.py",
}


def has_own_test(header: str, tests: Path) -> bool:
    """Whether ``<name>_test.cc`` is there; ``-inl`` belongs to the name before it."""
    return (tests / f"{Path(header).stem.removesuffix('-inl')}_test.cc").is_file()


def uncovered(cpp: Path, tests: Path) -> list[str]:
    """Return the headers under *cpp* that nothing is said to test."""
    headers = [path.relative_to(cpp).as_posix() for path in sorted(cpp.rglob("*.h"))]
    return [
        header
        for header in headers
        if not has_own_test(header, tests)
        and not any(fnmatch(header, pattern) for pattern in COVERED)
    ]


def test_every_header_has_a_test(repository: Path) -> None:
    assert uncovered(repository / "cpp", repository / "tests" / "cpp") == []


@pytest.mark.parametrize("pattern", sorted(COVERED))
def test_an_exception_is_needed_and_its_test_is_there(
    repository: Path, pattern: str
) -> None:
    test = COVERED[pattern]
    assert (repository / ("" if "/" in test else "tests/cpp") / test).is_file()
    cpp, tests = repository / "cpp", repository / "tests" / "cpp"
    found = [path.relative_to(cpp).as_posix() for path in cpp.rglob("*.h")]
    matching = [header for header in found if fnmatch(header, pattern)]
    assert any(not has_own_test(header, tests) for header in matching)


def test_a_header_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "cpp" / "writer").mkdir(parents=True)
    (tmp_path / "cpp" / "writer" / "new.h").write_text("#pragma once\n")
    (tmp_path / "tests").mkdir()
    assert uncovered(tmp_path / "cpp", tmp_path / "tests") == ["writer/new.h"]
    (tmp_path / "tests" / "new_test.cc").write_text("")
    assert uncovered(tmp_path / "cpp", tmp_path / "tests") == []
