"""The kernels in the build: which compiler is taken, what is said, what is made."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tdbg import _core

Configure = Callable[[str, str | None], tuple[int, str]]

SCRIPT = """
cmake_minimum_required(VERSION 3.22)
set(CMAKE_IGNORE_PATH /usr/bin /bin /usr/local/bin /usr/local/cuda/bin {ignored})
set(CMAKE_CXX_COMPILER c++)
set(PROJECT_BINARY_DIR "{folder}")
include("{module}")
set(TDBG_CUDA {requested})
tdbg_add_cuda_kernels(nothing)
"""


@pytest.fixture
def configure(repository: Path, tmp_path: Path) -> Configure:
    """Runs what decides about the kernels, where nvcc is this script or none."""
    cmake = shutil.which("cmake")
    assert cmake is not None, "cmake is a tool for building"
    found = shutil.which("nvcc")

    def run(requested: str, nvcc: str | None) -> tuple[int, str]:
        toolkit = tmp_path / "toolkit"
        if nvcc is not None:
            program = toolkit / "bin" / "nvcc"
            program.parent.mkdir(parents=True)
            program.write_text(f"#!/bin/sh\n{nvcc}\n")
            program.chmod(0o755)
        script = tmp_path / "probe.cmake"
        script.write_text(
            SCRIPT.format(
                folder=tmp_path,
                module=repository / "cmake" / "TdbgCuda.cmake",
                requested=requested,
                ignored="" if found is None else Path(found).parent,
            )
        )
        done = subprocess.run(
            [cmake, "-P", str(script)],
            env={"PATH": "/usr/bin:/bin", "CUDA_HOME": str(toolkit)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


def release(version: str) -> str:
    return f"echo 'Cuda compilation tools, release {version}, V{version}.1'"


MISSING = {
    "none": (None, "no nvcc was found"),
    "broken": ("exit 1", "nvcc does not run"),
    "old": (release("11.8"), "nvcc is older than CUDA 12"),
    "of another compiler": (
        f'test "$1" = --version || exit 1; {release("12.4")}',
        "nvcc does not work with c++",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_build_without_kernels_passes_and_says_why(
    configure: Configure, case: str
) -> None:
    nvcc, reason = MISSING[case]
    status, said = configure("AUTO", nvcc)
    assert status == 0, said
    assert "CUDA kernels: none, for " in said
    assert reason in said


@pytest.mark.parametrize("case", MISSING)
def test_kernels_that_were_asked_for_and_cannot_be_are_an_error(
    configure: Configure, case: str
) -> None:
    nvcc, reason = MISSING[case]
    status, said = configure("ON", nvcc)
    assert status != 0
    assert "TDBG_CUDA=ON, but " in said
    assert reason in said
    assert "Install the CUDA toolkit (12 or later) or set CUDA_HOME" in said


def test_off_looks_for_nothing(configure: Configure) -> None:
    status, said = configure("OFF", release("13.0"))
    assert status == 0
    assert "none, for TDBG_CUDA=OFF" in said


def images(module: bytes) -> list[tuple[str, int]]:
    """Kind and architecture of what is in the module's fatbin."""
    (begin,) = (found.start() for found in re.finditer(b"\x50\xed\x55\xba", module))
    header, size = struct.unpack_from("<6xHQ", module, begin)
    at, end = begin + header, begin + header + size
    found = []
    while at < end:
        kind, header, size, architecture = struct.unpack_from("<H2xIQ12xI", module, at)
        found.append(({1: "PTX", 2: "ELF"}[kind], architecture))
        at += header + size
    return sorted(found)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_module_has_kernels_for_each_target(repository: Path) -> None:
    built = list((repository / "build" / "cuda").rglob("_core.*.so"))
    if not built:
        pytest.skip("kernels are compiled by `make test-cuda`")
    (module,) = built
    assert images(module.read_bytes()) == [("ELF", 80), ("ELF", 90), ("PTX", 90)]


def test_nobody_who_does_not_ask_waits_for_nvcc(configure: Configure) -> None:
    status, said = configure("${TDBG_CUDA}", release("13.0"))
    assert status == 0
    assert "none, for TDBG_CUDA=OFF" in said


def test_the_module_needs_no_library_of_cuda() -> None:
    program = "import tdbg._core; print(open('/proc/self/maps').read())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "_core" in done.stdout
    assert "libcuda" not in done.stdout
    assert b"libcudart" not in Path(_core.__file__).read_bytes()
