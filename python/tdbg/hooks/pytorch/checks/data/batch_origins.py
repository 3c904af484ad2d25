"""Compare the first batches with the tensors of the program that they were made of.

Two facts need the tensors where a program has its data: it writes to them whenever it
takes a batch out of them, so that changes add up; or a batch mixes two samples each
(mixup, CutMix), and the loss knows the label of one.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.probes.token_shifts import is_array, is_whole
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.call_context import is_in_transform, is_traced
from tdbg.hooks.pytorch.model.module_tree import IS_REPLICA
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["BatchOrigins"]

# Calls in which names are looked up; calls until data that change must change again.
_MOST_CALLS, _MOST_WATCHED = 12, 600
# Samples of a batch that may be mixed; elements of a batch and of data that are read.
_LEAST_SAMPLES, _MOST_ELEMENTS, _MOST_DATA = 8, 1 << 19, 1 << 20
# Tensors of data, and of indices, that are looked at, at most.
_MOST_TENSORS, _MOST_INDICES = 8, 4
# Calls in which exactly what is taken has changed; and by how much rows stay alike.
_LEAST_CHANGED, _LEAST_ALIKE = 3, 0.3
# Batches that are mixed; shares of the sample whose label counts, in some and others.
_LEAST_MIXED, _MINOR, _MAJOR = 4, 0.45, 0.55
# Samples whose partner is searched, elements of each, how exact a mixture is, and how
# often partners must have another label.
_MOST_SEARCHED, _MOST_COMPARED, _EXACT, _OTHER_LABEL = 6, 256, 1e-3, 0.25

_Names = Sequence[Mapping[str, Any]]


class BatchOrigins:
    """Where the batches of one training come from.  One of the checks of batches.

    Args:
        session: Receives observations.

    Attributes:
        is_open: Whether it must still hear of calls, losses and steps.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._model: weakref.ref[nn.Module] | None = None
        self._name = "model"
        self._n_calls = 0
        self._data: list[_Data] = []
        self._mixed: list[float] = []
        self._mixture: _Mixture | None = None
        self._labels: list[torch.Tensor] = []
        self._is_mixing = True
        self.is_open = True

    def note_call(self, model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        """Note that a registered module is about to be called."""
        if self._model is not None and self._model() is not model:
            return
        if IS_REPLICA in vars(model) or not (
            model.training and torch.is_grad_enabled()
        ):
            return
        if is_in_transform() or is_traced() or is_recording():
            return
        with self._guard():
            self._n_calls += 1
            self._model, self._name = weakref.ref(model), name
            given: Any = next(iter((*args, *(kwargs or {}).values())), None)
            if not _is_batch(given):
                self.remove()
                return
            spaces: _Names = ()
            if self._n_calls == 1 or (self._is_mixing and self._n_calls <= _MOST_CALLS):
                spaces = [*namespaces(sys._getframe(1))]
            self._look(given, spaces)

    def note_loss(self, value: Any) -> None:
        """Note the arguments of a loss: a pair of those by place and by name."""
        if self._mixture is None or not self.is_open:
            return
        with self._guard():
            args = value[0] if type(value) is tuple and len(value) == 2 else value
            labels: Any = args[1] if type(args) is tuple and len(args) > 1 else None
            self._labels.append(labels if is_array(labels) else torch.zeros(0))

    def step_ends(self) -> None:
        """Note that an optimizer has stepped."""
        if not self.is_open:
            return
        with self._guard():
            mixture, labels = self._mixture, self._labels
            self._mixture, self._labels = None, []
            if mixture is not None and labels:
                self._judge_labels(mixture, labels)
            is_watching = any(each.is_suspect for each in self._data)
            is_mixing = self._is_mixing and self._n_calls < _MOST_CALLS
            if not (is_watching or is_mixing) or self._n_calls > _MOST_WATCHED:
                self.remove()

    def remove(self) -> None:
        """Look at no more."""
        self.is_open = False
        self._data.clear()
        self._labels.clear()
        self._mixture = None

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Let nothing escape, and count the time."""
        start = time.perf_counter_ns()
        try:
            with torch.no_grad():
                yield
        except Exception:
            self.remove()
        finally:
            self._session.spend_once(time.perf_counter_ns() - start)

    def _tell(self, fault: Fault, numbers: dict[str, float], **words: str) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        seen = Observation(fault, step, (self._name,), numbers, words)
        self._session.run(self._session.observe, seen)

    def _look(self, given: torch.Tensor, spaces: _Names) -> None:
        found = dict(_tensors_like(given, spaces))
        if self._n_calls == 1:
            # What fetches samples of a dataset sees by itself whether they change.
            known = {id(each) for each in _of_datasets(spaces)}
            self._data = [
                _Data(name, each)
                for name, each in found.items()
                if id(each) not in known
            ]
        hashes = _hashes(given) if self._data else None
        for each in self._data:
            if hashes is not None and each.is_written(hashes):
                words = {"attribute": each.name, "by": "program"}
                self._tell(Fault.SAMPLES_OVERWRITTEN, {}, **words)
                self._data.clear()
                break
        self._data = [each for each in self._data if each.is_suspect]
        if self._is_mixing and spaces and len(given) >= _LEAST_SAMPLES:
            bases = _bases(given, found, spaces)
            mixtures = (_mixture_of(given, each) for each in bases)
            self._mixture = next((each for each in mixtures if each is not None), None)
            # A program that mixes some of its batches mixes one of the first.
            self._is_mixing = self._mixture is not None or self._n_calls < 4

    def _judge_labels(self, mixture: _Mixture, labels: Sequence[torch.Tensor]) -> None:
        """Judge the labels of the losses of a step whose batch was mixed."""
        first = labels[0]
        is_one = all(
            each.shape == first.shape and bool((each == first).all()) for each in labels
        )
        is_of_classes = first.dim() == 1 and is_whole(first)
        if not (is_one and is_of_classes) or len(first) != mixture.n:
            self._is_mixing = False
            return
        rows = torch.tensor(mixture.rows)
        others = first[torch.tensor(mixture.partners)] != first[rows]
        if float(others.double().mean()) >= _OTHER_LABEL:
            self._mixed.append(mixture.share)
        least, most = min(self._mixed, default=1.0), max(self._mixed, default=0.0)
        if len(self._mixed) >= _LEAST_MIXED and least < _MINOR and most > _MAJOR:
            self._tell(
                Fault.MIXED_LABEL_FORGOTTEN,
                {"batches": float(len(self._mixed)), "least": least, "most": most},
                kind=mixture.kind,
            )
            self._is_mixing = False


def _is_batch(given: Any) -> bool:
    return (
        type(given) is torch.Tensor
        and given.device.type == "cpu"
        and given.dtype in {torch.float32, torch.float64}
        and given.dim() > 1
        and 0 < given.numel() <= _MOST_ELEMENTS
    )


def _tensors_like(
    given: torch.Tensor, spaces: _Names
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors of samples like those of a batch, as many or more, by name."""
    seen = {id(given)}
    for names in spaces:
        for name, value in names.items():
            has_parts = isinstance(value, list | tuple) or hasattr(
                type(value), "__dataclass_fields__"
            )
            for each in _parts_of(value) if has_parts else (value,):
                if len(seen) > _MOST_TENSORS:
                    return
                if (
                    type(each) is torch.Tensor
                    and id(each) not in seen
                    and each.shape[1:] == given.shape[1:]
                    and each.dim() == given.dim()
                    and len(each) >= len(given)
                    and each.dtype == given.dtype
                    and each.device == given.device
                    and not each.requires_grad
                ):
                    seen.add(id(each))
                    yield f"{name} ({len(seen) - 1})", each


def _parts_of(value: Any) -> Sequence[Any]:
    """Return what a container has, or an object without a dictionary; else itself."""
    if isinstance(value, list | tuple):
        return value[:_MOST_TENSORS]
    fields = getattr(type(value), "__dataclass_fields__", {})
    if fields and not hasattr(value, "__dict__"):
        return [getattr(value, each, None) for each in fields]
    return (value,)


def _of_datasets(spaces: _Names) -> Iterator[Any]:
    """Yield what the datasets of a program have."""
    for value in [each for names in spaces for each in names.values()]:
        if isinstance(value, Dataset):
            for each in vars(value).values():
                yield from _parts_of(each)


# ---- data that change ------------------------------------------------------------


def _hashes(rows: torch.Tensor) -> torch.Tensor:
    """Return a number for each row that tells it from others."""
    flat = (rows.detach().flatten(1) + 0.0).contiguous()
    bits = flat.view(torch.int64 if flat.dtype == torch.float64 else torch.int32).long()
    luck = torch.Generator().manual_seed(flat.shape[1])
    most = torch.iinfo(torch.int64).max
    factors = torch.randint(-most, most, (flat.shape[1],), generator=luck) | 1
    return (bits * factors).sum(1)


class _Data:
    """A tensor that may hold the data of a program.

    Attributes:
        name: What the program calls it.
        is_suspect: Whether it has changed so far as data do that are written to.
    """

    def __init__(self, name: str, data: torch.Tensor) -> None:
        self.name = name.rpartition(" (")[0]
        self._data = weakref.ref(data)
        self.is_suspect = data.numel() <= _MOST_DATA
        self._before: torch.Tensor | None = None
        self._hashes: torch.Tensor | None = None
        self._n_changes = torch.zeros(len(data), dtype=torch.int64)
        self._n_calls = 0

    def is_written(self, taken: torch.Tensor) -> bool:
        """Return whether the data have changed where they were taken, and only there.

        The same rows must change again: what changes once may be prepared once.
        """
        data = self._data()
        if data is None or not self.is_suspect:
            self.is_suspect = False
            return False
        now = _hashes(data)
        before, known = self._before, self._hashes
        self._before, self._hashes = data.detach().clone(), now
        if before is None or known is None:
            # Batches are rows of the data.
            self.is_suspect = bool(torch.isin(taken, now).all())
            return False
        changed = now != known
        self.is_suspect = bool(
            changed.any()
            and torch.isin(taken, now).all()
            and torch.isin(now[changed], taken).all()
            and _are_alike(before[changed], data[changed])
        )
        if not self.is_suspect:
            return False
        self._n_calls += 1
        self._n_changes += changed
        n_again = int((self._n_changes > 1).sum())
        return self._n_calls >= _LEAST_CHANGED and n_again >= _LEAST_CHANGED


def _are_alike(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Return whether most rows are what they were before, and something more."""
    one, other = (each.flatten(1) for each in (before, now))
    one, other = (each - each.mean(1, keepdim=True) for each in (one, other))
    scale = (one.norm(dim=1) * other.norm(dim=1)).clamp(min=1e-12)
    alike = (one * other).sum(1) / scale
    return float(alike.median()) >= _LEAST_ALIKE


# ---- mixtures --------------------------------------------------------------------


class _Mixture(NamedTuple):
    """A batch whose samples are mixed of two each.

    Attributes:
        n: The samples of the batch.
        rows: Samples that were looked at.
        partners: The samples that are mixed into them.
        share: How much of a sample itself is in it.
        kind: "mixup" or "CutMix".
    """

    n: int
    rows: list[int]
    partners: list[int]
    share: float
    kind: str


def _bases(
    given: torch.Tensor, found: Mapping[str, torch.Tensor], spaces: _Names
) -> Iterator[torch.Tensor]:
    """Yield what the samples of a batch may have been before they were mixed."""
    n = len(given)
    indices = [
        value
        for names in spaces
        for value in names.values()
        if type(value) is torch.Tensor
        and value.dtype == torch.int64
        and value.shape == (n,)
        and value.device == given.device
    ]
    distinct = [each for each in indices if len({*each.tolist()}) > n // 2]
    for each in found.values():
        if len(each) == n:
            yield each
        else:
            for rows in distinct[:_MOST_INDICES]:
                if int(rows.min()) >= 0 and int(rows.max()) < len(each):
                    yield each[rows]


def _mixture_of(given: torch.Tensor, base: torch.Tensor) -> _Mixture | None:
    """Return how a batch is mixed of the rows of another one; None: it is not."""
    x, a = (each.detach().flatten(1) for each in (given, base))
    every = max(1, x.shape[1] // _MOST_COMPARED)
    x, a = x[:, ::every].double(), a[:, ::every].double()
    rows, partners, shares, kinds = list[int](), list[int](), list[float](), set[str]()
    for i in range(len(x)):
        if len(rows) >= _MOST_SEARCHED or i >= 2 * _MOST_SEARCHED:
            break
        found = _partner_of(x[i], a, i)
        if found is None:
            # A sample that is its own partner is as it was.
            if not bool((x[i] == a[i]).all()):
                return None
            continue
        partner, share, kind = found
        rows.append(i)
        partners.append(partner)
        shares.append(share)
        kinds.add(kind)
    is_one = len(kinds) == 1 and len(rows) > _MOST_SEARCHED // 2
    if not is_one or max(shares) - min(shares) > 0.2:
        return None
    return _Mixture(len(x), rows, partners, sum(shares) / len(shares), kinds.pop())


def _partner_of(
    x: torch.Tensor, a: torch.Tensor, i: int
) -> tuple[int, float, str] | None:
    """Return what is mixed into row *i*: its row, the share of *i*, and how."""
    apart = a - a[i]
    size = (apart**2).sum(1)
    weights = (apart @ (x - a[i])) / size.clamp(min=1e-12)
    left = (((x - a[i]) - weights[:, None] * apart) ** 2).sum(1)
    is_mixed = (left < _EXACT**2 * size) & (weights > 0.02) & (weights < 0.98)
    for j in is_mixed.nonzero().flatten().tolist()[:1]:
        return int(j), 1.0 - float(weights[j]), "mixup"
    is_own = x == a[i]
    pasted = ((x == a) | is_own).all(1) & ~(a == a[i]).all(1)
    share = float(is_own.double().mean())
    for j in pasted.nonzero().flatten().tolist()[:1]:
        if 0.02 < share < 0.98:
            return int(j), share, "CutMix"
    return None
