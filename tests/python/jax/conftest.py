"""Four virtual devices, and runs that are read back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before jax is loaded: it reads the variable once.
if "jax" not in sys.modules:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make a hook, which is closed in any case."""
    import tdbg.jax as tj

    made: list[Any] = []

    def make(**settings: Any) -> Any:
        settings = {"min_free_bytes": 0, **settings}
        made.append(tj.Hook(tmp_path / f"run{len(made)}", **settings))
        return made[-1]

    yield make
    for hook in made:
        hook.close()
    tj.del_hook()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """Read the run of a hook that is closed first."""
    from tdbg.trial import create_trial

    def open_run(hook: Any, number: int = 0) -> Any:
        hook.close(timeout=60)
        assert hook.counters()["internal_errors"] == 0
        return create_trial(str(tmp_path / f"run{number}"))

    return open_run
