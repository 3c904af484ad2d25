"""Find lines of a program that do nothing, or not what they are written for.

``scores.masked_fill(mask, -1e9)`` returns a new tensor and leaves ``scores`` alone: a
program that drops the result hides nothing.  The forward methods of the model are read,
and the functions that are being called when the first loss is there.  Names are looked
up; nothing is called.  Functions that these name are read, too.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import StepCheck
from tdbg.hooks.pytorch.checks.probes.known_names import (
    UNKNOWN,
    KnownNames,
    executed,
    parts_of,
)
from tdbg.hooks.pytorch.checks.probes.prepared_data import faults_of_preparation
from tdbg.hooks.pytorch.model.program_sources import (
    functions_of,
    program_of,
    source_of_file,
)
from tdbg.hooks.pytorch.model.variables import locals_of
from tdbg.run.observations import Fault, Observation

__all__ = ["WrittenFaults"]

# Frames outwards, and classes of modules, that are read, at most.
_MOST_FRAMES, _MOST_CLASSES = 30, 60
_READ_AT = 2
_MOST_CALLED = 40
# A share that a dropout seldom leaves out on purpose, and one that is to be kept.
_MOST_LEFT_OUT, _HALF = 0.8, 0.5
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
_WITH_METHODS = (nn.Module, torch.optim.Optimizer, LRScheduler)
_SEEDS = frozenset({"manual_seed", "seed"})
_RESIDUAL = re.compile(r"(x_)?(residual|identity|shortcut|skip|resid)(_x)?$")
_MOST_MODULES, _MOST_UNREAD = 2_000, 4

# What programs call a target network, and networks of values.
_TARGET = re.compile(r"(^|_)(target|targ|tgt)(_|$|\d|net)|_t$", re.IGNORECASE)
_NETWORK = re.compile(
    r"net|model|critic|policy|online|local|target|agent|(^|_)d?d?q(n|_|\d|$)",
    re.IGNORECASE,
)
_MOST_MADE = 3

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
        state_of: Returns the state that the loop around a frame keeps, if it shuffles.
        unread_of: Yields settings that a file never reads.
        unread_by: Yields arguments that a function never reads.
        dropped_of: Yields dropouts in a file that drop what is to be kept.
    """

    def __init__(
        self,
        tables: Iterable[_Table],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
        *,
        state_of: Callable[[types.FrameType], Any],
        unread_of: Callable[[ast.Module], Iterable[_Written]],
        unread_by: Callable[[Any], Iterable[_Written]],
        dropped_of: Callable[[ast.Module], Iterable[_Written]],
    ) -> None:
        self._dropped_of, self._files = dropped_of, set[str]()
        self._state_of, self._unread_of = state_of, unread_of
        self._unread_by = unread_by
        self._tables = tables
        self._step = step
        self._observe = observe
        self._n_losses = 0
        self._told: set[Fault] = set()

    def loss_begins(self, graph: Graph) -> None:  # noqa: ARG002
        """Read the program, once."""
        self._n_losses += 1
        if self._n_losses < _READ_AT:
            return
        self.remove()
        with contextlib.suppress(Exception):  # Objects of the program may be odd.
            self._read_loop(sys._getframe(1))
        self._read_frames(sys._getframe(1))
        seen = set[Any]()
        for table in self._tables:
            for module in () if table.module is None else table.module.modules():
                if type(module) not in seen and len(seen) < _MOST_CLASSES:
                    seen.add(type(module))
                    if not type(module).__module__.startswith("torch."):
                        self._read_module(module)
            if table.module is not None and Fault.KEPT_AS_DROPPED not in self._told:
                self._look_at_shares(table.module)

    def _look_at_shares(self, root: nn.Module) -> None:
        """Note a dropout that leaves little."""
        kind = nn.modules.dropout._DropoutNd
        found = [
            m for m in root.modules() if isinstance(m, kind) and m.p >= _MOST_LEFT_OUT
        ]
        for each in found[:1]:
            names, numbers = (type(root).__name__,), {"p": float(each.p)}
            seen = Fault.KEPT_AS_DROPPED, max(0, self._step()), names, numbers
            self._observe(Observation(*seen, {"text": repr(each)}))

    def _drops_much(self) -> bool:
        """Return whether dropouts leave out half or more, or nobody knows."""
        roots = [each.module for each in self._tables if each.module is not None]
        every = [each for root in roots for each in root.modules()]
        kind = nn.modules.dropout._DropoutNd
        shares = [each.p for each in every if isinstance(each, kind)]
        return max(shares, default=1.0) >= _HALF

    def _read_file(self, code: types.CodeType) -> None:
        """Read the layers that a file makes."""
        if code.co_filename not in self._files:
            self._files.add(code.co_filename)
            tree = source_of_file(code.co_filename)
            found = [] if tree is None else [*self._dropped_of(tree)]
            for each in found[: self._drops_much()]:
                self._tell(each[1], code, found)

    def _read_loop(self, frame: types.FrameType) -> None:
        """Read the loop over batches that the program is in."""
        found = self._state_of(frame)
        if found is not None:
            fault, name, numbers, words = found
            step = max(0, self._step())
            self._observe(Observation(fault, step, (name,), numbers, words))

    def _read_frames(self, frame: types.FrameType | None) -> None:
        called, met = list[types.FunctionType](), set[Any]()
        files = set[str]()
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            code, names = frame.f_code, frame.f_globals
            if not _is_foreign(names, code):
                met.add(code)
                if code.co_filename not in files:
                    files.add(code.co_filename)
                    self._read_file(code)
                    tree = source_of_file(code.co_filename)
                    found = [] if tree is None else [*self._unread_of(tree)]
                    found = [
                        each for each in found if not _is_read_elsewhere(*each[1:])
                    ]
                    for each in found[:_MOST_UNREAD]:
                        self._tell(each[1], code, [each])
                names = {**names, **locals_of(frame)}
                called += self._read(code, names)
            frame = frame.f_back
        for function in called:
            code = function.__code__
            if code not in met and len(met) < _MOST_CALLED:
                met.add(code)
                if not _is_foreign(function.__globals__, code):
                    called += self._read(code, function.__globals__)

    def _read(
        self, code: types.CodeType, names: dict[str, Any]
    ) -> list[types.FunctionType]:
        """Read a function or a program, and return the functions that it names."""
        called = list[types.FunctionType]()
        known = KnownNames(names)
        for node in program_of(code) or functions_of(code)[:1]:
            body = executed(node, known)
            found = [*_dropped(body, known, _shown(node)), *_ended(body)]
            found += [*faults_of_preparation(body, known), *_roles_of(body)]
            self._tell(code.co_name, code, found)
            for each in parts_of(body):
                function = known(each.func) if isinstance(each, ast.Call) else None
                if isinstance(function, types.FunctionType):
                    called.append(function)
        return called

    def _read_module(self, module: nn.Module) -> None:
        """Read the forward of a module, and the methods that it names."""
        waiting, met = ["forward"], {"forward"}
        while waiting:
            method = getattr(type(module), waiting.pop(), None)
            if not isinstance(method, types.FunctionType):
                continue
            code = method.__code__
            if _is_foreign(method.__globals__, code):
                continue
            self._read_file(code)
            for node in functions_of(code)[:1]:
                arguments = node.args.posonlyargs + node.args.args
                own = arguments[0].arg if arguments else ""
                known = KnownNames(method.__globals__, own, module)
                body = executed(node, known)
                found = [*_dropped(body, known), *_misread(node, body, known)]
                where = f"{type(module).__name__}.{code.co_name}"
                self._tell(where, code, found)
                self._tell(where, code, self._unread_by(node))
                for each in parts_of(body):
                    name = getattr(each, "attr", "")
                    if name and name not in met and not name.startswith("__"):
                        met.add(name)
                        waiting.append(name)

    def _tell(self, name: str, code: types.CodeType, found: Iterable[_Written]) -> None:
        """Note what is wrong in a function: the first line, and how many there are."""
        every = sorted(found, key=lambda each: each[2].lineno)
        for fault in dict.fromkeys(each[0] for each in every):
            self._told.add(fault)
            alike = [each for each in every if each[0] is fault]
            _, kind, node = alike[0]
            text = " ".join(ast.unparse(node).split())
            words = {
                "kind": kind,
                "text": text if len(text) <= 70 else f"{text[:67]}...",
                "file": re.split(r"[\\/]", code.co_filename)[-1],
            }
            numbers = {"line": float(node.lineno), "more": float(len(alike) - 1)}
            step = max(0, self._step())
            self._observe(Observation(fault, step, (name,), numbers, words))


