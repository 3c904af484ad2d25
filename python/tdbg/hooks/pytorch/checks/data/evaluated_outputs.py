"""Follow what a program makes of a model's outputs when it evaluates.

A metric reads outputs: it compares them with a threshold, takes the largest, subtracts
targets.  The graph of the training's loss says what the outputs are: scores,
probabilities or numbers.  So it is known which readings cannot be right.

In the first evaluations, operations of tensors are replaced by ones that note what they
are given.  They are put back when training goes on, before the compiler traces, and
after 100,000 notes: a program may evaluate for good.

Thread safety: the training's thread; operations of other threads are not noted.
Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.jit import _builtins

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.data.evaluation_loops import LoopReader
from tdbg.hooks.pytorch.checks.data.metric_sums import MetricSums
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    Graph,
    is_made_of,
    name_of,
    past_shapes,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import StepCheck
from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.call_context import is_traced
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["EvaluatedOutputs"]

# Evaluations and training losses that are looked at, outputs of one call, and tensors
# that are known at once.
_MOST_PASSES, _MOST_LOSSES, _MOST_OUTPUTS, _MOST_KNOWN = 8, 4, 4, 4096
# Rows of a table; operations that are noted.
_LEAST_ROWS, _MOST_NOTED = 4, 100_000

# What outputs are, and what else is known of tensors that are made of them.
_BITS, _CLASSES, _PROBABILITIES = "bits", "classes", "probabilities"
_UNKNOWN, _ONES, _TWICE = "unknown", "softmax of one", "sigmoid twice"
_LARGEST, _ANSWERS = "largest", "answers"
# Between what numbers these lie, whatever the model has learned.
_RANGES = {_PROBABILITIES: (0.0, 1.0), _ONES: (1.0, 1.0), _TWICE: (0.5, 0.7311)}

_COMPARES = frozenset({"gt", "ge", "lt", "le"})
_EQUALS = frozenset({"eq", "ne"})
_SUBTRACTS = frozenset({"sub", "rsub"})
# What changes neither a number nor what it means.
_KEEPS = frozenset(
    {
        *("bool", "clone", "contiguous", "cpu", "detach", "double", "flatten", "float"),
        *("half", "int", "long", "reshape", "squeeze", "to", "type", "view", "getitem"),
    }
)
_CONVERTS = frozenset({"bool", "double", "float", "half", "int", "long", "to", "type"})
_OTHERS = frozenset({"argmax", "cat", "max", "round", "sigmoid", "softmax"})
# Those that are functions of the module, too.
_FUNCTIONS = _COMPARES | _EQUALS | _OTHERS | {"sub", "squeeze", "flatten", "reshape"}
_METHODS = tuple(sorted((_FUNCTIONS | _KEEPS) - {"cat", "getitem"}))
_OPERATORS = (
    *(f"__{each}__" for each in sorted(_COMPARES | _EQUALS | _SUBTRACTS)),
    "__getitem__",
)


class _Known(NamedTuple):
    """A tensor that the program has made of an output.

    Attributes:
        tensor: It.
        version: How often it had been written to.
        kind: What it is.
        name: The model.
    """

    tensor: weakref.ref[torch.Tensor]
    version: int
    kind: str
    name: str


class _Made(NamedTuple):
    """An output in training, which is not kept alive, nor is its graph.

    Attributes:
        name: The model.
        place: That of the output among those of the model.
        number: That of the operation that made it.
        n: How many numbers it has.
        is_squashed: Whether a sigmoid made it.
    """

    name: str
    place: int
    number: int
    n: int
    is_squashed: bool

    @classmethod
    def of(cls, name: str, place: int, output: torch.Tensor) -> _Made:
        """Return what is known of one."""
        node: Any = output.grad_fn
        is_squashed = name_of(past_shapes(node)) == "Sigmoid"
        return cls(name, place, node._sequence_nr(), output.numel(), is_squashed)


class _Reading:
    """What outputs of one kind were compared with, in one evaluation.

    Attributes:
        numbers: Thresholds.
        n: How many outputs were compared.
        n_between: Of these, the ones from 0 to 0.5: as scores, they are positive.
        n_beyond: Of these, the ones that are no probabilities.
        answers: What came of it.
    """

    def __init__(self) -> None:
        self.numbers = set[float]()
        self.n = self.n_between = self.n_beyond = 0
        self.answers = set[float]()

    def add(self, given: torch.Tensor, number: float, result: torch.Tensor) -> None:
        """Note a comparison."""
        self.numbers.add(number)
        self.n += given.numel()
        self.n_between += int(((given > 0) & (given <= number)).sum())
        self.n_beyond += int(((given < 0) | (given > 1)).sum())
        self.answers.update(map(float, (result.min(), result.max())))


class EvaluatedOutputs(StepCheck):
    """What evaluations of one training make of outputs.

    Args:
        session: Receives observations.
        sums: What evaluations add up.

    Attributes:
        is_open: Whether it must still hear of outputs.
        is_learning: Whether it must still hear of those of training.
        is_following: Whether operations are replaced now.
        known: What is known of tensors, by identity.
        born: When it was made, for ``hooks_may_go``.
        thread: The thread that evaluates; 0: nothing is noted now.
    """

    def __init__(self, session: Session, sums: MetricSums) -> None:
        self._session = session
        self._sums, self._loops = sums, LoopReader()
        self.born = now()
        self.is_open = self.is_learning = True
        self.is_following = False
        self.known: dict[int, _Known] = {}
        self.thread = 0
        self._n_passes = self._n_losses = self._n_noted = 0
        # The outputs of training since the last loss, and what outputs are.
        self._latest: list[_Made] = []
        self._kinds: dict[tuple[str, int], set[str]] = {}
        self._told = set[tuple[Fault, str]]()
        # Of this evaluation: thresholds by the model and the kind, and what is wrong.
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._found: list[Observation] = []
        self._operations: _Operations | None = None

    # ---- told by the model and its losses -------------------------------------

    def note_output(self, module: nn.Module, name: str, output: Any) -> None:
        """Note what a registered module has returned."""
        if is_traced() or is_recording():
            return
        found = _outputs_of(output)
        if module.training and torch.is_grad_enabled():
            made = [_Made.of(name, i, t) for i, t in found if t.grad_fn is not None]
            self._latest = [*self._latest, *made][-_MOST_OUTPUTS:]
            return
        if not found or not self._begin():
            return
        with contextlib.suppress(Exception):  # Sources may be odd.
            self._loops.note_call()
            self._sums.note_rows(found[0][1])
        for i, tensor in found:
            kinds = self._kinds.get((name, i), set())
            kind = next(iter(kinds)) if len(kinds) == 1 else _UNKNOWN
            self._remember(tensor, kind, name)

    def loss_begins(self, graph: Graph) -> None:
        """Learn from the graph of a loss what the outputs are."""
        latest, self._latest = self._latest, []
        self._n_losses += bool(latest)
        self.is_over = self._n_losses >= _MOST_LOSSES
        self.is_learning = not self.is_over
        with contextlib.suppress(Exception):  # A graph may be freed already.
            self._sums.learn_ignored(graph)
        for each in latest:
            if kind := _kind_of(graph, each):
                self._kinds.setdefault((each.name, each.place), set()).add(kind)

    # ---- replaced operations ----------------------------------------------------

    def _begin(self) -> bool:
        """Follow operations from now on, if it may be done."""
        if self.is_following:
            return True
        if self._n_passes >= _MOST_PASSES or self._n_noted >= _MOST_NOTED:
            self.is_open = False
            return False
        if not hooks_may_go(self):
            return False
        self._n_passes += 1
        self.thread = threading.get_ident()
        if self._operations is None:
            self._operations = _Operations(self)
        self._operations.replace(with_functions=not _has_compiled())
        self.is_following = True
        return True

    def _put_back(self) -> None:
        self._sums.put_back()
        if self._operations is not None:
            self._operations.put_back()

    def pass_ends(self) -> None:
        """Judge an evaluation, which is over: training goes on."""
        self._put_back()
        self.is_following = False
        self.known.clear()
        with contextlib.suppress(Exception):  # Tensors may be gone, and names odd.
            for (name, kind), reading in self._readings.items():
                self._judge(name, kind, reading)
        with contextlib.suppress(Exception):
            n_steps = max(0, self._session.latest_step(TRAIN)[1])
            ordered = self._sums.ordered
            made = [*self._loops.pass_ends(n_steps, ordered), *self._sums.pass_ends()]
            for fault, name, numbers, words in made:
                self._find(fault, name, numbers, words)
        found, self._found = self._found, []
        self._readings.clear()
        for each in found:
            key = each.fault, each.words.get("how", "")
            if key not in self._told:
                self._told.add(key)
                self._session.observe(each)

    def _judge(self, name: str, kind: str, reading: _Reading) -> None:
        """Judge the threshold of outputs, if there is only one."""
        if len(reading.numbers) != 1:
            return
        (number,) = reading.numbers
        numbers = {"number": number, "outputs": float(reading.n)}
        if kind == _BITS:
            if number == 0.5 and reading.n_between and reading.n_beyond:
                numbers["between"] = float(reading.n_between)
                self._find(Fault.SCORES_ABOVE_HALF, name, numbers)
            return
        low, high = _RANGES[kind]
        is_constant = reading.n >= _LEAST_ROWS and len(reading.answers) == 1
        if is_constant and not low < number < high:
            numbers |= {"low": low, "high": high}
            self._find(Fault.ANSWER_IS_CONSTANT, name, numbers, {"how": kind})

    def remove(self) -> None:
        """Look at no more evaluations."""
        super().remove()
        self.is_learning = False
        self._latest.clear()

    def conclude(self) -> None:
        """Judge the last evaluation: the hook is closed."""
        self.remove()
        self.is_open = False
        self.pass_ends()

    def set_idle(self, is_idle: bool) -> None:
        """Put operations back for good: the compiler is about to trace."""
        if not is_idle:
            self.is_open = self.is_following = False
            self._put_back()

    # ---- told by replaced operations --------------------------------------------

    def note(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note an operation of this evaluation."""
        self._n_noted += 1
        if self._n_noted == _MOST_NOTED:
            self._put_back()
        if name == "cat":
            self._note_cat(args[0] if args else (), result)
            return
        given = [self._of(each) for each in args[:2]]
        if name == "max":
            self._note_max(given[0], result)
            return
        first = given[0] or (given[1] if len(given) > 1 else None)
        if first is None or not isinstance(result, torch.Tensor):
            return
        if name in _COMPARES:
            self._note_threshold(first, given, args, result)
        elif name in _EQUALS or name in _SUBTRACTS:
            self._note_pairs(name, given, args, result)
        elif given[0] is None:
            return
        elif name in _KEEPS:
            self._note_kept(given[0], name, args, result)
        else:
            self._note_reading(given[0], name, args, kwargs, result)

    def _note_max(self, known: _Known | None, result: Any) -> None:
        if known is not None and isinstance(result, tuple):
            self._remember(result[1], _ANSWERS, known.name)

    def _note_cat(self, parts: Any, result: Any) -> None:
        given = [self._of(each) for each in parts]
        kinds = {None if each is None else (each.kind, each.name) for each in given}
        if len(kinds) == 1 and (known := given[0]) is not None:
            self._remember(result, known.kind, known.name)

    def _note_threshold(
        self, known: _Known, given: Any, args: Any, result: torch.Tensor
    ) -> None:
        """Note that something is compared with a number, perhaps."""
        at = 0 if given[0] is not None else 1
        number = _number_of(args[1 - at])
        self._remember(result, _ANSWERS, known.name)
        if number is not None:
            self._read(known, args[at], number, result)

    def _read(
        self, known: _Known, given: torch.Tensor, number: float, result: torch.Tensor
    ) -> None:
        if given.numel() and (known.kind == _BITS or known.kind in _RANGES):
            reading = self._readings.setdefault((known.name, known.kind), _Reading())
            reading.add(given, number, result)

    def _note_pairs(
        self, name: str, given: Any, args: Any, result: torch.Tensor
    ) -> None:
        """See whether (n, 1) and (n,) make a table of all pairs."""
        if not all(isinstance(each, torch.Tensor) for each in args[:2]):
            return
        if name in _EQUALS and given[0] is not None and given[1] is None:
            self._note_equal(given[0], args[0], args[1])
            if given[0].kind not in {_ANSWERS, _LARGEST}:
                self._sums.note_equality(args[0], args[1])
        self._count(name, given, args, result)
        one, other = args[:2]
        n = result.shape[0] if result.dim() == 2 else 0
        shapes = {tuple(one.shape), tuple(other.shape)}
        if n < _LEAST_ROWS or shapes != {(n, 1), (n,)}:
            return
        target = other if given[0] is not None else one
        is_list = name in _EQUALS and len(target.unique()) == n
        if None not in given[:2] or is_list:
            return  # A list of classes, perhaps.
        known = given[0] or given[1]
        words = {"operation": "==" if name in _EQUALS else "-"}
        self._find(Fault.METRIC_OF_ALL_PAIRS, known.name, {"rows": float(n)}, words)

    def _count(self, name: str, given: Any, args: Any, result: torch.Tensor) -> None:
        """Count right answers."""
        kinds = {None if each is None else each.kind for each in given[:2]}
        is_told = name == "eq" and kinds == {None, _ANSWERS}
        if is_told and args[0].shape == args[1].shape:
            self._sums.count(result, args[1] if given[0] is not None else args[0])

    def _note_equal(
        self, known: _Known, answer: torch.Tensor, labels: torch.Tensor
    ) -> None:
        if known.kind == _LARGEST and not answer.dim() and labels.numel() > 1:
            self._find(Fault.READ_OVER_SAMPLES, known.name, {}, {"how": "argmax"})

    def _note_kept(
        self, known: _Known, name: str, args: Any, result: torch.Tensor
    ) -> None:
        is_whole = not result.is_floating_point()
        if is_whole and args[0].is_floating_point():
            is_told = known.kind == _PROBABILITIES and result.numel() >= _LEAST_ROWS
            if is_told and result.min() == result.max():
                words = {"how": "truncated"}
                self._find(Fault.ANSWER_IS_CONSTANT, known.name, {}, words)
            return
        # A last axis that the program adds may be meant to make pairs.
        if name in _CONVERTS or result.dim() <= args[0].dim():
            self._remember(result, known.kind, known.name)

    def _note_reading(
        self, known: _Known, name: str, args: Any, kwargs: Any, result: torch.Tensor
    ) -> None:
        given: torch.Tensor = args[0]
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if name == "round":
            self._remember(result, _ANSWERS, known.name)
            self._read(known, given, 0.5, result)
        elif name == "sigmoid":
            kind = {_BITS: _PROBABILITIES, _PROBABILITIES: _TWICE}.get(known.kind)
            self._remember(result, kind or _UNKNOWN, known.name)
        elif name == "softmax" and isinstance(axis, int) and given.dim():
            self._note_softmax(known, given, axis, result)
        elif name == "argmax" and given.dim():
            self._note_argmax(known, given, axis, result)

    def _note_softmax(
        self, known: _Known, given: torch.Tensor, axis: int, result: torch.Tensor
    ) -> None:
        size = given.shape[axis]
        if size == 1:
            self._remember(result, _ONES, known.name)
        elif axis % given.dim() == 0 and given.dim() == 2 and known.kind == _CLASSES:
            words = {"how": "softmax", "shape": str(tuple(given.shape))}
            self._find(Fault.READ_OVER_SAMPLES, known.name, {}, words)
        else:
            self._remember(result, _UNKNOWN, known.name)

    def _note_argmax(
        self, known: _Known, given: torch.Tensor, axis: Any, result: torch.Tensor
    ) -> None:
        if axis is None:
            if known.kind == _CLASSES and given.dim() == 2 and given.shape[0] > 1:
                self._remember(result, _LARGEST, known.name)
        elif given.shape[axis] == 1 and given.numel() >= _LEAST_ROWS:
            words = {"how": "argmax of one", "shape": str(tuple(given.shape))}
            self._find(Fault.ANSWER_IS_CONSTANT, known.name, {}, words)
        else:
            self._remember(result, _ANSWERS, known.name)

    # ---- inside -------------------------------------------------------------------

    def _of(self, value: Any) -> _Known | None:
        known = self.known.get(id(value))
        if known is None or known.tensor() is not value:
            return None
        return known if _version_of(value) == known.version else None

    def _remember(self, tensor: torch.Tensor, kind: str, name: str) -> None:
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        version = _version_of(tensor)
        self.known[id(tensor)] = _Known(weakref.ref(tensor), version, kind, name)

    def _find(
        self,
        fault: Fault,
        name: str,
        numbers: Mapping[str, float],
        words: Mapping[str, str] | None = None,
    ) -> None:
        if all(each.fault is not fault for each in self._found):
            step = max(0, self._session.latest_step(TRAIN)[0])
            self._found.append(Observation(fault, step, (name,), numbers, words or {}))


