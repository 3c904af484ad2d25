"""smdebug's names of PyTorch's tensors."""

from __future__ import annotations

from tdbg.capture.naming import Naming

__all__ = ["SmdebugNames"]


class SmdebugNames(Naming):
    """``Net_conv1.weight``, ``gradient/Net_conv1.weight``, ``relu_output_1``.

    Parameters have the class of their root before them, and the index of inputs and
    outputs runs on over the calls of a module in a forward.

    Attributes:
        latest: Of the root that was named last: its name, and what goes before the
            paths of the modules inside it.
    """

    name = "smdebug"
    index_runs = True

    def __init__(self) -> None:
        self.latest = ("", "")

    def before_parameters(self, root: str, prefix: str) -> str:
        """The name of the root, which is unique, and an underscore."""
        self.latest = (root, prefix)
        return f"{root}_"
