"""Trainers of Gluon: the gradients that they use, and what their steps leave.

A trainer is found by the parameters that it was given, each of which knows it. Its
update is seen on the instance. Where a key-value store updates the parameters (as by
default with several devices) that happens while gradients are reduced, which is seen,
too.

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mxnet.ndarray import NDArray

from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.naming import optimizer_state_name, update_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.scalars import GroupScalars
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.updates import DerivedEntries, Updates
from tdbg.config.collections import Role
from tdbg.hooks.mxnet.arrays import is_dense, number_of, wait_for
from tdbg.hooks.mxnet.batches import Batches
from tdbg.hooks.mxnet.calls import SeenMethod, see
from tdbg.hooks.mxnet.net import WatchedNet
from tdbg.hooks.mxnet.parameters import ParameterBatch, WatchedParameter, value_of
from tdbg.modes import TRAIN, ModeKeys

__all__ = ["TrainerWatch"]

# What optimizers keep for a parameter, in the order in which they keep it; all others
# go by numbers.
_STATES = {
    "Adam": ("mean", "variance"),
    "AdamW": ("mean", "variance"),
    "AdaDelta": ("accumulated_gradient", "accumulated_update"),
    "AdaGrad": ("history",),
    "Adamax": ("mean", "infinity_norm"),
    "FTML": ("prev_d", "prev_v", "prev_z"),
    "Ftrl": ("z", "n"),
    "LAMB": ("mean", "variance"),
    "NAG": ("momentum",),
    "Nadam": ("mean", "variance"),
    "SGD": ("momentum",),
    "Signum": ("momentum",),
}
# Attributes of optimizers that are numbers to follow, by the names of the scalars.
_NUMBERS = {
    "wd": "wd",
    "momentum": "momentum",
    "beta1": "beta1",
    "beta2": "beta2",
    "epsilon": "epsilon",
    "clip_gradient": "clip_gradient",
}


class TrainerWatch:
    """Captures the steps of the trainers of all models of a hook.

    Args:
        session: Receives the tensors.
        nets: The models; grows.
        model_info: Writes what is known of them.
        mode: Returns the mode of what is recorded now.
        batches: Is told that a trainer steps.
    """

    def __init__(
        self,
        session: Session,
        nets: Sequence[WatchedNet],
        model_info: ModelInfoWriter,
        mode: Callable[[], ModeKeys],
        batches: Batches,
    ) -> None:
        self.batches = batches
        self.session = session
        self.nets = nets
        self.model_info = model_info
        self.mode = mode
        self.of_updates: DerivedEntries[WatchedParameter]
        self.of_updates = DerivedEntries(session, Role.UPDATE, update_name)
        self._watched: list[_WatchedTrainer] = []
        self._n_found = 0

    def trainers(self) -> list[Any]:
        """Return the live trainers in the order in which they were found."""
        found = [each.trainer for each in self._watched]
        return [each for each in found if each is not None]

    def held_by_none(self, parameter: Any) -> bool:
        """Return whether no known trainer has a parameter."""
        return not any(id(parameter) in each.held for each in self._watched)

    def search(self) -> None:
        """Look for trainers of the models' parameters."""
        for net in self.nets:
            for each in net.parameters.tracked_parameters():
                parameter = each.ref()
                trainer = getattr(parameter, "_trainer", None)
                if trainer is not None:
                    self.add(trainer)

    def add(self, trainer: Any) -> None:
        """Watch a trainer, if it is not yet."""
        if any(each.trainer is trainer for each in self._watched):
            return
        watched = _WatchedTrainer(self, trainer, self._n_found)
        self._n_found += 1
        self._watched.append(watched)
        # Not this object itself: the trainer may outlive it.
        gone: weakref.WeakMethod[Any] = weakref.WeakMethod(self._forget)
        weakref.finalize(trainer, _call, gone, watched.key).atexit = False
        self.session.optimizer_found(watched.key)
        self.model_info.changed()

    def _forget(self, key: int) -> None:
        """Forget a trainer that has been released."""
        self._watched = [each for each in self._watched if each.key != key]
        self.session.optimizer_gone(key)

    def refresh(self) -> None:
        """Forget what is captured, because collections have changed."""
        self.of_updates.refresh()
        for each in self._watched:
            each.refresh()

    def remove(self) -> None:
        """Take everything off the trainers."""
        for each in self._watched:
            each.remove()