# ---- what outputs are ----------------------------------------------------------------


def _outputs_of(output: Any) -> list[tuple[int, torch.Tensor]]:
    """Return the tensors with numbers among what a model returned, and their places."""
    every = [output]
    if isinstance(output, Mapping):
        every = [*output.values()]
    elif isinstance(output, tuple | list):
        every = [*output]
    return [
        (i, each)
        for i, each in enumerate(every[:_MOST_OUTPUTS])
        if type(each) is torch.Tensor and each.is_floating_point() and each.dim()
    ]


def _kind_of(graph: Graph, output: _Made) -> str:
    """Return what an output is, by what a loss makes of it."""
    if any(
        is_made_of(each, output.number, output.n)
        for each in graph.named({"BinaryCrossEntropyWithLogits", "Sigmoid"})
    ):
        return _BITS
    if any(
        is_made_of(each, output.number, output.n)
        for each in graph.named({"BinaryCrossEntropy"})
    ):
        return _PROBABILITIES if output.is_squashed else ""
    for each in graph.named({"LogSoftmax"}):
        if (
            is_made_of(each, output.number, output.n)
            and len(each._input_metadata[0].shape) == 2
        ):
            return _CLASSES
    return ""


def _version_of(tensor: Any) -> int:
    return 0 if tensor.is_inference() else int(tensor._version)


