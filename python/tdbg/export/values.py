"""Exports the values of one step, as safetensors or npz: docs/export.md.

    from tdbg.export import export_safetensors

    export_safetensors("runs/digits", "weights.safetensors", step=100, regex="weight$")

One tensor is in memory at a time.  A file appears whole, or not at all.

Thread safety: functions.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import (
    ConfigurationError,
    StorageError,
    TensorUnavailableForStep,
    UnsupportedFeature,
)
from tdbg.export.new_files import FilesReport, Progress, in_place, refuse_existing
from tdbg.modes import ModeKeys
from tdbg.trial import TensorHandle, Trial, create_trial

__all__ = ["NARROW_FLOATS", "chosen_tensors", "export_npz", "export_safetensors"]

# Names that safetensors has for element types.
_SAFETENSORS = {
    "bool": "BOOL",
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}
#: Element types that NumPy cannot name in a file; float32 holds each of their values.
NARROW_FLOATS = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
)
# Digits of a number in the head of a file, and of what stands around numbers.
_DIGITS, _AROUND = 21, 120
_PIECE = 1 << 24


def export_safetensors(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    mode: ModeKeys | str | None = None,
    names: Iterable[str] | None = None,
    regex: str | Iterable[str] | None = None,
    collection: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> FilesReport:
    """Write the raw values of a step as a file of safetensors.

    Element types stay as they are, bfloat16 and float8 too.  ``tdbg.step``,
    ``tdbg.mode`` and ``tdbg.run`` stand in the file's metadata.

    Args:
        run: The run, or a trial of it.
        out: The file; by custom it ends with ``.safetensors``.
        step: The step, in the count of *mode* as of ``Trial.steps``; None: the last
            one that has values.
        mode: Whose count *step* is in.
        names: Export these tensors; None: all that have a value at the step.
        regex: Export only names in which one of these expressions is found.
        collection: Export only members of this collection.
        force: Replace a file that exists.
        progress: Called with the numbers of tensors done and of all.

    Raises:
        NotARun: If there is no run.
        QueryError: If the step, a tensor or the collection does not exist.
        UnsupportedFeature: If a tensor has a type that the format lacks.
        StorageError: If the file exists, without *force*, or cannot be written.

    Example:
        export_safetensors("runs/digits", "step100.safetensors", step=100)
    """
    values = _StepValues(run, step, mode, names, regex, collection)
    for handle in values.handles:
        if handle.dtype not in _SAFETENSORS:
            msg = (
                f"safetensors has no type for {handle.name!r}, whose elements are "
                f"{handle.dtype}: leave it out with regex or names, or export npz"
            )
            raise UnsupportedFeature(msg, kind="unsupported")
    return values.write(out, _write_safetensors, force, progress)


def export_npz(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    mode: ModeKeys | str | None = None,
    names: Iterable[str] | None = None,
    regex: str | Iterable[str] | None = None,
    collection: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> FilesReport:
    """Write the raw values of a step as a file that ``numpy.load`` reads.

    NumPy's files cannot name bfloat16 and float8: these become float32, which has each
    of their values exactly.

    Args:
        run: As for ``export_safetensors``, and so are all others.
        out: The file; by custom it ends with ``.npz``.
        step: The step.
        mode: Whose count it is in.
        names: Export these tensors.
        regex: Export only names in which one of these expressions is found.
        collection: Export only members of this collection.
        force: Replace a file that exists.
        progress: Called with the numbers of tensors done and of all.

    Raises:
        TdbgError: As ``export_safetensors`` does.

    Example:
        export_npz("runs/digits", "step100.npz", step=100)
        numpy.load("step100.npz")["fc.weight"]
    """
    values = _StepValues(run, step, mode, names, regex, collection)
    return values.write(out, _write_npz, force, progress)


def chosen_tensors(
    trial: Trial,
    names: Iterable[str] | None,
    regex: str | Iterable[str] | None,
    collection: str | None,
) -> list[TensorHandle]:
    """Return the tensors that are asked for, in the order in which they came.

    Raises:
        QueryError: If one of the names, or the collection, does not exist.
        ConfigurationError: If nothing is left, or an expression is none.
    """
    known = trial.tensor_names(regex=regex, collection=collection)
    if names is not None:
        listed = [names] if isinstance(names, str) else list(names)
        for name in listed:
            trial.tensor(name)  # Proposes the nearest where there is none.
        left = set(known)
        known = [name for name in dict.fromkeys(listed) if name in left]
    if not known:
        every = trial.tensor_names()
        what = short(regex or collection or names or "")
        msg = f"no tensor of {trial.path} is chosen by {what}"
        msg += f"; {nearest_recorded(str(what), every)}" if every else ": it is empty"
        raise ConfigurationError(msg)
    places = dict(zip(known, trial.positions(known), strict=True))
    return [trial.tensor(name) for name in sorted(known, key=lambda n: places[n])]


class _StepValues:
    """The tensors of a step that have a value, read one after the other."""

    def __init__(
        self,
        run: str | os.PathLike[str] | Trial,
        step: int | None,
        mode: ModeKeys | str | None,
        names: Iterable[str] | None,
        regex: str | Iterable[str] | None,
        collection: str | None,
    ) -> None:
        self.trial = run if isinstance(run, Trial) else create_trial(run)
        self.mode = mode
        chosen = chosen_tensors(self.trial, names, regex, collection)
        steps = {each.name: each.steps(mode, "values") for each in chosen}
        self.step = self._step(step, steps)
        self.handles = [each for each in chosen if self.step in steps[each.name]]
        # A tensor that was asked for by its name must be there.
        lacking = [each for each in chosen if each not in self.handles]
        if (names is not None and lacking) or not self.handles:
            lacking[0].value(self.step, mode)

    def _step(self, step: int | None, steps: dict[str, list[int]]) -> int:
        if step is not None:
            return step
        found = max((each[-1] for each in steps.values() if each), default=None)
        if found is None:
            msg = (
                f"{self.trial.path} has no raw values of these tensors, but "
                "statistics: tdbg export parquet writes those"
            )
            raise TensorUnavailableForStep(msg)
        return found

    def metadata(self) -> dict[str, str]:
        """Return what a file says of itself."""
        mode = "" if self.mode is None else str(getattr(self.mode, "name", self.mode))
        return {
            "tdbg.run": self.trial.uuid,
            "tdbg.step": str(self.step),
            "tdbg.mode": mode,
        }

    def write(
        self,
        out: str | os.PathLike[str],
        write: Callable[[BinaryIO, _StepValues, Progress], None],
        force: bool,
        progress: Progress | None,
    ) -> FilesReport:
        """Write the file, and return the report of it."""
        path = Path(out).expanduser()
        refuse_existing(path, force)
        with closing(in_place(path)) as file:
            write(file.file, self, progress or (lambda _done, _total: None))
            file.publish()
        return FilesReport.of(
            self.trial, path, steps=[self.step], tensors=len(self.handles)
        )

    def read(self, progress: Progress) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield name and value of each tensor."""
        for i, handle in enumerate(self.handles):
            yield handle.name, handle.value(self.step, self.mode)
            progress(i + 1, len(self.handles))