class _Method:
    """One of the two methods of a trainer that are seen.

    Args:
        watched: The trainer.
        is_update: Whether it is ``_update``; else it is ``_allreduce_grads``.
    """

    def __init__(self, watched: _WatchedTrainer, *, is_update: bool) -> None:
        self._watched = watched
        self._is_update = is_update

    def begins(self, args: tuple[Any, ...]) -> None:
        """Begin a step of the trainer."""
        watched = self._watched
        # On a store the parameters have changed before `_update` is called.
        if self._is_update is not watched.is_on_store:
            watched.session.run(watched.begin, bool(args and args[0]))
            if watched.captures:
                watched.wait()
                watched.session.run(watched.capture_before)

    def ends(self, args: tuple[Any, ...], result: Any) -> None:  # noqa: ARG002
        """End the step of the trainer."""
        if self._is_update:
            watched = self._watched
            if watched.captures:
                watched.session.run(watched.select_after)
            watched.wait()
            watched.session.run(watched.end)

    def fails(self) -> None:
        """Forget the step of the trainer, which has raised."""
        self._watched.session.run(self._watched.fail)


class _WatchedTrainer:
    """Captures the steps of one trainer.

    Args:
        watch: What all trainers share.
        trainer: The trainer.
        number: How many were found before.

    Attributes:
        session: Receives the tensors.
        key: Names the trainer among the optimizers.
        held: Ids of the parameters that it has.
    """

    def __init__(self, watch: TrainerWatch, trainer: Any, number: int) -> None:
        self.session = watch.session
        self.key = id(trainer)
        self.held = {id(each) for each in trainer._params}
        self._watch = watch
        self._ref = weakref.ref(trainer)
        self._context: StepContext | None = None
        self._n_updates = 0
        # What is captured next, and parameters of which the update is.
        self._batches: list[ParameterBatch] = []
        self._updated: list[Any] = []
        self._updates = Updates(self.session, _copy, _difference)
        self._states: dict[tuple[TensorEntry, str], TensorEntry | None] = {}
        self._scalars = GroupScalars(
            self.session,
            number,
            read_number=number_of,
            tensor_type=NDArray,
            version=id,
        )
        self._seen: list[SeenMethod] = [
            see(trainer, "_allreduce_grads", _Method(self, is_update=False)),
            see(trainer, "_update", _Method(self, is_update=True)),
        ]

    @property
    def trainer(self) -> Any:
        """The trainer, or None if it has been released."""
        return self._ref()

    @property
    def is_on_store(self) -> bool:
        """Return whether a key-value store updates the parameters."""
        trainer = self.trainer
        return bool(trainer._kvstore and trainer._update_on_kvstore)

    def refresh(self) -> None:
        """Forget what is captured, because collections have changed."""
        self._states.clear()
        self._scalars.refresh()

    def remove(self) -> None:
        """Take everything off the trainer."""
        for each in self._seen:
            each.remove()
        self._updates.forget()

    # ---- a step ------------------------------------------------------------------

    def begin(self, ignores_stale: bool) -> None:
        """Choose what to capture before the trainer changes its parameters."""
        watch, session, optimizer = self._watch, self.session, self.trainer._optimizer
        self._n_updates = optimizer.num_update
        self._batches, self._updated = [], []
        said = watch.mode
        context = session.optimizer_begins(self.key, lambda: _training(said()))
        self._context = context
        watch.batches.trainer_steps(self.trainer)
        if context is None or not context.takes or context.step_plan.is_light:
            return
        for net in watch.nets:
            parameters = net.parameters
            parameters.look()
            self._prepare_updates(context, net)
            self._batches += [
                parameters.select(context, self._may_take),
                parameters.select_gradients(
                    context,
                    self.held,
                    float(optimizer.rescale_grad),
                    is_reduced=not self.is_on_store,
                    only_fresh=ignores_stale,
                ),
            ]

    def wait(self) -> None:
        """Wait for what is captured next.

        Raises:
            MXNetError: As of ``wait_for``.
        """
        try:
            for batch in self._batches:
                wait_for(batch.arrays)
            wait_for(self._updated)
        except BaseException:
            self.session.run(self.fail)
            raise

    @property
    def captures(self) -> bool:
        """Return whether the present step captures more than losses and numbers."""
        context = self._context
        return context is not None and context.takes and not context.step_plan.is_light

    def capture_before(self) -> None:
        """Capture what the trainer is about to use, and copy what it will change."""
        self._take_batches()
        if self._context is not None:
            self._updates.begin(self.key, self._context)

    def _take_batches(self) -> None:
        batches, self._batches = self._batches, []
        for batch in batches:
            batch.take(self.session)

    def _may_take(self, parameter: Any) -> bool:
        """Return whether a parameter belongs to this trainer, or to none."""
        return id(parameter) in self.held or self._watch.held_by_none(parameter)

    def _prepare_updates(self, context: StepContext, net: WatchedNet) -> None:
        derived = self._watch.of_updates.requested(net.parameters, context.step_plan)
        chosen = []
        for each in derived:
            parameter = each.tracked.ref()
            value = None if parameter is None else value_of(parameter)
            if value is not None and id(parameter) in self.held and is_dense(value):
                chosen.append((each.entry, value, each.requested))
        if chosen:
            self._updated += [value for _, value, _ in chosen]
            self._updates.prepare(self.key, context, chosen)

    def select_after(self) -> None:
        """Choose what to capture after the trainer has updated its parameters."""
        context = self._context
        if context is None or self._is_skipped:
            return
        self._batches = [self._select_states(context)]
        for net in self._watch.nets:
            self._batches.append(net.parameters.select_buffers(context))

    def end(self) -> None:
        """End the step."""
        context, self._context = self._context, None
        is_skipped, self._updated = self._is_skipped, []
        try:
            if context is not None:
                self._scalars.take(context, [_numbers_of(self.trainer)])
                if not is_skipped:
                    self._updates.end(self.key, context)
                self._take_batches()
            self._watch.model_info.optimizer_stepped()
        finally:
            self._updates.forget(self.key)
            self.session.optimizer_ends(self.key, is_skipped)

    @property
    def _is_skipped(self) -> bool:
        """Whether the update was skipped, as after an overflow of scaled losses."""
        n_updates: int = self.trainer._optimizer.num_update
        return n_updates == self._n_updates

    def fail(self) -> None:
        """Capture nothing of an update that has raised."""
        self._context = None
        self._batches, self._updated = [], []
        self._updates.forget(self.key)

    # ---- state of the optimizer ----------------------------------------------------

    def _select_states(self, context: StepContext) -> ParameterBatch:
        batch = ParameterBatch(context)
        if self.session.may_capture(Role.OPTIMIZER_STATE):
            for entry, array in self._find_states():
                batch.add(entry, array)
        return batch

    def _find_states(self) -> Iterator[tuple[TensorEntry, Any]]:
        """Return the optimizer's state for each parameter on the first device."""
        trainer = self.trainer
        store = trainer._kvstore if self.is_on_store else None
        updater = trainer._updaters[0] if store is None else store._updater
        if updater is None:  # It is on a server.
            return
        names = _STATES.get(type(trainer._optimizer).__name__, ())
        numbers = {id(each): i for i, each in enumerate(trainer._params)}
        for net in self._watch.nets:
            for tracked in net.parameters.tracked_parameters():
                number = numbers.get(id(tracked.ref()))
                state = None if number is None else updater.states.get(number)
                for name, array in _parts(state, names):
                    entry = self._state_entry(tracked.weight, name)
                    if entry is not None:
                        yield entry, array

    def _state_entry(self, weight: TensorEntry, name: str) -> TensorEntry | None:
        key = weight, name
        if key not in self._states:
            full, role = optimizer_state_name(name, weight.name), Role.OPTIMIZER_STATE
            is_captured = self.session.captures(full, role)
            self._states[key] = self.session.entry(full, role) if is_captured else None
        return self._states[key]