def _number_of(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_cpu:
        return float(value)
    return None


# ---- replaced operations -------------------------------------------------------------


class _Operations:
    """The operations of tensors that can be replaced.

    Args:
        reader: Is told of operations on tensors that it knows; not kept alive.
    """

    def __init__(self, reader: EvaluatedOutputs) -> None:
        me = weakref.ref(reader)
        # Whose, by what name, what it was, and what takes its place.
        self._places: list[tuple[Any, str, Any, Any]] = []
        for name in (*_METHODS, *_OPERATORS):
            original = getattr(torch.Tensor, name)
            noted = _noting(me, name.strip("_"), original)
            self._places.append((torch.Tensor, name, original, noted))
        for name in sorted(_FUNCTIONS):
            original = getattr(torch, name)
            noted = _noting(me, name, original)
            # ``torch.jit.script`` knows builtins by identity.
            operation = _builtins._find_builtin(original)  # type: ignore[no-untyped-call]
            if operation is not None:
                _builtins._register_builtin(noted, operation)
                self._places.append((torch, name, original, noted))

    def replace(self, *, with_functions: bool) -> None:
        """Replace them all.

        Args:
            with_functions: Whether to replace functions of ``torch``, too. Compiled
                code guards those that it calls, and would be compiled again. It guards
                no method.
        """
        for owner, name, original, noted in self._places:
            is_replaced = with_functions or owner is not torch
            if is_replaced and getattr(owner, name) is original:
                setattr(owner, name, noted)

    def put_back(self) -> None:
        """Put back what is still replaced."""
        for owner, name, original, noted in self._places:
            if vars(owner).get(name) is not noted:
                continue
            if owner is torch or name in _OWN:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


# Methods that the class of tensors does not inherit.
_OWN = frozenset(vars(torch.Tensor))


def _noting(
    reader: weakref.ref[EvaluatedOutputs], name: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an operation that notes its calls with tensors that are known."""

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        me = reader()
        if me is None or not me.known or not args:
            return result
        if not me.known.keys().isdisjoint(map(id, args[0] if name == "cat" else args)):
            thread, me.thread = me.thread, 0  # What notes it must not be noted.
            with contextlib.suppress(Exception), torch.no_grad():
                if thread == threading.get_ident() and not is_traced():
                    me.note(name, args, kwargs, result)
            me.thread = thread
        return result

    return noted


def _has_compiled() -> bool:
    """Return whether the compiler has traced anything in this process."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(frames, "FRAME_COUNTER", 0))