def _is_foreign(names: Mapping[str, Any], code: types.CodeType | str) -> bool:
    """Return whether a function, or a file, is one of a library."""
    file = code if isinstance(code, str) else code.co_filename
    top = str(names.get("__name__")).partition(".")[0]
    if top in {"tdbg", "torch", "pytest", "_pytest", "pluggy"}:
        return True
    is_installed = _LIBRARY.search(file) is not None
    return is_installed or file.startswith((sys.base_prefix, "<frozen"))


# ---- results that nobody takes -------------------------------------------------------


def _dropped(
    body: list[ast.stmt], names: KnownNames, shown: frozenset[Any] = frozenset()
) -> Iterator[_Written]:
    """Yield statements whose only result is dropped, not those that a cell shows."""
    for node in _of_kind(body, ast.Assign):
        if _is_seed(node.targets[0], names):
            yield Fault.RESULT_DROPPED, "seed", node
    for node in _of_kind(body, ast.Expr):
        value = node.value
        if isinstance(value, ast.Compare) and isinstance(value.left, ast.Attribute):
            if isinstance(value.ops[0], ast.Eq):
                yield Fault.RESULT_DROPPED, "compared", value
        elif isinstance(value, ast.Attribute) and value.attr in _UNCALLED:
            if isinstance(names(value.value), _WITH_METHODS):
                yield Fault.RESULT_DROPPED, "uncalled", value
        elif isinstance(value, ast.Call):
            kind = _kind_of(value, names)
            if kind == "function" and node in shown:
                continue
            if kind and not _works_in_place(value):
                yield Fault.RESULT_DROPPED, kind, value


