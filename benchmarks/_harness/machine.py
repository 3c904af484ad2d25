"""Where a figure was measured: without it the figure says little."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "machine", "machine_line"]

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]


def machine(packages: Iterable[str] = ("numpy",)) -> dict[str, Any]:
    """Processor, memory, kernel, load now, and the versions of *packages*."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "kernel": f"{platform.system()} {platform.release()}",
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def machine_line(described: dict[str, Any]) -> str:
    """The same in a line or two."""
    versions = ", ".join(
        f"{k} {v}" for k, v in described["versions"].items() if v != "none"
    )
    return (
        f"{described['cpu']}, {described['cores']} cores, "
        f"{described['memory_gib']} GiB, {described['kernel']}, "
        f"load {described['load']}; Python {described['python']}, {versions}; "
        f"commit {described['commit']}"
    )


def _version(name: str) -> str:
    if name == "tdbg":
        return _tdbg_version()
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _tdbg_version() -> str:
    """Version and kernel of the tdbg that this process would import."""
    try:
        from tdbg import _core
    except ImportError:
        return "none"
    return f"{_core.__version__} ({_core.implementation()})"


def _memory_gib() -> int:
    words = (_field("/proc/meminfo", "MemTotal") or "0 kB").split()
    return round(int(words[0]) / 2**20)


def _field(path: str, name: str) -> str | None:
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _commit() -> str:
    """The checkout's commit, with ``+`` if files differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments],  # noqa: S607 - found on the path
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.strip()
