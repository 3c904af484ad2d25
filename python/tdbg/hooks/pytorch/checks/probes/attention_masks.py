"""Read the masks that attention gets while a copy of a model is called.

``nn.MultiheadAttention`` and ``scaled_dot_product_attention`` take masks of opposite
meanings, and add to the scores what is no boolean mask.  So a mask that is upside down,
or of ones and zeros, raises no error.  Nor does one that the program has and does not
pass.

Thread safety: the training's thread.  Errors: those of PyTorch.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tdbg.hooks.pytorch.checks.probes.token_shifts import is_array, lengths_of
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.run.observations import Fault

__all__ = [
    "ATTENTION",
    "AttentionMasks",
    "PaddedInput",
    "fault_of_places",
    "faults_of_masks",
    "mask_beside",
    "reordered",
]

ATTENTION = "scaled_dot_product_attention"
"""The function that most attention calls."""
_MULTI_HEAD = "multi_head_attention_forward"
# Calls that are kept, and elements of a mask, at most.
_MOST_CALLS, _MOST_ELEMENTS = 64, 1 << 22
# Scores below this are masked.
_MASKED = -1e4
# Places of a causal mask, at least.
_LEAST_PLACES = 4
# What programs call attention, and what tells its places.
_ATTENDS = re.compile(r"attn|attention|transformer", re.IGNORECASE)
_PLACES = re.compile(r"(^|[._])(pos|wpe|positions?|pe)(?=[._]|$|_?e|ition)|positional")
# Tokens that change their places; and the share of them that stand at several.
_LEAST_REORDERED, _AT_SEVERAL = 3, 0.5
# Dictionaries, such as batches, in each of which so many names are looked at, at most.
_MOST_MAPPINGS, _MOST_NAMES = 40, 40


class _Attention(NamedTuple):
    """A call of attention.

    Attributes:
        keys: The number of samples and of keys.
        is_cross: Whether queries and keys are made of different tensors.
        pattern: Where a query, in a row, sees a key; None: no mask says so for all
            samples alike.
        padding: Where a sample, in a row, sees a key; None: no mask says so.
        added: What a mask of ones and zeros is that is added: "padding" or "causal".
        is_dropped: Whether ``is_causal`` replaces a mask that is another one.
    """

    keys: tuple[int, int]
    is_cross: bool
    pattern: torch.Tensor | None = None
    padding: torch.Tensor | None = None
    added: str = ""
    is_dropped: bool = False


class AttentionMasks:
    """The masks of the calls so far.

    Attributes:
        calls: The calls.
    """

    def __init__(self) -> None:
        self.calls: list[_Attention] = []

    def note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a function that is about to be called.

        Args:
            name: Its name; all others than those of attention are left alone.
            args: Its arguments.
            kwargs: Those by name.
        """
        if len(self.calls) >= _MOST_CALLS or name not in (ATTENTION, _MULTI_HEAD):
            return
        if name == ATTENTION:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            self.calls += _of_products(given)
        else:
            bound = inspect.signature(functional.multi_head_attention_forward)
            self.calls += _of_heads(bound.bind(*args, **kwargs).arguments)


def _of_heads(given: Mapping[str, Any]) -> Iterator[_Attention]:
    """Yield a call of ``nn.MultiheadAttention``; it has got masks that add."""
    query, key = given["query"], given["key"]
    if query.dim() != 3:
        return
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    keys = key.shape[1], key.shape[0]
    pattern = _pattern(mask, is_true_seen=False)
    is_hint = given.get("is_causal") and not given.get("need_weights", True)
    is_dropped = False
    if is_hint and padding is None and pattern is not None:
        is_dropped = not torch.equal(pattern, torch.ones_like(pattern).tril())
    yield _Attention(
        keys,
        query is not key,
        pattern,
        None if padding is None else _seen(padding, is_true_seen=False),
        _added(mask) or _added(padding),
        is_dropped,
    )


def _of_products(given: Mapping[str, Any]) -> Iterator[_Attention]:
    """Yield a call of ``scaled_dot_product_attention``."""
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if query.dim() != 4:
        return
    padding = None
    is_placed = isinstance(mask, torch.Tensor) and mask.dim() == 4
    if mask is not None and is_placed and mask.shape[0] == key.shape[0] > 1:
        seen = _seen(mask[:, 0], is_true_seen=True)
        is_alike = bool((seen == seen[:, :1]).all())
        padding = seen[:, 0] if is_alike and seen.shape[-1] == key.shape[-2] else None
    keys = key.shape[0], key.shape[-2]
    pattern = _pattern(mask, is_true_seen=True)
    yield _Attention(keys, False, pattern, padding, _added(mask))


