"""Keras on PyTorch: steps are run eagerly, and taps hold what they see.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.adapter import ComputedRow, TensorRef
from tdbg.hooks.keras.backend import Answer, State, flat_logs
from tdbg.hooks.keras.tracing import Patches, Taps

__all__ = ["make_backend"]


class _TorchBackend:
    """PyTorch, as Keras uses it."""

    name = "torch"
    as_async = None
    shows_batches = True
    keeps_traces = False

    def __init__(self, keras_version: str) -> None:
        self._torch: Any = import_module("torch")
        self.operations: Any = import_module("keras").ops
        self.version = f"{keras_version} (PyTorch {self._torch.__version__})"
        self._state = _Live()

    # ---- tensors ---------------------------------------------------------------

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def has_scores(self, output: Any) -> bool:  # noqa: ARG002
        return False

    def scope(self) -> Callable[[Any], bool]:
        return lambda _: True

    def array(self, tensor: Any) -> NDArray[Any] | None:
        if not self.is_tensor(tensor):
            return np.asarray(tensor)
        plain = tensor.detach().cpu()
        if plain.dtype is self._torch.bfloat16:
            bits: NDArray[Any] = plain.view(self._torch.int16).numpy()
            halves: NDArray[Any] = bits.view(ml_dtypes.bfloat16)
            return halves
        found: NDArray[Any] = plain.numpy()
        return found

    def arrays(self, tensors: Sequence[Any]) -> Sequence[Any]:
        return [self.array(each) for each in tensors]

    def sparse_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        del tensor, scale
        return None

    def sparse_table(self, tensor: Any) -> TensorRef | None:
        del tensor
        return None

    def sparse_units(self, tensor: Any) -> NDArray[Any] | None:
        del tensor
        return None

    # ---- state -----------------------------------------------------------------

    def state_before(self, model: Any, args: tuple[Any, ...]) -> State:
        del model, args
        return self._state

    def state_after(self, model: Any, result: Any) -> State:
        del model, result
        return self._state

    # ---- steps -----------------------------------------------------------------

    def tap(
        self,
        step: Callable[..., Any],
        model: Any,
        taps: Callable[[], Taps],
        install: Callable[[Patches, Taps], None],
    ) -> Callable[..., Any]:
        """Return a step with taps, which a compiled model runs without its compiler."""
        del model

        def tapped(data: Any) -> Answer:
            held = taps()
            with held.patched(install):
                logs = step(data)
            return Answer(logs, held.tensors)

        untraced: Callable[..., Any] = self._torch.compiler.disable(tapped)
        return untraced

    def answer(self, returned: Any) -> Answer:
        return Answer(*returned)

    def logs_of(self, result: Any) -> Mapping[str, Any]:
        return flat_logs(result)

    def with_batch(self, args: tuple[Any, ...], batch: Any) -> tuple[Any, ...]:
        """Return the arguments, which hold the batch in a list anyway."""
        del batch
        return args

    def noting(
        self, plain: Callable[..., Any], note: Callable[[Any], None]
    ) -> Callable[..., Any]:
        def noted(data: Any) -> Any:
            note(data)
            return plain(data)

        return noted

    def next_batch(self, args: tuple[Any, ...]) -> Any:
        return args[0]

    def following(self, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        """Return the same arguments: an execution has one step."""
        del result
        return args

    def is_end(self, error: BaseException) -> bool:
        return isinstance(error, StopIteration)

    def has_run(self, model: Any, error: Exception) -> bool:
        """Return True: PyTorch traces nothing."""
        del model, error
        return True


class _Live:
    """Variables that always have their values."""

    def read(self, variables: Sequence[Any]) -> list[Any]:
        return [each.value for each in variables]


def make_backend(keras_version: str) -> _TorchBackend:
    """Make the backend for this version of Keras."""
    return _TorchBackend(keras_version)
