"""Runs first in every Python process below ``tdbg run``; see ``tdbg.launch``.

It imports nothing that the interpreter has not loaded already, and waits until torch is
imported, in the processes that may train.  It runs the user's own ``sitecustomize``,
which it hides.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
# Variables with the ids of the first Python process and of a worker of torchrun.  Their
# child processes are left alone.
_FIRST, _WORKER = "TDBG_LAUNCH_FIRST", "TDBG_LAUNCH_WORKER"
# Programs that run the training in another process, as shell scripts do.
_LAUNCHERS = (
    ["accelerate", "launch"],
    ["accelerate-launch"],
    ["-m", "accelerate.commands.launch"],
    ["-m", "accelerate.commands.accelerate_cli", "launch"],
)


def _may_train() -> bool:
    """Whether this is the program that was launched, or a worker of torchrun."""
    environment = os.environ
    if environment.get("TDBG_DISABLED", "0") not in {"", "0"}:
        return False
    is_worker = "TORCHELASTIC_RUN_ID" in environment and "RANK" in environment
    name, own = _WORKER if is_worker else _FIRST, str(os.getpid())
    if environment.get(name, own) != own:
        return False
    words = [os.path.basename(word) for word in sys.orig_argv[1:4]]  # noqa: PTH119
    if any(words[: len(each)] == each for each in _LAUNCHERS):
        return False
    environment[name] = own
    return True


def _watch_torch() -> None:
    """Begin the search as soon as torch is imported."""

    class Finder:
        def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
            if name != "torch":
                return None
            sys.meta_path.remove(self)
            spec = None
            for finder in sys.meta_path:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
            loader = getattr(spec, "loader", None)
            if loader is not None:
                execute = loader.exec_module

                def execute_and_begin(module):  # type: ignore[no-untyped-def]
                    execute(module)
                    _begin()

                loader.exec_module = execute_and_begin
            return spec

    sys.meta_path.insert(0, Finder())


def _begin() -> None:
    try:
        from tdbg.launch.discovery import begin

        begin()
    except Exception as error:  # noqa: BLE001, RUF100 - the script runs as without us
        sys.stderr.write(f"tdbg: nothing is captured: {error!r}\n")


def _chain() -> None:
    """Run the ``sitecustomize`` that would have been found without this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [
        path
        for path in sys.path
        if os.path.abspath(path) != _HERE  # noqa: PTH100
    ]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _may_train():
    _watch_torch()
_chain()
