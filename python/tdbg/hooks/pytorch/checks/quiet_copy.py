"""A copy of a model that can be called without a trace in the training.

The copy is whole: no tensor, buffer or counter of it belongs to the training.  It has
none of tdbg's hooks.  While it is called, the random generators of the process keep
their states, hooks of all modules are off, and nothing is compiled.

A model that cannot be copied like this, or that calls what lies outside of the copy, is
left alone: ``Unsuitable`` says why.

Thread safety: the training's thread.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import functools
import inspect
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode

from tdbg.hooks.pytorch.checks.probe_batch import Unsuitable
from tdbg.hooks.pytorch.model.module_tree import class_name

__all__ = ["QuietCopy"]

MOST_BYTES = 64 << 20
"""Of all tensors and arrays of a model that is copied."""
# Objects beside its modules, and how deep they may lie.
_MOST_OBJECTS, _DEEPEST = 20_000, 12
_DEVICES = frozenset({"cpu", "cuda"})
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum)
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
_GLOBAL_HOOKS = tuple(name for name in vars(modules) if name.startswith("_global_"))


class QuietCopy:
    """A copy of a model, in evaluation mode.

    Args:
        model: The model; not kept alive.

    Attributes:
        random: Names of random functions that calls have called.
        module: The copy.

    Raises:
        Unsuitable: If it cannot be copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.random: set[str] = set()
        self._watched = _Watched(_Survey(model).tensors, self.random)
        # The originals stay out of the copy, if they were made by an operation.
        made = {
            id(value): value.detach().clone()
            for each in model.modules()
            for value in vars(each).values()
            if isinstance(value, torch.Tensor) and not value.is_leaf
        }
        try:
            self.module = copy.deepcopy(model, made)
        except Exception as error:
            msg = f"it cannot be copied ({type(error).__name__}: {_short(error)})"
            raise Unsuitable(msg) from error
        self.module.eval()

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the copy, and return its result.

        Raises:
            Unsuitable: If the call raises, or uses tensors of the original.
        """
        try:
            with torch.no_grad(), self._watched:
                return self.module(*args, **kwargs)
        except Unsuitable:
            raise
        except Exception as error:
            msg = f"a call in eval() raises {type(error).__name__}: {_short(error)}"
            raise Unsuitable(msg) from error

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Keep all states of the process while the copy is called."""
        devices = {each.device for each in self.module.parameters()}
        with (
            _same_random_numbers({each for each in devices if each.type == "cuda"}),
            _without_global_hooks(),
            _eager(),
        ):
            try:
                yield
            finally:
                self._watched.put_back()


def _short(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:120]


class _Survey:
    """Look through a model before it is copied.

    Attributes:
        tensors: Ids of all tensors in it.

    Raises:
        Unsuitable: If a copy would be too large, or not a whole one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors: set[int] = set()
        self._seen: set[int] = set()
        self._n_bytes = 0
        self._inside = set(map(id, model.modules()))
        for path, module in model.named_modules():
            self._add_module(path or class_name(model), module)

    def _add_module(self, path: str, module: nn.Module) -> None:
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
        if isinstance(value, (*_PLAIN, *_PLAIN_OF_TORCH, *_SHARED, *_GENERATORS)):
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
            for each in _parts(path, value):
                self._add(path, each, depth + 1)


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


class _Watched(TorchFunctionMode):
    """Watch what a call of the copy does.

    A generator that is passed to an operation gets its state back afterwards.

    Args:
        originals: Ids of tensors of the training, which must not be used.
        random: Receives the names of random functions.
    """

    def __init__(self, originals: set[int], random: set[str]) -> None:
        super().__init__()
        self._originals = originals
        self._random = random
        self._states: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, _: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at the arguments of a function, and call it."""
        kwargs = kwargs or {}
        for each in (*args, *kwargs.values()):
            self._look(each)
            if isinstance(each, list | tuple):
                for part in each:
                    self._look(part)
        if name := _randomness(getattr(func, "__name__", ""), args, kwargs):
            self._random.add(name)
        return func(*args, **kwargs)

    def _look(self, argument: Any) -> None:
        if id(argument) in self._originals:
            msg = "a part of it refers to the model itself and not to its copy"
            raise Unsuitable(msg)
        if isinstance(argument, torch.Generator) and id(argument) not in self._states:
            self._states[id(argument)] = argument, argument.get_state()

    def put_back(self) -> None:
        """Put the states of generators back."""
        for generator, state in self._states.values():
            generator.set_state(state)


DROPOUT = "dropout"
"""What ``random`` says of any dropout by a function."""
ATTENTION_DROPOUT = "scaled_dot_product_attention"
DROPOUT_MODULE = "a dropout module"
"""What it says of a module that drops though the copy is in evaluation mode."""

_DROPOUT = frozenset(
    {
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
        "feature_dropout",
    }
)
_RANDOM = frozenset(
    {
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
        "randint_like",
        "randperm",
        "normal",
        "normal_",
        "uniform_",
        "bernoulli",
        "bernoulli_",
        "exponential_",
        "multinomial",
        "poisson",
        "gumbel_softmax",
    }
)


def _randomness(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return which kind of random function is called; empty if none is."""
    if name in _RANDOM:
        return name
    if name == ATTENTION_DROPOUT:
        rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        return ATTENTION_DROPOUT if rate else ""
    if name not in _DROPOUT:
        return ""
    is_on = kwargs.get("training", args[2] if len(args) > 2 else False)
    if not (is_on and kwargs.get("p", args[1] if len(args) > 1 else 0.5)):
        return ""
    return DROPOUT_MODULE if _is_called_by_module() else DROPOUT


def _is_called_by_module() -> bool:
    """Return whether a module of PyTorch for dropout calls the function."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.nn.modules.dropout":
            return True
        if isinstance(frame.f_locals.get("self"), nn.Module):
            return False
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _same_random_numbers(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put the random generators of the process back afterwards."""
    of_python, of_torch = random.getstate(), torch.get_rng_state()
    of_devices = [(each, torch.cuda.get_rng_state(each)) for each in devices]
    of_numpy = np.random.get_state()  # noqa: NPY002 - the one that programs share
    try:
        yield
    finally:
        random.setstate(of_python)
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)  # noqa: NPY002
        for device, state in of_devices:
            torch.cuda.set_rng_state(state, device)


@contextlib.contextmanager
def _without_global_hooks() -> Iterator[None]:
    """Take off the hooks of all modules meanwhile."""
    found: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    for name in _GLOBAL_HOOKS:
        hooks = getattr(modules, name)
        if isinstance(hooks, dict) and hooks:
            found.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, before in found:
            hooks.update(before)


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Run compiled functions as they are written, meanwhile."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return contextlib.nullcontext()
    stance: Callable[..., Any] = getattr(
        torch.compiler, "set_stance", contextlib.nullcontext
    )
    return stance("force_eager")  # type: ignore[no-any-return]
