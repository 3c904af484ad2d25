"""Find lines of a program that do nothing, or not what they are written for.

``scores.masked_fill(mask, -1e9)`` returns a new tensor and leaves ``scores`` alone: a
program that drops the result hides nothing.  The forward methods of the model are read,
and the functions that are being called when the first loss is there.  Names are looked
up; nothing is called.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import StepCheck
from tdbg.hooks.pytorch.checks.probes.function_sources import FunctionSources
from tdbg.hooks.pytorch.model.variables import locals_of
from tdbg.run.observations import Fault, Observation

__all__ = ["WrittenFaults"]

# Frames outwards, and classes of modules, that are read, at most.
_MOST_FRAMES, _MOST_CLASSES = 30, 60
_READ_AT = 2
_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/]|[\\/]tdbg[\\/]hooks[\\/]")
_TORCH = re.compile(r"torch(\.|$)")
# Functions and methods that return a new tensor, and do nothing else.
_ELEMENTWISE = frozenset(
    {"clamp", "clamp_max", "clamp_min", "dropout", "elu", "gelu", "index_add"}
    | {"index_copy", "index_fill", "layer_norm", "leaky_relu", "lerp", "log_softmax"}
    | {"masked_fill", "masked_scatter", "normalize", "relu", "scatter", "scatter_add"}
    | {"sigmoid", "silu", "softmax", "softplus", "tanh", "addcmul", "addcdiv"}
)
# Methods that other objects than tensors and arrays may have, too.
_OF_ARRAYS = _ELEMENTWISE | {"abs", "add", "clip", "detach", "div", "exp", "float"}
_OF_ARRAYS |= {"long", "mul", "permute", "sub", "transpose", "astype", "neg", "sqrt"}
_OF_PARAMETERS = _ELEMENTWISE | {"div", "mul", "sub"}
_OF_NUMPY = frozenset(
    {"append", "clip", "concatenate", "delete", "flip", "insert", "permutation", "roll"}
    | {"sort", "vstack", "hstack"}
)
_OF_FRAMES = frozenset(
    {"astype", "drop", "drop_duplicates", "dropna", "fillna", "rename", "replace"}
    | {"reset_index", "sample", "set_index", "sort_values"}
)
_CONTEXTS = frozenset(
    {torch.no_grad, torch.enable_grad, torch.inference_mode, torch.autocast}
)
_UNCALLED = frozenset({"eval", "train", "step", "zero_grad"})
_WITH_METHODS = (nn.Module, torch.optim.Optimizer)
_RESIDUAL = re.compile(r"(x_)?(residual|identity|shortcut|skip|resid)(_x)?$")
_UNKNOWN = object()
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)

# What is wrong, how, and in which line.
_Written = tuple[Fault, str, Any]


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...


class WrittenFaults(StepCheck):
    """Reads a program when its second loss is there: its variables have values then.

    Args:
        tables: The parameters of the registered modules; grows.
        step: Returns the global step of training.
        observe: Writes an observation.
    """

    def __init__(
        self,
        tables: Iterable[_Table],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
    ) -> None:
        self._tables = tables
        self._step = step
        self._observe = observe
        self._n_losses = 0

    def loss_begins(self, graph: Graph) -> None:  # noqa: ARG002
        """Read the program, once."""
        self._n_losses += 1
        if self._n_losses < _READ_AT:
            return
        self.remove()
        sources = FunctionSources()
        self._read_frames(sources, sys._getframe(1))
        seen = set[Any]()
        for table in self._tables:
            for module in () if table.module is None else table.module.modules():
                if type(module) not in seen and len(seen) < _MOST_CLASSES:
                    seen.add(type(module))
                    if not type(module).__module__.startswith("torch."):
                        self._read_module(sources, module)

    def _read_frames(
        self, sources: FunctionSources, frame: types.FrameType | None
    ) -> None:
        for _ in range(_MOST_FRAMES):
            if frame is None:
                return
            code = frame.f_code
            if not _is_foreign(frame.f_globals, code):
                for node in sources.program(code) or sources.nodes(code)[:1]:
                    names = {**frame.f_globals, **locals_of(frame)}
                    self._tell(code.co_name, code, _dropped(node, _Names(names)))
            frame = frame.f_back

    def _read_module(self, sources: FunctionSources, module: nn.Module) -> None:
        """Read the forward of a module, and the methods that it names."""
        waiting, met = ["forward"], {"forward"}
        while waiting:
            method = getattr(type(module), waiting.pop(), None)
            if not isinstance(method, types.FunctionType):
                continue
            code = method.__code__
            if _is_foreign(method.__globals__, code):
                continue
            for node in sources.nodes(code)[:1]:
                arguments = node.args.posonlyargs + node.args.args
                own = arguments[0].arg if arguments else ""
                known = _Names(method.__globals__, own, module)
                found = [*_dropped(node, known), *_misread(node, known)]
                self._tell(f"{type(module).__name__}.{code.co_name}", code, found)
                for each in ast.walk(node):
                    name = getattr(each, "attr", "")
                    if name and name not in met and not name.startswith("__"):
                        met.add(name)
                        waiting.append(name)

    def _tell(self, name: str, code: types.CodeType, found: Iterable[_Written]) -> None:
        """Note what is wrong in a function: the first line, and how many there are."""
        every = sorted(found, key=lambda each: each[2].lineno)
        if not every:
            return
        fault, kind, node = every[0]
        text = " ".join(ast.unparse(node).split())
        words = {
            "kind": kind,
            "text": text if len(text) <= 70 else f"{text[:67]}...",
            "file": re.split(r"[\\/]", code.co_filename)[-1],
        }
        numbers = {"line": float(node.lineno), "more": float(len(every) - 1)}
        step = max(0, self._step())
        self._observe(Observation(fault, step, (name,), numbers, words))


class _Names:
    """What the names of a function stand for.

    Args:
        names: Variables by name.
        own: What a method calls its object; "": it is no method.
        module: That object.
    """

    def __init__(
        self,
        names: Mapping[str, Any],
        own: str = "",
        module: nn.Module | None = None,
    ) -> None:
        self._names = names
        self._own = own
        self._module = module
        self.is_method = module is not None

    def __call__(self, node: ast.AST) -> Any:
        """Return the object that names stand for; ``_UNKNOWN``: nobody knows."""
        if isinstance(node, ast.Name):
            if self.is_method and node.id == self._own:
                return self._module
            return self._names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            return _attribute(self(node.value), node.attr)
        return _UNKNOWN


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute without calling code of the program."""
    if isinstance(owner, nn.Module):
        for kept in (owner._modules, owner._buffers, owner._parameters, vars(owner)):
            if name in kept:
                return kept[name]
        return _UNKNOWN
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, _UNKNOWN)
    if type(owner) in {torch.Tensor, nn.Parameter} and name in {"data", "grad"}:
        return owner.data if name == "data" else owner.grad
    return _UNKNOWN


