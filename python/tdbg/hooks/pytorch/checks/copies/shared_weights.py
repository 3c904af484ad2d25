"""Find weights that are shared by accident, and ties that are lost.

A tie is one parameter with two names.  Programs declare it, and then copy, convert or
load one of the two, so that it becomes two parameters.  Or they assign ``data``, so
that two parameters have one memory, and the optimizer steps both of them.

A list that repeats one layer (``[layer] * n``) may be meant: its uses then have
different inputs.  If all have the same input, all answers are the same.  A list of
nothing else, in a model whose names do not say that it shares, is worth a note.

Members of an ensemble, or two critics, that begin with the same weights, and learn the
same of the same inputs, never differ: they are one network that is paid for twice.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    leaf_of,
    name_of,
    operands_of,
    saved_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import StepCheck
from tdbg.hooks.pytorch.device.tensors import TYPES, sample_of
from tdbg.hooks.pytorch.model.module_tree import class_name, named_modules
from tdbg.hooks.pytorch.model.process_objects import held_ids
from tdbg.run.observations import Fault, Observation

__all__ = ["EqualNetworks", "SharedWeights"]

# Steps after which a tie that is lost will not come back.
_ENOUGH_STEPS = 2
# Graphs that are read, operations of each, and names that are told, at most.
_MOST_GRAPHS, _MOST_NODES, _MOST_NAMES = 2, 1000, 8
# What takes weights: where its input and its weights are, and how the input is saved.
_LAYERS = {
    "Addmm": (1, 2, "mat1"),
    "Convolution": (0, 1, "input"),
    "Mm": (0, 1, "self"),
}
_DIGITS = re.compile(r"\d+")
# Places of one layer in a list of nothing else, and what programs call models, settings
# and lists that share on purpose.
_LEAST_PLACES = 3
_SHARING = re.compile(
    r"shar|tie[ds]?(_|$)|tying|recur|recycl|univ|albert|loop|equilib|unroll|rnn"
    r"|iterat|refin|siames",
    re.IGNORECASE,
)
# What programs call the setting that ties a head to an embedding, and where it stands.
_TYING = re.compile(r"(^|_)(tied?|tying)(_|$)", re.IGNORECASE)
_SETTINGS = ("config", "cfg", "args", "hparams")


class SharedWeights(StepCheck):
    """Watch which weights of a model are shared, until the second step is over.

    Args:
        step: Returns the global step of training.
        observe: Writes an observation.
    """

    def __init__(
        self, step: Callable[[], int], observe: Callable[[Observation], None]
    ) -> None:
        self._step = step
        self._observe = observe
        self._roots: list[tuple[weakref.ref[nn.Module], str]] = []
        # Names that had one parameter when their module was registered.
        self._ties: list[tuple[str, ...]] = []
        # Names of an embedding and a head that began equal, and who says they are one.
        self._copied: list[tuple[tuple[str, ...], str]] = []
        # Layers with several names, and these.
        self._repeated: list[tuple[weakref.ref[nn.Module], tuple[str, ...]]] = []
        # The optimizers that step, by the parameters that they hold.
        self._held: dict[int, str] = {}
        self._n_steps = self._n_graphs = 0

    def register(self, module: nn.Module, prefix: str) -> None:
        """Note what a module shares as it is registered."""
        self._roots.append((weakref.ref(module), prefix))
        self._copied += [(each, _tying(module)) for each in _copied(module, prefix)]
        every = list(module.named_parameters(remove_duplicate=False))
        if len(every) == len({id(parameter) for _, parameter in every}):
            return
        names: dict[int, list[str]] = {}
        for name, parameter in _parameters(module, prefix):
            names.setdefault(id(parameter), []).append(name)
        self._ties += [tuple(each) for each in names.values() if len(each) > 1]
        for each, paths in _repeated(module):
            found = tuple(prefix + path for path in paths)
            self._repeated.append((weakref.ref(each), found))

    def loss_begins(self, graph: Graph) -> None:
        """Look whether layers with several names have the same input in a loss."""
        self._n_graphs += 1
        if self._repeated and self._n_graphs <= _MOST_GRAPHS and graph.root:
            for names in _alike(graph.root, self._repeated):
                self._tell(Fault.NETWORKS_ARE_ONE, names)
                self._repeated = [each for each in self._repeated if each[1] != names]

    def step_ends(self, optimizer: Optimizer) -> None:
        """Look at the names of each parameter after the second step."""
        kind = type(optimizer).__name__
        self._held.update(dict.fromkeys(held_ids(optimizer), kind))
        self._n_steps += 1
        if self._n_steps < _ENOUGH_STEPS:
            return
        self.is_over = True
        roots = [(root, prefix) for each, prefix in self._roots if (root := each())]
        every = {n: p for root, prefix in roots for n, p in _parameters(root, prefix)}
        lost = set[str]()
        for root, prefix in roots:
            for names in _untied(root, prefix, every):
                lost.update(names)
                self._tell(Fault.TIE_NOT_MADE, names, model=class_name(root))
        for names, setting in self._copied:
            held = {id(every[name]) for name in names if name in every}
            if (
                _apart(names, every)
                and held <= self._held.keys()
                and lost.isdisjoint(names)
            ):
                self._tell(Fault.TIE_COPIED, names, setting=setting)
        for names in self._ties:
            apart = _apart(names, every)
            if apart and lost.isdisjoint(apart):
                self._tell(Fault.TIE_BROKEN, apart)
        for names in _of_one_memory(every, self._held.keys()):
            self._tell(
                Fault.MEMORY_SHARED, names, optimizer=self._held[id(every[names[0]])]
            )
        self._tell_of_lists(roots)

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._repeated.clear()

    def _tell_of_lists(self, roots: Sequence[tuple[nn.Module, str]]) -> None:
        """Tell of lists that repeat one layer, with different inputs."""
        left = {names: layer for each, names in self._repeated if (layer := each())}
        for root, prefix in roots:
            for path in _lists_of_one(root):
                for names, layer in left.items():
                    is_trained = any(id(each) in self._held for each in _own(layer))
                    if is_trained and names[0].startswith(f"{prefix}{path}."):
                        self._tell(Fault.NETWORKS_ARE_ONE, names, inputs="different")

    def _tell(self, fault: Fault, names: tuple[str, ...], **words: str) -> None:
        step, numbers = max(0, self._step()), {"names": float(len(names))}
        self._observe(Observation(fault, step, names[:_MOST_NAMES], numbers, words))


def _parameters(root: nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a module by each of their names."""
    for path, module in named_modules(root):
        start = prefix + (f"{path}." if path else "")
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield start + key, parameter


