"""Compare the labels of the first batches with what the model was given.

Which labels count is a fact: a loss names the label that it ignores.  Which places are
padding is one, too, where the program says so: it passes a mask beside the tokens, or
gives an embedding a ``padding_idx``.  So labels that count and should not, or do not
and should, are known without a call of the model.

Thread safety: the training's thread.  Errors: those of PyTorch.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from tdbg.hooks.pytorch.checks.probes.token_shifts import (
    is_array,
    is_whole,
    shift_of,
)
from tdbg.run.observations import Fault

__all__ = [
    "CountedLabels",
    "LabelledBatch",
    "faults_of_labels",
]

# Elements of a tensor that is kept, at most.
_MOST_ELEMENTS = 1 << 16
# Labels of padding: how many at least, and which share of those that count.
_LEAST_PADDED, _SHARE_PADDED = 32, 0.1
# Sequences that end with padding, and texts whose end is seen, at least.
_LEAST_ENDING, _LEAST_ENDS = 4, 8
# The share of texts that end with the same token, which then is their end.
_SAME_END = 0.9
_NOTHING = torch.zeros(0, dtype=torch.int64)
# Masked tokens among all, in all batches and in one sequence; and among the places
# that differ from their label.
_MASKED, _MOST_MASKED, _OF_DIFFERENT = (0.03, 0.3), 0.5, 0.6
_LEAST_MASKED = 32
# Labels of samples that are counted, and how often a class occurs beside the others.
_LEAST_LABELS, _AS_OFTEN, _MOST_CLASSES = 64, 3.0, 1024
# Batches of different widths in which the longest text ends with the padding.
_LEAST_WIDTHS = 3
# How often the token of padding stands inside texts, at least, and in which share.
_LEAST_INSIDE, _INSIDE = 32, 0.75
_REDUCTIONS = frozenset({"mean", "sum"})
_LABELS = ("label", "labels", "target", "targets", "y")


class CountedLabels(NamedTuple):
    """The labels of a loss.

    Attributes:
        values: As they were given.
        ignored: The label that counts as none.
        n_classes: Numbers that the outputs have at each place.
    """

    values: torch.Tensor
    ignored: int
    n_classes: int

    @property
    def counts(self) -> torch.Tensor:
        """Where a label counts."""
        return (self.values >= 0) & (self.values != self.ignored)

    @classmethod
    def of(cls, value: Any) -> CountedLabels | None:
        """Return what a loss of classes was given; None: it is another one."""
        is_call = type(value) is tuple and len(value) == 2
        if not is_call or not isinstance(value[1], Mapping):
            return None
        args, settings = value
        names = dict(zip(("input", "target", "weight"), args, strict=False))
        given = names | dict(settings)
        outputs: Any = given.get("input")
        labels: Any = given.get("target")
        is_weighted = given.get("weight") is not None or len(args) > len(names)
        if not (is_array(outputs) and is_array(labels)) or is_weighted:
            return None
        if given.get("reduction", "mean") not in _REDUCTIONS:
            return None
        is_of_classes = outputs.requires_grad and is_whole(labels)
        if not is_of_classes or outputs.dim() != labels.dim() + 1:
            return None
        n_classes = outputs.shape[1]
        is_kept = 0 < labels.numel() <= _MOST_ELEMENTS
        if not is_kept or outputs.numel() != labels.numel() * n_classes:
            return None
        kept = labels.detach().long().clone()
        return cls(kept, int(given.get("ignore_index", -100)), n_classes)


class LabelledBatch:
    """A batch: what the model was given, and the labels of its losses.

    Attributes:
        tokens: Whole numbers with two dimensions.
        masks: Tensors with two dimensions that may be masks.
        n: Samples, if all inputs have as many and none is a list of tokens; else 0.
        losses: The labels.
        gets_labels: Whether the model was given some by name.
    """

    def __init__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        given = _inputs(model, args, kwargs)
        arrays = [each for each in given if is_array(each)]
        every = pytree.tree_leaves((args, dict(kwargs or {})))
        self.gets_labels = len([*filter(is_array, every)]) > len(arrays)
        kept = [
            each.detach().clone()
            for each in arrays
            if each.dim() == 2 and 0 < each.numel() <= _MOST_ELEMENTS
        ]
        self.tokens = [each.long() for each in kept if is_whole(each)]
        self.masks = kept if self.tokens else []
        sizes = {each.shape[0] for each in arrays}
        is_list = any(each.dim() == 1 and is_whole(each) for each in arrays)
        self.n = sizes.pop() if len(sizes) == 1 and not is_list else 0
        self.losses: list[CountedLabels] = []

    def here(self) -> None:
        """Put all into memory of the host, for which a device is awaited."""
        self.tokens = [each.cpu() for each in self.tokens]
        self.masks = [each.cpu() for each in self.masks]
        self.losses = [each._replace(values=each.values.cpu()) for each in self.losses]
        found = [each for each in self.masks if _is_mask(each)]
        self.tokens = [each for each in self.tokens if not _is_mask(each)]
        self.masks = [each.bool() for each in found]


_Fault = tuple[Fault, Mapping[str, float], Mapping[str, str]]
_Known = Mapping[int, str]


def faults_of_labels(
    model: nn.Module, batches: Sequence[LabelledBatch]
) -> Iterator[_Fault]:
    """Yield what is wrong with the labels of the first batches.

    Args:
        model: The model that was given these.
        batches: Those with a loss; a device is awaited for their numbers.

    Yields:
        The fault, figures and texts, as of an observation.
    """
    for each in batches:
        each.here()
    texts = [text for each in batches for text in _texts(each)]
    yield from _skipped(batches)
    yield from _of_padding(texts, _paddings_of(model))
    yield from _of_real_tokens(texts, model)
    if batches and not _writes_anew(model, gets_labels=batches[0].gets_labels):
        yield from _of_unmasked(texts)
    yield from _of_class(batches)
    if texts:
        yield from _of_end(texts, _named(model, "eos_token_id"))


class _Text(NamedTuple):
    """Tokens, and the labels at their places, as (sequence, place).

    Attributes:
        tokens: One for each place that has a label.
        labels: The labels.
        counts: Where a label counts.
        masks: What may say where tokens are padding, or are none.
        shift: The label is the token so many places later; None: it is another thing.
        whole: All tokens, those behind the last place with a label, too.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    counts: torch.Tensor
    masks: Sequence[torch.Tensor]
    shift: int | None
    whole: torch.Tensor

    @property
    def following(self) -> torch.Tensor:
        """The next token at each place; -100: nobody knows."""
        places = self.tokens.shape[1]
        return functional.pad(self.whole, (0, 1), value=-100)[:, 1 : places + 1]