def _is_foreign(names: Mapping[str, Any], code: types.CodeType) -> bool:
    """Return whether a function is one of a library."""
    top = str(names.get("__name__")).partition(".")[0]
    if top in {"tdbg", "torch", "pytest", "_pytest", "pluggy"}:
        return True
    is_installed = _LIBRARY.search(code.co_filename) is not None
    return is_installed or code.co_filename.startswith((sys.base_prefix, "<frozen"))


# ---- results that nobody takes -------------------------------------------------------


def _dropped(root: Any, names: _Names) -> Iterator[_Written]:
    """Yield statements whose only result is dropped."""
    for node in _statements(root):
        value = node.value
        if isinstance(value, ast.Attribute) and value.attr in _UNCALLED:
            if isinstance(names(value.value), _WITH_METHODS):
                yield Fault.RESULT_DROPPED, "uncalled", value
        elif isinstance(value, ast.Call):
            kind = _kind_of(value, names)
            if kind and not _works_in_place(value):
                yield Fault.RESULT_DROPPED, kind, value


def _statements(root: Any) -> Iterator[ast.Expr]:
    """Yield the statements that are expressions, without those that are attempts.

    A cell of a notebook shows its last one.
    """
    is_program = isinstance(root, ast.Module)
    waiting = list(root.body[:-1] if is_program else root.body)
    if is_program and root.body and not isinstance(root.body[-1], ast.Expr):
        waiting.append(root.body[-1])
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr):
            yield node
        elif not isinstance(node, ast.Try | ast.ClassDef) and not (
            is_program and isinstance(node, _SCOPES)
        ):
            waiting += [
                each
                for each in ast.iter_child_nodes(node)
                if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)
            ]


