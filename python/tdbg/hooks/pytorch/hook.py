"""The hook: what users register, and what they record by hand."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.capture.naming import UniqueNames
from tdbg.capture.opening import Opening, is_disabled, open_session
from tdbg.capture.overhead import Overhead
from tdbg.capture.session import Session
from tdbg.capture.tensors import Tensors
from tdbg.collections import Collection, Role
from tdbg.errors import ConfigurationError
from tdbg.hooks.pytorch.cuda import CudaTensors, foreign, number_of
from tdbg.hooks.pytorch.cuda_graphs import GraphTap
from tdbg.hooks.pytorch.gradients import AccumulatedGradients
from tdbg.hooks.pytorch.lifetime import Lifetime, dead_session
from tdbg.hooks.pytorch.losses import LossTap, loss_name
from tdbg.hooks.pytorch.mode import CurrentMode
from tdbg.hooks.pytorch.model_facts import ModelFacts
from tdbg.hooks.pytorch.modules import ModuleTap, is_tapped_by
from tdbg.hooks.pytorch.optimizers import OptimizerWatch
from tdbg.hooks.pytorch.paths import class_name, unwrapped
from tdbg.hooks.pytorch.sharding import Shards, warn_of_flat_parameters
from tdbg.hooks.pytorch.sparse import sparse_row, sparse_units
from tdbg.hooks.pytorch.tensors import TYPES, describe, is_tensor
from tdbg.modes import ModeKeys

__all__ = ["TorchHook"]

_Loss = TypeVar("_Loss", bound=Callable[..., Any])


class TorchHook(Lifetime):
    """Captures a training of PyTorch.

    After construction nothing raises into the training but ``TrainingStopped``;
    the ``register_...`` methods raise ConfigurationError for what they cannot use.

    With ``TDBG_DISABLED=1`` the hook does nothing at all.

    Args:
        make: Says what it opens; not even called where it is disabled.
    """

    def __init__(self, make: Callable[[], Opening]) -> None:
        self._remote = CudaTensors()
        if is_disabled():
            self._set_up(dead_session())
            return
        out_dir, policy, options = make()
        framework = {"name": "pytorch", "version": str(torch.__version__)}
        session = open_session(
            out_dir,
            policy,
            options,
            framework,
            Tensors(
                describe,
                remote=self._remote,
                local=Shards(options.workers).local,
                compute_row=sparse_row,
                compute_units=sparse_units,
            ),
            TYPES,
        )
        self._set_up(session)

    def _set_up(self, session: Session) -> None:
        self._session = session
        self._names = UniqueNames()
        self._taps: list[ModuleTap] = []
        self._roots: list[weakref.ref[nn.Module]] = []
        self._losses: list[LossTap] = []
        self._registered_losses: list[tuple[weakref.ref[Any], LossTap]] = []
        self._gradients: list[AccumulatedGradients] = []
        self._facts = ModelFacts(session, self._taps, self._losses)
        machine, changed = session.machine, self._facts.mode_changed
        self._mode = CurrentMode(machine, self._roots, changed)
        self._current_mode = self._mode.now
        self._watch: OptimizerWatch | None = None
        self._graphs: GraphTap | None = None
        if self._session.is_live:
            self._graphs = GraphTap(self._session, self._current_mode)
        self._session.on_close.append(self._remove)

    # ---- registration ----------------------------------------------------------

    def register_module(self, module: nn.Module, *, name: str | None = None) -> None:
        """Capture this module.

        Its inputs and outputs go by its class name, what is inside it by path. A
        second module of the hook, or one that is given a *name*, has that (or its
        class name) before all its names. A hook that had the module before is
        closed. Of a wrapper (DistributedDataParallel, DataParallel) it is the module
        inside.

        Raises:
            ConfigurationError: If it is no module.
        """
        given: object = module
        if not isinstance(given, nn.Module):
            msg = f"register_module needs an nn.Module, not {type(given).__name__}"
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return
        warn_of_flat_parameters(module)
        module = unwrapped(module)
        previous = is_tapped_by(module)
        if previous is self._session:
            return
        if previous is not None:
            previous.close("another hook took the module over")
        root = self._names.take(name or class_name(module))
        prefix = f"{root}." if name or self._taps else ""
        tap = ModuleTap(self._session, module, root, prefix, self._mode, self._prepare)
        self._taps.append(tap)
        self._roots.append(weakref.ref(module))
        self._session.on_change.append(tap.refresh)
        if self._watch is None:
            self._watch_optimizers()
        else:
            self._watch.around.refresh()

    def register_loss(self, loss: _Loss, *, name: str | None = None) -> _Loss:
        """Capture this loss, a module or any function, at every step.

        Returns:
            The module itself, or for a function one to use in its place.

        Raises:
            ConfigurationError: If it cannot be called.
        """
        given: object = loss
        if not callable(given):
            msg = f"register_loss needs something to call, not {given!r}"
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return loss
        tap = self._tap_of(loss)
        if tap is None:
            full_name = self._names.take(name or loss_name(loss))
            kind = loss_name(loss)
            tap = LossTap(self._session, full_name, self._current_mode, kind)
            self._losses.append(tap)
            self._session.on_change.append(tap.refresh)
            self._remember(loss, tap)
            if isinstance(loss, nn.Module):
                tap.hook(loss)
        if isinstance(loss, nn.Module):
            return loss
        wrapped: Any = tap.wrap(loss)
        self._remember(wrapped, tap)
        return wrapped  # type: ignore[no-any-return]

    def register_optimizer(
        self, optimizer: Optimizer, *, defines_step: bool = False
    ) -> None:
        """Name an optimizer; only needed to say which one of several ends a step.

        Raises:
            ConfigurationError: If it is none of PyTorch's.
        """
        given: object = optimizer
        if not isinstance(given, Optimizer):
            msg = (
                f"register_optimizer needs a torch.optim.Optimizer, "
                f"not {type(given).__name__}"
            )
            raise ConfigurationError(msg)
        if not self._session.is_live:
            return
        watch = self._watch or self._watch_optimizers()
        watch.add(optimizer, defines_step=defines_step)

    # ---- by hand ---------------------------------------------------------------

    def record_tensor_value(self, name: str, value: torch.Tensor) -> None:
        """Record the result of a function as ``<name>_output_0``.

        A loss if its name says so (at every step), otherwise of the collection
        ``default``.
        """
        self._session.run(self._record_value, name, value)

    def save_tensor(
        self,
        name: str,
        value: Any,
        collections_to_write: str | Iterable[str] = "default",
    ) -> None:
        """Record a tensor, or anything NumPy takes for an array, as *name*.

        It follows the schedules of these collections, which are made if need be.
        """
        self._session.run(self._save, name, value, collections_to_write)

    def save_scalar(
        self, name: str, value: Any, *, timestamp: float | None = None
    ) -> None:
        """Record a number as ``scalar/<name>``, always.

        Args:
            name: Its name.
            value: The number, or a tensor of one.
            timestamp: When it was true, in seconds since 1970; None: now.
        """
        self._session.run(self._save_scalar, name, value, timestamp)

    def set_mode(self, mode: ModeKeys | None) -> None:
        """Say the mode; None goes back to following ``model.training``.

        Raises:
            ConfigurationError: If it is no mode.
        """
        given: object = mode
        if given is not None and not isinstance(given, ModeKeys):
            msg = f"set_mode needs one of ModeKeys, or None, not {given!r}"
            raise ConfigurationError(msg)
        self._mode.say(given)

    # ---- collections -----------------------------------------------------------

    def get_collection(self, name: str) -> Collection:
        """The collection of this name; changes to it hold from the next step on.

        Raises:
            ConfigurationError: If there is none.
        """
        return self._session.policy.registry.get(name)

    def get_collections(self) -> dict[str, Collection]:
        """All collections by name."""
        return {item.name: item for item in self._session.policy.registry}

    def add_collection(self, collection: Collection) -> None:
        """Capture this collection from the next step on.

        Raises:
            ConfigurationError: If it is none.
            InvalidCollectionConfiguration: If it selects nothing.
        """
        self._session.policy.registry.add(collection)

    # ---- state -----------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked the training to stop."""
        return self._session.should_stop

    @property
    def stop_reason(self) -> str | None:
        """Who asked and why, or None."""
        return self._session.stop_reason

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended for this hook."""
        return self._session.is_closed

    def counters(self) -> dict[str, int]:
        """Records offered, written, dropped, failed and more; errors of tdbg."""
        own = {
            "refused_tensors": self._session.recorder.n_refused,
            "repeated_rows": self._session.recorder.n_repeated,
            "internal_errors": self._session.n_faults,
            "unseen_modules": sum(tap.n_unseen for tap in self._taps),
            "is_live": int(self._session.is_live),
        }
        return {**self._session.sink.counters(), **own}

    def device_state(self) -> dict[int, dict[str, Any]]:
        """Of each CUDA device that tensors were on: how they are taken there.

        ``is_usable`` says whether the kernels are used, ``reason`` why not; the rest
        are counts. docs/gpu.md.
        """
        return self._session.recorder.device_state()

    def overhead(self) -> Overhead:
        """What capture has cost so far."""
        return self._session.overhead()

    def flush(self, *, durable: bool = False, timeout: float = 30.0) -> None:
        """Return when everything recorded so far can be read.

        Raises:
            StorageError: If it could not be written, or a device did not deliver it.
        """
        if self._session.is_live:
            timeout -= self._session.recorder.fetch(timeout)
            self._session.sink.flush(durable, max(0.0, timeout))

    # ---- inside ----------------------------------------------------------------

    def _watch_optimizers(self) -> OptimizerWatch:
        self._watch = OptimizerWatch(
            self._session, self._taps, self._current_mode, self._remote, self._facts
        )
        return self._watch

    def _tap_of(self, loss: object) -> LossTap | None:
        """The tap of a loss that is registered."""
        for each, tap in self._registered_losses:
            known = each()
            # Every time a method is asked for it is another object.
            if known is loss or (isinstance(loss, MethodType) and known == loss):
                return tap
        return None

    def _remember(self, loss: object, tap: LossTap) -> None:
        with contextlib.suppress(TypeError):  # Not everything can be referred to.
            ref: weakref.ref[Any] = (
                weakref.WeakMethod(loss)
                if isinstance(loss, MethodType)
                else weakref.ref(loss)
            )
            self._registered_losses.append((ref, tap))

    def _prepare(self) -> None:
        """A forward in training is about to begin."""
        around = None if self._watch is None else self._watch.around
        if around is not None and (around.contexts or around.has_unclipped):
            around.forward_begins(self._current_mode)
        if self._session.machine.optimizers:
            for each in self._gradients:
                each.remove()
            self._gradients.clear()
        elif self._watch is not None:
            self._watch.search()
            self._facts.forward_begins()
            wanted = self._session.policy.may_capture(Role.GRADIENT)
            if wanted and not self._session.machine.optimizers:
                known = {each.tap for each in self._gradients}
                self._gradients += [
                    AccumulatedGradients(self._session, tap)
                    for tap in self._taps
                    if tap not in known
                ]
                self._watch_gradients()

    def _watch_gradients(self) -> None:
        """Of a training without an optimizer: the step that begins, if one does."""
        mode = self._current_mode()
        number = self._session.machine.following(mode)
        wants = self._session.policy.wants(mode, number)
        for each in self._gradients:
            each.watch(wants)

    def _record_value(self, name: str, value: torch.Tensor) -> None:
        full_name = f"{name}_output_0"
        mode = self._current_mode()
        if "loss" in str(name).lower():
            given = value if is_tensor(value) else None
            self._session.record(mode, full_name, Role.LOSS, given)
        else:
            self._save(full_name, value, "default")

    def _save(self, name: str, value: Any, collections: str | Iterable[str]) -> None:
        names = [collections] if isinstance(collections, str) else list(collections)
        mode = self._current_mode()
        value = foreign(value)
        if is_tensor(value):
            self._session.record_into(mode, str(name), names, value)
        else:
            self._session.record_array(mode, str(name), names, value)

    def _save_scalar(self, name: str, value: Any, timestamp: float | None) -> None:
        number = number_of(value, self._remote)
        wall_ns = None if timestamp is None else int(timestamp * 1e9)
        context = self._session.given(self._current_mode())
        if context is not None:
            self._session.recorder.scalar(context, str(name), number, wall_ns)

    def _remove(self) -> None:
        self._session.run(self._facts.conclude)
        hooks: list[Any] = [*self._taps, *self._losses, *self._gradients]
        for each in hooks:
            each.remove()
        for watch in (self._watch, self._graphs):
            if watch is not None:
                watch.remove()
