"""A plugin of pytest: a test that leaves something behind for the next ones fails.

What other tests of the same process would meet is compared before and after each test,
once its own fixtures are gone: what those of its module or of the session set up does
not count.  Modules are only looked at where a test has loaded them.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# How long what is about to end may still take.
PATIENCE_SECONDS = 60.0
# Made once for the process, by libraries: what counts semaphores, forks, compiles; and
# what lightning and scikit-learn set when they are imported.
SHARED_VARIABLES = ("PYTEST_CURRENT_TEST", "TRITON_", "PYTORCH_NVML_BASED", "KMP_")
SHARED_VARIABLES += ("TORCHINDUCTOR_", "_TORCHINDUCTOR_")
# Of polars, which CatBoost imports.
SHARED_VARIABLES += ("_RJEM_MALLOC_CONF",)
SHARED_PROCESSES = ("resource_tracker", "forkserver", "compile_worker")
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
SIGNALS += [signal.SIGCHLD, signal.SIGPIPE, signal.SIGQUIT]

State = dict[str, Any]


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """Fails a test after which the process is not as it was."""
    before = state()
    threads, sessions, children = threads_now(), sessions_now(), children_now()
    variables = variables_now()
    yield
    after = state()
    left = [
        f"{name}: {after[name]!r}, before it {was!r}"
        for name, was in before.items()
        if after[name] != was
    ]
    left += [
        f"a variable: {name}={value!r}" for name, value in variables ^ variables_now()
    ]
    left += [f"a thread: {thread}" for thread in still(lambda: threads_now() - threads)]
    left += [
        f"a process: {child}" for child in still(lambda: children_now() - children)
    ]
    left += [
        "a hook that is not closed"
        for _ in still(lambda: sessions_now() - sessions, gc.collect)
    ]
    if left:
        pytest.fail("this test leaves behind\n  " + "\n  ".join(left), pytrace=False)


def still(
    look: Callable[[], set[Any]], help_it: Callable[[], object] = int
) -> set[Any]:
    """What a look finds when it has had time to end."""
    found = look()
    if found:
        help_it()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while found and time.monotonic() < deadline:
        time.sleep(0.005)
        found = look()
    return found


def state() -> State:
    """What is set for the whole process."""
    log = logging.getLogger("tdbg")
    found: State = {
        "the working directory": folder(),
        "sys.argv": list(sys.argv),
        "sys.excepthook, whether it is tdbg's": is_of(sys.excepthook, "tdbg"),
        "threading.excepthook": threading.excepthook,
        "the tracing function": (sys.gettrace(), sys.getprofile()),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), callbacks_now()),
        "handlers of signals": {each.name: signal.getsignal(each) for each in SIGNALS},
        "held signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "the log": (log.level, log.handlers[:], log.propagate, log.disabled),
        "logging.disable": logging.root.manager.disable,
    }
    if "numpy" in sys.modules:
        import numpy as np

        found["numpy's errors"] = np.geterr()
    if "torch" in sys.modules:
        found |= state_of_torch()
    return found


def state_of_torch() -> State:
    """What PyTorch does for all models."""
    import torch
    from torch.nn.modules import module
    from torch.optim import optimizer

    return (
        {
            "torch's default dtype": torch.get_default_dtype(),
            "torch's default device": torch.get_default_device(),
            "torch's gradient mode": torch.is_grad_enabled(),
            "torch's inference mode": torch.is_inference_mode_enabled(),
            "torch's anomaly mode": torch.is_anomaly_enabled(),
            "torch's autocast": torch.is_autocast_enabled("cpu"),
            "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
            "torch's threads": torch.get_num_threads(),
            "torch's process group": torch.distributed.is_available()
            and torch.distributed.is_initialized(),
            "torch's function modes": torch._C._len_torch_function_stack(),
            "torch's dispatch modes": torch._C._len_torch_dispatch_stack(),
        }
        | {
            f"torch's {name}": list(vars(of)[name].values())
            for of in (module, optimizer)
            for name in vars(of)
            if name.startswith("_global_") and name.endswith("_hooks")
        }
        | {
            f"torch's {kind.__name__}.{name}": getattr(kind, name)
            for kind, names in (
                (
                    torch.nn.Module,
                    ("__call__", "__setattr__", "to"),
                ),
                (torch.optim.Optimizer, ("__init__", "step", "zero_grad")),
                (torch.Tensor, ("backward", "__torch_function__")),
                (torch.amp.GradScaler, ("step", "unscale_", "scale", "update")),
            )
            for name in names
            if hasattr(kind, name)
        }
    )


def variables_now() -> set[tuple[str, str]]:
    """The environment, but for what libraries set for the process."""
    return {
        each for each in os.environ.items() if not each[0].startswith(SHARED_VARIABLES)
    }


def is_of(function: Any, package: str) -> bool:
    return function.__module__.partition(".")[0] == package


def callbacks_now() -> list[object]:
    """What is called when garbage is collected, but for Hypothesis's clock."""
    return [each for each in gc.callbacks if not is_of(each, "hypothesis")]


def folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None


def threads_now() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        # Those of a pool end with it, whoever has it; tqdm and fsspec have one for the
        # process, asyncio those that resolve names, and zarr a loop with its own.
        if "ThreadPoolExecutor" not in thread.name
        and type(thread).__name__ != "TMonitor"
        and not thread.name.startswith(("asyncio_", "fsspecIO", "zarr_io"))
    }


def sessions_now() -> set[Any]:
    """Hooks that still capture."""
    process = sys.modules.get("tdbg.capture.process")
    return set() if process is None else {s for s in process._sessions if s.is_live}


def children_now() -> set[str]:
    """Processes that this one has started and that go on, with their commands."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(bytes(1))
                command = b" ".join(words).decode(errors="replace")
                # One that has just begun has no command yet; one that has ended is
                # there until somebody waits for it.
                state = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0]
                is_shared = any(each in command for each in SHARED_PROCESSES)
                if state not in "ZX" and not is_shared:
                    found.add(f"{child} {command}")
    return found
