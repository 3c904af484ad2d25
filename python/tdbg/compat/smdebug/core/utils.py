"""``smdebug.core.utils``: the small functions that programs import from there.

And those of ``hook_utils``, ``sagemaker_utils`` and ``config_validator``.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.ranks import launched_rank
from tdbg.compat.smdebug.core.collection import (
    collections_directory as get_path_to_collections,
)
from tdbg.compat.smdebug.exceptions import (
    SMDebugNotImplementedError,
    SMDebugRuntimeError,
    SMDebugTypeError,
    SMDebugValueError,
)
from tdbg.compat.smdebug.left_out import refuse

__all__ = [
    "FRAMEWORK",
    "ConfigValidator",
    "SupportedFrameworks",
    "ensure_dir",
    "flatten",
    "get_config_validator",
    "get_distributed_worker",
    "get_immediate_subdirectories",
    "get_path_to_collections",
    "get_region",
    "get_tensorboard_dir",
    "index",
    "is_framework_version_supported",
    "is_s3",
    "is_sagemaker_job",
    "is_switched_on",
    "list_collection_files_in_directory",
    "list_files_in_directory",
    "load_json_as_dict",
    "make_numpy_array",
    "match_inc",
    "merge_two_dicts",
    "remove_file_if_exists",
    "reset_config_validator",
    "size_and_shape",
    "split",
    "step_in_range",
    "validate_custom_tensor_value",
    "verify_and_get_out_dir",
]


class FRAMEWORK(Enum):
    """The frameworks that smdebug knows."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    MXNET = "mxnet"
    XGBOOST = "xgboost"


def flatten(lis: Iterable[Any]) -> list[Any]:
    """Flatten a list of values and lists of any depth."""
    found: list[Any] = []
    for item in lis:
        found += flatten(item) if isinstance(item, list) else [item]
    return found


def split(comma_separated_string: str) -> list[str]:
    """Split a text at its commas, without the spaces around the items."""
    return [item.strip() for item in comma_separated_string.split(",")]


