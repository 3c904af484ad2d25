"""Modules by path, as if no wrapper held them.

``DistributedDataParallel`` and other wrappers hold the model in an attribute, whose
name would stand in every path.  The names of tensors must not depend on how a model is
trained.

Thread safety: pure functions.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from tdbg.capture.session import Session

__all__ = [
    "IS_REPLICA",
    "OWN_COPY",
    "SEARCH_INTERVAL",
    "TensorPlace",
    "begin_replica",
    "class_name",
    "end_replica",
    "is_fully_sharded",
    "named_modules",
    "package_models_in",
    "places_of",
    "unwrapped",
    "wrapped_parts",
]

OWN_COPY = "tdbg"
"""A key of the memo of ``deepcopy``, where tdbg copies a model for itself."""

# Wrappers that pass on the result of the module they hold, with the attribute that
# holds it.  Wrappers that are not always loaded are known by that name.
_WRAPPERS = ((DataParallel, "module"), (DistributedDataParallel, "module"))
_NAMED = frozenset(
    {
        "_checkpoint_wrapped_module",  # torch.distributed: activation checkpointing
        "_fsdp_wrapped_module",  # FullyShardedDataParallel
        "_orig_mod",  # torch.compile
    }
)
# The base of the class that `fully_shard` gives a module.
_SHARDED_BASE = "FSDPModule"


SEARCH_INTERVAL = 100
"""Captures after which tensors are searched for anew.

By then a tensor is noticed that came or went past the modules' own methods.
"""


class TensorPlace(NamedTuple):
    """The place of a tensor in a module, where a new tensor is found, too.

    Attributes:
        owner: The module that has the tensor; not kept alive.
        key: The name of the tensor there.
        names: All paths of the tensor from the root; a tied one has several.
    """

    owner: weakref.ref[nn.Module]
    key: str
    names: tuple[str, ...]


def places_of(
    root: nn.Module, tensors: Callable[[nn.Module], Mapping[str, torch.Tensor | None]]
) -> list[TensorPlace]:
    """Return the places of all tensors in a module, each tensor once.

    Args:
        root: The module; wrappers leave no trace in paths.
        tensors: Returns the parameters or the buffers of one module by name.
    """
    owners: dict[int, tuple[nn.Module, str]] = {}
    names: dict[int, list[str]] = {}
    for path, owner in named_modules(root):
        for key, tensor in tensors(owner).items():
            if tensor is not None:
                owners.setdefault(id(tensor), (owner, key))
                name = f"{path}.{key}" if path else key
                names.setdefault(id(tensor), []).append(name)
    return [
        TensorPlace(weakref.ref(owner), key, tuple(names[identity]))
        for identity, (owner, key) in owners.items()
    ]


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside all wrappers."""
    while True:
        inner = _wrapped_in(module)
        if inner is None:
            return module
        module = inner


def class_name(module: nn.Module) -> str:
    """Return the name of the class that the author of the module gave it."""
    kind = type(module)
    if is_fully_sharded(module):
        kind = kind.__bases__[1]
    return kind.__name__


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called for this very module."""
    bases = type(module).__bases__
    return len(bases) > 1 and bases[0].__name__ == _SHARDED_BASE


def named_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules with their paths; a module at several paths comes with each.

    Like ``named_modules(remove_duplicate=False)``, but without wrappers.
    """
    every = list(root.named_modules(remove_duplicate=False))
    wrappers = {id(each) for _, each in every if _wrapped_in(each) is not None}
    for path, module in every:
        if id(module) not in wrappers:
            yield _clean(root, path) if wrappers else path, module


def modules_of(root: nn.Module) -> list[nn.Module]:
    """Return all modules, each once, as ``root.modules()`` does, but faster."""
    found = [root]
    known = dict.fromkeys(found)
    for module in found:
        for each in module._modules.values():
            if each is not None and each not in known:
                known[each] = None
                found.append(each)
    return found


