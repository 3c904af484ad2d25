"""Replicas of a strategy of TensorFlow (``tf.distribute``) on one machine.

Each replica runs the step on its share of the batch.  They are traced one after the
other into one graph, in threads of their own, and run at once.

Thread safety: pure functions, and values.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "FlatTensors",
    "n_replicas",
    "n_replicas_of",
    "numbers_of_replicas",
    "read_variable",
    "replica_number",
    "strategy_problem",
    "warn_of_eager_replicas",
]

_log = logging.getLogger("tdbg")
# By the beginnings of the names of their classes.
_STRATEGIES = ("Mirrored", "OneDevice", "_Default")
# Classes that TensorFlow shows by other names.
_PUBLIC_NAMES = {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy"}
_told: set[str] = set()


def strategy_problem(model: Any) -> str | None:
    """Why nothing can be captured under the strategy of a model; None: it can."""
    strategy = getattr(model, "distribute_strategy", None)
    name = type(strategy).__name__
    if strategy is None or name.startswith(_STRATEGIES):
        return None
    name = _PUBLIC_NAMES.get(name, name)
    return (
        f"the model was created under tf.distribute.{name}: tdbg captures only the "
        "replicas of one process, such as those of tf.distribute.MirroredStrategy"
    )


def n_replicas_of(model: Any) -> int:
    """How many replicas a model has; 1 if it was made under no strategy."""
    strategy = getattr(model, "distribute_strategy", None)
    return 1 if strategy is None else int(strategy.num_replicas_in_sync)


def n_replicas(tf: Any) -> int:
    """How many replicas there are where a step is traced; 1 outside of replicas."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def replica_number(tf: Any) -> int:
    """The number of the replica that is traced; 0 where there is only one."""
    if n_replicas(tf) == 1:
        return 0
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(number if isinstance(number, int) else tf.get_static_value(number))


def warn_of_eager_replicas() -> None:
    """Say once that replicas which run eagerly are not captured."""
    text = (
        "you call strategy.run outside tf.function, so tdbg captures nothing from "
        "these steps; call it inside a tf.function"
    )
    if text not in _told:
        _told.add(text)
        _log.warning("%s", text)


def read_variable(tf: Any, variable: Any) -> Any:
    """The value of a variable that has a component for each replica.

    Args:
        tf: TensorFlow.
        variable: A variable of TensorFlow whose components are equal, or are added up
            or averaged when it is read, as those of metrics.
    """
    strategy = variable.distribute_strategy
    if variable.synchronization == tf.VariableSynchronization.ON_READ:
        with strategy.scope():
            return variable.read_value()
    return strategy.experimental_local_results(variable)[0].read_value()


def numbers_of_replicas(variable: Any) -> list[float]:
    """The number that a variable of Keras holds on each replica, before any reduction.

    Args:
        variable: A variable of one element, as of a metric.
    """
    inner = variable.value
    found = inner.distribute_strategy.experimental_local_results(inner)
    return [float(each.read_value()) for each in found]


class FlatTensors(NamedTuple):
    """Tensors as a graph can hand them to Python.

    Attributes:
        keys: Of the tensors, and whether they are sparse.
        tensors: In order; of a sparse one its values, indices and shape.
    """

    keys: list[tuple[str, bool]]
    tensors: list[Any]

    @classmethod
    def of(cls, tf: Any, tensors: Mapping[str, Any]) -> FlatTensors:
        """Flatten tensors, of which some may be IndexedSlices."""
        flat = cls([], [])
        for key, tensor in tensors.items():
            is_sparse = isinstance(tensor, tf.IndexedSlices)
            flat.keys.append((key, is_sparse))
            if is_sparse:
                parts = (tensor.values, tensor.indices, tensor.dense_shape)
                flat.tensors.extend(parts)
            else:
                flat.tensors.append(tensor)
        return flat

    def restored(self, tf: Any, arrays: Sequence[Any]) -> dict[str, Any]:
        """The tensors as arrays, by key."""
        rest = iter(arrays)
        return {
            key: tf.IndexedSlices(next(rest), next(rest), next(rest))
            if is_sparse
            else np.asarray(next(rest))
            for key, is_sparse in self.keys
        }
