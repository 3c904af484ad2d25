"""``smdebug.core.hook``: what all its hooks are."""

from __future__ import annotations

__all__ = ["BaseHook", "CallbackHook"]


class BaseHook:
    """A hook of any framework.

    Attributes:
        out_dir: Its run.
    """

    out_dir: str = ""

    def flush(self, *, durable: bool = False, timeout: float = 30.0) -> None:
        """Return when everything recorded so far can be read."""


class CallbackHook(BaseHook):
    """A hook that a framework calls back."""

    INPUT_TENSOR_SUFFIX = "_input_"
    OUTPUT_TENSOR_SUFFIX = "_output_"
    GRADIENT_PREFIX = "gradient/"
    SCALAR_PREFIX = "scalar/"