# ---- ties ----------------------------------------------------------------------------


def _untied(
    root: nn.Module, prefix: str, every: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, ...]]:
    """Yield pairs of names that a model says are tied, and that are not.

    Models of transformers have a setting, and say which names it is about.
    """
    if not any(hasattr(type(each), "_tied_weights_keys") for each in root.modules()):
        return
    told = set[tuple[str, ...]]()
    for path, module in named_modules(root):
        if not getattr(type(module), "_tied_weights_keys", None):
            continue
        if getattr(getattr(module, "config", None), "tie_word_embeddings", 0) is True:
            start = prefix + (f"{path}." if path else "")
            for source, target in _declared(module):
                names = f"{start}{source}", f"{start}{target}"
                apart = _apart(names, every)
                if names not in told and any(every[n].requires_grad for n in apart):
                    told.add(names)
                    yield names


def _copied(root: nn.Module, prefix: str) -> Iterator[tuple[str, ...]]:
    """Yield names of embeddings and heads that are equal in different memory."""
    embeddings: list[tuple[str, torch.Tensor]] = []
    heads: list[tuple[str, torch.Tensor]] = []
    for path, module in root.named_modules():
        # A parametrized weight is no parameter, and is computed when somebody reads it.
        weight = module._parameters.get("weight")
        if weight is not None and isinstance(module, nn.Embedding | nn.Linear):
            place = embeddings if isinstance(module, nn.Embedding) else heads
            place.append((f"{prefix}{path}.weight", weight))
    for name, weight in embeddings:
        for other, head in heads:
            both = {name: weight, other: head}
            if _apart((name, other), both) and _are_equal(weight, head):
                yield name, other


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both begin with the same numbers, which are not all alike."""
    sample = sample_of(one)
    is_varied = bool((sample != sample[:1]).any())
    return is_varied and torch.equal(sample, sample_of(other))


def _tying(root: nn.Module) -> str:
    """Return the setting of a model that says that it ties weights, or nothing."""
    for module in root.modules():
        found = vars(module)
        for place in (
            found,
            *(getattr(found.get(s), "__dict__", {}) for s in _SETTINGS),
        ):
            for name, value in place.items():
                if value is True and _TYING.search(name):
                    return name
    return ""


def _declared(module: Any) -> Iterator[tuple[str, str]]:
    """Yield the names that a model says are tied, from the version's own table."""
    table = getattr(module, "all_tied_weights_keys", None)
    if isinstance(table, Mapping):
        yield from ((source, target) for target, source in table.items())
        return
    patterns = getattr(module, "_tied_weights_keys", None)
    if isinstance(patterns, list | tuple):
        text = module.config.get_text_config(decoder=True)
        names = {id(each): name for name, each in module.named_modules()}
        source, target = (
            f"{names.get(id(each))}.weight"
            for each in (module.get_input_embeddings(), module.get_output_embeddings())
        )
        is_about = any(re.search(each, target) for each in patterns)
        if is_about and getattr(text, "tie_word_embeddings", False) is True:
            yield source, target


