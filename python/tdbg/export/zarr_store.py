"""Exports values over steps as a Zarr store: docs/export.md.

    from tdbg.export import export_zarr

    export_zarr("runs/digits", "weights.zarr", collection="weights")

A tensor becomes a group with two arrays: ``value``, whose first dimension is the step,
with a chunk for each step, and ``step``.  One value is in memory at a time.  The folder
appears whole, or not at all.

Thread safety: functions.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tdbg.config.libraries import library
from tdbg.errors import ConfigurationError, StorageError, TensorUnavailableForStep
from tdbg.export.new_files import FilesReport, Progress
from tdbg.export.values import NARROW_FLOATS, chosen_tensors
from tdbg.modes import ModeKeys
from tdbg.trial import TensorHandle, Trial, create_trial

__all__ = ["export_zarr"]

# The attribute by which a store is known as an export of a run.
_RUN = "tdbg.run"


def export_zarr(
    run: str | os.PathLike[str] | Trial,
    out: str | os.PathLike[str],
    *,
    names: Iterable[str] | None = None,
    regex: str | Iterable[str] | None = None,
    collection: str | None = None,
    start: int | None = None,
    end: int | None = None,
    mode: ModeKeys | str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> FilesReport:
    """Write the raw values of tensors over steps as a store of Zarr, version 3.

    Zarr's types lack bfloat16 and float8: these become float32, which has each of their
    values exactly.  A step whose value has another shape than the tensor's first one
    (a smaller last batch) is left out, and the report says so.

    Args:
        run: The run, or a trial of it.
        out: The folder; by custom it ends with ``.zarr``.
        names: Export these tensors; None: all that have values.
        regex: Export only names in which one of these expressions is found.
        collection: Export only members of this collection.
        start: First step, in the count of *mode* as of ``Trial.steps``.
        end: Step before which to end.
        mode: Whose steps they are.
        force: Replace an earlier export.
        progress: Called with the numbers of values done and of all.

    Raises:
        ConfigurationError: If zarr is missing, or an argument can never work.
        NotARun: If there is no run.
        QueryError: If a tensor or the collection does not exist, or nothing has values.
        StorageError: If the folder exists, without *force*, or is no earlier export,
            or cannot be written.

    Example:
        export_zarr("runs/digits", "weights.zarr", regex="weight$")
        zarr.open("weights.zarr")["fc.weight/value"][0]
    """
    zarr = _zarr()
    trial = run if isinstance(run, Trial) else create_trial(run)
    chosen = {
        each: [
            step
            for step in each.steps(mode, "values")
            if (start is None or step >= start) and (end is None or step < end)
        ]
        for each in chosen_tensors(trial, names, regex, collection)
    }
    steps = {handle: found for handle, found in chosen.items() if found}
    if not steps:
        msg = f"{trial.path} has no raw values of these tensors in these steps"
        raise TensorUnavailableForStep(msg)
    path = Path(out).expanduser()
    _refuse_existing(path, force)
    temporary = path.with_name(f".tdbg-{path.name}.{os.getpid()}.tmp")
    try:
        left_out = _write(zarr, temporary, trial, steps, mode, progress)
        _publish(temporary, path)
    except OSError as error:
        raise StorageError.of(error, "write", path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    every = sorted({step for found in steps.values() for step in found})
    return FilesReport.of(
        trial, path, steps=every, tensors=len(steps), left_out=left_out
    )


def _zarr() -> Any:
    """Return zarr.

    Raises:
        ConfigurationError: If it is not installed, or older than version 3.
    """
    zarr = library("zarr", "'tdbg[export]'", "Zarr")
    if int(zarr.__version__.partition(".")[0]) < 3:
        msg = f"Zarr needs zarr 3, not {zarr.__version__}: pip install 'tdbg[export]'"
        raise ConfigurationError(msg)
    return zarr


def _refuse_existing(path: Path, force: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not force:
        msg = f"{path} exists: pass --force (force=True) to replace it"
    elif not _is_export(path):
        msg = (
            f"{path} is no earlier export of tdbg: remove it yourself, or give another"
        )
    else:
        return
    raise StorageError(msg, file=str(path), kind="io")


def _is_export(path: Path) -> bool:
    """Whether a folder is a store that tdbg made."""
    try:
        head = json.loads((path / "zarr.json").read_bytes())
        return not path.is_symlink() and _RUN in head["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(
    zarr: Any,
    path: Path,
    trial: Trial,
    steps: dict[TensorHandle, list[int]],
    mode: ModeKeys | str | None,
    progress: Progress | None,
) -> dict[str, str]:
    """Write the store; return what was left out, and why."""
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    root.attrs.update({_RUN: trial.uuid, "tdbg.path": trial.path})
    total, done, left_out = sum(map(len, steps.values())), 0, {}
    for handle, found in steps.items():
        first = handle.value(found[0], mode)
        dtype = np.float32 if first.dtype.name in NARROW_FLOATS else first.dtype
        group = root.require_group(handle.name)
        group.attrs.update({"role": handle.role, "dtype": handle.dtype})
        array = group.create_array(
            "value",
            shape=(len(found), *first.shape),
            chunks=(1, *(max(1, extent) for extent in first.shape)),
            dtype=dtype,
            dimension_names=("step", *(f"dim_{i}" for i in range(first.ndim))),
        )
        kept: list[int] = []
        for step in found:
            value = handle.value(step, mode)
            if value.shape == first.shape:
                array[len(kept)] = value.astype(dtype)
                kept.append(step)
            done += 1
            if progress is not None:
                progress(done, total)
        if len(kept) < len(found):
            array.resize((len(kept), *first.shape))
            n = len(found) - len(kept)
            left_out[handle.name] = f"{n} steps whose shape is not {first.shape}"
        numbers = group.create_array(
            "step", shape=(len(kept),), dtype="int64", dimension_names=("step",)
        )
        numbers[:] = np.array(kept, np.int64)
    return left_out


def _publish(temporary: Path, path: Path) -> None:
    """Give the store its name; an earlier one goes when the new one has it."""
    old = path.with_name(f".tdbg-{path.name}.{os.getpid()}.old")
    if path.exists():
        path.replace(old)
    temporary.replace(path)
    shutil.rmtree(old, ignore_errors=True)
