"""The first batches of a training, as far as checks of them need these.

For a probe of the model, some samples of the first batch's inputs are copied; from then
on nothing of the batch is kept alive.

Thread safety: the training's thread.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.probes.token_labels import (
    CountedLabels,
    LabelledBatch,
    faults_of_labels,
)
from tdbg.hooks.pytorch.checks.probes.token_shifts import (
    TokenLabels,
    is_array,
    is_whole,
    shift_of,
)
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.call_context import is_in_transform, is_traced
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import IS_REPLICA, class_name
from tdbg.modes import ModeKeys
from tdbg.run.observations import Observation

__all__ = [
    "LEAST_ROWS",
    "FirstBatch",
    "FirstBatches",
    "GivenLoss",
    "LabelFacts",
    "ModelCall",
    "Unsuitable",
    "has_no_order",
    "note_calls",
    "settings_of",
]

# Samples that are taken, and the bytes of all inputs together.
LEAST_ROWS, _MOST_ROWS, _MOST_BYTES = 4, 16, 4 << 20
# Of samples in no order, neighbours differ by this share of what any two differ by.
_UNORDERED = 0.8
# Elements of inputs and of labels that are compared.
_MOST_TOKENS = 1 << 16
# Batches whose labels are compared, and their losses, at most.
_BATCHES, _MOST_LOSSES = 8, 4
_PLAIN = (torch.Tensor, type(None), bool, int, float, str)


class Unsuitable(Exception):
    """Why a model is left alone; completes "The model was not probed: "."""


class ModelCall(NamedTuple):
    """The arguments of a call, flat.

    Attributes:
        leaves: Tensors and plain values.
        spec: How they are nested.
    """

    leaves: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> ModelCall:
        """Return the arguments of a call."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs or {})))
        return cls(tuple(leaves), spec)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that have a dimension."""
        return [each for each in self.leaves if is_array(each)]

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> ModelCall:
        """Return a call with other tensors."""
        leaves = [function(each) if is_array(each) else each for each in self.leaves]
        return self._replace(leaves=tuple(leaves))

    def replace(self, index: int, tensor: torch.Tensor) -> ModelCall:
        """Return a call with another tensor in one place."""
        leaves = self.leaves[:index], (tensor,), self.leaves[index + 1 :]
        return self._replace(leaves=sum(leaves, ()))

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with tensors that the model may change."""
        leaves = [
            each.clone() if isinstance(each, torch.Tensor) else each
            for each in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs


class GivenLoss(NamedTuple):
    """What a loss was given.

    Attributes:
        outputs: The shape of the predictions.
        shape: The shape of the labels.
        labels: Labels that are whole numbers; None: they are not, or too many.
        ignored: The label that counts as none.
    """

    outputs: torch.Size
    shape: torch.Size
    labels: torch.Tensor | None
    ignored: int

    @classmethod
    def of(cls, value: Any) -> GivenLoss | None:
        """Return what a loss was given; None without predictions and labels.

        Args:
            value: Its arguments, or a pair of these and of those by name.
        """
        found = [each for each in pytree.tree_leaves(value) if is_array(each)]
        if len(found) < 2 or not found[0].is_floating_point():
            return None
        labels, ignored = found[1].detach(), -100
        if type(value) is tuple and len(value) == 2 and isinstance(value[1], dict):
            ignored = int(value[1].get("ignore_index", ignored))
        is_kept = is_whole(labels) and labels.numel() <= _MOST_TOKENS
        kept = labels.clone() if is_kept else None
        return cls(found[0].shape, labels.shape, kept, ignored)

    def is_of_rows(self, n: int) -> bool:
        """Return whether there is one label, or one row of labels, for each sample.

        As many classes as samples may be the samples: they are compared on purpose.
        """
        if not self.outputs or self.outputs[0] != n or self.shape[0] != n:
            return False
        is_of_classes = len(self.shape) == 1 and len(self.outputs) == 2
        is_of_classes &= self.outputs[-1] != n
        return is_of_classes or self.outputs == self.shape


class FirstBatch:
    """The first batch of a training.

    Args:
        call: The call of the model with this batch; not kept alive.

    Attributes:
        call: The call with some of the samples.
        n: Samples in the whole batch, if dimension 0 of all inputs counts them; else 0.
        tokens: All tokens of the inputs that are some, by the index of the leaf.
        widths: How many places the first of these had in the batches so far.
        losses: What the losses of this batch were given.
        mask: What the program calls a mask of padding that the model was not given.

    Raises:
        Unsuitable: If the inputs are none that can be kept.
    """

    def __init__(self, call: ModelCall) -> None:
        for each in call.leaves:
            if not isinstance(each, _PLAIN):
                msg = f"its inputs hold a {type(each).__name__}"
                raise Unsuitable(msg)
            if isinstance(each, torch.Tensor) and _is_odd(each):
                msg = "its inputs hold a sparse or a nested tensor"
                raise Unsuitable(msg)
        if not call.tensors():
            msg = "its inputs hold no tensors"
            raise Unsuitable(msg)
        sizes = {each.shape[0] for each in call.tensors()}
        self.n = sizes.pop() if len(sizes) == 1 else 0
        self.call = _some(call, self.n)
        self.tokens = {
            i: each.detach().clone()
            for i, each in enumerate(call.leaves)
            if is_array(each)
            and is_whole(each)
            and each.dim() == 2
            and each.numel() <= _MOST_TOKENS
        }
        self.widths = {each.shape[1] for each in [*self.tokens.values()][:1]}
        self.losses: list[GivenLoss] = []
        self.mask = ""
        self._next: torch.Tensor | None = None
        self._is_same_size = False
        self._autocast = {
            device: torch.get_autocast_dtype(device)
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        }

    @property
    def needs_others(self) -> bool:
        """Whether later batches tell more: another batch, or the widths of texts."""
        return self._next is None or bool(self.tokens)

    def note_next(self, call: ModelCall) -> None:
        """Note a later batch."""
        for i in [*self.tokens][:1]:
            if i < len(call.leaves) and is_array(call.leaves[i]):
                self.widths.add(int(call.leaves[i].shape[-1]))
        tensors = call.tensors()
        if self._next is None and tensors:
            first = self.call.tensors()[0]
            self._is_same_size = tensors[0].shape[0] == self.n
            self._next = tensors[0].detach()[: first.shape[0]].clone()

    @property
    def is_one_of_many(self) -> bool:
        """Whether another batch came next, with as many samples.

        The nodes of a graph come as the same batch each time, and the places of a
        sequence as another number.
        """
        first, other = self.call.tensors()[0], self._next
        if other is None or not self._is_same_size or other.shape != first.shape:
            return False
        return not torch.equal(other, first)

    @property
    def is_narrow(self) -> bool:
        """Whether the model computes with fewer digits than float32 has."""
        return bool(self._autocast)

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Compute in the number formats in which this batch was computed."""
        with contextlib.ExitStack() as stack:
            for device, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(device, dtype))
            yield

    def token_labels(
        self, *, is_batch_first: bool = True
    ) -> tuple[int, TokenLabels] | None:
        """Return the input whose tokens are the labels, as its index, and how.

        Of several losses the one with the labels that are nearest to the next token
        counts: a model may guess the next but one, too.
        """
        found = [
            (i, shift)
            for i, tokens in self.tokens.items()
            for loss in self.losses
            if loss.labels is not None
            and (
                shift := shift_of(
                    tokens, loss.labels, loss.ignored, is_batch_first=is_batch_first
                )
            )
            is not None
        ]
        return min(found, key=lambda each: abs(each[1].shift - 1), default=None)


def has_no_order(rows: torch.Tensor) -> bool:
    """Return whether samples differ from their neighbours as from any other.

    Args:
        rows: One for each sample.
    """
    values = rows.reshape(len(rows), -1).double().nan_to_num()
    of_pairs = torch.cdist(values, values)
    n = len(values)
    of_neighbours = float(of_pairs.diagonal(1).mean())
    return of_neighbours >= _UNORDERED * float(of_pairs.sum()) / (n * (n - 1)) > 0


def _is_odd(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no elements that can be taken by their places."""
    return tensor.layout is not torch.strided or bool(tensor.is_nested)


def _some(call: ModelCall, n: int) -> ModelCall:
    """Return a call with some samples, or with all if inputs do not say what these are.

    Raises:
        Unsuitable: If they are too large.
    """
    size = sum(each.numel() * each.element_size() for each in call.tensors())
    rows = n
    if n > LEAST_ROWS:
        fitting = _MOST_BYTES * n // max(1, size)
        rows = min(n, max(LEAST_ROWS, min(_MOST_ROWS, fitting)))
        size = size * rows // n
    if size > 4 * _MOST_BYTES:
        msg = f"its inputs are larger than {4 * _MOST_BYTES >> 20} MiB"
        raise Unsuitable(msg)
    return call.map(lambda each: (each[:rows] if n else each).detach().clone())


class _Check(Protocol):
    @property
    def is_open(self) -> bool: ...

    def note_call(
        self, model: nn.Module, name: str, args: Any, kwargs: Any
    ) -> None: ...

    def note_loss(self, value: Any) -> None: ...

    def step_ends(self) -> None: ...

    def remove(self) -> None: ...


class FirstBatches:
    """The checks of one training that look at its batches.

    Args:
        checks: Are told, until they have seen enough.

    Attributes:
        is_open: Whether a check must still hear of calls, losses and steps.
    """

    def __init__(self, checks: Sequence[_Check]) -> None:
        self._checks = [each for each in checks if each.is_open]
        self.is_open = bool(self._checks)

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Note that a registered module is about to be called."""
        for check in self._checks:
            check.note_call(model, name, args, kwargs)

    def note_loss(self, value: Any, settings: Mapping[str, Any] | None = None) -> None:
        """Note the arguments of a loss.

        Args:
            value: A pair of those by place and by name.
            settings: What the loss knows by itself.
        """
        is_call = type(value) is tuple and len(value) == 2
        if settings and is_call and isinstance(value[1], Mapping):
            value = value[0], {**value[1], **settings}
        for check in self._checks:
            check.note_loss(value)

    def step_ends(self) -> None:
        """Note that an optimizer has stepped."""
        for check in self._checks:
            check.step_ends()
        self._checks = [each for each in self._checks if each.is_open]
        self.is_open = bool(self._checks)

    def remove(self) -> None:
        """Look at no more."""
        self.is_open = False
        while self._checks:
            self._checks.pop().remove()


class _Called(Inert):
    """The hook of a part that is looked at in place of its root."""

    __slots__ = ("_batches", "_name")

    def __init__(self, name: str, batches: FirstBatches) -> None:
        self._name = name
        self._batches = batches

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            return
        if self._batches.is_open:
            self._batches.note_call(module, self._name, args, kwargs)


never_compiled(_Called.__call__)


def note_calls(hooks: UncompiledHooks, part: nn.Module, batches: FirstBatches) -> None:
    """Note the calls of a part, by hooks that the compiler does not see.

    Args:
        hooks: Where the hook is put.
        part: A module with most of what is trained.
        batches: Are told of each call.
    """
    hooks.add(part, _Called(class_name(part), batches), with_kwargs=True)


class LabelFacts:
    """Compare labels with inputs, once in a training.

    Args:
        session: Receives observations.

    Attributes:
        is_open: Whether it must still hear of calls, losses and steps.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._model: weakref.ref[nn.Module] | None = None
        self._name = "model"
        self._batches: list[LabelledBatch] = []
        self._n_steps = 0
        self.is_open = True

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Note that a registered module is about to be called."""
        if self._model is not None and self._model() is not model:
            return
        if len(self._batches) >= _BATCHES or IS_REPLICA in vars(model):
            return
        if not (model.training and torch.is_grad_enabled()):
            return
        if is_in_transform() or is_traced() or is_recording():
            return
        with self._guard():
            self._model, self._name = weakref.ref(model), name
            self._batches.append(LabelledBatch(model, args, kwargs))

    def note_loss(self, value: Any) -> None:
        """Note the arguments of a loss: a pair of those by place and by name."""
        if not self.is_open or not self._batches or is_traced() or is_recording():
            return
        with self._guard():
            losses = self._batches[-1].losses
            found = CountedLabels.of(value) if len(losses) < _MOST_LOSSES else None
            if found is not None:
                losses.append(found)

    def step_ends(self) -> None:
        """Compare if enough was seen; an optimizer has stepped."""
        if not self.is_open:
            return
        self._n_steps += 1
        if self._n_steps < _BATCHES or is_recording():
            return
        with self._guard():
            model = None if self._model is None else self._model()
            batches = [each for each in self._batches if each.losses]
            found = [] if model is None else faults_of_labels(model, batches)
            for fault, numbers, words in found:
                step = max(0, self._session.latest_step(ModeKeys.TRAIN)[0])
                seen = Observation(fault, step, (self._name,), numbers, words)
                self._session.run(self._session.observe, seen)
        self.remove()

    def remove(self) -> None:
        """Compare no more."""
        self.is_open = False
        self._batches.clear()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Let nothing escape, and count the time."""
        start = time.perf_counter_ns()
        try:
            yield
        except Exception:
            self.remove()
        finally:
            self._session.spend_once(time.perf_counter_ns() - start)


def settings_of(loss: object) -> dict[str, Any]:
    """Return what a registered loss would pass to a function of PyTorch by name.

    Nobody knows this of a loss that a program has written: its ``reduction`` is "".

    Args:
        loss: A module, or any function.

    Example:
        >>> settings_of(nn.CrossEntropyLoss(ignore_index=0))["ignore_index"]
        0
    """
    if getattr(loss, "__module__", None) == nn.functional.__name__:
        return {}
    if type(loss).__module__ != nn.modules.loss.__name__:
        return {"reduction": ""}
    found = {name: getattr(loss, name, None) for name in ("ignore_index", "reduction")}
    found["weight"] = True if getattr(loss, "weight", None) is not None else None
    return {name: each for name, each in found.items() if each is not None}