def _write_safetensors(file: BinaryIO, values: _StepValues, progress: Progress) -> None:
    """Write the data behind room for the head, which is known at the end."""
    head: dict[str, Any] = {"__metadata__": values.metadata()}
    room = len(json.dumps(head)) + sum(map(_room, _shapes(values)))
    room += -room % 8
    file.seek(8 + room)
    at = 0
    for name, value in values.read(progress):
        _write_raw(file, value)
        shape, dtype = list(value.shape), _SAFETENSORS[value.dtype.name]
        offsets = [at, at + value.nbytes]
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        at += value.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) > room:
        msg = f"the head of the file takes {len(text)} bytes instead of {room}"
        raise StorageError(msg, kind="io")
    file.seek(0)
    file.write(room.to_bytes(8, "little") + text.ljust(room))


def _shapes(values: _StepValues) -> Iterator[tuple[str, Sequence[int]]]:
    for handle in values.handles:
        yield handle.name, handle.first_shape


def _room(named: tuple[str, Sequence[int]]) -> int:
    """Return how many bytes the head may need for a tensor."""
    name, shape = named
    # Workers' numbers are stacked: one dimension more.
    return len(json.dumps(name)) + _AROUND + _DIGITS * (len(shape) + 3)


def _write_raw(file: BinaryIO, value: NDArray[Any]) -> None:
    """Write the elements in C order, little-endian, a piece at a time."""
    flat = np.ascontiguousarray(value).reshape(-1)
    data = flat.view(np.uint8) if flat.size else flat.astype(np.uint8)
    file.writelines(
        data[start : start + _PIECE].data for start in range(0, len(data), _PIECE)
    )


def _write_npz(file: BinaryIO, values: _StepValues, progress: Progress) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, value in values.read(progress):
            is_narrow = value.dtype.name in NARROW_FLOATS
            stored = value.astype(np.float32) if is_narrow else value
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)
