"""Remember what programs load into modules, as of the moment that tdbg is imported.

Most programs load weights before anybody watches the model.  ``load_state_dict`` of
all modules is wrapped once and for all; what it returns and raises stays as it is.

A load with ``strict=False`` may restore nothing, and says so in its result only.  An
initialization may follow that wipes what was restored.  The state of an optimizer may
be there, and nobody loads it.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from tdbg.hooks.pytorch.device.tensors import sample_of

__all__ = [
    "Load",
    "Remedy",
    "are_strangers",
    "is_own",
    "loads",
    "remember",
    "some_weights",
    "state_not_loaded",
]

# Loads that are remembered, loads of one module that are read, weights of each that
# are compared, and names that are tried, at most.
_MOST_MODULES, _MOST_LOADS, _MOST_WEIGHTS, _MOST_TRIED = 32, 8, 8, 8
# Share of a module's names that must match another way to say so.
_ENOUGH = 0.5
# Weights of which as many elements were read were made anew if they are no more alike.
_LEAST_ELEMENTS, _UNLIKE = 128, 0.25
# How deep states of optimizers lie in what a program has loaded, the entries of each
# container that are read, and the steps that make a state worth loading.
_DEEPEST, _MOST_ENTRIES, _LEAST_STEPS = 4, 20, 2


class Remedy(NamedTuple):
    """How the names of a state would match.

    Attributes:
        matched: The number of names that would.
        stripped: What stands before the names of the state, and not of the module.
        added: What stands before those of the module only.
        inside: The entry of the state that holds the names.
    """

    matched: int = 0
    stripped: str = ""
    added: str = ""
    inside: str = ""


class Load:
    """The latest load of a module.

    Attributes:
        n_given: Names in the state.
        n_names: Names of the module's weights and buffers.
        n_matched: Names that are in both.
        remedy: How more names would match.
        n_before: Loads of the module before this one.
        is_own: Whether all that matched was the module's own memory.
    """

    def __init__(
        self,
        module: nn.Module,
        state: Mapping[str, Any],
        n: int,
        *,
        is_own: bool,
        is_whole: bool,
    ) -> None:
        self.n_before = n
        self.is_own = is_own
        self._module = weakref.ref(module)
        self.n_given = self.n_names = self.n_matched = len(state)
        self.remedy = Remedy()
        if not is_whole:
            names = dict(_named(module))
            self.n_names = len(names)
            self.n_matched = len(names.keys() & state.keys())
            if self.n_matched < _ENOUGH * self.n_names:
                self.remedy = _remedy_for(names, state)
        self._weights = dict(some_weights(module))

    @property
    def module(self) -> nn.Module | None:
        """The module, if it lives."""
        return self._module()

    def restored_nothing(self) -> bool:
        """Return whether no name matched, and nobody has written the weights since.

        The same holds if most names would match another way.
        """
        is_nothing = self.n_matched == 0 or (
            self.remedy.matched >= _ENOUGH * self.n_names
        )
        return is_nothing and self.n_given > 0 and self._are_untouched()

    def was_wiped(self) -> bool:
        """Return whether all weights were made anew after they were loaded."""
        found = self._now()
        if self.n_matched < self.n_names or self.is_own or not found:
            return False
        if any(torch.equal(one, other) for one, other in found):
            return False
        return are_strangers(found)

    def _are_untouched(self) -> bool:
        found = self._now()
        return bool(found) and all(torch.equal(one, other) for one, other in found)

    def _now(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return samples of weights as they were loaded, and as they are."""
        module = self.module
        if module is None:
            return []
        present = dict(some_weights(module))
        if present.keys() != self._weights.keys():
            return []
        return [(self._weights[name], present[name]) for name in present]


_loads: list[Load] = []


def loads() -> list[Load]:
    """Return the latest loads of the modules that live."""
    return [each for each in _loads if each.module is not None]


def is_own(module: nn.Module, state: Any) -> bool:
    """Return whether a state has nothing for a module that is not its own memory."""
    pairs = ((state[name], own) for name, own in _named(module) if name in state)
    first = next(pairs, None)
    return first is not None and all(
        isinstance(one, torch.Tensor) and one.data_ptr() == own.data_ptr() != 0
        for one, own in itertools.chain((first,), pairs)
        if own.numel()
    )


def remember(module: nn.Module, state: Any, *, is_own: bool, is_whole: bool) -> None:
    """Note that a program has loaded a state.

    Args:
        module: What it was loaded into.
        state: What was loaded.
        is_own: Whether it was the module's own memory.
        is_whole: Whether all names are known to have matched.
    """
    if not isinstance(state, Mapping):
        return
    known = next((each for each in _loads if each.module is module), None)
    n = 0 if known is None else known.n_before + 1
    if n >= _MOST_LOADS and known is not None:
        known.n_before = n  # It is loaded again and again.
        return
    _loads[:] = [each for each in loads() if each is not known][-_MOST_MODULES + 1 :]
    _loads.append(Load(module, state, n, is_own=is_own, is_whole=is_whole))


