"""``smdebug.core.access_layer``: the state of a run's directory."""

from __future__ import annotations

import os

from tdbg.errors import NotARun
from tdbg.trial import create_trial

__all__ = [
    "check_dir_exists",
    "has_training_ended",
]


def has_training_ended(trial_prefix: str | os.PathLike[str]) -> bool:
    """Whether a run is there and its training has ended, in order or not."""
    try:
        return create_trial(trial_prefix).loaded_all_steps
    except NotARun:
        return False


def check_dir_exists(path: str | os.PathLike[str]) -> bool:
    """Whether the directory holds the run of a training that has ended."""
    return has_training_ended(path)