def _inputs(model: nn.Module, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments of a call without those that are labels by name."""
    kwargs = dict(kwargs or {})
    names: Sequence[str] = ()
    with contextlib.suppress(TypeError, ValueError):
        names = [*inspect.signature(model.forward).parameters]
    named = [("", each) for each in args]
    named[: len(names)] = zip(names, args, strict=False)
    given = [each for name, each in (*named, *kwargs.items()) if not _is_label(name)]
    return pytree.tree_leaves(given)


def _is_label(name: str) -> bool:
    return name.rpartition("_")[2] in _LABELS


def _is_mask(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has zeros and ones, and nothing else."""
    if tensor.dtype is torch.bool:
        return True
    return bool(((tensor == 0) | (tensor == 1)).all())


def _texts(batch: LabelledBatch) -> Iterator[_Text]:
    """Yield the tokens of a batch that have labels, with these.

    Labels that are no tokens belong to the only tokens that there are.
    """
    for loss in batch.losses:
        for tokens in batch.tokens:
            found = shift_of(tokens, loss.values, loss.ignored)
            shift = None if found is None else found.shift
            if shift is None and len(batch.tokens) > 1:
                continue
            is_batch_first = found is None or found.is_batch_first
            text = _text(tokens, loss, batch.masks, is_batch_first, shift)
            if text is not None:
                yield text


def _text(
    tokens: torch.Tensor,
    loss: CountedLabels,
    masks: Sequence[torch.Tensor],
    is_batch_first: bool,
    shift: int | None,
) -> _Text | None:
    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if is_batch_first else tensor.t()

    placed = rows(tokens)
    n, places = placed.shape
    length = loss.values.numel() // max(1, n)
    if loss.values.numel() != n * length or not places - 2 <= length <= places:
        return None
    shape = (n, length) if is_batch_first else (length, n)
    if loss.values.dim() > 1 and loss.values.shape != shape:
        return None
    labels = rows(loss.values.reshape(shape))
    is_behind = shift == 1 and length == places and bool((labels[:, -1] >= 0).all())
    return _Text(
        placed[:, :length],
        labels,
        rows(loss.counts.reshape(shape)),
        [rows(each) for each in masks if each.shape == tokens.shape],
        shift,
        torch.cat([placed, labels[:, -1:]], 1) if is_behind else placed,
    )


def _skipped(batches: Sequence[LabelledBatch]) -> Iterator[_Fault]:
    """Yield that labels skip a token, in each batch and in each loss of it."""
    shifts = [
        found.shift
        for batch in batches
        for tokens in batch.tokens
        for loss in batch.losses
        if (found := shift_of(tokens, loss.values, loss.ignored)) is not None
    ]
    if shifts and set(shifts) == {2}:
        yield Fault.LABELS_SKIP_ONE, {}, {}


def _of_padding(texts: Sequence[_Text], paddings: _Known) -> Iterator[_Fault]:
    """Yield that labels count at places that the program says are padding."""
    n_padded = n_counted = n_ending = 0
    values, sources = set[int](), set[str]()
    for text in texts:
        found = _padding(text, paddings)
        if found is None:
            continue
        is_padding, source = found
        is_counted = is_padding & text.counts
        n_ending += int(is_padding.any(1).sum())
        n_padded += int(is_counted.sum())
        n_counted += int(text.counts.sum())
        values |= {*text.labels[is_counted].tolist()}
        sources.add(source)
    share = n_padded / max(1, n_counted)
    is_much = n_padded >= _LEAST_PADDED and share >= _SHARE_PADDED
    if is_much and len(values) == 1 and n_ending >= _LEAST_ENDING:
        numbers = {"share": share, "label": float(values.pop())}
        yield Fault.PADDING_COUNTS, numbers, {"known_by": min(sources)}


def _padding(text: _Text, paddings: _Known) -> tuple[torch.Tensor, str] | None:
    """Return where the program says that tokens are padding, and by what it does."""
    for mask in (each[:, : text.tokens.shape[1]] for each in text.masks):
        for is_padding in (~mask, mask):
            tokens = {*text.tokens[is_padding].tolist()}
            if len(tokens) == 1 and _is_at_end(is_padding):
                return is_padding, "mask"
    for each, source in paddings.items():
        is_padding = text.tokens == each
        if _is_at_end(is_padding):
            return is_padding, source
    return None


def _is_at_end(is_padding: torch.Tensor) -> bool:
    """Return whether places are the ends, or the beginnings, of sequences."""
    if not bool(is_padding.any()) or bool(is_padding.all(1).any()):
        return False
    changes = is_padding[:, 1:].int() - is_padding[:, :-1].int()
    return not bool((changes < 0).any() and (changes > 0).any()) and bool(
        (changes.abs().sum(1) <= 1).all()
    )


def _paddings_of(model: nn.Module) -> dict[int, str]:
    """Return tokens that are padding, and what says so; ends of texts are not."""
    named = _named(model, "pad_token_id") - _named(model, "eos_token_id")
    return dict.fromkeys(named, "settings") | {
        int(each.padding_idx): "padding_idx"
        for each in model.modules()
        if isinstance(each, nn.Embedding) and each.padding_idx is not None
    }


def _of_real_tokens(texts: Sequence[_Text], model: nn.Module) -> Iterator[_Fault]:
    """Yield that the ``padding_idx`` of an embedding is a token of the texts.

    It stands inside of them, between others, and the model learns to say it.
    """
    whole = [text.whole for text in texts if text.shift == 1]
    most = max([int(tokens.max()) for tokens in whole], default=0)
    found = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    of_tokens = [each for each in found if each.num_embeddings > most]
    for token in {each.padding_idx for each in of_tokens}:
        if token is None:
            continue
        n = n_inside = n_labels = 0
        for tokens in whole:
            is_token = tokens == token
            is_before = (~is_token).cumsum(1) > 0
            is_after = (~is_token).flip(1).cumsum(1).flip(1) > 0
            n += int(is_token.sum())
            n_inside += int((is_token & is_before & is_after).sum())
        for text in texts:
            n_labels += int((text.labels[text.counts] == token).sum())
        is_real = n_inside >= max(_LEAST_INSIDE, _INSIDE * n)
        if is_real and n_labels >= _INSIDE * n_inside:
            numbers = {"token": float(token), "inside": n_inside / n, "times": float(n)}
            yield Fault.PADDING_IS_TEXT, numbers, {}


def _of_unmasked(texts: Sequence[_Text]) -> Iterator[_Fault]:
    """Yield that a model of masked tokens is judged by all tokens."""
    n_masked = n_counted = n_different = 0
    masks = set[int]()
    for text in texts:
        if text.shift not in (None, 0) or text.tokens.shape != text.labels.shape:
            return
        is_different = (text.tokens != text.labels) & text.counts
        if not bool(is_different.any()):
            return
        token = int(text.tokens[is_different].mode().values)
        is_masked = text.tokens == token
        shares = (is_masked & text.counts).double().mean(1)
        if bool((is_masked & ~is_different & text.counts).any()):
            return
        if float(shares.max()) > _MOST_MASKED:
            return
        masks.add(token)
        n_masked += int((is_masked & text.counts).sum())
        n_different += int(is_different.sum())
        n_counted += int(text.counts.sum())
    if len(masks) != 1 or n_masked < _LEAST_MASKED or len(texts) < 2:
        return
    share = n_masked / n_counted
    if _MASKED[0] <= share <= _MASKED[1] and n_masked >= _OF_DIFFERENT * n_different:
        numbers = {
            "share": 1.0 - n_different / n_counted,
            "masked": share,
            "token": float(masks.pop()),
        }
        yield Fault.UNMASKED_COUNT, numbers, {}


def _of_class(batches: Sequence[LabelledBatch]) -> Iterator[_Fault]:
    """Yield that a loss of classes ignores one that is as frequent as the others.

    A label that means "unknown" is frequent or rare, but not one among equals.
    """
    losses = [(batch, loss) for batch in batches for loss in batch.losses]
    kinds = {(loss.ignored, loss.n_classes) for _, loss in losses}
    if len(kinds) != 1 or not all(_is_of_samples(*each) for each in losses):
        return
    ((label, size),) = kinds
    every = torch.cat([loss.values for _, loss in losses])
    if not 0 <= label < size or len(every) < _LEAST_LABELS or int(every.min()) < 0:
        return
    counts = torch.bincount(every, minlength=size)
    others = torch.cat([counts[:label], counts[label + 1 :]])
    n, typical = int(counts[label]), float(others[others > 0].double().quantile(0.5))
    is_alike = typical / _AS_OFTEN <= n <= typical * _AS_OFTEN
    if n and (size == 2 or is_alike):
        numbers = {"class": float(label), "share": n / len(every)}
        yield Fault.CLASS_NEVER_COUNTS, numbers | {"classes": float(size)}, {}


def _is_of_samples(batch: LabelledBatch, loss: CountedLabels) -> bool:
    """Return whether each sample has one label, which is no token."""
    n_tokens = max([int(each.max()) + 1 for each in batch.tokens], default=0)
    is_text = n_tokens and loss.n_classes * 2 > n_tokens
    is_one_each = loss.values.dim() == 1 and len(loss.values) == batch.n
    return is_one_each and not is_text and loss.n_classes <= _MOST_CLASSES


def _of_end(texts: Sequence[_Text], declared: set[int]) -> Iterator[_Fault]:
    """Yield that the token that ends texts is no label.

    The program says which token that is: its settings do, or its mask, which is one at
    the first of the tokens behind a text; or batches are as wide as the longest text
    and one such token.
    """
    texts = [each for each in texts if each.shift == 1]
    for token, known_by in (
        *((each, "settings") for each in declared),
        *_tokens_behind(texts),
    ):
        last = torch.cat([_last_tokens(text, token) for text in texts] or [_NOTHING])
        counts = any(bool((text.labels[text.counts] == token).any()) for text in texts)
        if counts or len(last) < _LEAST_ENDS:
            continue
        # Another token may end all texts, and this one is padding.
        same = float((last == last.mode().values).double().mean())
        if same < _SAME_END:
            numbers = {"token": float(token), "texts": float(len(last))}
            yield Fault.END_NEVER_COUNTS, numbers, {"known_by": known_by}
            return


def _last_tokens(text: _Text, token: int) -> torch.Tensor:
    """Return the tokens before the first *token* that counts as no label."""
    is_last = (text.following == token) & (text.tokens != token) & ~text.counts
    is_last[:, 1:] &= text.counts[:, :-1]
    is_last[:, 0] = False
    return text.tokens[is_last]


def _tokens_behind(texts: Sequence[_Text]) -> Iterator[tuple[int, str]]:
    """Yield the token behind texts, if its first one belongs to the text."""
    found = [_behind(text) for text in texts]
    if not texts or None in found:
        return
    tokens = {each[0] for each in found if each is not None}
    if len(tokens) != 1:
        return
    (token,) = tokens
    if all(each is not None and each[1] for each in found):
        yield token, "mask"
    widths = {text.whole.shape[1] for text in texts}
    is_tight = all(each is not None and each[2] == 1 for each in found)
    if is_tight and len(widths) >= _LEAST_WIDTHS:
        yield token, "widths"


def _behind(text: _Text) -> tuple[int, bool, int] | None:
    """Return the token that all sequences end with, and how.

    Returns:
        The token; whether the mask takes its first one, and no other, for text; and
        how many of them the longest text ends with.
    """
    tokens = text.whole
    token = int(tokens[:, -1].mode().values)
    n_behind = (tokens == token).flip(1).int().cumprod(1).sum(1)
    least = int(n_behind.min())
    if least == 0 or int(n_behind.max()) == tokens.shape[1]:
        return None
    first = (tokens.shape[1] - n_behind)[:, None]
    is_text = torch.arange(tokens.shape[1]) <= first
    is_first_text = any(
        torch.equal(mask, is_text[:, : mask.shape[1]]) for mask in text.masks
    )
    return token, is_first_text, least


def _writes_anew(model: nn.Module, *, gets_labels: bool) -> bool:
    """Return whether a decoder may write texts anew, which all count.

    Its settings say so, and nobody else knows of a model that gets its labels.
    """
    config = getattr(model, "config", None)
    return bool(getattr(config, "is_encoder_decoder", gets_labels))


def _named(model: nn.Module, setting: str) -> set[int]:
    """Return the tokens that a model's settings have by this name."""
    found = set[int]()
    for each in (model, *model.children()):
        for name in ("config", "generation_config"):
            if (settings := getattr(each, name, None)) is not None:
                token = getattr(settings, setting, None)
                tokens = token if isinstance(token, list | tuple) else [token]
                found |= {each for each in tokens if isinstance(each, int)}
    return found
