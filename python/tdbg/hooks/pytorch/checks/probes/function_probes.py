"""Probe what a model computes, twice in a training, at no cost in between.

The first module that is registered and called is probed, by a copy of it in evaluation
mode, with some samples of the first batch: after the second step, when two batches are
known, and after the fiftieth, when layers that begin at zero have learnt something.
docs/probes.md says what is asked, and of which models.

In the second call of a probe, the samples stand in other places, beside others, and
with a later token that is another one, or with less padding.  A model that depends on
none of these gives the same outputs, so most probes take two calls.  If outputs differ,
a third call with the batch as it was tells whether the model is random, and a fourth
one which of the changes mattered.

Thread safety: the training's thread.

Errors: none; a model that cannot be probed is left alone, and an observation says why.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.probes.attention_masks import (
    PaddedInput,
    fault_of_places,
    faults_of_masks,
    mask_beside,
    reordered,
)
from tdbg.hooks.pytorch.checks.probes.outside_effects import ModelSurvey
from tdbg.hooks.pytorch.checks.probes.probe_batch import (
    LEAST_ROWS,
    FirstBatch,
    GivenLoss,
    ModelCall,
    Unsuitable,
    has_no_order,
)
from tdbg.hooks.pytorch.checks.probes.quiet_copy import QuietCopy, short
from tdbg.hooks.pytorch.checks.probes.token_shifts import lengths_of
from tdbg.hooks.pytorch.functions.followed_functions import followed
from tdbg.hooks.pytorch.model.call_context import is_in_transform
from tdbg.hooks.pytorch.model.module_tree import IS_REPLICA
from tdbg.modes import ModeKeys
from tdbg.run.observations import PROBE_QUESTIONS, Fault, Observation

__all__ = ["FunctionProbes"]

# Steps after which the model is probed.
_FIRST, _LAST = 2, 50
# Forwards and losses that are looked at, at most.
_MOST_CALLS, _MOST_LOSSES = 64, 8
# A change that rounding does not explain, in standard deviations of the outputs.
_TOLERANCE, _NARROW_TOLERANCE, _ROUNDING = 2e-3, 5e-2, 1e-5
# The share of samples whose outputs others must change, and by how many tolerances.
_SHARE, _TIMES = 0.75, 5.0
# Places that padding must have, and that a sequence must have.
_LEAST_PADDING, _LEAST_PLACES = 2, 3
_MOST_ELEMENTS = 1 << 22
_NARROW = frozenset({torch.float16, torch.bfloat16})


class FunctionProbes:
    """The probes of one training.

    Args:
        session: Receives observations.
        is_open: Whether to probe at all.

    Attributes:
        is_open: Whether it must still hear of calls, losses and steps.
    """

    def __init__(self, session: Session, *, is_open: bool = True) -> None:
        self._session = session
        self._model: weakref.ref[nn.Module] | None = None
        self._name = "model"
        self._batch: FirstBatch | None = None
        self._n_calls = self._n_steps = 0
        self._has_probed = False
        self._padded: PaddedInput | None = None
        self.is_open = is_open

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Note that a registered module is about to be called."""
        if self._model is not None and self._model() is not model:
            return
        if self._padded is not None:
            with self._guard():
                self._note_width(self._padded, args, kwargs)
            return
        if self._n_calls >= _MOST_CALLS or IS_REPLICA in vars(model):
            return
        if not (model.training and torch.is_grad_enabled()) or is_in_transform():
            return
        self._n_calls += 1
        with self._guard():
            if self._batch is None:
                self._model, self._name = weakref.ref(model), name
                call = ModelCall.of(args, kwargs)
                batch = self._batch = FirstBatch(call)
                for tokens in [*batch.tokens.values()][:1]:
                    batch.mask = mask_beside(tokens, call.leaves, sys._getframe(1))
            elif self._batch.needs_others:
                self._batch.note_next(ModelCall.of(args, kwargs))

    def note_loss(self, value: Any) -> None:
        """Note the arguments of a loss: a pair of those by place and by name."""
        if not self.is_open or self._batch is None or self._n_calls > 1:
            return
        with self._guard():
            found = GivenLoss.of(value)
            if found is not None and len(self._batch.losses) < _MOST_LOSSES:
                self._batch.losses.append(found)

    def step_ends(self) -> None:
        """Probe the model if it is time; an optimizer has stepped."""
        if not self.is_open or self._padded is not None:
            return
        self._n_steps = max(self._n_steps + 1, self._session.n_training_steps)
        is_last = self._n_steps >= _LAST
        if self._n_steps < _FIRST or (self._has_probed and not is_last):
            return
        profiles: Any = torch.autograd
        if profiles._profiler_enabled() or sys.getprofile() is not None:
            return  # A profile is to show what the program calls.
        self._has_probed = True
        with self._guard():
            self._probe()
        if is_last and self._padded is None:
            self.remove()

    def remove(self) -> None:
        """Probe no more."""
        self.is_open = False
        self._batch = self._padded = None

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Let nothing escape, and count the time."""
        start = time.perf_counter_ns()
        try:
            yield
        except Unsuitable as reason:
            self._refuse(str(reason))
        except Exception as error:
            self._refuse(f"tdbg failed: {type(error).__name__}: {short(error)}")
        finally:
            self._session.spend_once(time.perf_counter_ns() - start)

    def _refuse(self, reason: str) -> None:
        self.remove()
        self._say(Fault.PROBED, words=dict.fromkeys(PROBE_QUESTIONS, reason))

    def _say(
        self,
        fault: Fault,
        numbers: Mapping[str, float] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        step = max(0, self._session.latest_step(ModeKeys.TRAIN)[0])
        # What was told before, and is worse, needs another name.
        more = () if self._padded is None else (f"{self._name}_input_0",)
        names = self._name, *more
        seen = Observation(fault, step, names, numbers or {}, words or {})
        self._session.run(self._session.observe, seen)

    def _probe(self) -> None:
        model = None if self._model is None else self._model()
        if model is None or self._batch is None:
            msg = "no call of it was seen outside of a compiled graph"
            raise Unsuitable(msg)
        _refuse_ranks()
        copied = QuietCopy(model, ModelSurvey(model))
        with copied.silence(), followed.by_nobody(), self._batch.autocast():
            probe = _Probe(copied, self._batch)
            found = [*probe.findings()]
        self._say(Fault.PROBED, words=probe.unasked)
        for each in found:
            self._say(*each)
        if found and found[0][0] is not Fault.PLACES_UNKNOWN:
            padded = self._seen_padding(found[0], self._batch)
            self.remove()
            self._padded, self.is_open = padded, padded is not None

    def _note_width(self, padded: PaddedInput, args: Any, kwargs: Any) -> None:
        """Report another width of a model that sees padding, and has seen one width."""
        for given in ModelCall.of(args, kwargs).leaves[padded.place :][:1]:
            if padded.has_other_width(given):
                self._say(Fault.PADDING_IS_SEEN, padded.numbers_of(given))
                self.remove()

    def _seen_padding(self, found: _Finding, batch: FirstBatch) -> PaddedInput | None:
        """Return what later calls may tell of a model that sees padding."""
        is_of_padding = found.fault is Fault.PADDING_IS_SEEN and not found.words
        if not is_of_padding or found.numbers["widths"] > 1:
            return None
        return PaddedInput.of(found.numbers, *next(iter(batch.tokens.items())))


def _refuse_ranks() -> None:
    """Refuse where a forward may wait for other ranks, or a device records a graph.

    Raises:
        Unsuitable: If so.
    """
    distributed = torch.distributed
    is_shared = distributed.is_available() and distributed.is_initialized()
    if is_shared and distributed.get_world_size() > 1:
        msg = "it trains on several ranks, and a call may wait for the others"
        raise Unsuitable(msg)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        msg = "a CUDA graph is being recorded"
        raise Unsuitable(msg)


class _Finding(NamedTuple):
    """Something that is wrong with a model.

    Attributes:
        fault: What it is.
        numbers: Figures, as of an observation.
        words: Texts, as of an observation.
    """

    fault: Fault
    numbers: Mapping[str, float] = {}
    words: Mapping[str, str] = {}


class _Change(NamedTuple):
    """A changed call, and which of its outputs must be as before.

    Attributes:
        call: The call.
        rows: For each sample in it, the number that it had; -1: it is not compared.
        places: For each of these, the places that are compared.
    """

    call: ModelCall
    rows: Sequence[int]
    places: Sequence[slice]


class _Probe:
    """One probe of a model.

    Args:
        copied: Is called; it must be silent.
        batch: What it is called with.

    Attributes:
        unasked: Why a question is not asked, by the question (``PROBE_QUESTIONS``).
    """

    def __init__(self, copied: QuietCopy, batch: FirstBatch) -> None:
        self._copied = copied
        self._batch = batch
        self._call = batch.call
        layers = copied.module.modules()
        orders = {getattr(each, "batch_first", None) for each in layers} - {None}
        self._known = batch.token_labels(is_batch_first=orders != {False})
        self._tolerance = _TOLERANCE
        self._n, self._n_places = self._sizes()
        self.unasked: dict[str, str] = {}

    def findings(self) -> Iterator[_Finding]:
        """Probe the model, and yield what is wrong.

        Raises:
            Unsuitable: If the model cannot be called.
        """
        if self._shift is None:
            self.unasked["labels"] = "labels are no tokens of an input"
        first = self._outputs(self._call)
        if first is None:
            self.unasked |= dict.fromkeys(PROBE_QUESTIONS, "no output is of numbers")
            return
        yield from self._of_masks()
        inner, change = self._choose()
        changed = None if change is None else self._try(change.call)
        if change is None or changed is None:
            yield from self._random(first)
        elif self._is_same(first, changed, change):
            yield from self._of_causal_model(first, changed, change)
        elif found := [*self._random(first)]:
            yield from found
        else:
            yield from self._reasons(first, changed, change, inner)
        yield from self._of_places(first)

    def _choose(self) -> tuple[_Change | None, _Change | None]:
        """Return the change inside of samples, and all changes at once."""
        inner = self._other_token() or self._less_padding()
        if inner is None or self._shift == 0:
            self.unasked["masks"] = "no label is the next token, and nothing is padded"
        if not self._samples_are_told_apart():
            return inner, inner
        return inner, self._moved(inner, is_beside_others=True)

    def _random(self, first: torch.Tensor) -> Iterator[_Finding]:
        """Call the model as before, and tell whether it says something else."""
        moved = _distance(first, self._outputs(self._call))
        if moved > self._tolerance:
            words = {"functions": ", ".join(sorted(self._copied.random))}
            yield _Finding(Fault.RANDOM_IN_EVALUATION, {"change": moved}, words)

    def _reasons(
        self,
        first: torch.Tensor,
        changed: torch.Tensor,
        change: _Change,
        inner: _Change | None,
    ) -> Iterator[_Finding]:
        """Tell by one more call on what the outputs depend."""
        if inner is None or (self._known is None and inner is not change):
            kind, found = self._turned(first)
            if inner is None:
                found = [*self._of_samples(first, changed, change, kind)]
            yield from found
            if inner is None or found:
                return
        alone = changed if inner is change else self._try(inner.call)
        if alone is None:
            return
        if self._is_same(first, alone, inner):
            yield from self._of_samples(first, changed, change, "others")
        elif self._known is None:
            numbers = {
                "change": max(self._changes(first, alone, inner)),
                "widths": float(len(self._batch.widths)),
            }
            words = {"mask": self._batch.mask} if self._batch.mask else {}
            yield _Finding(Fault.PADDING_IS_SEEN, numbers, words)
        elif self._shift == 1:
            numbers = {"change": max(self._changes(first, alone, inner))}
            words = {"earlier": self._sees_earlier(first, alone)}
            yield _Finding(Fault.LATER_IS_SEEN, numbers, words)

    def _turned(self, first: torch.Tensor) -> tuple[str, list[_Finding]]:
        """Call with samples in other places: what outputs depend on, and findings."""
        turned = self._moved(None, is_beside_others=False)
        others = self._try(turned.call)
        if others is None or self._is_same(first, others, turned):
            return "others", []
        one, other = (each.flatten().sort()[0] for each in (first, others))
        kind = "order" if torch.allclose(one, other, atol=1e-4) else "place"
        return kind, [*self._of_samples(first, others, turned, kind)]

    # ---- changed calls -------------------------------------------------------

    @property
    def _shift(self) -> int | None:
        return None if self._known is None else self._known[1].shift

    def _sizes(self) -> tuple[int, int]:
        """Return how many samples there are, and how many places each has, or 0."""
        if self._known is None:
            return (self._call.tensors()[0].shape[0] if self._batch.n else 0), 0
        index, labels = self._known
        sizes = self._call.leaves[index].shape
        n, places = sizes if labels.is_batch_first else sizes[::-1]
        return int(n), int(places)

    def _samples_are_told_apart(self) -> bool:
        """Return whether dimension 0 of all inputs numbers samples in no order."""
        why = self._why_not_samples()
        if why:
            self.unasked["samples"] = why
        return not why

    def _why_not_samples(self) -> str:
        batch = self._batch
        if not batch.n or self._n < LEAST_ROWS:
            return "the inputs do not say what a sample is, or have fewer than 4"
        if not batch.is_one_of_many:
            return "the second batch was the first one, or of another size"
        if any(map(_uses_batch, self._copied.module.modules())):
            return "a layer normalizes by the batch in evaluation, too"
        if self._known is not None:
            return "" if self._known[1].is_batch_first else "places come first"
        first = self._call.tensors()[0]
        if not any(each.is_of_rows(batch.n) for each in batch.losses):
            return "no loss compares each sample with a label of its own"
        is_mixed = first.dim() > 1 and has_no_order(first)
        return "" if is_mixed else "the samples are in an order"

    def _other_token(self) -> _Change | None:
        """Change a late token of every other sample, and the first one of the rest.

        Places before the late token must not see it.
        """
        if self._known is None or self._n_places < _LEAST_PLACES or self._shift == 2:
            return None
        index, labels = self._known
        tokens = self._call.leaves[index].clone()
        rows = tokens if labels.is_batch_first else tokens.t()
        values = sorted({*rows.flatten().tolist()})[-2:]
        if len(values) < 2:
            return None
        places = [
            slice(first, min(self._n_places - 1, last + 1))
            for first, last in zip(labels.first, labels.last, strict=True)
        ][: self._n]
        for row, place in enumerate(places):
            at = 0 if row % 2 else place.stop
            is_first = int(rows[row, at]) == values[0]
            rows[row, at] = values[1] if is_first else values[0]
        compared = [-1 if row % 2 else row for row in range(self._n)]
        return _Change(self._call.replace(index, tokens), compared, places)

    def _less_padding(self) -> _Change | None:
        """Cut off padding, which is none of the samples that are compared."""
        batch = self._batch
        if self._known is not None or not batch.tokens or not self._n:
            return None
        if not any(each.is_of_rows(batch.n) for each in batch.losses):
            return None
        index, every = next(iter(batch.tokens.items()))
        width, lengths = every.shape[1], lengths_of(every)
        shapes = [each.shape for each in self._call.tensors()]
        if lengths is None or any(width in (*each[:1], *each[2:]) for each in shapes):
            return None
        own = lengths[: self._call.leaves[index].shape[0]]
        kept = int(own.sort().values[len(own) // 4])
        if kept < 1 or kept > width - _LEAST_PADDING:
            return None

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            has_places = tensor.dim() > 1 and tensor.shape[1] == width
            return tensor[:, :kept] if has_places else tensor

        compared = [row if own[row] <= kept else -1 for row in range(len(own))]
        return _Change(self._call.map(cut), compared, [slice(None)] * self._n)

    def _moved(self, change: _Change | None, *, is_beside_others: bool) -> _Change:
        """Move the samples to other places; one goes, and another one comes twice."""
        if change is None:
            change = _Change(self._call, range(self._n), [slice(None)] * self._n)
        order = [*range(self._n)][::-1]
        order = [*order[1:], 0] if is_beside_others else order
        return _Change(
            change.call.map(lambda each: each[order]),
            [change.rows[row] for row in order],
            [change.places[row] for row in order],
        )

    def _of_masks(self) -> Iterator[_Finding]:
        """Judge the masks that attention got in the first call."""
        tokens = [self._call.leaves[index] for index in self._batch.tokens]
        calls, n_widths = self._copied.masks.calls, len(self._batch.widths)
        for found in faults_of_masks(calls, tokens, n_widths):
            yield _Finding(*found)

    def _of_places(self, first: torch.Tensor) -> Iterator[_Finding]:
        """Change the order of tokens, which attention alone does not see."""
        for i, every in [*self._batch.tokens.items()][: self._known is None]:
            model, n = self._copied.module, self._batch.n
            tokens = reordered(every, self._call.leaves[i], first, model)
            if tokens is None or not any(e.is_of_rows(n) for e in self._batch.losses):
                return
            other = self._try(self._call.replace(i, tokens))
            if other is not None and _distance(first, other) <= _ROUNDING:
                yield _Finding(*fault_of_places(model))

    # ---- what they tell ------------------------------------------------------

    def _of_causal_model(
        self, first: torch.Tensor, changed: torch.Tensor, change: _Change
    ) -> Iterator[_Finding]:
        """Judge labels of a model that sees no later token.

        One that does not see the token itself, either, shifts its inputs inside.
        """
        if self._shift != 0 or any(each.stop is None for each in change.places):
            return
        its_own = [slice(each.stop, each.stop + 1) for each in change.places]
        if not self._is_same(first, changed, change._replace(places=its_own)):
            yield _Finding(Fault.LABELS_ARE_INPUTS)

    def _of_samples(
        self,
        first: torch.Tensor,
        changed: torch.Tensor,
        change: _Change,
        depends_on: str,
    ) -> Iterator[_Finding]:
        """Tell that samples depend on others, if nearly all of them do."""
        changes = self._changes(first, changed, change)
        least = _TIMES * self._tolerance
        if sum(each > least for each in changes) < _SHARE * len(changes):
            return
        change_of_median = sorted(changes)[len(changes) // 2]
        numbers = {"change": change_of_median, "samples": float(len(changes))}
        yield _Finding(Fault.SAMPLES_ARE_MIXED, numbers, {"depends_on": depends_on})

    def _sees_earlier(self, first: torch.Tensor, alone: torch.Tensor) -> str:
        """Return whether places see the first token, where that was changed."""
        if self._n < 2:
            return "unknown"
        distance = _distance(first[1::2, 1:], alone[1::2, 1:])
        return "seen" if distance > self._tolerance else "unseen"

    def _changes(
        self, first: torch.Tensor, changed: torch.Tensor, change: _Change
    ) -> list[float]:
        """Return by how much the outputs of each compared sample have changed."""
        spread = _spread(first)
        return [
            _distance(first[before, places], changed[now, places], spread)
            for now, (before, places) in enumerate(
                zip(change.rows, change.places, strict=True)
            )
            if before >= 0
        ]

    def _is_same(
        self, first: torch.Tensor, changed: torch.Tensor | None, change: _Change
    ) -> bool:
        changes = [] if changed is None else self._changes(first, changed, change)
        return all(each <= self._tolerance for each in changes)

    # ---- calls ---------------------------------------------------------------

    def _try(self, call: ModelCall) -> torch.Tensor | None:
        """Return the outputs of a changed call; None: the model does not take it."""
        with contextlib.suppress(Unsuitable):
            return self._outputs(call)
        why = "the model takes no changed samples"
        self.unasked |= dict.fromkeys(("samples", "masks"), why)
        return None

    def _outputs(self, call: ModelCall) -> torch.Tensor | None:
        """Return what a model says, as (sample, place, number); None: it says nothing.

        Outputs without places have one.
        """
        args, kwargs = call.arguments()
        found = [
            each.detach()
            for each in pytree.tree_leaves(self._copied(args, kwargs))
            if isinstance(each, torch.Tensor)
            and each.is_floating_point()
            and 0 < each.numel() <= _MOST_ELEMENTS
        ]
        if self._batch.is_narrow or any(each.dtype in _NARROW for each in found):
            self._tolerance = _NARROW_TOLERANCE
        arranged = (self._arranged(each) for each in found)
        return next((each for each in arranged if each is not None), None)

    def _arranged(self, output: torch.Tensor) -> torch.Tensor | None:
        if self._known is None:
            n = self._n or 1
            is_of_samples = output.dim() > 0 and output.shape[0] == self._n
            if self._n and not is_of_samples:
                return None
            return output.reshape(n, 1, -1).double()
        sizes = self._n, self._n_places
        if not self._known[1].is_batch_first:
            sizes = sizes[::-1]
        if output.shape[:1] != (math.prod(sizes),) and output.shape[:2] != sizes:
            return None
        placed = output.reshape(*sizes, -1).double()
        return placed if self._known[1].is_batch_first else placed.transpose(0, 1)


def _distance(
    one: torch.Tensor, other: torch.Tensor | None, spread: float = 0.0
) -> float:
    """Return the largest mean change of a place, in standard deviations."""
    if other is None or other.shape != one.shape or not one.numel():
        return 0.0
    difference = (one - other).nan_to_num(0.0, 0.0, 0.0).abs()
    largest = float(difference.reshape(*one.shape[:-1], -1).mean(-1).max())
    return largest / (spread or _spread(one))


def _spread(outputs: torch.Tensor) -> float:
    """Return the standard deviation of the finite outputs, or their size."""
    finite = outputs[outputs.isfinite()]
    spread = float(finite.std(correction=0)) if finite.numel() else 0.0
    size = float(finite.abs().max()) if finite.numel() else 0.0
    return max(spread, 1e-3 * size) or 1.0


def _uses_batch(module: nn.Module) -> bool:
    """Return whether a module normalizes by the batch in evaluation, too."""
    is_normalization = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return is_normalization and module.running_mean is None
