"""What the code of a model may do outside of the model.

A copy of a model can be called without a trace only if its code changes nothing but the
copy: no list in a global, no counter in a closure, no file, no log, no tracker.  Before
a model is copied, the source of what its forward can reach is read: methods of its
classes, functions that they name, and the functions that these name.  Nothing is
called.

A method counts as reached if its name stands anywhere in code that is reached.  Code of
libraries that compute (``_PURE``) is not read.  docs/probes.md says what is not seen.

Thread safety: the training's thread.
"""

from __future__ import annotations

import collections
import dis
import functools
import random
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tdbg.hooks.pytorch.checks.probes.function_reader import FunctionReader
from tdbg.hooks.pytorch.checks.probes.outside_names import (
    ARRAYS,
    FUNCTIONS,
    PLAIN,
    UNKNOWN,
    OutsideValue,
    closure_of,
    global_of,
    may_change,
    wrapped_by,
)
from tdbg.hooks.pytorch.checks.probes.probe_batch import Unsuitable
from tdbg.hooks.pytorch.checks.probes.pure_libraries import (
    is_allowed,
    is_computing,
    is_pure,
)
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.hooks.pytorch.model.program_sources import functions_of

__all__ = ["ModelSurvey"]

MOST_BYTES = 64 << 20
"""Of all tensors and arrays of a model that is copied."""
# Objects beside its modules, and how deep they may lie.
_MOST_OBJECTS, _DEEPEST = 20_000, 12
_DEVICES = frozenset({"cpu", "cuda"})
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# Copied as a reference to the same object; calls of what they refer to are seen.
_SHARED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    weakref.ref,
    property,
)
_GENERATORS = (
    torch.Generator,
    random.Random,
    np.random.Generator,
    np.random.RandomState,
)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# Attributes of every module that are looked at by themselves.
_OWN = frozenset(vars(nn.Module()))
_WRAPPED = (staticmethod, classmethod)
# Objects whose states are put back, and of which functions are methods.
_OF_PROCESS = (
    getattr(random.random, "__self__", None),
    getattr(np.random.rand, "__self__", None),
)
# Methods that are called though no code names them.
_CALLED = frozenset({"eval", "forward", "train"})
_BY_CREATION = frozenset({"__init__", "__new__", "__post_init__"})
_NEVER = frozenset({"__class_getitem__", "__init_subclass__", "__repr__", "__str__"})
_MOST_FUNCTIONS = 600


