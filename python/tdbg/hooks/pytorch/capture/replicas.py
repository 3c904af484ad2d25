"""Compare the replicas of a model that the ranks of a training have.

``tdbg.capture.replica_check`` says when ranks compare them.  This reads the tensors,
and knows what keeps them equal: ``DistributedDataParallel`` reduces the gradients of
the parameters that it had when it was made.  Tensors that ranks share out (DTensors,
flat parameters) are left out, as are statistics of normalizations, which differ between
two broadcasts.  What the model is given in the first steps is compared, too, also if
``fully_shard`` shares out all parameters.

Thread safety: the training's thread.  Errors: none; what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed, nn
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel

from tdbg.capture.naming import buffer_name
from tdbg.capture.replica_check import EVERY, RankGroup, ReplicaCheck, is_look
from tdbg.capture.replica_differences import Difference
from tdbg.capture.replica_prints import BITS, SIZES, Print, Standing
from tdbg.capture.session import Session
from tdbg.hooks.pytorch.capture.registered_modules import ModuleCapture
from tdbg.hooks.pytorch.checks.data.first_inputs import INPUTS_LOOK, FirstInputs
from tdbg.hooks.pytorch.device.bits import first_sum, has_bits, sums_of
from tdbg.hooks.pytorch.device.tensors import gradient_of, is_recording
from tdbg.hooks.pytorch.model.module_tree import places_of
from tdbg.hooks.pytorch.model.process_objects import living, met
from tdbg.modes import TRAIN
from tdbg.run.observations import Observation

__all__ = ["ReplicaTensors"]

# Elements and tensors that a look reads, at most; the next look continues.  The first
# looks are close together, so each of them reads less.
_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
_TENSORS = {"cpu": 64, "cuda": 256}
_FIRST_ELEMENTS, _FIRST_TENSORS = 1 << 17, 16
# Steps at which the smallest tensor is read, where replicas may be meant to differ.
_SPOTS = 64
# The looks at which wrappers are searched for, if none is known.
_SEARCHES = 2
# Buffers that normalizations update from each rank's own batch.
_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
# Where the functions lie that PyTorch has for reducing gradients.
_KNOWN_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
# Names of tensors that an observation has, at most.
_MOST_NAMES = 20


class _Tensor(NamedTuple):
    """A tensor that is compared."""

    name: str
    tensor: torch.Tensor
    standing: Standing


class ReplicaTensors:
    """The tensors of this rank's replica.

    Args:
        session: Where differences are written.
        ranks: The ranks.
        module_captures: Those of the registered modules; grows.
        inputs: What the model is given.
    """

    def __init__(
        self,
        session: Session,
        ranks: RankGroup,
        module_captures: Sequence[ModuleCapture],
        inputs: FirstInputs,
    ) -> None:
        self._session = session
        self._inputs = inputs
        self._module_captures = module_captures
        self._check = ReplicaCheck(ranks, self._report)
        self._wrappers = _Wrappers(ranks.size)
        self._n = 0
        # The tensor that the next look begins with.
        self._next = 0
        # The global steps of the looks.
        self._steps: dict[int, int] = {}
        self._spot: weakref.ref[torch.Tensor] | None = None
        self._spots_end = 0
        self._spots: dict[int, torch.Tensor] = {}
        session.listen(close=self._check.close)

    def optimizer_begins(self) -> None:
        """Note that the optimizer that ends the step is about to use the gradients."""
        n = self._n
        self._n += 1
        if self._check.is_over or is_compiling():
            return
        with contextlib.suppress(Exception), torch.no_grad():
            if is_look(n) and not is_recording():
                start = time.perf_counter_ns()
                self._look(n)
                self._session.excuse(time.perf_counter_ns() - start)
            if n < self._spots_end:
                self._take_spot(n)
            self._check.poll()

    def _look(self, n: int) -> None:
        self._steps[n] = self._session.latest_step(TRAIN)[0]
        wrappers = self._wrappers
        wrappers.look(each.module for each in self._module_captures)
        every = [each for each in self._tensors() if each.standing]
        chosen = list[_Tensor]()
        if every:
            device = every[0].tensor.device
            every = [each for each in every if each.tensor.device == device]
            chosen = self._choose(n, every)
            self._choose_spot(n, every)
        elif not (n == INPUTS_LOOK and wrappers.averages):
            return
        names = [each.name for each in chosen]
        self._check.add(n, names, self._print_of(n, chosen))

    def _choose(self, n: int, every: Sequence[_Tensor]) -> list[_Tensor]:
        """Return the tensors that this look reads; the next one continues."""
        kind = every[0].tensor.device.type
        left, most = _ELEMENTS[kind], _TENSORS[kind]
        if n < EVERY and kind == "cpu":
            left, most = _FIRST_ELEMENTS, _FIRST_TENSORS
        chosen = list[_Tensor]()
        begin = self._next % len(every)
        for each in (*every[begin:], *every[:begin]):
            left -= each.tensor.numel()
            if len(chosen) == most or (chosen and left < 0):
                break
            chosen.append(each)
        self._next = (begin + len(chosen)) % len(every)
        return chosen

    def _choose_spot(self, n: int, every: Sequence[_Tensor]) -> None:
        """Begin to read the smallest tensor at each step, if it is to be known."""
        unsure = {Standing.BYPASSED, Standing.UNSYNCED}
        found = [
            each.tensor
            for each in every
            if each.standing in unsure and each.tensor.requires_grad
        ]
        if found and self._spot is None:
            self._spot = weakref.ref(min(found, key=torch.Tensor.numel))
            self._spots_end = n + _SPOTS + 1

    def _take_spot(self, n: int) -> None:
        tensor = None if self._spot is None else self._spot()
        if tensor is not None and n not in self._spots:
            self._spots[n] = first_sum(tensor)

    def _print_of(self, n: int, chosen: Sequence[_Tensor]) -> Callable[[], Print]:
        """Begin to read the tensors; return what waits for them."""
        self._take_spot(n)
        weights, sizes = sums_of([each.tensor for each in chosen])
        gradients = [_gradient_beside(each.tensor) for each in chosen]
        bits_of_gradients, sizes_of_gradients = sums_of(gradients)
        given = self._inputs.take() if n == INPUTS_LOOK else {}
        nothing = [torch.zeros((), dtype=torch.int64)]
        made = _Arriving(
            [
                weights,
                bits_of_gradients,
                torch.cat([sizes, sizes_of_gradients], 1),
                torch.stack([*self._spots.values()] or nothing),
                torch.stack([*given.values()] or nothing),
            ]
        )
        n_forwards, wrappers = self._session.n_forwards, self._wrappers
        group, averages = wrappers.group, wrappers.averages
        kind, steps = _kind(chosen), tuple(self._spots)
        standings = tuple(int(each.standing) for each in chosen)

        def make() -> Print:
            bits, others, values, spots, inputs = made.wait()
            return Print(
                n=n,
                n_forwards=n_forwards,
                group=group,
                kind=kind,
                standings=standings,
                weights=bits.astype(BITS),
                gradients=others.astype(BITS),
                sizes=values.astype(SIZES),
                spots=dict(zip(steps, spots.tolist(), strict=False)),
                inputs=dict(zip(given, inputs.tolist(), strict=False)),
                averages=averages,
            )

        return make

    def _tensors(self) -> Iterator[_Tensor]:
        wrappers = self._wrappers
        for module_capture in self._module_captures:
            for tracked in module_capture.parameters.tracked_parameters():
                parameter = tracked.parameter()
                if parameter is not None and has_bits(parameter):
                    standing = wrappers.of_parameter(parameter)
                    yield _Tensor(tracked.weight.name, parameter, standing)
            root = module_capture.module
            if root is None:
                continue
            for place in places_of(root, lambda module: module._buffers):
                owner = place.owner()
                buffer = None if owner is None else owner._buffers.get(place.key)
                if buffer is None or place.key in _STATISTICS:
                    continue
                if has_bits(buffer):
                    name = buffer_name(module_capture.prefix + place.names[0])
                    yield _Tensor(name, buffer, wrappers.of_buffer(buffer))

    def _report(self, found: Difference) -> None:
        session = self._session
        numbers = {
            "first": self._steps.get(found.n, -1),
            "equal_at": self._steps.get(found.since, -1),
            "differ": len(found.names),
            "tensors": found.n_tensors,
            **found.numbers,
        }
        words = {
            "ranks": ", ".join(map(str, found.ranks)),
            "odd": ", ".join(map(str, found.odd)),
        }
        step = max(0, session.latest_step(TRAIN)[0])
        names = found.names[:_MOST_NAMES]
        session.observe(Observation(found.fault, step, names, numbers, words))


class _Arriving:
    """Numbers of a device that are on their way here."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._event: Any = None
        self._tensors = [each.to("cpu", non_blocking=True) for each in tensors]
        devices = {each.device for each in tensors if each.is_cuda}
        for device in devices:  # One at most.
            cuda: Any = torch.cuda
            self._event = cuda.Event()
            self._event.record(cuda.current_stream(device))

    def wait(self) -> list[np.ndarray[Any, Any]]:
        """Return the numbers, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return [each.numpy() for each in self._tensors]


class _Wrappers:
    """The ``DistributedDataParallel`` of this process; without one, ``fully_shard``.

    Args:
        n_ranks: The number of all ranks.

    Attributes:
        group: The ranks that share a replica or its parts; empty: all.
        averages: Whether they average the gradients of their batches.
    """

    def __init__(self, n_ranks: int) -> None:
        self._n_ranks = n_ranks
        self._found: list[weakref.ref[DistributedDataParallel]] = []
        # The ids of the parameters that each knows.
        self._known: weakref.WeakKeyDictionary[Any, set[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._n_looks = 0
        self._standings: dict[int, Standing] = {}
        self.group: tuple[int, ...] = ()
        self.averages = False

    def look(self, models: Iterable[nn.Module | None]) -> None:
        """Find out what the wrappers do now, which may share out *models*."""
        self._n_looks += 1
        if self._n_looks <= _SEARCHES and not self._found:
            # A pass over all objects takes long, and one was just made for the losses.
            known = met(DistributedDataParallel) or (
                living(DistributedDataParallel) if self._n_looks == _SEARCHES else []
            )
            self._found = [weakref.ref(each) for each in known]
        wrappers = [each for ref in self._found if (each := ref()) is not None]
        groups = [_ranks_of(each, self._n_ranks) for each in wrappers]
        self.group = groups[0] if groups else ()
        self._standings = {}
        for wrapper, group in zip(wrappers, groups, strict=True):
            if group == self.group:
                self._standings |= dict(self._standings_in(wrapper))
            else:
                self._standings |= dict.fromkeys(
                    map(id, _tensors_in(wrapper)), Standing.NONE
                )
        self.averages = Standing.REDUCED in self._standings.values()
        for model in () if wrappers else models:
            ranks = _ranks_that_shard(model, self._n_ranks)
            if ranks is not None:
                self.group, self.averages = ranks, True

    def of_parameter(self, parameter: torch.Tensor) -> Standing:
        """Return how a parameter is kept equal."""
        alone = Standing.NONE if self._found else Standing.ALONE
        return self._standings.get(id(parameter), alone)

    def of_buffer(self, buffer: torch.Tensor) -> Standing:
        """Return how a buffer is kept equal."""
        return self._standings.get(id(buffer), Standing.NONE)

    def _standings_in(
        self, wrapper: DistributedDataParallel
    ) -> Iterator[tuple[int, Standing]]:
        ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
        known = self._known.get(wrapper)
        if known is None:
            known = self._known[wrapper] = _registered(wrapper)
        reduces = _standing_of(wrapper)
        for name, each in wrapper.module.named_parameters(remove_duplicate=False):
            standing = reduces
            if name in ignored:
                standing = Standing.NONE
            elif id(each) not in known and each.requires_grad:
                standing = Standing.LATE
            yield id(each), standing
        for name, each in wrapper.module.named_buffers(remove_duplicate=False):
            drifts = not wrapper.broadcast_buffers and name not in ignored
            yield id(each), Standing.BUFFER if drifts else Standing.NONE


def _gradient_beside(tensor: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a tensor on the same device; an empty one for none."""
    gradient = gradient_of(tensor)
    if gradient is None or not has_bits(gradient) or gradient.device != tensor.device:
        return tensor.new_zeros(0)
    return gradient