def _seen(mask: torch.Tensor, *, is_true_seen: bool) -> torch.Tensor:
    """Return where a mask lets keys be seen."""
    if mask.dtype is torch.bool:
        return mask.clone() if is_true_seen else ~mask
    return mask > _MASKED


def _pattern(mask: Any, *, is_true_seen: bool) -> torch.Tensor | None:
    """Return where queries see keys, if that is so for all samples and heads."""
    if not isinstance(mask, torch.Tensor) or mask.dim() < 2:
        return None
    if mask.shape[-2] != mask.shape[-1] or mask.shape[-1] < _LEAST_PLACES:
        return None
    if mask.numel() > _MOST_ELEMENTS:
        return None
    seen = _seen(mask, is_true_seen=is_true_seen).reshape(-1, *mask.shape[-2:])
    return seen[0] if bool((seen == seen[:1]).all()) else None


def _added(mask: Any) -> str:
    """Return what a mask of ones and zeros is that is added to scores; or ""."""
    if not isinstance(mask, torch.Tensor) or not mask.is_floating_point():
        return ""
    is_learned = isinstance(mask, torch.nn.Parameter) or mask.requires_grad
    if is_learned or not 0 < mask.numel() <= _MOST_ELEMENTS or mask.dim() < 2:
        return ""
    ones = mask == 1
    if not bool((ones | (mask == 0)).all()) or bool(ones.all()) or not bool(ones.any()):
        return ""
    rows = ones.reshape(-1, mask.shape[-1])
    if mask.shape[-2] == mask.shape[-1] >= _LEAST_PLACES:
        every = ones.reshape(-1, *mask.shape[-2:])
        whole = torch.ones_like(every[0])
        triangles = (whole.tril(), whole.tril(-1), whole.triu(), whole.triu(1))
        if any(bool((every == each).all()) for each in triangles):
            return "causal"
    changes = (rows[:, 1:] != rows[:, :-1]).sum(1)
    firsts = {*rows[:, 0].tolist()}
    is_padding = len(firsts) == 1 and bool((changes <= 1).all())
    return "padding" if is_padding and bool((changes == 1).any()) else ""


def faults_of_masks(
    calls: Sequence[Any], tokens: Sequence[torch.Tensor], n_widths: int
) -> Iterator[tuple[Fault, Mapping[str, float], Mapping[str, str]]]:
    """Yield what is wrong with masks, each fault once.

    Args:
        calls: Those of one call of the model.
        tokens: Its inputs that are tokens, with the shape (sample, place).
        n_widths: How many places batches have had.

    Yields:
        The fault, figures and texts, as of an observation.
    """
    if any(_is_strictly_later(each.pattern) for each in calls):
        yield Fault.MASK_INVERTED, {}, {"kind": "causal"}
    elif any(_is_padding_only(each.padding, tokens) for each in calls):
        yield Fault.MASK_INVERTED, {}, {"kind": "padding"}
    added = [each.added for each in calls if each.added]
    if added:
        yield Fault.MASK_ADDED, {}, {"kind": min(added)}
    if any(each.is_dropped for each in calls):
        yield Fault.MASK_DROPPED, {}, {}
    if _forgets_memory(calls):
        yield Fault.MEMORY_PADDING_SEEN, {"widths": float(n_widths)}, {}


def _is_strictly_later(pattern: torch.Tensor | None) -> bool:
    """Return whether all places see later ones only, and not themselves."""
    if pattern is None:
        return False
    return torch.equal(pattern, torch.ones_like(pattern).triu(1))


def _is_padding_only(
    padding: torch.Tensor | None, tokens: Sequence[torch.Tensor]
) -> bool:
    """Return whether a mask lets all padding be seen, and nothing else."""
    for each in tokens:
        if padding is None or padding.shape != each.shape:
            continue
        lengths = lengths_of(each)
        if lengths is None:
            continue
        places = torch.arange(each.shape[1], device=each.device)
        if torch.equal(padding.to(each.device), places >= lengths[:, None]):
            return True
    return False


def _forgets_memory(calls: Sequence[Any]) -> bool:
    """Return whether an encoder masks padding that a decoder's attention then sees.

    The call right before the first one of a decoder is the decoder's own.
    """
    crosses = [i for i, each in enumerate(calls) if each.is_cross]
    if not crosses or crosses[0] < 2:
        return False
    encoder = calls[: crosses[0] - 1]
    masked = {
        each.keys
        for each in encoder
        if each.padding is not None and not bool(each.padding.all())
    }
    unmasked = {each.keys for each in encoder if each.padding is None}
    return any(
        calls[i].keys in masked - unmasked
        and calls[i].padding is None
        and calls[i].pattern is None
        for i in crosses
    )


