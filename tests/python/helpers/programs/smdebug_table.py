"""What a run holds, as smdebug's trial tells it: names, steps and shapes, in JSON.

Unedited: it imports smdebug.  Usage: smdebug_table.py RUN [--values]
"""

from __future__ import annotations

import json
import sys

from smdebug import modes
from smdebug.exceptions import ShapeUnavailableForStep, TensorUnavailableForStep
from smdebug.trials import create_trial


def describe(tensor, with_values):
    found = {}
    for mode in (modes.GLOBAL, modes.TRAIN, modes.EVAL):
        found[mode.name] = tensor.steps(mode=mode)
    step = found["GLOBAL"][0]
    try:
        found["shape"] = list(tensor.shape(step))
    except ShapeUnavailableForStep:
        found["shape"] = None
    if with_values:
        found["values"] = {}
        for step in found["GLOBAL"]:
            try:
                value = tensor.value(step).astype("float64").ravel().tolist()
            except TensorUnavailableForStep as error:
                if not error.has_reductions:
                    raise
                value = {
                    f"{'abs ' * is_abs}{name}": float(
                        tensor.reduction_value(step, name, abs=is_abs)
                    )
                    for name, is_abs in tensor.reduction_values(step)
                }
            found["values"][step] = value
    return found


def main(path, with_values):
    trial = create_trial(path)
    tensors = {
        name: describe(trial.tensor(name), with_values) for name in trial.tensor_names()
    }
    collections = {
        name: trial.tensor_names(collection=name) for name in trial.collections()
    }
    table = {
        "steps": {
            mode.name: trial.steps(mode=mode)
            for mode in (modes.GLOBAL, modes.TRAIN, modes.EVAL)
        },
        "workers": trial.workers(),
        "tensors": tensors,
        "collections": collections,
    }
    json.dump(table, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main(sys.argv[1], "--values" in sys.argv)
