"""A copy of a model that can be called without a trace in the training.

The copy is whole: no tensor, buffer or counter of it belongs to the training.  It has
none of tdbg's hooks.  While it is called, the random generators of the process keep
their states, hooks of all modules are off, and nothing is compiled.

A model that cannot be copied like this, or that calls what lies outside of the copy, is
left alone: ``Unsuitable`` says why.

Thread safety: the training's thread.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import linecache
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode

from tdbg.hooks.pytorch.checks.probes.attention_masks import AttentionMasks
from tdbg.hooks.pytorch.checks.probes.outside_effects import ModelSurvey
from tdbg.hooks.pytorch.checks.probes.probe_batch import Unsuitable
from tdbg.hooks.pytorch.model.module_tree import OWN_COPY

__all__ = ["QuietCopy", "short"]

MOST_SECONDS = 2.0
"""Of all calls of a copy together; an operation after that is not begun."""
_GLOBAL_HOOKS = tuple(name for name in vars(modules) if name.startswith("_global_"))


class QuietCopy:
    """A copy of a model, in evaluation mode.

    Args:
        model: The model; not kept alive.
        survey: What is known of it.

    Attributes:
        random: Names of random functions that calls have called.
        masks: The masks that attention was given.
        module: The copy.

    Raises:
        Unsuitable: If it cannot be copied.
    """

    def __init__(self, model: nn.Module, survey: ModelSurvey) -> None:
        self.random: set[str] = set()
        self.masks = AttentionMasks()
        constants = survey.read_code()
        self._watched = _Watched(survey.tensors, constants, self.random, self.masks)
        # The originals stay out of the copy, if they were made by an operation.
        made: dict[Any, Any] = {
            id(value): value.detach().clone()
            for each in model.modules()
            for value in vars(each).values()
            if isinstance(value, torch.Tensor) and not value.is_leaf
        }
        try:
            self.module = copy.deepcopy(model, made | {OWN_COPY: None})
        except Exception as error:
            msg = f"it cannot be copied ({type(error).__name__}: {short(error)})"
            raise Unsuitable(msg) from error
        survey.refuse_shared(self.module)
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
            msg = f"a call in eval() raises {type(error).__name__}: {short(error)}"
            raise Unsuitable(msg) from error

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Keep all states of the process while the copy is called."""
        devices = {each.device for each in self.module.parameters()}
        with (
            _same_random_numbers({each for each in devices if each.type == "cuda"}),
            _without_global_hooks(),
            _without_warnings(),
            _eager(),
        ):
            try:
                yield
            finally:
                self._watched.put_back()


def short(error: Exception) -> str:
    """Return the beginning of a message of an error."""
    return next(iter(str(error).splitlines()), "")[:120]


class _Watched(TorchFunctionMode):
    """Watch what a call of the copy does.

    A generator that is passed to an operation gets its state back afterwards.

    Args:
        originals: Ids of tensors of the training, which must not be used.
        constants: Ids of tensors outside of the model, which must not be changed.
        random: Receives the names of random functions.
        masks: Receives the masks of attention.
    """

    def __init__(
        self,
        originals: set[int],
        constants: set[int],
        random: set[str],
        masks: AttentionMasks,
    ) -> None:
        super().__init__()
        self._masks = masks
        self._originals = originals
        self._constants = constants
        self._end = math.inf
        self._random = random
        self._states: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, _: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at the arguments of a function, and call it."""
        kwargs = kwargs or {}
        self._refuse_late()
        name = getattr(func, "__name__", "")
        changed = [kwargs.get("out")]
        if name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
            changed += args[:1]
        if any(id(each) in self._constants for each in changed):
            msg = f"`{name}` changes a tensor that lies outside of the model"
            raise Unsuitable(msg)
        for each in (*args, *kwargs.values()):
            self._look(each)
            if isinstance(each, list | tuple):
                for part in each:
                    self._look(part)
        with contextlib.suppress(Exception):
            self._masks.note(name, args, kwargs)
        if drawn := _randomness(name, args, kwargs):
            self._random.add(drawn)
        return func(*args, **kwargs)

    def _refuse_late(self) -> None:
        now = time.perf_counter()
        self._end = min(self._end, now + MOST_SECONDS)
        if now > self._end:
            msg = f"calls of a copy take longer than {MOST_SECONDS:g} s"
            raise Unsuitable(msg)

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


# Operations that change their first argument, though they do not end with "_".
_IN_PLACE = frozenset(
    {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow")}
    | {f"__i{name}__" for name in ("mod", "and", "or", "xor", "lshift", "rshift")}
    | {"__setitem__", "__delitem__", "__set__"}
)
DROPOUT = "dropout"
"""What ``random`` says of any dropout by a function."""
DEFAULT_DROPOUT = "dropout without the argument training"
"""What it says of one that drops because nobody has told it the mode."""
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
# The functions whose default is to drop, by their code.
_CODES = {
    each.__code__: each
    for each in (
        nn.functional.dropout,
        nn.functional.dropout1d,
        nn.functional.dropout2d,
        nn.functional.dropout3d,
    )
}
_BEFORE_MODE = 2
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
    if _is_called_by_module():
        return DROPOUT_MODULE
    return DEFAULT_DROPOUT if _leaves_mode_out() else DROPOUT


def _leaves_mode_out() -> bool:
    """Return whether the program calls a dropout of PyTorch, and passes no mode."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in _CODES:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    if frame is None or caller is None:
        return False
    with contextlib.suppress(Exception):
        called = ast.parse(_source_of_call(caller), mode="eval").body
        return (
            isinstance(called, ast.Call)
            and _value_of(called.func, caller) is _CODES[frame.f_code]
            and len(called.args) <= _BEFORE_MODE
            and not any(isinstance(each, ast.Starred) for each in called.args)
            and all(each.arg in {"input", "p"} for each in called.keywords)
        )
    return False


def _source_of_call(frame: FrameType) -> str:
    """Return the source of the call that a frame waits for."""
    code = frame.f_code
    positions = [*code.co_positions()][frame.f_lasti // 2]
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return ""
    lines = linecache.getlines(code.co_filename, frame.f_globals)[first - 1 : last]
    source = [each.encode() for each in lines]
    source[-1] = source[-1][:end]
    source[0] = source[0][start:]
    return f"({b''.join(source).decode()})"


def _value_of(node: ast.expr, frame: FrameType) -> object:
    """Return what a name, or a name in modules, stands for; None: something else."""
    if isinstance(node, ast.Attribute):
        inside = _value_of(node.value, frame)
        is_module = isinstance(inside, ModuleType)
        return vars(inside).get(node.attr) if is_module else None
    if not isinstance(node, ast.Name):
        return None
    names = frame.f_locals if node.id in frame.f_locals else frame.f_globals
    return names.get(node.id)


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


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Show no warnings meanwhile, and do not count them as shown.

    ``warnings.catch_warnings`` would have all warnings of the program shown again.
    """
    silent = ("ignore", None, Warning, None, 0)
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    filters.insert(0, silent)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            filters.remove(silent)


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Run compiled functions as they are written, meanwhile."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return contextlib.nullcontext()
    stance: Callable[..., Any] = getattr(
        torch.compiler, "set_stance", contextlib.nullcontext
    )
    return stance("force_eager")  # type: ignore[no-any-return]