class PaddedInput(NamedTuple):
    """The input of a model that sees padding, and of which only one width is known.

    Attributes:
        numbers: What is known of it.
        place: The index of the input.
        width: Its places.
        padding: The token that fills them.
    """

    numbers: Mapping[str, float]
    place: int
    width: int
    padding: int

    @classmethod
    def of(
        cls, numbers: Mapping[str, float], place: int, tokens: torch.Tensor
    ) -> PaddedInput:
        """Return an input with these tokens."""
        return cls(numbers, place, tokens.shape[1], int(tokens[:, -1].mode().values))

    def has_other_width(self, given: Any) -> bool:
        """Return whether tokens are padded to another width."""
        if not is_array(given) or given.dim() != 2 or given.shape[1] == self.width:
            return False
        return bool((given[:, -1] == self.padding).any())

    def numbers_of(self, given: torch.Tensor) -> dict[str, float]:
        """Return what is known once tokens have another width."""
        widths = {"width": float(self.width), "other": float(given.shape[1])}
        return {**self.numbers, **widths, "widths": 2.0}


def mask_beside(
    tokens: torch.Tensor, given: Iterable[object], frame: FrameType | None
) -> str:
    """Return what the program calls a mask of padding that a model is not given.

    Args:
        tokens: What the model is given, with padding behind.
        given: All that it is given.
        frame: Where to look for names, and outwards from there.
    """
    lengths = lengths_of(tokens)
    if lengths is None:
        return ""
    seen = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    if any(_is_mask(each, seen) for each in given):
        return ""
    for names in namespaces(frame):
        inside = [each for each in names.values() if isinstance(each, Mapping)]
        for scope in (names, *inside[:_MOST_MAPPINGS]):
            for name, value in [*scope.items()][:_MOST_NAMES]:
                if type(name) is str and _is_mask(value, seen):
                    return name
    return ""


def _is_mask(value: object, seen: torch.Tensor) -> bool:
    """Return whether a tensor has ones where places are seen, or where they are not."""
    if type(value) is not torch.Tensor or value.shape != seen.shape:
        return False
    if value.device != seen.device or value.is_complex():
        return False
    return bool(((value == 1) == seen).all() and ((value == 0) == ~seen).all()) or bool(
        ((value == 0) == seen).all() and ((value == 1) == ~seen).all()
    )


# ---- the order of tokens -------------------------------------------------------------


def reordered(
    every: torch.Tensor, given: torch.Tensor, outputs: torch.Tensor, model: nn.Module
) -> torch.Tensor | None:
    """Return tokens in another order, but for the first and the last ones.

    None: the model has no attention, or says the same of all samples; or each place has
    tokens of its own, as the columns of a table have.

    Args:
        every: All tokens of a batch.
        given: Those that the model is given.
        outputs: What it says, with a row for each sample.
        model: What is called.
    """
    lengths = lengths_of(every)
    width = every.shape[1] if lengths is None else int(lengths.min())
    inner = slice(1, width - 1)
    is_varied = bool((outputs != outputs[:1]).any())
    names = (type(each).__name__ for each in model.modules())
    if width - 2 < _LEAST_REORDERED or not (
        is_varied and any(map(_ATTENDS.search, names))
    ):
        return None
    placed = every[:, inner] if lengths is None else every[:, : width - 1]
    pairs = {pair for row in placed.tolist() for pair in enumerate(row)}
    n_places = Counter(token for _, token in pairs)
    n_at_several = sum(n > 1 for n in n_places.values())
    if n_at_several < _AT_SEVERAL * len(n_places) or len(n_places) < 2:
        return None
    changed = given.clone()
    changed[:, inner] = changed[:, inner].flip(1)
    is_other = (changed != given).any(1)
    return changed if bool(is_other.all()) else None


def fault_of_places(
    model: nn.Module,
) -> tuple[Fault, Mapping[str, float], Mapping[str, str]]:
    """Return that a model knows no places, and what it has that should tell them."""
    every = [*model.named_parameters(), *model.named_buffers()]
    names = (name for name, _ in every if _PLACES.search(name))
    name = next(names, "")
    return Fault.PLACES_UNKNOWN, {}, {"name": name} if name else {}
