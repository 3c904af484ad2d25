"""Which tensors of a step are tapped, and under which names they are captured.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tdbg.capture.naming import activation_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.keras.kinds import activation_of, classes_and_kind, unit_range
from tdbg.hooks.keras.losses import Losses
from tdbg.hooks.keras.names import Paths
from tdbg.hooks.keras.optimizers import Optimizers, optimizers_of
from tdbg.hooks.keras.selections import SelectedTensors, Selections
from tdbg.hooks.keras.tracing import Patches, Taps, tap_key
from tdbg.hooks.keras.variables import Variables, captures, layers_of
from tdbg.hooks.sparse import added

__all__ = ["ModelTaps"]

# What is taken at once of the tensors of a trace: all but the gradients of replicas,
# those that are no gradients, gradients, and those of one replica.
_WHOLE, _FORWARD, _GRADIENT, _LOCAL = range(4)
# So many traces are remembered.
_MAX_TRACES = 64
_GRADIENTS = frozenset({Role.GRADIENT, Role.GRADIENT_UNCLIPPED})
# Names with their keys, and what steps select of them.
_Known = tuple[list[tuple[TensorEntry, str]], Selections[str]]


class ModelTaps:
    """Sets the taps of one model, and captures what they hold.

    Args:
        session: Receives the tensors.
        paths: Names layers.
        root: What the names of the model's own inputs and outputs begin with.
        variables: The model's variables.
        losses: The model's losses.
        optimizers: The model's optimizers.
        n_replicas: How many replicas the model has.
    """

    def __init__(
        self,
        session: Session,
        paths: Paths,
        root: str,
        variables: Variables,
        losses: Losses,
        optimizers: Optimizers,
        n_replicas: int,
    ) -> None:
        self._session = session
        self._paths = paths
        self._root = root
        self._variables = variables
        self._losses = losses
        self._optimizers = optimizers
        self._n_replicas = n_replicas
        self._entries: dict[str, TensorEntry] = {}
        # By the same keys: of gradients that are each replica's own.
        self._locals: dict[str, TensorEntry] = {}
        self._left_out: set[str] = set()
        # By the part, and the keys of the tensors: their names.
        self._known: dict[tuple[int | str, ...], _Known] = {}

    def refresh(self) -> None:
        """Forget what is captured: collections have changed."""
        self._left_out.clear()
        self._known.clear()
        self._variables.refresh()

    # ---- in a trace -------------------------------------------------------------

    def install(self, model: Any) -> Callable[[Patches, Taps], None]:
        """Return what sets the taps of a step of this model."""
        install_layers = self.install_layers(model)

        def install(patches: Patches, taps: Taps) -> None:
            install_layers(patches, taps)
            self._losses.install(model, patches, taps, self.key)

            key = self._gradient_keys(model)
            for optimizer in optimizers_of(model):
                self._optimizers.install(optimizer, patches, taps, key)

        return install

    def install_layers(self, model: Any) -> Callable[[Patches, Taps], None]:
        """Return what sets the taps of the model and its layers only."""

        def install(patches: Patches, taps: Taps) -> None:
            self._tap_root(model, patches, taps)
            for layer in layers_of(model):
                self._tap_layer(layer, patches, taps)

        return install

    def _tap_root(self, model: Any, patches: Patches, taps: Taps) -> None:
        classes = classes_and_kind(model)
        self._tap_calls(model, self._root, Role.MODEL_INPUT, classes, patches, taps)

    def _tap_layer(self, layer: Any, patches: Patches, taps: Taps) -> None:
        function = activation_of(layer)
        is_own = function is not None and type(layer).__name__ != "Activation"
        classes = classes_and_kind(layer, function if is_own else None)
        own = classes_and_kind(layer)
        roles = ((Role.INPUT, own), (Role.OUTPUT, classes))
        if any(self._session.may_capture(role, given) for role, given in roles):
            suffix = f"_{function}" if is_own else ""
            self._tap_calls(layer, None, Role.INPUT, classes, patches, taps, suffix)

    def _tap_calls(
        self,
        layer: Any,
        root: str | None,
        role: Role,
        classes: frozenset[str],
        patches: Patches,
        taps: Taps,
        suffix: str = "",
    ) -> None:
        """Tap what a layer is given and what it answers.

        Args:
            layer: The layer, or the model.
            root: The name of the model; None: by the path of the layer.
            role: Of what it is given.
            classes: Of what it answers.
            patches: Sets the tap.
            taps: Hold the tensors.
            suffix: The function by which the layer ends, in the name of its output.
        """
        inputs, units = classes_and_kind(layer), unit_range(layer)

        def make(call: Callable[..., Any]) -> Callable[..., Any]:
            def tapped(*args: Any, **kwargs: Any) -> Any:
                taps.run(hold_inputs, (args, kwargs) if kwargs else args)
                output = call(*args, **kwargs)
                taps.run(hold_outputs, output)
                return output

            return tapped

        # A layer has its path when it is built, before its first call.
        def path() -> str:
            return root or self._paths.of_layer(layer)

        def hold_inputs(value: Any) -> None:
            def key(name: str, index: int, number: int) -> str | None:  # noqa: ARG001
                return self.key(name, role, inputs)

            taps.hold_all(path(), "input", value, key)

        def hold_outputs(value: Any) -> None:
            def key(name: str, index: int, number: int) -> str | None:
                if not suffix:
                    return self.key(name, Role.OUTPUT, classes, (), units)
                full = activation_name(path() + suffix, "output", index, number)
                return self.key(full, Role.OUTPUT, classes, (name,), units)

            taps.hold_all(path(), "output", value, key)

        patches.wrap(layer, "call", make)

    def key(
        self,
        name: str,
        role: Role,
        classes: frozenset[str] = frozenset(),
        aliases: tuple[str, ...] = (),
        units: Any = None,
    ) -> str | None:
        """The key of a tensor, if any step captures it."""
        key = tap_key(name, role)
        if key in self._entries:
            return key
        if key in self._left_out or not captures(self._session, name, role, classes):
            self._left_out.add(key)
            return None
        entry = self._session.entry(name, role, aliases, classes, units)
        self._put(self._entries, key, entry)
        return key

    def hold_gradients(
        self, optimizer: Any, grads: list[Any], variables: list[Any], taps: Taps
    ) -> None:
        """Hold what an optimizer is given, as far as any step captures it."""
        self._optimizers.hold(optimizer, grads, variables, taps, self._gradient_key)

    def _gradient_keys(self, model: Any) -> Callable[[Any, Role], str | None]:
        def key(variable: Any, role: Role) -> str | None:
            if self._variables.of(variable) is None:
                self._variables.look(model)  # Layers make theirs at first calls.
            return self._gradient_key(variable, role)

        return key

    def _gradient_key(self, variable: Any, role: Role) -> str | None:
        parameter = self._variables.of(variable)
        if parameter is None:
            return None
        key = tap_key(parameter.weight.name, role)
        entry = self._variables.gradient(parameter, role)
        self._put(self._entries, key, entry)
        if role is Role.GRADIENT and self._n_replicas > 1:
            own = self._variables.gradient(parameter, Role.GRADIENT_LOCAL)
            self._put(self._locals, key, own)
            entry = entry or own
        return None if entry is None else key

    # ---- after a step -----------------------------------------------------------

    def take(
        self,
        context: StepContext,
        replicas: Sequence[Mapping[str, Any]],
        *,
        ends_step: bool,
    ) -> None:
        """Capture the tensors of a step that are due.

        Args:
            context: The step.
            replicas: By key, of each replica; each is a worker.
            ends_step: Whether the gradients are those that the optimizer has used:
                a step has them once, the rest of each micro-batch.
        """
        is_whole = ends_step and not context.step.micro_batch
        if is_whole and len(replicas) == 1 and not self._locals:
            self._take(context, replicas[0], _WHOLE)
            return
        self.take_forward(context, replicas)
        if ends_step:
            self.take_gradients(context, replicas)

    def take_gradients(
        self, context: StepContext, replicas: Sequence[Mapping[str, Any]]
    ) -> None:
        """Capture the gradients of a step: each replica's own, and what they add to."""
        for replica, tensors in enumerate(replicas if self._locals else ()):
            self._take(context, tensors, _LOCAL, replica)
        first, *others = replicas
        if not others:
            self._take(context, first, _GRADIENT)
            return
        chosen = self._select(context, first, _GRADIENT)
        for entry, key, flags in zip(*chosen, strict=True):
            total = added([first[key], *[each[key] for each in others if key in each]])
            self._session.replicas.take(0, context, (entry,), (total,), (flags,))

    def take_forward(
        self, context: StepContext, replicas: Sequence[Mapping[str, Any]]
    ) -> None:
        """Capture those that are no gradients."""
        for replica, tensors in enumerate(replicas):
            self._take(context, tensors, _FORWARD, replica, context.step.micro_batch)

    def _take(
        self,
        context: StepContext,
        tensors: Mapping[str, Any],
        part: int,
        replica: int = 0,
        micro_batch: int = 0,
    ) -> None:
        entries, keys, flags = self._select(context, tensors, part)
        if entries:
            found = [tensors[key] for key in keys]
            self._session.replicas.take(
                replica, context, entries, found, flags, micro_batch
            )

    def _select(
        self, context: StepContext, tensors: Mapping[str, Any], part: int
    ) -> SelectedTensors[str]:
        """Select from the tensors of one trace those that a step captures."""
        keys: tuple[int | str, ...] = (part, *tensors)
        known = self._known.get(keys)
        if known is None:
            if len(self._known) >= _MAX_TRACES:
                self._known.clear()
            known = self._known[keys] = self._named(part, tensors), Selections()
        named, selections = known
        return selections.of(context.step_plan, named)

    def _named(self, part: int, keys: Iterable[str]) -> list[tuple[TensorEntry, str]]:
        """The names of the tensors of these keys, as far as they are of a part."""
        entries = self._locals if part == _LOCAL else self._entries
        groups = {_FORWARD: (False,), _GRADIENT: (True,)}.get(part, (False, True))
        return [
            (entry, key)
            for key in keys
            if (entry := entries.get(key)) is not None
            and (entry.role in _GRADIENTS) in groups
        ]

    def _put(
        self, entries: dict[str, TensorEntry], key: str, entry: TensorEntry | None
    ) -> None:
        """Let a key have this entry; None: no longer any."""
        if entries.get(key) is entry:
            return
        self._known.clear()
        if entry is None:
            del entries[key]
        else:
            entries[key] = entry