class ModelSurvey:
    """Look through a model before it is copied.

    Attributes:
        objects: All modules, functions, classes and other objects in it.
        tensors: Ids of all tensors in it.

    Raises:
        Unsuitable: If a copy would be too large, or not a whole one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.objects: list[object] = []
        self.tensors: set[int] = set()
        self._seen: set[int] = set()
        self._n_bytes = 0
        self._inside = set(map(id, model.modules()))
        for path, module in model.named_modules():
            self._add_module(path or class_name(model), module)

    def read_code(self) -> set[int]:
        """Return the ids of tensors outside of it that its code names.

        Raises:
            Unsuitable: If its code may have effects outside of it.
        """
        return _Effects(self.objects).tensors

    def refuse_shared(self, copied: nn.Module) -> None:
        """Refuse a copy that shares an object which can be changed.

        Raises:
            Unsuitable: If it does.
        """
        own = {id(each): each for each in self.objects}
        for each in ModelSurvey(copied).objects:
            is_own = id(each) in own and not isinstance(each, _SHARED)
            if is_own and not is_computing(type(each)):
                msg = f"a copy of it shares a {type(each).__name__} with it"
                raise Unsuitable(msg)

    def _add_module(self, path: str, module: nn.Module) -> None:
        self.objects.append(module)
        if isinstance(module, torch.jit.ScriptModule):
            msg = f"{path} is a ScriptModule"
            raise Unsuitable(msg)
        for name in _HOOKS:
            for hook in vars(module).get(name, {}).values():
                if not _is_harmless(hook):
                    msg = f"{path} has a hook of your program, which may have effects"
                    raise Unsuitable(msg)
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                self._add_tensor(path, tensor)
        for name, value in vars(module).items():
            if name not in _OWN:
                self._add(f"{path}.{name}", value, 0)

    def _add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        if id(tensor) in self.tensors:
            return
        self.tensors.add(id(tensor))
        kind = type(tensor)
        if not kind.__module__.startswith(("torch.nn", "torch._")) and (
            kind is not torch.Tensor
        ):
            msg = f"{path} has a tensor of the class {kind.__name__}"
            raise Unsuitable(msg)
        if tensor.device.type not in _DEVICES:
            msg = f"{path} lies on the device {tensor.device.type}"
            raise Unsuitable(msg)
        self._add_bytes(tensor.numel() * tensor.element_size())

    def _add_bytes(self, n: int) -> None:
        self._n_bytes += n
        if self._n_bytes > MOST_BYTES:
            msg = f"it is larger than {MOST_BYTES >> 20} MiB"
            raise Unsuitable(msg)

    def _add(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, (*PLAIN, *_PLAIN_OF_TORCH, *_SHARED, *_GENERATORS)):
            self._add_shared(path, value)
            return
        if id(value) in self._seen or id(value) in self._inside:
            return
        self._seen.add(id(value))
        if len(self._seen) > _MOST_OBJECTS or depth > _DEEPEST:
            msg = f"{path} refers to too many objects"
            raise Unsuitable(msg)
        if isinstance(value, torch.Tensor):
            self._add_tensor(path, value)
        elif isinstance(value, np.ndarray | np.generic):
            self._add_bytes(value.nbytes)
        elif isinstance(value, nn.Module):
            for name, each in value.named_modules():
                self._inside.add(id(each))
                self._add_module(f"{path}.{name}" if name else path, each)
        else:
            if not isinstance(value, tuple | frozenset):
                self.objects.append(value)
            for each in _parts(path, value):
                self._add(path, each, depth + 1)

    def _add_shared(self, path: str, value: Any) -> None:
        """Add what a copy refers to, too."""
        if isinstance(value, types.FunctionType | type):
            self.objects.append(value)
        elif isinstance(value, weakref.ref):
            target = value()
            if target is not None and not isinstance(target, torch.Tensor):
                msg = f"{path} refers weakly to a {type(target).__name__}"
                raise Unsuitable(msg)


def _parts(path: str, value: Any) -> Iterable[Any]:
    """Return what an object consists of."""
    if isinstance(value, Mapping) and hasattr(value, "items"):
        return [part for item in value.items() for part in item]
    if isinstance(value, _CONTAINERS):
        return list(value)
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if hasattr(value, "__dict__") and type(value).__module__ != "builtins":
        return list(vars(value).values())
    msg = f"{path} refers to a {type(value).__name__}"
    raise Unsuitable(msg)


def _is_harmless(hook: Any) -> bool:
    """Return whether a hook is PyTorch's or tdbg's own."""
    hook = hook.func if isinstance(hook, functools.partial) else hook
    for each in (getattr(hook, "__module__", ""), type(hook).__module__):
        if str(each).partition(".")[0] in {"torch", "tdbg"}:
            return True
    return False


class _Effects:
    """Look for effects outside of a model.

    Args:
        objects: All modules and other objects in the model.

    Attributes:
        tensors: Ids of tensors outside of the model that its code names; these must
            not be changed.

    Raises:
        Unsuitable: If its code may have effects, or is too much to be read.
    """

    def __init__(self, objects: Iterable[object]) -> None:
        self.tensors: set[int] = set()
        self.names: set[str] = set(_CALLED)
        self.of_classes: dict[str, Any] = {}
        self._classes: dict[type, bool] = {}
        self._functions: list[types.FunctionType] = []
        self._seen: set[int] = set()
        self._inside: set[int] = set()
        self._kept: list[Any] = []
        for each in objects:
            self._add_inside(each)
        self._read()

    def _add_inside(self, value: object) -> None:
        if isinstance(value, types.FunctionType):
            self.reach(value)
        elif isinstance(value, type):
            self._add_class(value, is_created=True)
        elif isinstance(value, types.MethodType):
            self.reach(value.__func__)
        else:
            self._inside.add(id(value))
            self._add_class(type(value), value)
            if isinstance(value, nn.Module):
                self.reach(type(value).forward)

    def _add_class(
        self, kind: type, value: object = None, *, is_created: bool = False
    ) -> None:
        """Take the methods of a class into account, and what its objects share."""
        is_new = kind not in self._classes
        self._classes[kind] = is_created or self._classes.get(kind, False)
        if not is_new and value is None:
            return
        own = getattr(value, "__dict__", {})
        for name, member in _members(kind):
            if name not in own and not name.startswith("__") and may_change(member):
                self.of_classes[name] = member

    def reach(self, function: Any) -> None:
        """Take a function into account, and what it wraps."""
        function = getattr(function, "__func__", function)
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        self._kept.append(function)
        if (wrapped := wrapped_by(function)) is not None:
            self.reach(wrapped)
        if not isinstance(function, types.FunctionType):
            return
        if not is_pure(function):
            self._functions.append(function)
            if len(self._seen) > _MOST_FUNCTIONS:
                msg = "its code calls too many functions to be read"
                raise Unsuitable(msg)
            return
        for _, value in closure_of(function):
            if isinstance(value, types.FunctionType):
                self.reach(value)
            elif isinstance(value, types.MethodType) and not is_pure(value.__func__):
                self.load(function, value.__name__, value)

    def _read(self) -> None:
        """Read all functions that are reached, until there are no more."""
        known: tuple[int, int, int] | None = None
        while True:
            while self._functions:
                self._read_function(self._functions.pop())
            known, before = self._size(), known
            if known == before:
                return
            for kind, is_created in [*self._classes.items()]:
                for name, member in _members(kind):
                    if self._is_called(name, is_created):
                        for function in _functions_of(member):
                            self.reach(function)

    def _size(self) -> tuple[int, int, int]:
        n_classes = len(self._classes) + sum(self._classes.values())
        return len(self._seen), len(self.names), n_classes

    def _is_called(self, name: str, is_created: bool) -> bool:
        if name in _BY_CREATION:
            return is_created
        is_special = name.startswith("__") and name.endswith("__")
        return name in self.names or (is_special and name not in _NEVER)

    def _read_function(self, function: types.FunctionType) -> None:
        nodes = functions_of(function.__code__)
        for node in nodes:
            FunctionReader(self, function, node).read()
        if not nodes:
            self._read_code(function, function.__code__)

    def _read_code(self, function: types.FunctionType, code: types.CodeType) -> None:
        """Read a function that has no source, by the names in it."""
        outside = dict(closure_of(function))
        for each in dis.get_instructions(code):
            if each.opname in {"STORE_GLOBAL", "DELETE_GLOBAL"}:
                self.refuse(function, str(each.argval))
            if each.opname == "STORE_DEREF" and each.argval in outside:
                self.refuse(function, str(each.argval))
        for name in (*code.co_names, *code.co_freevars):
            value = outside.get(name, global_of(function, name))
            if value is UNKNOWN:
                self.names.add(name)
                continue
            found = self.load(function, name, value)
            if found is None or isinstance(value, FUNCTIONS):
                continue
            if not isinstance(value, types.ModuleType):
                self.refuse(function, name)
            for part in code.co_names:
                if part in vars(value):
                    self.load(function, f"{name}.{part}", vars(value)[part])
        for part in code.co_consts:
            if isinstance(part, types.CodeType):
                self._read_code(function, part)

    def refuse(self, function: Any, name: str) -> None:
        """Refuse the model.

        Raises:
            Unsuitable: Always.
        """
        place = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
        msg = f"{place or 'its code'} uses `{name}`, which lies outside of the model"
        raise Unsuitable(msg)

    def load(self, function: Any, name: str, value: Any) -> OutsideValue | None:
        """Return something outside that a function names; None: it cannot change.

        Raises:
            Unsuitable: If it has effects, or is the model.
        """
        if isinstance(value, PLAIN):
            return None
        if id(value) in self._inside and isinstance(value, nn.Module):
            msg = f"`{name}` refers to the model itself and not to its copy"
            raise Unsuitable(msg)
        if isinstance(value, ARRAYS):
            self.tensors.add(id(value))
            self._kept.append(value)
        elif isinstance(value, types.ModuleType):
            if not is_allowed(value.__name__):
                self.refuse(function, name)
        elif isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self.load(function, name, each)
            return None
        elif isinstance(value, FUNCTIONS) or wrapped_by(value) is not None:
            self._load_callable(function, name, value)
        return OutsideValue(name, value)

    def _load_callable(self, function: Any, name: str, value: Any) -> None:
        where = getattr(value, "__module__", None) or ""
        known = f"{where}.{getattr(value, '__name__', name)}"
        if not is_allowed(known):
            self.refuse(function, name)
        owner = None if isinstance(value, type) else getattr(value, "__self__", None)
        is_shared = isinstance(owner, (types.ModuleType, type, types.NoneType))
        if not (is_shared or any(owner is each for each in _OF_PROCESS)):
            self.load(function, name, owner)
            self.refuse(function, name)
        if isinstance(value, type):
            self._add_class(value, is_created=True)
        else:
            self.reach(value)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what the classes of a program give to a class."""
    for base in kind.__mro__:
        if not is_pure(base):
            yield from [*vars(base).items()]


def _functions_of(member: Any) -> Iterator[Any]:
    """Yield the functions of a member of a class."""
    if isinstance(member, property):
        yield from (each for each in (member.fget, member.fset) if each is not None)
    elif isinstance(member, functools.cached_property):
        yield member.func
    elif isinstance(member, _WRAPPED):
        yield member.__func__
    elif isinstance(member, types.FunctionType) or wrapped_by(member) is not None:
        yield member