def _shown(root: Any) -> frozenset[Any]:
    """Return the statements of a script that may be there for their value alone.

    A script that was a notebook has those whose values a cell has shown: they stand
    beside names that stand alone, or are calls of values that nobody holds.
    """
    if not isinstance(root, ast.Module):
        return frozenset()
    every = list(_of_kind(root.body, ast.Expr))
    shows = any(_is_value(each.value) for each in every)
    return frozenset(each for each in every if shows or _is_of_call(each.value))


def _is_value(node: ast.AST) -> bool:
    """Return whether an expression does nothing but name a value."""
    if isinstance(node, ast.Attribute):
        return node.attr not in _UNCALLED
    return isinstance(node, ast.Name | ast.Subscript)


def _is_of_call(node: ast.AST) -> bool:
    """Return whether a call is one of what another call returns."""
    given = getattr(node, "args", [])
    return len(given) > 0 and isinstance(given[0], ast.Call)


def _of_kind(body: list[ast.stmt], kind: Any) -> Iterator[Any]:
    return (each for each in body if isinstance(each, kind))


def _is_seed(target: ast.AST, names: KnownNames) -> bool:
    """Return whether an assignment puts a number in the place of a function."""
    if not isinstance(target, ast.Attribute) or target.attr not in _SEEDS:
        return False
    owner = names(target.value)
    is_module = isinstance(owner, types.ModuleType)
    return is_module and not callable(vars(owner).get(target.attr, len))


def _ended(body: list[ast.stmt]) -> Iterator[_Written]:
    """Yield returns at which a loop ends that has added up one of its numbers."""
    for node in _of_kind(body, ast.For):
        end = node.body[-1]
        if not isinstance(end, ast.Return) or node.orelse:
            continue
        read = {each.id for each in ast.walk(end) if isinstance(each, ast.Name)}
        sums = [each for each in ast.walk(node) if isinstance(each, ast.AugAssign)]
        if any(getattr(each.target, "id", "") in read for each in sums):
            yield Fault.RESULT_DROPPED, "ended", end


def _kind_of(call: ast.Call, names: KnownNames) -> str:
    """Return what a call is that does nothing but return a result; "": another."""
    function = names(call.func)
    if isinstance(function, nn.Module):
        return "layer" if names.is_method and _only_computes(function) else ""
    if isinstance(function, type) and function in _CONTEXTS:
        return "context"
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    where = getattr(function, "__module__", None) or ""
    if function is not UNKNOWN:
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


def _is_of_array(names: KnownNames, method: ast.Attribute, name: str) -> bool:
    """Return whether a method is one of a tensor, an array or a table of pandas."""
    owner = names(method.value)
    if isinstance(owner, torch.Tensor | np.ndarray):
        return name in _OF_ARRAYS
    if owner is not UNKNOWN and owner is not None:
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


