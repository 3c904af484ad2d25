"""Index files: which tensors a worker saved at a step, and where they are.

Thread safety: values and pure functions.

Errors: ``Damage``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tdbg.importers.smdebug.damage import Damage
from tdbg.importers.smdebug.files import OpenFile
from tdbg.modes import ModeKeys
from tdbg.run.json_values import is_integer, list_of, load_json, mapping_of

__all__ = [
    "Index",
    "StoredAt",
    "event_file",
    "index_file",
    "load",
    "parse",
    "step_and_worker",
]

# An index of a million tensors has less.
MAX_JSON_BYTES = 256 << 20
_NAME = re.compile(r"(\d{1,18})_(.+)\.json")


_PAYLOADS = {"meta", "tensor_payload"}
_KEYS = {*_PAYLOADS, "shape_payload"}


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where a tensor is in an event file, in bytes."""

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Index:
    """What an index file says.

    Attributes:
        mode: The mode of the step.
        mode_step: Its number in that mode.
        places: The tensors, in the order in which they were saved.
        shapes: Shapes by name, of tensors whose shapes were asked for.
        originals: The framework's names by smdebug's, where they differ.
    """

    mode: ModeKeys
    mode_step: int
    places: tuple[StoredAt, ...]
    shapes: dict[str, tuple[int, ...]]
    originals: dict[str, str]


def index_file(step: int, worker: str) -> str:
    """Return where the index of a step is, in the output directory."""
    return f"index/{step // 1000:09d}/{step:012d}_{worker}.json"


def event_file(step: int, worker: str) -> str:
    """Return where the tensors of a step are, in the output directory."""
    return f"events/{step:012d}/{step:012d}_{worker}.tfevents"


def step_and_worker(name: str) -> tuple[int, str] | None:
    """Return what an index file is of, by its name; None if it is no index file."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def load(file: OpenFile) -> Any:
    """Return the JSON that a file holds."""
    if file.size > MAX_JSON_BYTES:
        msg = f"it has {file.size} bytes, more than {MAX_JSON_BYTES}"
        raise Damage(msg)
    try:
        return load_json(file.read(0, file.size))
    except (ValueError, RecursionError) as error:
        msg = f"it is no JSON: {error}"
        raise Damage(msg) from error


def parse(document: Any, event_file: str) -> Index:
    """Understand an index.

    Args:
        document: What the file holds.
        event_file: Where its tensors are; it must say so too.
    """
    content = mapping_of(document)
    # A key that is misspelt would hide what it is of.
    if not _PAYLOADS <= content.keys() <= _KEYS:
        msg = f"it has the keys {sorted(content)!r:.200}"
        raise Damage(msg)
    meta = mapping_of(content.get("meta"))
    mode, mode_step = meta.get("mode"), meta.get("mode_step")
    if not isinstance(mode, str) or mode.strip() not in ModeKeys.__members__:
        msg = f"it names no mode but {str(mode)[:40]!r}"
        raise Damage(msg)
    if not is_integer(mode_step) or mode_step < 0:
        msg = f"it has the mode step {str(mode_step)[:40]!r}"
        raise Damage(msg)
    places = tuple(_place(each) for each in list_of(content.get("tensor_payload")))
    if places and meta.get("event_file_name") != event_file:
        msg = f"it is of the file {str(meta.get('event_file_name'))[:200]!r}"
        raise Damage(msg)
    shapes = [_shape(each) for each in list_of(content.get("shape_payload"))]
    return Index(
        mode=ModeKeys[mode.strip()],
        mode_step=mode_step,
        # smdebug may save a tensor twice in a step; its own trial takes the last one.
        places=tuple({place.name: place for place in places}.values()),
        shapes={name: shape for name, _, shape in shapes},
        originals={name: original for name, original, _ in shapes if original != name},
    )


def _place(entry: Any) -> StoredAt:
    fields = mapping_of(entry)
    name, start, length = (
        fields.get(key) for key in ("tensorname", "start_idx", "length")
    )
    if not isinstance(name, str) or not is_integer(start) or not is_integer(length):
        msg = "it lists something that is no place of a tensor"
        raise Damage(msg)
    return StoredAt(name, start, length)


def _shape(entry: Any) -> tuple[str, str, tuple[int, ...]]:
    fields = mapping_of(entry)
    name, original = fields.get("tensorname"), fields.get("originalname")
    shape = list_of(fields.get("shape"))
    is_right = isinstance(fields.get("shape"), list) and all(
        is_integer(size) and size >= 0 for size in shape
    )
    if not isinstance(name, str) or not is_right or len(shape) > 32:
        msg = "it lists something that is no shape of a tensor"
        raise Damage(msg)
    return name, original if isinstance(original, str) else name, tuple(shape)
