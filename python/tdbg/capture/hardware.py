"""The machine that a worker trains on, as the configuration event of a run has it.

It is asked for once, when a session is opened: two small files of Linux, and what
Python knows.  Names of machines and users are never among it.

Thread safety: pure functions.

Errors: none; what a system does not tell is left out.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["hardware"]

CPU_INFO = Path("/proc/cpuinfo")
# The name of the first core stands at the beginning of the file.
HEAD_BYTES = 4096


def hardware(accelerators: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return facts about the machine, of those that are known.

    Args:
        accelerators: Names of the devices that the framework uses.

    Returns:
        ``system`` and ``machine`` (such as Linux, x86_64), ``cpu`` (its model),
        ``cores`` (those that this process may use), ``memory`` (of the machine, in
        bytes), ``accelerators``.

    Example:
        >>> hardware()["cores"] > 0
        True
    """
    found: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": _cores(),
        "memory": _memory(),
        "accelerators": list(accelerators),
    }
    return {name: value for name, value in found.items() if value}


def _cpu_model() -> str:
    try:
        with CPU_INFO.open(errors="replace") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    for line in head.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
