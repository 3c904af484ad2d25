"""How runs were set up, in words and numbers, and in what they differ.

Thread safety: functions; the trial's lock is held inside.

Errors: what damage makes unreadable is left out.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from tdbg.errors import TdbgError
from tdbg.modes import TRAINING
from tdbg.run.json_values import mapping_of
from tdbg.trial import Trial

__all__ = [
    "Value",
    "differences",
    "facts_of",
    "flattened",
    "hyperparameters_of",
    "settings_of",
]

#: Words, a number (a whole one is exact), or a least and a greatest one.
Value: TypeAlias = str | int | float | tuple[float, float]

OPTIMIZER = "scalar/optimizer/"
HYPERPARAMETERS = "hyperparameters"
LOADER_SETTINGS = (
    *("dataset", "batch_size", "workers", "prefetch_factor"),
    *("pin_memory", "persistent", "drop_last", "start_method"),
)
MOST_LOADERS = 4


def _made_in_training(trial: Trial) -> int:
    made = trial.steps_made().items()
    return sum(end - first for mode, (first, end) in made if mode in TRAINING)


def facts_of(trial: Trial) -> dict[str, str]:
    """Return facts about a run, by name."""
    framework = mapping_of(trial.configuration().get("framework"))
    software = " ".join(
        str(framework[k]) for k in ("name", "version") if framework.get(k)
    )
    cost = str(trial.overhead()).removeprefix("measured cost: ")
    return {
        "State": trial.status,
        "Steps": f"{_made_in_training(trial):,}",
        "Modes": ", ".join(mode.name for mode in trial.modes()),
        "Software": software,
        "Workers": str(len(trial.workers())),
        "Cost of capture": cost,
        "Lost records": str(trial.lost_records()),
    }


def settings_of(trial: Trial) -> dict[str, Value]:
    """The settings of hook, model, optimizer and loaders, and hyperparameters, by name.

    A number that changes, such as a learning rate, is its least and greatest value.

    Example:
        settings_of(trial)["optimizer/group_0/lr"]  # 0.1, or (0.001, 0.1)
    """
    found: dict[str, Value] = dict(flattened(trial.configuration()))
    for info in trial.model_info()[-1:]:
        for what in ("models", "losses", "optimizers"):
            if getattr(info, what):
                found[what] = ", ".join(getattr(info, what))
        layers = sorted(Counter(info.modules.values()).items())
        if layers:
            found["layers"] = ", ".join(f"{n} {name}" for name, n in layers)
        found |= _sizes_of([each.shape for each in info.parameters.values()])
    for name, series in trial.scalars().items():
        values = np.asarray(series.values, np.float64)
        values = values[np.isfinite(values)]
        if name.startswith(OPTIMIZER) and len(values):
            least, greatest = float(values.min()), float(values.max())
            word = name.removeprefix("scalar/")
            found[word] = least if least == greatest else (least, greatest)
    for name, value in hyperparameters_of(trial).items():
        found[f"{HYPERPARAMETERS}.{name}"] = value
    return found | _loaders_of(trial)


def _loaders_of(trial: Trial) -> dict[str, Value]:
    """Return the settings of the data loaders; of loaders that are alike, once."""
    told: dict[tuple[tuple[str, str], ...], None] = {}
    for event in trial.events("change"):
        if event.data.get("what") == "loader":
            settings = {key: event.data.get(key) for key in LOADER_SETTINGS}
            told[tuple(flattened(settings))] = None
    return {
        f"loader {i}.{key}": value
        for i, settings in enumerate([*told][:MOST_LOADERS])
        for key, value in settings
    }


def _sizes_of(shapes: Sequence[Sequence[int]]) -> dict[str, Value]:
    """How large a model is: elements of its parameters, and the shapes of its layers.

    A parameter of one dimension, as a bias, is as long as its layer is wide.
    """
    if not shapes:
        return {}
    found: dict[str, Value] = {"parameters": f"{sum(map(math.prod, shapes)):,}"}
    wide = [" x ".join(map(str, each)) for each in shapes if len(each) > 1]
    runs = [(shape, len([*same])) for shape, same in groupby(wide)]
    if runs:
        found["shapes of weights"] = ", ".join(
            shape if n == 1 else f"{shape} ({n} times)" for shape, n in runs
        )
    return found


def hyperparameters_of(trial: Trial) -> dict[str, str | int | float]:
    """Return the hyperparameters that the training saved last."""
    if HYPERPARAMETERS not in trial.collections(HYPERPARAMETERS):
        return {}
    found: dict[str, str | float] = {}
    for name in trial.tensor_names(collection=HYPERPARAMETERS):
        with contextlib.suppress(TdbgError):
            tensor = trial.tensor(name)
            steps = tensor.steps(what="values")
            value = tensor.value(steps[-1]) if steps else None
            if value is not None and value.size == 1:
                item = value.item()
                word = name.removeprefix(f"{HYPERPARAMETERS}/")
                found[word] = item if isinstance(item, int | float) else str(item)
    return found


def differences(
    reported: Sequence[Mapping[str, Value]],
) -> list[tuple[str, tuple[Value | None, ...]]]:
    """What is not the same in all of them: a name, and of each what it says of it.

    Args:
        reported: ``settings_of`` or ``facts_of`` of two runs or more.

    Returns:
        In the order in which the runs report them; None where a run does not.
    """
    names = dict.fromkeys(name for each in reported for name in each)
    rows = [(name, tuple(each.get(name) for each in reported)) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a document holds: paths, and values in words.

    Example:
        >>> list(flattened({"a": {"b": [1, 2]}, "c": True}))
        [('a.b', '1, 2'), ('c', 'yes')]
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from flattened(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        if any(isinstance(each, Mapping | list) for each in value):
            for i, each in enumerate(value):
                yield from flattened(each, f"{path}[{i}]")
        elif value:
            yield path, ", ".join(map(str, value))
    elif value is not None and value != "":
        yield (
            path,
            {True: "yes", False: "no"}.get(value, str(value))
            if isinstance(value, bool)
            else str(value),
        )
