"""Hooks on all modules inside a root, which capture their inputs and outputs.

Thread safety: the training's thread.  Errors: none but ``TrainingStopped``.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch import compiler, nn
from torch.compiler import is_dynamo_compiling

from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.activations import (
    Activations,
    ModelInputs,
    take_both,
    unit_range,
)
from tdbg.hooks.pytorch.capture.output_gradients import GradientHooks, OutputGradient
from tdbg.hooks.pytorch.checks.compiled_before import compiled_part, warn_of
from tdbg.hooks.pytorch.compile.graph_calls import new_target, report_call
from tdbg.hooks.pytorch.compile.removable_hooks import RemovableHooks
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.model.callbacks import Callback
from tdbg.hooks.pytorch.model.kinds import classes_and_kind
from tdbg.hooks.pytorch.model.mode import TorchMode
from tdbg.hooks.pytorch.model.module_tree import named_modules
from tdbg.modes import ModeKeys

__all__ = ["QuickHook", "SubmoduleHooks"]


_ROLES = frozenset({Role.INPUT, Role.MODEL_INPUT, Role.OUTPUT, Role.OUTPUT_GRADIENT})
# PyTorch calls a hook that was taken off during the call without the keywords.
_TAKEN_OFF: Any = object()


class QuickHook(Callback):
    """A hook that first asks the core, which captures simple calls by itself."""

    __slots__ = ("_quick", "_take", "target")

    def __init__(self, session: Session, activations: Activations) -> None:
        super().__init__(session)
        self.target = new_target(self)
        self._quick = activations.quick()
        self._take = _take_nothing if self._quick is None else self._quick.take

    def called(self, given: Any, answered: Any) -> None:
        """Handle a call from a compiled graph."""
        raise NotImplementedError


class _Input(QuickHook):
    __slots__ = ("_activations",)

    def __init__(self, session: Session, activations: Activations) -> None:
        super().__init__(session, activations)
        self._activations = activations

    def __call__(self, _: Any, args: Any, kwargs: Any = _TAKEN_OFF) -> None:
        if kwargs is _TAKEN_OFF:
            return
        # The compiler traces nothing below, so it guards and recompiles nothing.
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, (args, kwargs) if kwargs else args, None)
        elif self.session.takes_activations and not self._take(args, kwargs, None):
            value = (args, kwargs) if kwargs else args
            self.session.run(self._activations.take, value, self._quick)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Handle a call from a compiled graph."""
        self(None, given if type(given) is tuple else (given,), None)


class _Output(_Input):
    __slots__ = ()

    def __call__(self, _: Any, __: Any, output: Any = None) -> None:
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, None, output)
        elif self.session.takes_activations and not self._take(None, None, output):
            self.session.run(self._activations.take, output, self._quick)

    def called(self, given: Any, answered: Any) -> None:
        """Handle a call from a compiled graph."""
        self(None, given, answered)


class _Both(QuickHook):
    __slots__ = ("_inputs", "_outputs")

    def __init__(
        self, session: Session, inputs: Activations, outputs: Activations
    ) -> None:
        super().__init__(session, inputs)
        self._inputs = inputs
        self._outputs = outputs

    def __call__(
        self, _: Any, args: Any, kwargs: Any, output: Any = _TAKEN_OFF
    ) -> None:
        if output is _TAKEN_OFF:
            return
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, (args, kwargs) if kwargs else args, output)
            return
        session = self.session
        if session.takes_activations and not self._take(args, kwargs, output):
            inputs, outputs = self._inputs, self._outputs
            session.run(
                take_both, session, inputs, outputs, args, kwargs, output, self._quick
            )

    def called(self, given: Any, answered: Any) -> None:
        """Handle a call from a compiled graph."""
        self(None, given if type(given) is tuple else (given,), None, answered)


# The compiler meets them alone for a module outside the graph.
never_compiled(_Input.__call__, _Output.__call__, _Both.__call__)


def _take_nothing(_: Any, __: Any, ___: Any) -> bool:
    return False