def _registered(wrapper: DistributedDataParallel) -> set[int]:
    """Return the ids of the parameters that a wrapper had when it was made."""
    known: Sequence[nn.Parameter] = wrapper._module_parameters
    log: Any = wrapper._get_ddp_logging_data
    n_known = log().get("num_parameter_tensors", -1)
    trained = {id(each) for each in known if each.requires_grad}
    # Those that were frozen then are not reduced; later nobody knows which these were.
    return trained if len(trained) == n_known else set(map(id, known))


def _standing_of(wrapper: Any) -> Standing:
    """Return what a wrapper does with gradients."""
    for hook, _ in getattr(wrapper, "_comm_hooks", ()):
        module = str(getattr(hook, "__module__", ""))
        is_known = module.startswith(_KNOWN_HOOKS) and "post_localSGD" not in module
        if not is_known or "noop" in str(getattr(hook, "__name__", "")):
            return Standing.HOOKED
    if not getattr(wrapper, "_lazy_init_ran", True):
        return Standing.BYPASSED
    if not getattr(wrapper, "require_forward_param_sync", True):
        return Standing.UNSYNCED
    return Standing.REDUCED


def _ranks_of(wrapper: DistributedDataParallel, n_ranks: int) -> tuple[int, ...]:
    """Return the ranks that a wrapper reduces over; empty: all."""
    ranks = distributed.get_process_group_ranks(wrapper.process_group)
    return () if len(ranks) == n_ranks else tuple(ranks)


def _ranks_that_shard(model: nn.Module | None, n_ranks: int) -> tuple[int, ...] | None:
    """Return the ranks that ``fully_shard`` reduces over; empty: all; None: nothing.

    Of a mesh that has more dimensions, as those of tensor parallelism, it is the part
    that ``fully_shard`` was given: ranks in the other dimensions share batches.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(model, fsdp.FSDPModule):
        return None
    info = model._get_fsdp_state()._fsdp_param_groups[0].mesh_info
    if info.is_spmd_mesh:
        return None
    ranks = sorted(info.mesh.mesh.flatten().tolist())
    return () if len(ranks) == n_ranks else tuple(ranks)


def _tensors_in(wrapper: DistributedDataParallel) -> Iterator[torch.Tensor]:
    yield from wrapper.module.parameters()
    yield from wrapper.module.buffers()


def _kind(tensors: Sequence[_Tensor]) -> str:
    """Return a text that is equal for tensors of equal names, shapes and types."""
    facts = [
        (name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor, _ in tensors
    ]
    return hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()