# A root wraps a module that holds this share of its parameters.
_WRAPPED = 0.9


def wrapped_parts(root: nn.Module) -> list[nn.Module]:
    """Return the modules with nearly all parameters of a root, which it wraps.

    Besides modules in known wrappers, this is a backbone below a small head.
    """
    sizes = {id(each): _size(each) for each in root.parameters()}
    least = _WRAPPED * sum(sizes.values())
    return [
        module
        for module in root.modules()
        if module is not root
        and module._modules
        and sum(sizes[id(each)] for each in module.parameters()) >= least > 0
    ]


def _size(parameter: torch.Tensor) -> int:
    try:
        return parameter.numel()
    except (RuntimeError, ValueError):  # A lazy parameter has no shape yet.
        return 1


def _wrapped_in(module: nn.Module) -> nn.Module | None:
    """Return the module inside a wrapper; None if *module* is no wrapper."""
    for kind, name in _WRAPPERS:
        if isinstance(module, kind):
            return module._modules.get(name)
    for name in _NAMED.intersection(module._modules):
        return module._modules[name]
    return None


def _clean(root: nn.Module, path: str) -> str:
    """Return the path without the attributes of wrappers."""
    parts = []
    module: nn.Module | None = root
    for part in path.split("."):
        inner = None if module is None else _wrapped_in(module)
        module = None if module is None else module._modules.get(part)
        if inner is None or module is not inner:
            parts.append(part)
    return ".".join(parts)


IS_REPLICA = "_is_replica"
"""The attribute that DataParallel sets in its copies of a root."""

_lock = threading.Lock()


def begin_replica(session: Session, replica: nn.Module, root: nn.Module | None) -> bool:
    """Begin the call of a copy of the root; return whether it is the first copy."""
    with _lock:
        session.n_replicas += 1
        session.takes_activations = False
    return _is_first(replica, root)


def end_replica(session: Session, replica: nn.Module, root: nn.Module | None) -> bool:
    """End the call of a copy of the root; return whether it is the first copy."""
    with _lock:
        session.n_replicas = max(0, session.n_replicas - 1)
        if not session.n_replicas:
            session.takes_activations = True
    return _is_first(replica, root)


def _is_first(replica: nn.Module, root: nn.Module | None) -> bool:
    """Return whether a copy lies on the device of the root, as the first copy does."""
    if root is None:
        return False
    own = next(root.parameters(), None)
    return own is None or next(_parameters(replica), own).device == own.device


def _parameters(replica: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters of a copy, which are plain attributes there."""
    for module in replica.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                yield value


def package_models_in(root: nn.Module) -> dict[str, str]:
    """Return the paths of modules in models of packages, each with its model's path.

    It is no mistake of the program if such a model leaves a part unused (the pooler of
    an encoder whose tokens are averaged); an unused module of the program may be one.

    PyTorch's own modules belong to the module around them.  A package's model is the
    outermost module with no module of the program inside.
    """
    result: dict[str, str] = {}
    makers: dict[str, str | None] = {"": None}
    for path, module in named_modules(root):
        parent = path.rpartition(".")[0]
        maker = makers.get(parent) if path else None
        package = type(module).__module__.partition(".")[0]
        if package != "torch":
            is_installed = _is_installed(package)
            maker = (path if maker is None else maker) if is_installed else None
        makers[path] = maker
        if maker is not None:
            result[path] = maker
    return result


@functools.lru_cache(maxsize=1024)
def _is_installed(package: str) -> bool:
    """Return whether a package lies in a folder into which packages are installed."""
    module = sys.modules.get(package)
    # The folder of a package, even one without an __init__.py.
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    if package == "__main__" or not places[0]:
        return False
    folder = Path(places[0]).parent
    try:
        return any(each.name.endswith(".dist-info") for each in folder.iterdir())
    except OSError:
        return False
