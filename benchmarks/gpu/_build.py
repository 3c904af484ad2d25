"""Builds tdbg in place, without a network.

pybind11, CMake and ninja come from the Python that runs this, or from the path.
zstd, which must be on the machine, is the first of

- the static archive inside the `blosc2` wheel, if that is installed,
- a static system zstd that can go into a shared object,
- the system's shared libzstd.so.1, which Debian and its like have for dpkg.

The first two are found by cmake/TdbgZstd.cmake; the third is handed to it.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from benchmarks._harness.machine import ROOT

__all__ = ["BUILD", "build", "environment"]

BUILD = ROOT / "build" / "gpu"
_NEEDED = ("pybind11", "numpy", "ml_dtypes", "torch", "click", "rich")


def build(jobs: int, with_cuda: bool, seconds: float) -> str:
    """Configure, compile, and put the module where it is imported from.

    Args:
        jobs: Compilers at once.
        with_cuda: Whether it fails without the kernels.
        seconds: For all of it.

    Returns:
        What was found, in a line.

    Raises:
        RuntimeError: If something is missing, with its name.
        subprocess.CalledProcessError: If CMake or the compiler fails.
        subprocess.TimeoutExpired: If it takes longer.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if missing or not cmake or not ninja:
        missing += [n for n, path in (("cmake", cmake), ("ninja", ninja)) if not path]
        msg = f"{sys.executable} lacks {', '.join(missing)}"
        raise RuntimeError(msg)
    zstd = _zstd()
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    arguments = [
        *("-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DTDBG_BUILD_PYTHON=ON",
        "-DTDBG_BUILD_TESTS=OFF",
        f"-DTDBG_CUDA={'ON' if with_cuda else 'AUTO'}",
        *([f"-DTDBG_ZSTD_ARCHIVE={zstd}"] if zstd else []),
    ]
    settings = dict(os.environ)
    if nvcc:  # Where cmake/TdbgCuda.cmake looks.
        settings.setdefault("CUDA_HOME", str(Path(nvcc).parent.parent))
    end = time.monotonic() + seconds
    compiling = ["--build", str(BUILD), f"-j{jobs}", "--target", "_core"]
    for each in (arguments, compiling):
        left = max(1.0, end - time.monotonic())
        subprocess.run([str(cmake), *each], check=True, timeout=left, env=settings)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (module,) = (BUILD / "cpp" / "bindings").glob(f"_core*{suffix}")
    shutil.copy2(module, ROOT / "python" / "tdbg" / module.name)
    return f"zstd: {zstd or 'found by CMake'}; nvcc: {nvcc or 'none'}"


def environment() -> dict[str, str]:
    """For programs of this checkout, with the module that was built."""
    paths = [ROOT, ROOT / "python", ROOT / "tests" / "python"]
    earlier = os.environ.get("PYTHONPATH")
    every = [*map(str, paths), *([earlier] if earlier else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(every)}


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def _zstd() -> str | None:
    """The shared library, where CMake would find nothing better; else None."""
    if importlib.util.find_spec("blosc2") is not None:
        return None
    # Not every machine has what find_library asks (ldconfig, a compiler).
    name = ctypes.util.find_library("zstd") or "libzstd.so.1"
    folders = [sysconfig.get_config_var("LIBDIR"), "/lib", "/usr/lib"]
    for machine in (sysconfig.get_config_var("MULTIARCH"), _machine_folder()):
        folders += [f"/lib/{machine}", f"/usr/lib/{machine}"]
    folders += ["/lib64", "/usr/lib64", "/usr/local/lib"]
    for folder in filter(None, folders):
        path = Path(folder) / name
        if path.exists():
            return str(path)
    return None


def _machine_folder() -> str:
    """Where Debian and its like put libraries, whatever Python says."""
    return f"{platform.machine()}-linux-gnu"