class _Hooked(NamedTuple):
    """A module with its names, its hooks' handles, their captures and roles."""

    module: weakref.ref[nn.Module]
    paths: tuple[str, ...]
    handles: list[Any]
    takes: list[Activations]
    roles: set[Role]


class SubmoduleHooks:
    """The hooks on a root and all modules in it.

    Args:
        session: Where tensors go.
        root: Not kept alive.
        name: What the names of the root's own inputs and outputs begin with.
        prefix: Goes before all names inside it.
        mode: The present mode.
        paths_of_ends: Receives the path of each module by the key of its calls when it
            ends.  All modules then have hooks.  None: only modules of which something
            is captured have hooks.

    Attributes:
        n_unseen: Modules that report no calls because they were compiled before they
            had hooks.
    """

    def __init__(
        self,
        session: Session,
        root: weakref.ref[nn.Module],
        name: str,
        prefix: str,
        mode: TorchMode,
        paths_of_ends: dict[object, str] | None = None,
    ) -> None:
        self._session = session
        self._paths_of_ends = paths_of_ends
        self._root = root
        self._name = name
        self._prefix = prefix
        self._mode = mode
        self._removable = RemovableHooks()
        session.idle.on_change.append(self._removable.set_idle)
        self._roles: frozenset[Role] = frozenset()
        self._hooked: dict[int, _Hooked] = {}
        self._gradients = GradientHooks()
        self._root_input: _Input | None = None
        self._model_inputs: ModelInputs | None = None
        self._is_new = False
        self.n_unseen = 0

    @property
    def made_inputs(self) -> frozenset[str]:
        """Names of inputs of the root that another model made."""
        return frozenset() if self._model_inputs is None else self._model_inputs.made

    def take_root_input(self, args: Any, kwargs: Any) -> None:
        """Capture the inputs of the root in a call that began before it had hooks."""
        if self._root_input is not None:
            self._root_input(None, args, kwargs)

    def refresh(self) -> None:
        """Set the hooks that the collections need now."""
        may_capture = self._session.may_capture
        self._roles = frozenset(role for role in _ROLES if may_capture(role))
        has_hooked = False
        for module, paths in self._paths().items() if self._roles else ():
            has_hooked |= self._hook(module, paths)
        if has_hooked:
            self._settle()

    def search_again(self) -> None:
        """Hook new modules, unhook those that are gone, rename those that moved."""
        if not (self._roles or self._hooked):
            return
        paths_now = self._paths()
        stay = {id(module): paths for module, paths in paths_now.items()}
        for key, (_, paths, handles, takes, _) in list(self._hooked.items()):
            if stay.get(key) != paths:
                del self._hooked[key]
                if self._paths_of_ends is not None:
                    for each in takes:
                        self._paths_of_ends.pop(each.key, None)
                for handle in handles:
                    self._removable.forget(handle.id)
                    handle.remove()
        for module, paths in paths_now.items():
            known = self._hooked.get(id(module))
            if known is None or known.module() is not module:
                self._hooked.pop(id(module), None)
                self._hook(module, paths)
        self._settle()

    def forward_ends(self) -> None:
        """Check after a forward with activations that new hooks were called."""
        context, root = self._session.forward_context, self._root()
        if not self._is_new or context is None or root is None:
            return
        seen: list[str] = []
        unseen: list[str] = []
        for module, paths, _, takes, roles in self._hooked.values():
            if roles and module() is not root:
                is_seen = any(each.calls_so_far(context) for each in takes)
                path = paths[0].removeprefix(self._prefix)
                (seen if is_seen else unseen).append(path)
        part = compiled_part(root, seen, unseen)
        if part is None:
            self._is_new, self.n_unseen = False, 0
        else:
            if not self.n_unseen:
                warn_of(f"{self._name}.{part}" if part else self._name)
            self.n_unseen = len(unseen)

    def remove(self) -> None:
        """Take all hooks off."""
        self._removable.close()
        for _, _, handles, _, _ in self._hooked.values():
            for handle in handles:
                handle.remove()
        self._hooked.clear()
        self._gradients.remove()

    def _finishes(self, activations: Activations, path: str) -> None:
        """Note that these calls end the module of that path."""
        if self._paths_of_ends is not None:
            self._paths_of_ends[activations.key] = path

    def _settle(self) -> None:
        """Take new hooks off if all others are off."""
        if self._session.idle.is_idle:
            self._removable.set_idle(True)

    def _paths(self) -> dict[nn.Module, tuple[str, ...]]:
        """Return the modules with all their names."""
        root = self._root()
        if root is None:
            return {}
        paths: dict[nn.Module, tuple[str, ...]] = {}
        for path, module in named_modules(root):
            name = self._prefix + path if path else self._name
            paths[module] = (*paths.get(module, ()), name)
        return paths

    def _hook(self, module: nn.Module, paths: tuple[str, ...]) -> bool:
        """Set the hooks that are needed and missing; return whether there were any."""
        new = _Hooked(weakref.ref(module), paths, [], [], set())
        hooked = self._hooked.setdefault(id(module), new)
        classes = classes_and_kind(module)
        roles = self._missing_roles(module, classes, hooked.roles)
        if not roles:
            return False
        self._is_new = True
        hooked.roles.update(roles)
        place = hooked.module

        def mode() -> ModeKeys:
            return self._mode.of_part(place())

        captured: dict[Role, Activations] = {
            role: (ModelInputs if role is Role.MODEL_INPUT else Activations)(
                self._session,
                mode,
                paths[0],
                role,
                paths[1:],
                classes,
                unit_range(module) if role is Role.OUTPUT else None,
            )
            for role in roles
            if role is not Role.OUTPUT_GRADIENT
        }
        hooked.takes.extend(captured.values())
        self._register(module, hooked, captured)
        if Role.OUTPUT_GRADIENT in roles:
            watch = OutputGradient(self._session, mode, paths, classes, self._gradients)
            self._keep(hooked, "_forward_hooks", module.register_forward_hook(watch))
        return True

    def _missing_roles(
        self, module: nn.Module, classes: frozenset[str], known: set[Role]
    ) -> list[Role]:
        """Return the roles that the module needs hooks for and has none."""
        may_capture, is_root = self._session.may_capture, module is self._root()
        return [
            role
            for role in self._roles - known
            if role is not (Role.INPUT if is_root else Role.MODEL_INPUT)
            and (
                may_capture(role, classes)
                or (role is Role.OUTPUT and self._paths_of_ends is not None)
            )
        ]

    def _register(
        self, module: nn.Module, hooked: _Hooked, captured: dict[Role, Activations]
    ) -> None:
        """Register the hooks for inputs and outputs, one for both where it will do."""
        session, path = self._session, hooked.paths[0]
        is_root = module is self._root()
        inputs = captured.get(Role.MODEL_INPUT if is_root else Role.INPUT)
        outputs = captured.get(Role.OUTPUT)
        if isinstance(inputs, ModelInputs):
            self._model_inputs = inputs
        register = module.register_forward_hook
        if inputs is not None and outputs is not None and _leaves_inputs_alone(module):
            both = _Both(session, inputs, outputs)
            self._finishes(inputs, path)
            self._keep(hooked, "_forward_hooks", register(both, with_kwargs=True))
            return
        if inputs is not None:
            before = _Input(session, inputs)
            if is_root:
                self._root_input = before
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            self._keep(hooked, "_forward_pre_hooks", handle)
        if outputs is not None:
            self._finishes(outputs, path)
            after = register(_Output(session, outputs))
            self._keep(hooked, "_forward_hooks", after)

    def _keep(self, hooked: _Hooked, name: str, handle: Any) -> None:
        """Keep the handle of a hook that stands in the module's dict *name*."""
        hooked.handles.append(handle)
        module = hooked.module()
        if module is not None:
            self._removable.add(module, name, handle.id)


def _leaves_inputs_alone(module: nn.Module) -> bool:
    """Return whether a forward leaves its inputs as they are, so that one hook will do.

    PyTorch's own modules without others inside have an attribute if they can work in
    place.
    """
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        and "forward" not in vars(module)
        and not module._modules
        and not hasattr(module, "inplace")
    )
