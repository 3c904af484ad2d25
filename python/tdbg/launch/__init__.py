"""``tdbg run``: a training is captured without a change of its script.

The command is run as it stands (``exec``, or as a child while rules judge what it
writes), in an environment whose ``PYTHONPATH`` begins with the folder ``site``: its
``sitecustomize`` waits for torch to be imported, and ``discovery`` then finds the
model, the optimizer and the loss as they are used.

Processes that are captured: the Python that was launched, the one that launched shell
scripts or ``accelerate launch`` run, and the workers of ``torchrun``.  All others
(workers of data loaders, whatever the script starts) are left alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["LAUNCH_VARIABLE", "command_of", "environment_of"]

LAUNCH_VARIABLE = "TDBG_LAUNCH"
_SITE = Path(__file__).parent / "site"


def environment_of(
    settings: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the command.

    Args:
        settings: What ``discovery`` reads: out_dir, rules, ...
        environment: That of this process.
    """
    path = environment.get("PYTHONPATH")
    result = {
        name: value
        for name, value in environment.items()
        if not name.startswith("TDBG_LAUNCH")
    }
    return {
        **result,
        "PYTHONPATH": str(_SITE) + (os.pathsep + path if path else ""),
        LAUNCH_VARIABLE: json.dumps(settings),
    }


def command_of(arguments: Sequence[str]) -> list[str]:
    """What to run: as given, with Python before ``-m`` and before plain scripts."""
    first = arguments[0]
    is_script = first.endswith(".py") and not os.access(first, os.X_OK)
    if first == "-m" or is_script:
        return [sys.executable, *arguments]
    return list(arguments)