def _named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    kept = {name for each in module.modules() for name in each._buffers} - {
        name for each in module.modules() for name in each._non_persistent_buffers_set
    }
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name.rpartition(".")[2] in kept:
            yield name, buffer


def some_weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield samples of matrices, from the whole module."""
    found = [
        (name, each)
        for name, each in module.named_parameters()
        if each.ndim > 1 and not isinstance(each, nn.UninitializedParameter)
    ]
    for name, each in found[:: max(1, len(found) // _MOST_WEIGHTS)]:
        yield name, sample_of(each).double()


def are_strangers(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Return whether weights are no more alike than those of two new models.

    Args:
        pairs: Samples of the same weight in both.
    """
    varied = [pair for pair in pairs if bool((pair[0] != pair[0][:1]).any())]
    if sum(len(one) for one, _ in varied) < _LEAST_ELEMENTS:
        return False
    rows = [torch.cat(each) for each in zip(*map(_scaled, varied), strict=True)]
    return abs(float(torch.corrcoef(torch.stack(rows))[0, 1])) < _UNLIKE


def _scaled(pair: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return samples of the same layer, each with a deviation of one."""
    return [(each - each.mean()) / each.std().clamp(min=1e-12) for each in pair]


def _remedy_for(names: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> Remedy:
    """Return the way in which most names would match."""
    left = {name: each for name, each in names.items() if name not in state}
    given = {name: each for name, each in state.items() if name not in names}
    tried = Counter[tuple[str, str]]()
    for name in [*given][:_MOST_TRIED]:
        parts = name.split(".")
        for i in range(1, len(parts)):
            if ".".join(parts[i:]) in left:
                tried[".".join(parts[:i]) + ".", ""] += 1
        for own in left:
            if own.endswith(f".{name}"):
                tried["", own.removesuffix(name)] += 1
    found = [
        Remedy(_matched(given, left, stripped, added), stripped, added)
        for stripped, added in tried
    ]
    for name, each in given.items():
        if isinstance(each, Mapping):
            n = len(left.keys() & each.keys())
            found.append(Remedy(n, inside=str(name)))
    return max(found, default=Remedy())


def _matched(
    given: Mapping[str, Any],
    left: Mapping[str, torch.Tensor],
    stripped: str,
    added: str,
) -> int:
    count = 0
    for name, each in given.items():
        own = left.get(added + name.removeprefix(stripped))
        count += own is not None and getattr(each, "shape", None) == own.shape
    return count


# ---- states of optimizers ------------------------------------------------------------


def state_not_loaded(
    parameters: Sequence[torch.Tensor], variables: Iterable[Mapping[str, Any]]
) -> tuple[str, int] | None:
    """Return the state of an optimizer that a program has, and did not load.

    Args:
        parameters: Those of an optimizer that has no state, some of which were loaded.
        variables: Namespaces of the program.

    Returns:
        The variable, and the steps that the state knows of; None: there is none.
    """
    own = {id(each) for each in parameters}
    if not any(
        own & set(map(id, module.parameters()))
        for each in loads()
        if (module := each.module) is not None and not each.is_own
    ):
        return None
    every = ((name, each) for names in variables for name, each in names.items())
    found = (
        (name, _steps_for(state, parameters))
        for name, value in every
        for state in _states_in(value, _DEEPEST)
    )
    return next(((name, steps) for name, steps in found if steps >= _LEAST_STEPS), None)


def _states_in(value: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the states of optimizers in an object of a program."""
    if not depth or not isinstance(value, dict | list | tuple):
        return
    if isinstance(value, dict):
        if isinstance(value.get("state"), dict) and "param_groups" in value:
            yield value
            return
        value = [*value.values()]
    for each in value[:_MOST_ENTRIES]:
        yield from _states_in(each, depth - 1)


def _steps_for(state: Mapping[str, Any], parameters: Sequence[torch.Tensor]) -> int:
    """Return the steps that a state knows of, if it fits these parameters; else 0."""
    order = [key for group in state["param_groups"] for key in group["params"]]
    if len(order) != len(parameters):
        return 0
    steps = 0
    for key, parameter in zip(order, parameters, strict=True):
        own = state["state"].get(key, {})
        averages = [
            each.shape
            for name, each in own.items()
            if name != "step" and isinstance(each, torch.Tensor)
        ]
        if parameter.shape not in averages:
            return 0
        steps = max(steps, int(own.get("step", 0)))
    return steps