def _call(method: weakref.WeakMethod[Any], key: int) -> None:
    found = method()
    if found is not None:
        found(key)


def _training(mode: ModeKeys) -> ModeKeys:
    """A trainer steps outside of ``record``, where nothing says that it is training."""
    return TRAIN if mode is ModeKeys.EVAL else mode


def _numbers_of(trainer: Any) -> dict[str, Any]:
    """The numbers of an optimizer, as the update that is over has used them."""
    optimizer = trainer._optimizer
    found = {"lr": optimizer.learning_rate}
    for attribute, name in _NUMBERS.items():
        value = getattr(optimizer, attribute, None)
        if value is not None:
            found[name] = value
    return found


def _parts(state: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The arrays of a state, with their names.

    With several precisions it is a copy of the parameter in float32, and the state.
    """
    if isinstance(state, NDArray):
        state = (state,)
    if not isinstance(state, tuple | list):
        return
    if len(state) == 2 and isinstance(state[1], tuple | list):
        yield "float32", state[0]
        yield from _parts(state[1], names)
        return
    for i, array in enumerate(state):
        if isinstance(array, NDArray):
            yield (names[i] if i < len(names) else str(i)), array


def _copy(array: Any) -> Any:
    return array.asnumpy()


def _difference(after: Any, before: Any) -> Any:
    return np.subtract(after.asnumpy(), before, out=before)
