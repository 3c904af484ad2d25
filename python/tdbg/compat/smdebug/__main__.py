"""Runs a program that imports smdebug, unedited.

    python -m tdbg.compat.smdebug train.py --epochs 3
    python -m tdbg.compat.smdebug -m package.train --epochs 3

The program sees its own arguments and exits with its own status.  Trials that it opens
wait for their runs to begin, as smdebug's do; ``--wait SECONDS`` before the program
sets a limit.
"""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path

from tdbg.compat.smdebug import install
from tdbg.compat.smdebug.trials.trial import wait_for_runs

USAGE = (
    "usage: python -m tdbg.compat.smdebug [--wait SECONDS] {SCRIPT | -m MODULE} "
    "[ARGUMENT ...]"
)


def main(arguments: list[str]) -> None:
    """Run the program that *arguments* name."""
    wait = math.inf
    if arguments[:1] == ["--wait"]:
        try:
            wait = float(arguments[1])
        except (IndexError, ValueError):
            sys.exit(USAGE)
        arguments = arguments[2:]
    is_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if is_module else arguments
    if not rest or (rest[0].startswith("-") and not is_module):
        sys.exit(USAGE)
    install()
    wait_for_runs(wait)
    name = rest[0]
    sys.argv = rest
    if is_module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        if not Path(name).is_file():
            sys.exit(f"{name}: there is no such file; {USAGE}")
        sys.path[0] = str(Path(name).resolve().parent)
        runpy.run_path(name, run_name="__main__")


main(sys.argv[1:])