def _kind_of(call: ast.Call, names: _Names) -> str:
    """Return what a call is that does nothing but return a result; "": another."""
    function = names(call.func)
    if isinstance(function, nn.Module):
        return "layer" if names.is_method and _only_computes(function) else ""
    if isinstance(function, type) and function in _CONTEXTS:
        return "context"
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    where = getattr(function, "__module__", None) or ""
    if function is not _UNKNOWN:
        known = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        is_of_numpy = "numpy" in where or isinstance(owner, np.random.RandomState)
        is_pure_one = known in (_OF_NUMPY if is_of_numpy else _ELEMENTWISE)
        is_known = is_of_numpy or _TORCH.match(where) is not None
        is_known |= isinstance(function, types.BuiltinFunctionType)
        return "function" if is_known and is_pure_one else ""
    if not isinstance(call.func, ast.Attribute):
        return ""
    return "function" if _is_of_array(names, call.func, name) else ""


def _is_of_array(names: _Names, method: ast.Attribute, name: str) -> bool:
    """Return whether a method is one of a tensor, an array or a table of pandas."""
    owner = names(method.value)
    if isinstance(owner, torch.Tensor | np.ndarray):
        return name in _OF_ARRAYS
    if owner is not _UNKNOWN and owner is not None:
        is_table = type(owner).__module__.startswith("pandas.")
        return is_table and name in _OF_FRAMES
    if getattr(method.value, "attr", "") in {"data", "grad"}:
        return name in _OF_PARAMETERS
    return names.is_method and name in _ELEMENTWISE and name != "dropout"


def _works_in_place(call: ast.Call) -> bool:
    """Return whether arguments ask for a change in place."""
    return any(each.arg in {"inplace", "out", None} for each in call.keywords)


def _only_computes(layer: nn.Module) -> bool:
    """Return whether a layer of PyTorch changes nothing: neither inputs nor itself."""
    for each in layer.modules():
        if not type(each).__module__.startswith("torch.nn.modules."):
            return False
        if getattr(each, "inplace", False) or each._forward_hooks.keys() - _ours(each):
            return False
    return True


def _ours(module: nn.Module) -> set[int]:
    """Return the hooks that are not the program's."""
    return {
        key
        for key, hook in module._forward_hooks.items()
        if type(hook).__module__.startswith("tdbg.")
        or getattr(hook, "__module__", "").startswith("tdbg.")
    }


# ---- what is read twice, or never ----------------------------------------------------


def _misread(root: Any, names: _Names) -> Iterator[_Written]:
    """Yield sums of a tensor and itself, and results that nobody reads."""
    every = list(ast.walk(root))
    assigned = [
        each
        for each in every
        if isinstance(each, ast.Assign) and len(each.targets) == 1
    ]
    made = {
        name.id
        for each in assigned
        if _is_of_layer(each.value, names)
        for name in ast.walk(each.targets[0])
        if isinstance(name, ast.Name)
    }
    for node in every:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            one = node.left
            is_double = ast.dump(one) == ast.dump(node.right)
            if is_double and isinstance(one, ast.Name) and one.id in made:
                yield Fault.ADDED_TO_ITSELF, one.id, node
    yield from _unread(every, assigned, names)


def _unread(
    every: list[ast.AST], assigned: list[ast.Assign], names: _Names
) -> Iterator[_Written]:
    """Yield variables that hold a result, or a residual, and that nobody reads."""
    read = {
        each.id
        for each in every
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    if {"locals", "eval", "exec", "vars"} & read:
        return
    for node in assigned:
        target = node.targets[0]
        if not isinstance(target, ast.Name) or target.id in read:
            continue
        read.add(target.id)
        if _is_meant_for_use(target.id, node.value, names):
            yield Fault.RESULT_DROPPED, f"unread {target.id}", node


def _is_of_layer(value: ast.AST, names: _Names) -> bool:
    """Return whether a value is what one of the modules has returned."""
    return isinstance(value, ast.Call) and isinstance(names(value.func), nn.Module)


def _is_meant_for_use(name: str, value: ast.AST, names: _Names) -> bool:
    """Return whether a variable holds what a layer or a function has computed."""
    if _RESIDUAL.match(name):
        return True
    if name.startswith("_") or not isinstance(value, ast.Call):
        return False
    return bool(_kind_of(value, names)) and not _works_in_place(value)
