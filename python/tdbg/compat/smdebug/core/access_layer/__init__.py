"""``smdebug.core.access_layer``: files, and the state of a run's directory."""

from __future__ import annotations

import os
from pathlib import Path

from tdbg.compat.smdebug.core.utils import is_s3
from tdbg.compat.smdebug.exceptions import SMDebugNotImplementedError
from tdbg.compat.smdebug.left_out import refuse
from tdbg.errors import NotARun
from tdbg.trial import create_trial

__all__ = [
    "check_dir_exists",
    "file_exists",
    "has_training_ended",
]


def has_training_ended(trial_prefix: str | os.PathLike[str]) -> bool:
    """Return whether a run is there and its training has ended, in order or not."""
    try:
        return create_trial(trial_prefix).loaded_all_steps
    except NotARun:
        return False


def check_dir_exists(path: str | os.PathLike[str]) -> bool:
    """Return whether the directory holds the run of a training that has ended."""
    return has_training_ended(path)


def file_exists(file_path: str | os.PathLike[str]) -> bool:
    """Return whether there is a file, or a directory, at the path.

    Raises:
        SMDebugNotImplementedError: If the path is on S3.
    """
    if is_s3(os.fspath(file_path))[0]:
        msg = f"{file_path}: tdbg looks at this machine only; ask boto3 or fsspec"
        raise SMDebugNotImplementedError(msg)
    return Path(file_path).exists()


__getattr__ = refuse(__name__)
