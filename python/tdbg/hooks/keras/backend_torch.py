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

from tdbg.capture.adapter import ComputedRow
from tdbg.hooks.keras.backend import Answer, State
from tdbg.hooks.keras.tracing import Patches, Taps

__all__ = ["TorchBackend", "make_backend"]


class TorchBackend:
    """PyTorch as Keras uses it."""

    name = "torch"
    as_async = None

    def __init__(self, keras_version: str) -> None:
        self._torch: Any = import_module("torch")
        self.operations: Any = import_module("keras").ops
        self.version = f"{keras_version} (PyTorch {self._torch.__version__})"
        self._state = _Live()

    # ---- tensors ---------------------------------------------------------------

    def is_tensor(self, value: Any) -> bool:
        """As ``Backend``."""
        return isinstance(value, self._torch.Tensor)

    def scope(self) -> Callable[[Any], bool]:
        """Everything that is computed can be returned."""
        return lambda _: True

    def array(self, tensor: Any) -> NDArray[Any] | None:
        """As ``Backend``; on the CPU it is the tensor's own memory."""
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
        """As ``Backend``."""
        return [self.array(each) for each in tensors]

    def sparse_row(self, tensor: Any, scale: float) -> ComputedRow | None:
        """None: there are no sparse gradients."""
        del tensor, scale
        return None

    def sparse_units(self, tensor: Any) -> NDArray[Any] | None:
        """None, likewise."""
        del tensor
        return None

    # ---- state -----------------------------------------------------------------

    def state_before(self, model: Any, args: tuple[Any, ...]) -> State:
        """The variables themselves."""
        del model, args
        return self._state

    def state_after(self, model: Any, result: Any) -> State:
        """The variables themselves."""
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
        """As ``Backend``; a compiled model runs such a step without its compiler."""
        del model

        def tapped(data: Any) -> Answer:
            held = taps()
            with held.patched(install):
                logs = step(data)
            return Answer(logs, held.tensors)

        untraced: Callable[..., Any] = self._torch.compiler.disable(tapped)
        return untraced

    def answer(self, returned: Any) -> Answer:
        """As ``Backend``."""
        return Answer(*returned)

    def logs_of(self, result: Any) -> Mapping[str, Any]:
        """As ``Backend``."""
        return result if isinstance(result, dict) else {}

    def with_batch(self, args: tuple[Any, ...], batch: Any) -> tuple[Any, ...]:
        """As ``Backend``: it is given the batch in a list anyway."""
        del batch
        return args

    def next_batch(self, args: tuple[Any, ...]) -> Any:
        """As ``Backend``."""
        return args[0]

    def following(self, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
        """As ``Backend``: there is one step an execution."""
        del result
        return args

    def is_end(self, error: BaseException) -> bool:
        """As ``Backend``."""
        return isinstance(error, StopIteration)

    def has_run(self, model: Any, error: Exception) -> bool:
        """As ``Backend``: nothing is traced."""
        del model, error
        return True


class _Live:
    """Variables that always have their values."""

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """As ``State``."""
        return [each.value for each in variables]


def make_backend(keras_version: str) -> TorchBackend:
    """Make the backend for this version of Keras."""
    return TorchBackend(keras_version)