def _apart(
    names: tuple[str, ...], every: Mapping[str, torch.Tensor]
) -> tuple[str, ...]:
    """Return names if their parameters are no longer one; else nothing."""
    found = [every[name] for name in names if name in every]
    if len(found) < len(names) or any(map(_is_elsewhere, found)):
        return ()
    # A layer of another shape was put in its place.
    if any(each.shape != found[0].shape for each in found):
        return ()
    return names if len({each.data_ptr() for each in found}) > 1 else ()


def _is_elsewhere(parameter: torch.Tensor) -> bool:
    """Return whether a parameter has no memory of its own that can be compared."""
    return (
        type(parameter) not in TYPES
        or isinstance(parameter, nn.UninitializedParameter)
        or parameter.layout is not torch.strided
        or parameter.numel() == 0
        or parameter.data_ptr() == 0
    )


def _of_one_memory(
    every: Mapping[str, torch.Tensor], held: AbstractSet[int]
) -> Iterator[tuple[str, ...]]:
    """Yield the names of parameters that are stepped apart, in the same memory."""
    places: dict[Any, dict[int, str]] = {}
    for name, parameter in every.items():
        if id(parameter) not in held or _is_elsewhere(parameter):
            continue
        place = parameter.device, parameter.data_ptr(), parameter.shape
        places.setdefault(place, {}).setdefault(id(parameter), name)
    for names in places.values():
        if len(names) > 1:
            yield tuple(names.values())


# ---- layers with several names -------------------------------------------------------


