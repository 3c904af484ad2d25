"""``tdbg run``: captures a training without a change of its script.

tdbg runs the command as it stands (by ``exec``, or as a child if rules judge the run),
in an environment whose ``PYTHONPATH`` begins with the folder ``site``.  The
``sitecustomize`` in that folder waits until a framework is imported; then ``discovery``
finds the model, the optimizer and the loss as the script uses them, ``fitting`` the
trainings with Keras, ``compiled`` those in JAX, ``gluon`` those with MXNet, and
``boosting`` those of boosted trees.

Every Python process below the command searches, and one that trains nothing leaves no
trace, such as a worker of a data loader.  Ranks of one training share a run; all other
trainings have a run each (``family``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["LAUNCH_VARIABLE", "command_of", "environment_of", "reads_no_environment"]

LAUNCH_VARIABLE = "TDBG_LAUNCH"
_SITE = Path(__file__).parent / "site"


def environment_of(
    settings: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, str]:
    """Make the environment of the command.

    Args:
        settings: The settings that ``discovery`` reads: out_dir, existing, rules, ...
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
        # The program takes the place of this process, or is its child.
        f"{LAUNCH_VARIABLE}_PID": str(os.getpid()),
    }


def command_of(arguments: Sequence[str]) -> list[str]:
    """Put Python before the arguments if they begin with ``-m`` or a plain script."""
    first = arguments[0]
    is_script = first.endswith(".py") and not os.access(first, os.X_OK)
    if first == "-m" or is_script:
        return [sys.executable, *arguments]
    return list(arguments)


def reads_no_environment(arguments: Sequence[str]) -> str | None:
    """The option by which a Python ignores the ``sitecustomize`` of tdbg, or None.

    Example:
        >>> reads_no_environment(["python3", "-I", "train.py"])
        '-I'
    """
    words = [word for word in arguments if not _is_assignment(word)]
    if words and Path(words[0]).name == "env":
        words = words[1:]
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    for word in words[1:]:
        if (
            not word.startswith("-")
            or word.startswith("--")
            or word in {"-", "-c", "-m"}
        ):
            return None
        for letter in word[1:]:
            if letter in "EIS":
                return f"-{letter}"
            if letter in "cmWX":
                break
    return None


def _is_assignment(word: str) -> bool:
    return word.split("=", 1)[0].isidentifier() and "=" in word
