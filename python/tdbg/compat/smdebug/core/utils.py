"""``smdebug.core.utils``: the small functions that programs import from there."""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.compat.smdebug.core.collection import (
    collections_directory as get_path_to_collections,
)
from tdbg.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError

__all__ = [
    "FRAMEWORK",
    "ensure_dir",
    "flatten",
    "get_immediate_subdirectories",
    "get_path_to_collections",
    "index",
    "is_s3",
    "list_collection_files_in_directory",
    "list_files_in_directory",
    "load_json_as_dict",
    "make_numpy_array",
    "match_inc",
    "merge_two_dicts",
    "remove_file_if_exists",
    "size_and_shape",
    "split",
    "step_in_range",
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
    """Whether one of the expressions is found in a name."""
    return any(re.search(each, tname) for each in include)


def index(sorted_list: Sequence[Any], elem: Any) -> int:
    """Where an element stands in a sorted list.

    Raises:
        SMDebugValueError: If it is not there.
    """
    at = bisect.bisect_left(sorted_list, elem)
    if at == len(sorted_list) or sorted_list[at] != elem:
        msg = f"{elem!r} is not in the list"
        raise SMDebugValueError(msg)
    return at


def step_in_range(range_steps: Sequence[Any], step: int | str) -> bool:
    """Whether a step is in a range; None in the place of a bound: there is none."""
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
    """Whether a path is on S3, its bucket, and what follows the bucket."""
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
    """The names of the directories in a directory."""
    return [each.name for each in Path(a_dir).iterdir() if each.is_dir()]


def list_files_in_directory(
    directory: str | os.PathLike[str], file_regex: str | re.Pattern[str] | None = None
) -> list[str]:
    """The files below a directory; with an expression those whose names begin so."""
    return [
        str(Path(root) / name)
        for root, _, names in os.walk(directory)
        for name in names
        if file_regex is None or re.match(file_regex, name)
    ]


def list_collection_files_in_directory(
    directory: str | os.PathLike[str],
) -> list[str]:
    """The files of collections below a directory."""
    return list_files_in_directory(directory, r".*_?collections\.json$")