def _repeated(root: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """Yield modules that stand several times in a list, or under numbered names."""
    found: dict[tuple[int, str, str], tuple[nn.Module, list[str]]] = {}
    for path, module in named_modules(root):
        parent, _, key = path.rpartition(".")
        if path:
            group = id(module), parent, _DIGITS.sub("", key)
            found.setdefault(group, (module, []))[1].append(path)
    outer = [
        (module, paths)
        for module, paths in found.values()
        if len(paths) > 1 and next(module.parameters(), None) is not None
    ]
    inside = {
        id(part)
        for module, _ in outer
        for part in module.modules()
        if part is not module
    }
    for module, paths in outer:
        if id(module) not in inside:
            yield module, tuple(paths)


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return [each for each in layer.parameters() if each.requires_grad]


def _lists_of_one(root: nn.Module) -> Iterator[str]:
    """Yield the paths of lists with one layer in all places, unless a name says so."""
    found = [
        path
        for path, module in named_modules(root)
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and not _SHARING.search(path)
        and _is_of_one([*module._modules.values()])
    ]
    if found and not any(map(_says_sharing, root.modules())):
        yield from found


def _is_of_one(members: Sequence[nn.Module | None]) -> bool:
    is_long = len(members) >= _LEAST_PLACES
    one = members[0] if is_long and len(set(members)) == 1 else None
    return one is not None and any(each.ndim > 1 for each in _own(one))


def _says_sharing(module: nn.Module) -> bool:
    if _SHARING.search(type(module).__name__):
        return not type(module).__module__.startswith("torch.nn")
    found = vars(module)
    places = (found, *(getattr(found.get(s), "__dict__", {}) for s in _SETTINGS))
    names = (name for place in places for name in place if name[:1] != "_")
    return any(map(_SHARING.search, names))


def _alike(
    root: Any, repeated: list[tuple[weakref.ref[nn.Module], tuple[str, ...]]]
) -> Iterator[tuple[str, ...]]:
    """Yield the names of modules all uses of which take the same inputs."""
    keys = _Keys()
    uses: dict[int, list[int]] = {}
    for node in keys.read(root):
        found = _LAYERS.get(name_of(node))
        if found is not None and (leaf := _leaf(node, found[1])):
            uses.setdefault(leaf, []).append(keys.of_input(node))
    for reference, names in repeated:
        module = reference()
        own = [] if module is None else [id(each) for each in module.parameters()]
        inputs = [uses[each] for each in own if each in uses]
        if inputs and all(
            len(each) >= len(names) and len(set(each)) == 1 for each in inputs
        ):
            yield names


def _leaf(node: Any, i: int) -> int:
    way = node.next_functions[i][0] if i < len(node.next_functions) else None
    return 0 if way is None else leaf_of(way)


class _Keys:
    """Numbers of operations: those that compute the same have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._of: dict[Any, int] = {}

    def read(self, root: Any) -> list[Any]:
        """Return the operations of a graph, after numbering them from the leaves."""
        every = list(walk(root, _MOST_NODES))
        left = Counter({node: len(set(operands_of(node))) for node in every})
        above: dict[Any, list[Any]] = {}
        for node in every:
            for each in set(operands_of(node)):
                above.setdefault(each, []).append(node)
        ready = [node for node in every if not left[node]]
        # Graphs that are too large have operations whose operands were not read.
        for node in ready:
            self._of[node] = self._number(self._key(node))
            for each in above.get(node, ()):
                left[each] -= 1
                if not left[each]:
                    ready.append(each)
        return [node for node in ready if node in self._of]

    def of_input(self, node: Any) -> int:
        """Return the number of what a layer takes as its input."""
        place, _, name = _LAYERS[name_of(node)]
        return self._number(self._way(node, place, name))

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _key(self, node: Any) -> Any:
        """Return what an operation computes; unique if that cannot be known."""
        name = name_of(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            return "leaf", id(leaf)
        if "Dropout" in name:
            return "once", id(node)
        if name in _LAYERS:
            place, weight, saved = _LAYERS[name]
            return name, self._way(node, place, saved), self._way(node, weight, "")
        if name == "Embedding":
            return name, self._way(node, 0, ""), _memory(saved_of(node, "indices"))
        chosen = tuple(
            getattr(node, f"_saved_{each}", None)
            for each in ("dim", "index", "start", "end", "step")
            if name in {"Select", "Slice"}
        )
        ways = [self._way(node, i, "") for i in range(len(node.next_functions))]
        is_known = None not in ways and (name in SHAPING or name in _PLAIN)
        if name in {"Index", "Gather", "IndexSelect", "MaskedSelect"} or not is_known:
            return "once", id(node)
        return name, chosen, tuple(ways)

    def _way(self, node: Any, i: int, saved: str) -> Any:
        below, place = node.next_functions[i]
        if below is not None:
            while name_of(below) in _VIEWS and len(operands_of(below)) == 1:
                below, place = below.next_functions[0]
            return self._of.get(below, id(below)), place
        return _memory(saved_of(node, saved)) if saved else None


# What computes the same of the same operands, without constants that are not kept.
_PLAIN = frozenset(
    {
        "CudnnBatchNorm", "Elu", "Gelu", "LeakyRelu", "NativeBatchNorm",
        "NativeGroupNorm", "NativeLayerNorm", "Relu", "Sigmoid", "Silu", "Softplus",
        "Tanh",
    }
)  # fmt: skip
_VIEWS = frozenset({"Expand", "ReshapeAlias", "UnsafeView", "View"})


def _memory(tensor: Any) -> Any:
    """Return where a tensor lies, and how often it was written to."""
    if not isinstance(tensor, torch.Tensor):
        return object()
    shape = tuple(tensor.shape)
    return tensor.data_ptr(), tensor.storage_offset(), shape[-1:], tensor._version


# ---- networks that stay equal --------------------------------------------------------

# Steps after which networks that learn have become different; networks of one group,
# groups, and parameters of each that are compared, at most.
_TO_DIFFER, _MOST_MEMBERS, _MOST_GROUPS, _MOST_PARAMETERS = 5, 8, 16, 16


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...


class _Group(NamedTuple):
    """Networks that began with the same weights, and these."""

    names: tuple[str, ...]
    members: tuple[weakref.ref[nn.Module], ...]
    first: tuple[torch.Tensor, ...]


class EqualNetworks(StepCheck):
    """Watch networks that begin equal.

    Args:
        tables: The parameters of the registered modules; grows.
        step: Returns the global step of training.
        observe: Writes an observation.
    """

    def __init__(
        self,
        tables: Sequence[_Table],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
    ) -> None:
        self._tables = tables
        self._step = step
        self._observe = observe
        self._groups: list[_Group] | None = None
        self._held = set[int]()
        self._n_steps = 0

    def step_begins(self, optimizer: Optimizer) -> None:
        """Find the networks before the first step."""
        self._held |= held_ids(optimizer)
        if self._groups is None:
            found = [each.module for each in self._tables]
            self._groups = [
                group
                for root in found
                if root is not None
                for group in _groups_in(root)
            ][:_MOST_GROUPS]

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Compare them after some steps."""
        self._n_steps += 1
        if not self._groups:
            self.remove()
        elif self._n_steps >= _TO_DIFFER:
            for group in self._groups:
                if self._is_one(group):
                    step, numbers = self._step(), {"steps": float(self._n_steps)}
                    fault = Fault.NETWORKS_STAY_EQUAL
                    self._observe(
                        Observation(fault, max(0, step), group.names, numbers)
                    )
            self.remove()

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._groups = []

    def _is_one(self, group: _Group) -> bool:
        """Return whether all members have moved, and by the same."""
        members = [each() for each in group.members]
        parts = [_some(each) for each in members if each is not None]
        if len(parts) < len(members):
            return False
        if not all(id(each) in self._held for part in parts for each in part):
            return False
        present = [tuple(map(sample_of, part)) for part in parts]
        is_moved = not _are_same(present[0], group.first)
        return is_moved and all(_are_same(each, present[0]) for each in present[1:])


def _groups_in(root: nn.Module) -> Iterator[_Group]:
    """Yield networks that stand in a list, or under numbered names, and are equal."""
    found: dict[tuple[str, str, type], dict[int, tuple[str, nn.Module]]] = {}
    for path, module in named_modules(root):
        parent, _, key = path.rpartition(".")
        if path and _DIGITS.search(key) and _is_network(module):
            place = parent, _DIGITS.sub("", key), type(module)
            found.setdefault(place, {}).setdefault(id(module), (path, module))
    parts = set[int]()
    for several in found.values():
        named = [*several.values()][:_MOST_MEMBERS]
        if len(named) < 2 or any(id(module) in parts for _, module in named):
            continue
        first = tuple(map(sample_of, _some(named[0][1])))
        others = [tuple(map(sample_of, _some(each))) for _, each in named[1:]]
        if all(_are_same(first, each) for each in others):
            for _, module in named:
                parts.update(map(id, module.modules()))
            yield _Group(
                tuple(path for path, _ in named),
                tuple(weakref.ref(module) for _, module in named),
                first,
            )


def _is_network(module: nn.Module) -> bool:
    """Return whether a module has weights that do not begin alike by themselves."""
    some = _some(module)
    samples = map(sample_of, some)
    return any(bool((each != each[:1]).any()) for each in samples if len(each))


def _some(module: nn.Module) -> list[nn.Parameter]:
    every = list(module.parameters())
    return every[:: max(1, len(every) // _MOST_PARAMETERS)]


def _are_same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        mine.shape == theirs.shape and torch.equal(mine, theirs)
        for mine, theirs in zip(one, other, strict=True)
    )