def merge_two_dicts(x: Mapping[Any, Any], y: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return both mappings as one; of a key of both *y* has the value."""
    return {**x, **y}


def match_inc(tname: str, include: Iterable[str]) -> bool:
    """Return whether one of the expressions is found in a name."""
    return any(re.search(each, tname) for each in include)


def index(sorted_list: Sequence[Any], elem: Any) -> int:
    """Return the index of an element in a sorted list.

    Raises:
        SMDebugValueError: If it is not there.
    """
    at = bisect.bisect_left(sorted_list, elem)
    if at == len(sorted_list) or sorted_list[at] != elem:
        msg = f"{elem!r} is not in the list"
        raise SMDebugValueError(msg)
    return at


def step_in_range(range_steps: Sequence[Any], step: int | str) -> bool:
    """Return whether a step is in a range, whose bounds may be None."""
    first, end = range_steps
    at = int(step)
    return (first is None or at >= int(first)) and (end is None or at < int(end))


def make_numpy_array(x: Any) -> NDArray[Any]:
    """Make an array of a number, a sequence or an array.

    Raises:
        SMDebugTypeError: If *x* is none of these.
    """
    if isinstance(x, np.ndarray):
        return x
    if np.isscalar(x):
        return np.array([x])
    if isinstance(x, tuple | list | dict):
        return np.array(x)
    msg = f"no array can be made of {type(x)}"
    raise SMDebugTypeError(msg)


def size_and_shape(t: Any) -> tuple[int, Any]:
    """Size in bytes, and shape, of an array or a text."""
    if isinstance(t, bytes | str):
        return len(t), [len(t)]
    return t.nbytes, t.shape


def load_json_as_dict(s: object) -> Any:
    """Parse a text of JSON; a mapping is returned as it is, None and "None" as None.

    Raises:
        SMDebugValueError: If *s* is none of these.
    """
    if s is None or s == "None":
        return None
    if isinstance(s, str):
        return json.loads(s)
    if isinstance(s, dict):
        return s
    msg = f"expected the text of JSON or a mapping, not {s!r}"
    raise SMDebugValueError(msg)


def is_s3(path: str) -> tuple[bool, str | None, str | None]:
    """Return whether a path is on S3, its bucket, and what follows the bucket."""
    if not path.startswith("s3://"):
        return False, None, None
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return True, bucket, key


def ensure_dir(file_path: str | os.PathLike[str], is_file: bool = True) -> None:
    """Make the directory of a file, or the directory itself."""
    path = Path(file_path)
    (path.parent if is_file else path).mkdir(parents=True, exist_ok=True)


def remove_file_if_exists(file_path: str | os.PathLike[str]) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        Path(file_path).unlink()


def get_immediate_subdirectories(a_dir: str | os.PathLike[str]) -> list[str]:
    """Return the names of the directories in a directory."""
    return [each.name for each in Path(a_dir).iterdir() if each.is_dir()]


def list_files_in_directory(
    directory: str | os.PathLike[str], file_regex: str | re.Pattern[str] | None = None
) -> list[str]:
    """Return the files below a directory whose names match, or all files."""
    return [
        str(Path(root) / name)
        for root, _, names in os.walk(directory)
        for name in names
        if file_regex is None or re.match(file_regex, name)
    ]


def list_collection_files_in_directory(
    directory: str | os.PathLike[str],
) -> list[str]:
    """Return the files of collections below a directory."""
    return list_files_in_directory(directory, r".*_?collections\.json$")


def validate_custom_tensor_value(
    tensor_value: object, make_numpy_fn: Callable[[Any], Any]
) -> bool:
    """Return whether *make_numpy_fn* takes the value without a TypeError."""
    try:
        make_numpy_fn(tensor_value)
    except TypeError:
        return False
    return True


def get_region() -> str | None:
    """Return the region that ``AWS_REGION`` names, or None."""
    return os.environ.get("AWS_REGION", "").strip() or None


def is_sagemaker_job() -> bool:
    """Return whether this is a job of SageMaker, which sets ``TRAINING_JOB_NAME``."""
    return "TRAINING_JOB_NAME" in os.environ


def get_distributed_worker() -> int | None:
    """Return the rank of this process, or None where it trains alone."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        rank: int = distributed.get_rank()
        return rank
    rank, size = launched_rank(os.environ)
    return rank if size > 1 else None


# ---- hook_utils ------------------------------------------------------------------


def verify_and_get_out_dir(out_dir: str | os.PathLike[str] | None) -> str:
    """Return the directory of a run, with ``~`` replaced.

    A run that has ended is no error: a second training into it is a new attempt.

    Raises:
        SMDebugRuntimeError: If there is none.
    """
    if out_dir is None:
        msg = "out_dir is a required argument: the directory of the run"
        raise SMDebugRuntimeError(msg)
    return os.path.expanduser(os.fspath(out_dir))  # noqa: PTH111 - text


def get_tensorboard_dir(
    export_tensorboard: bool,
    tensorboard_dir: str | None,
    out_dir: str | os.PathLike[str],
) -> str | None:
    """Return the directory of TensorBoard's files; None: do not write any.

    Naming one switches the export on; without a name they are inside *out_dir*.
    """
    if tensorboard_dir:
        return os.path.expanduser(tensorboard_dir)  # noqa: PTH111 - text
    if export_tensorboard:
        return os.path.join(out_dir, "tensorboard")  # noqa: PTH118 - text
    return None


# ---- config_validator ------------------------------------------------------------

SupportedFrameworks = list(FRAMEWORK)
_OFF = {"0", "f", "false", "n", "no", "off"}


def is_switched_on() -> bool:
    """Return whether to make hooks: False if ``USE_SMDEBUG`` says no."""
    return os.environ.get("USE_SMDEBUG", "").strip().lower() not in _OFF


def is_framework_version_supported(framework_type: FRAMEWORK) -> bool:
    """Return whether tdbg captures this framework: only PyTorch is.

    Raises:
        SMDebugNotImplementedError: If *framework_type* is not a framework.
    """
    if framework_type not in SupportedFrameworks:
        msg = f"{framework_type!r} is not a framework: use FRAMEWORK.PYTORCH"
        raise SMDebugNotImplementedError(msg)
    return framework_type is FRAMEWORK.PYTORCH


class ConfigValidator:
    """Says whether a training is to have a hook."""

    def __init__(self, framework_type: FRAMEWORK) -> None:
        self._framework = framework_type

    def validate_training_job(self) -> bool:
        """Return whether ``USE_SMDEBUG`` and the framework allow a hook."""
        return is_switched_on() and is_framework_version_supported(self._framework)


_validators: list[ConfigValidator] = []  # At most one.


def get_config_validator(framework: FRAMEWORK) -> ConfigValidator:
    """Return the validator of the process, made for *framework* at the first call."""
    if not _validators:
        _validators.append(ConfigValidator(framework))
    return _validators[0]


def reset_config_validator() -> None:
    """Forget the validator of the process."""
    _validators.clear()


__getattr__ = refuse(__name__)
