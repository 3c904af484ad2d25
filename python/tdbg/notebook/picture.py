"""What a live view is drawn from: one message of raw arrays, as of now.

The layout is that of ``tdbg.ui.packing``.  Columns are as wide as a power of two and
begin at its multiples, as in the dashboard: what was drawn stays where it is.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.trial import Trial
from tdbg.ui.documents import described
from tdbg.ui.packing import pack
from tdbg.ui.series import curve, curve_names
from tdbg.view import in_forward_order

__all__ = ["MAP_FIELDS", "picture"]

MAP_FIELDS = ("l2", "rms", "std", "abs_max", "zero_share")
# Columns of steps, at most; and cells of the map, of 20 bytes each.
MOST_COLUMNS, LEAST_COLUMNS = 256, 16
MOST_CELLS = 50_000
MOST_CURVES = 4
MOST_FINDINGS = 100
FIELDS = ("low", "high", "mean", "rows", "bad")

Arrays = dict[str, NDArray[Any]]


def picture(
    trial: Trial, tensors: str | Sequence[str] | None = None, field: str = "rms"
) -> bytes:
    """Verdict, findings, losses and layers of a run as it is now.

    Args:
        trial: The run.
        tensors: As of ``tdbg.notebook.live``.
        field: The statistic of the map.

    Raises:
        ConfigurationError: If there is no such field.
        QueryError: If there is no such collection, or no tensor of such a name.
    """
    if field not in MAP_FIELDS:
        msg = f"a layer map has no field {field!r}: use one of {', '.join(MAP_FIELDS)}"
        raise ConfigurationError(msg)
    with trial.no_refresh():
        document = described(trial)
        first = document["first_step"] or 0
        stop = (document["last_step"] or 0) + 1
        place, cells = _map(trial, tensors, field, first, stop)
        labels, curves = _curves(trial, place)
    header = {
        **{key: document[key] for key in ("state", "stopped", "steps", "verdict")},
        "name": trial.name,
        "findings": document["findings"][:MOST_FINDINGS],
        "n_findings": document["n_findings"],
        "curves": labels,
        "field": field,
        **place,
        "from": first,
        "to": stop,
    }
    return pack(header, {**_named("curve", curves), **_named("layer", cells)})


def _columns(first: int, stop: int, n_layers: int) -> tuple[int, int, int]:
    """First step, width and number of columns that cover ``first <= step < stop``."""
    most = MOST_CELLS // max(1, n_layers)
    most = min(MOST_COLUMNS, max(LEAST_COLUMNS, most))
    width = 1
    while -(-stop // width) - first // width > most:
        width *= 2
    start = first // width * width
    return start, width, -(-stop // width) - first // width


def _map(
    trial: Trial,
    tensors: str | Sequence[str] | None,
    field: str,
    first: int,
    stop: int,
) -> tuple[dict[str, Any], Arrays]:
    """Return the map's collection, columns and layers, and its cells."""
    place: dict[str, Any] = {}
    cells: Arrays = {}
    for of, names in _candidates(trial, tensors):
        start, width, columns = _columns(first, stop, len(names))
        place = {"of": of, "start": start, "width": width, "columns": columns}
        place["layers"], cells = _layers(trial, names, field, place)
        if place["layers"]:
            break
    return place, cells


def _candidates(
    trial: Trial, tensors: str | Sequence[str] | None
) -> list[tuple[str, list[str]]]:
    """Return candidates for the map, with their tensors; the first with rows wins."""
    if tensors is None or isinstance(tensors, str):
        collections = ("gradients", "weights") if tensors is None else (tensors,)
        return [(each, trial.tensor_names(collection=each)) for each in collections]
    names = dict.fromkeys(trial.tensor(name).name for name in tensors)
    return [("tensors", list(names))]


def _layers(
    trial: Trial, names: list[str], field: str, place: Mapping[str, Any]
) -> tuple[list[str], Arrays]:
    """The tensors that have rows, in the order of the forward pass, and their cells."""
    found = trial.envelope(
        in_forward_order(trial, names),
        start=place["start"],
        stop=place["start"] + place["width"] * place["columns"],
        columns=place["columns"],
        fields=field,
    )
    there = np.flatnonzero(found.rows.any(axis=1))
    return [found.names[i] for i in there.tolist()], {
        "low": found.low[field][there],
        "high": found.high[field][there],
        "mean": found.mean[field][there],
        "rows": found.rows[there],
        "bad": found.bad[there],
    }


def _curves(trial: Trial, place: Mapping[str, Any]) -> tuple[list[str], Arrays]:
    """Losses, those of each mode apart; of a run without, its first scalar."""
    names = curve_names(trial)
    losses = [name for name in names if not name.startswith("scalar/")] or names[:1]
    modes = [mode for mode in trial.modes() if mode is not ModeKeys.GLOBAL]
    labels: list[str] = []
    rows: list[Arrays] = []
    for name in losses:
        for mode in modes if len(modes) > 1 else [None]:
            found = curve(
                trial,
                name,
                mode=mode,
                start=place["start"],
                stop=place["start"] + place["width"] * place["columns"],
                columns=place["columns"],
            )
            if found.rows.any() and len(labels) < MOST_CURVES:
                labels.append(name if mode is None else f"{name} ({mode.name})")
                rows.append({key: getattr(found, key) for key in FIELDS})
    if not rows:
        return [], _empty(place["columns"])
    return labels, {key: np.stack([each[key] for each in rows]) for key in FIELDS}


def _empty(columns: int) -> Arrays:
    numbers = np.zeros((0, columns), np.float32)
    counts = np.zeros((0, columns), np.uint32)
    return dict(zip(FIELDS, (numbers, numbers, numbers, counts, counts), strict=True))


def _named(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {f"{prefix}_{key}": array for key, array in arrays.items()}
