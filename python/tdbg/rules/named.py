"""Rules about whatever tensors a user names, by collections or by an expression."""

from __future__ import annotations

from dataclasses import dataclass

from tdbg.needs import Needs
from tdbg.rules._base import Rule, built_in, in_collections
from tdbg.rules._checks import check_names, check_regex, finds
from tdbg.rules.window import TensorInfo

__all__ = ["OfNamedTensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNamedTensors(Rule):
    """Base of rules about tensors of any kind.

    Args:
        collections: Where to look.
        tensor_regex: Look at tensors of such names too.

    Raises:
        ConfigurationError: If a parameter is not of its kind.
    """

    collections: tuple[str, ...] = ()
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_names(self, "collections")
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        """The rows of the collections; what an expression finds is captured or not."""
        return Needs(collections=built_in(self.collections))

    def selects(self, tensor: TensorInfo) -> bool:
        """What the collections or the expression name."""
        return self.is_named(tensor)

    def is_named(self, tensor: TensorInfo) -> bool:
        """Whether the collections or the expression name it."""
        if in_collections(tensor, self.collections):
            return True
        return self.tensor_regex is not None and finds(self.tensor_regex, tensor.name)
