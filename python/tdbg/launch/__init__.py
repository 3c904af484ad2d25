"""``tdbg run``: captures a training without a change of its script.

tdbg runs the command as it stands (by ``exec``, or as a child if rules judge the run),
in an environment whose ``PYTHONPATH`` begins with the folder ``site``.  The
``sitecustomize`` in that folder waits until torch is imported; then ``discovery`` finds
the model, the optimizer and the loss as the script uses them.

tdbg captures the Python process that was launched, the one that a launched shell script
or ``accelerate launch`` runs, and the workers of ``torchrun``.  It leaves all other
processes alone, such as workers of data loaders and what the script starts.
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
    """Make the environment of the command.

    Args:
        settings: The settings that ``discovery`` reads: out_dir, rules, ...
        environment: The environment of this process.
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
    """Put Python before the arguments if they begin with ``-m`` or a plain script."""
    first = arguments[0]
    is_script = first.endswith(".py") and not os.access(first, os.X_OK)
    if first == "-m" or is_script:
        return [sys.executable, *arguments]
    return list(arguments)