def _misread(root: Any, body: list[ast.stmt], names: KnownNames) -> Iterator[_Written]:
    """Yield sums of a tensor and itself, and results that nobody reads."""
    assigned = [e for e in _of_kind(body, ast.Assign) if len(e.targets) == 1]
    made = {
        name.id
        for each in assigned
        if _is_of_layer(each.value, names)
        for name in ast.walk(each.targets[0])
        if isinstance(name, ast.Name)
    }
    for node in parts_of(body):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            one = node.left
            is_double = ast.dump(one) == ast.dump(node.right)
            if is_double and isinstance(one, ast.Name) and one.id in made:
                yield Fault.ADDED_TO_ITSELF, one.id, node
    yield from _unread(list(ast.walk(root)), assigned, names)


def _unread(
    every: list[ast.AST], assigned: list[ast.Assign], names: KnownNames
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


def _is_of_layer(value: ast.AST, names: KnownNames) -> bool:
    """Return whether a value is what one of the modules has returned."""
    return isinstance(value, ast.Call) and isinstance(names(value.func), nn.Module)


def _is_meant_for_use(name: str, value: ast.AST, names: KnownNames) -> bool:
    """Return whether a variable holds what a layer or a function has computed."""
    if _RESIDUAL.match(name):
        return True
    if name.startswith("_") or not isinstance(value, ast.Call):
        return False
    return bool(_kind_of(value, names)) and not _works_in_place(value)


# ---- settings that nobody reads ------------------------------------------------------


def _is_read_elsewhere(name: str, node: Any) -> bool:
    """Return whether another file of the program has the name of a setting."""
    if isinstance(node, ast.arg):
        return False
    word = re.compile(rf"\b{name}\b")
    n = 0
    for module in [*sys.modules.values()][-_MOST_MODULES:]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not _is_foreign(vars(module), file):
            n += any(word.search(line) for line in linecache.getlines(file))
    return n > 1


# ---- double Q-learning ---------------------------------------------------------------


def _roles_of(body: list[ast.stmt]) -> Iterator[_Written]:
    """Yield that a target network chooses actions, which another network judges."""
    single = [
        (each.targets[0].id, each.value)
        for each in body
        if isinstance(each, ast.Assign)
        and len(each.targets) == 1
        and isinstance(each.targets[0], ast.Name)
    ]
    n_of = Counter(name for name, _ in single)
    made = {name: value for name, value in single if n_of[name] == 1}
    for statement in body:
        if not isinstance(
            statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return
        ):
            continue
        for node in ast.walk(statement):
            attribute = getattr(node, "func", None)
            if isinstance(attribute, ast.Attribute) and attribute.attr == "gather":
                found = _roles(node, attribute.value, made)
                if found:
                    yield Fault.ROLES_EXCHANGED, found, node


def _roles(call: Any, values: ast.AST, made: Mapping[str, ast.AST]) -> str:
    """Return the names of the networks that choose and that judge, if exchanged."""
    given = [*call.args[1:], *(each.value for each in call.keywords)]
    chosen = _all_of(given[0], made) if given else []
    if not any(getattr(e, "attr", "") in {"argmax", "max"} for e in chosen):
        return ""
    choosing, judging = _networks(chosen), _networks(_all_of(values, made))
    if len(choosing) != 1 or len(judging) != 1:
        return ""
    (one, about), (other, its) = *choosing, *judging
    is_exchanged = _TARGET.search(one) and not _TARGET.search(other)
    return f"{one} {other}" if is_exchanged and about == its else ""


def _all_of(node: ast.AST, made: Mapping[str, ast.AST]) -> list[ast.AST]:
    """Return the parts of an expression, and of those that its names stand for."""
    found, names = list(ast.walk(node)), set[str]()
    for each in found:
        name = getattr(each, "id", "")
        if name in made and name not in names and len(names) < _MOST_MADE:
            names.add(name)
            found += ast.walk(made[name])
    return found


def _networks(parts: list[ast.AST]) -> set[tuple[str, str]]:
    """Return the networks that are called, by name, and what they are given."""
    found = set[tuple[str, str]]()
    for each in parts:
        if isinstance(each, ast.Call) and each.args:
            name = ast.unparse(each.func).rpartition(".")[2]
            is_name = isinstance(each.func, ast.Name | ast.Attribute)
            if is_name and _NETWORK.search(name):
                found.add((name, ast.dump(each.args[0])))
    return found
