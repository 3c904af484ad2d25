"""What smdebug's names stand for, and what tdbg calls the same tensor.

Rules and displays go by roles, and by names that a parameter shares with its
gradient.  smdebug's own name is an alias, so that programs find what they look for.

Thread safety: none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tdbg.config.collections import Role
from tdbg.config.tensor_names import GRADIENT, PREFIXES
from tdbg.importers.smdebug.described import Collections

__all__ = ["Names", "Reduction", "Tensor", "reduction_in", "root_of"]

_REDUCTION = re.compile(r"smdebug/reductions/(abs_)?([a-z0-9]+)/(.+)", re.DOTALL)
_CALL = re.compile(r"(.+)_(input|output)_(\d+)", re.DOTALL)
_PARAMETER = re.compile(r"(.+)/weights/(.+?)(:\d+)?", re.DOTALL)
_LAYER = re.compile(r"(.+)/(input|output)s", re.DOTALL)
_TF_GRADIENT = re.compile(r"gradients?/(.+?)(:\d+)?(Grad)?(:\d+)?", re.DOTALL)
_VARIABLE = re.compile(r"(.+?)(:\d+)?", re.DOTALL)
_VALIDATION = "val_"
_LOSS_INPUTS = {"0": Role.PREDICTION, "1": Role.LABEL}


class Tensor(NamedTuple):
    """A tensor as tdbg knows it."""

    name: str
    role: Role
    aliases: tuple[str, ...] = ()


class Reduction(NamedTuple):
    """A reduction, as the name of a stored number tells it."""

    tensor: str
    name: str
    absolute: bool


def reduction_in(name: str) -> Reduction | None:
    """Return what a name of smdebug's says is stored; None: a tensor.

    Example:
        >>> reduction_in("smdebug/reductions/abs_mean/Net_fc.weight")
        Reduction(tensor='Net_fc.weight', name='mean', absolute=True)
    """
    match = _REDUCTION.fullmatch(name)
    return None if match is None else Reduction(match[3], match[2], bool(match[1]))


def root_of(names: Iterable[str]) -> str:
    """Return the class of the model that PyTorch's names begin with; "" if none.

    smdebug joins it to the path of a parameter by ``_``, which either may contain.  A
    model whose own output was saved has its name there; else it ends at the first
    ``_`` that all parameters have.

    Example:
        >>> root_of(["Net_fc.weight", "gradient/Net_fc.bias", "fc_output_0"])
        'Net'
    """
    parameters, stems = set(), set()
    for name in names:
        call = _CALL.fullmatch(name)
        if call is not None:
            stems.add(call[1])
        elif "/" not in name.removeprefix(GRADIENT):
            parameters.add(name.removeprefix(GRADIENT))
    if not parameters:
        return ""
    candidates = sorted(
        (stem for stem in stems if all(p.startswith(f"{stem}_") for p in parameters)),
        key=len,
    )
    first = min(parameters).partition("_")[0]
    candidates.append(first)
    found = candidates[0]
    is_shared = all(p.startswith(f"{found}_") for p in parameters)
    return found if is_shared and found != min(parameters) else ""


class Names:
    """Finds out what each name of a training stands for.

    Args:
        collections: What its collection files say; may grow.
        framework: Name of the framework, as of ``Collections``.
        root: The class that PyTorch's names of parameters begin with.
    """

    def __init__(self, collections: Collections, framework: str, root: str) -> None:
        self._collections = collections
        self._framework = framework
        self._root = root
        self._found: dict[str, Tensor] = {}
        self._taken: dict[str, str] = {}

    def of(self, name: str, original: str = "") -> Tensor:
        """Return what smdebug's *name* stands for.

        Args:
            name: The name.
            original: The framework's own name, if smdebug tells another one.
        """
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._new(name, original)
        return found

    def of_reduced(self, name: str) -> Tensor:
        """Return the tensor that a reduction is of; smdebug cuts off its ``:0``."""
        whole = f"{name}:0"
        is_cut = whole in self._found or self._collections.lists(whole)
        return self.of(whole if is_cut else name)

    def _new(self, name: str, original: str) -> Tensor:
        role = self._role(name, self._collections.of(name))
        ours = self._renamed(name, role)
        # Two names must not become one tensor.
        if self._taken.setdefault(ours, name) != name:
            ours = name
        aliases = dict.fromkeys(
            each for each in (name, original) if each not in ("", ours)
        )
        return Tensor(ours, role, tuple(aliases))

    def _role(self, name: str, collections: set[str]) -> Role:
        if "gradients" in collections or name.startswith("gradient"):
            return Role.GRADIENT
        call = _CALL.fullmatch(name)
        if call is not None and call[2] == "input":
            return self._role_of_input(call[1], call[3])
        if "losses" in collections:
            return Role.LOSS
        if "optimizer_variables" in collections:
            return Role.OPTIMIZER_STATE
        if call is not None:
            return Role.OUTPUT
        layer = _LAYER.fullmatch(name) if self._framework == "tensorflow" else None
        if layer is not None:
            return Role.INPUT if layer[2] == "input" else Role.OUTPUT
        for collection, role in _BY_COLLECTION.items():
            if collection in collections:
                return role
        if not collections - {"all"} and name.startswith(_VALIDATION):
            # Keras logs a metric of evaluation under this name, in no collection.
            of_training = name.removeprefix(_VALIDATION)
            return self._role(of_training, self._collections.of(of_training))
        return _BY_NAME.get(name.partition("/")[0].partition(":")[0], Role.OTHER)

    def _role_of_input(self, stem: str, number: str) -> Role:
        if "loss" in stem.lower().rpartition(".")[2]:
            return _LOSS_INPUTS.get(number, Role.INPUT)
        return Role.MODEL_INPUT if stem == self._root else Role.INPUT

    def _renamed(self, name: str, role: Role) -> str:
        if self._framework == "pytorch":
            return self._of_pytorch(name)
        if self._framework == "tensorflow":
            return self._of_tensorflow(name, role)
        return name

    def _of_pytorch(self, name: str) -> str:
        prefix = GRADIENT if name.startswith(GRADIENT) else ""
        rest = name.removeprefix(prefix)
        if not self._root or _CALL.fullmatch(rest):
            return name
        return prefix + rest.removeprefix(f"{self._root}_")

    def _of_tensorflow(self, name: str, role: Role) -> str:
        if role is Role.GRADIENT:
            match = _TF_GRADIENT.fullmatch(name)
            return name if match is None else GRADIENT + _parameter(match[1])
        if role is Role.OPTIMIZER_STATE:
            return PREFIXES[role] + _parameter(name)
        if role in (Role.WEIGHT, Role.BIAS):
            return _parameter(name)
        layer = _LAYER.fullmatch(name)
        return name if layer is None else f"{layer[1]}_{layer[2]}_0"


def _parameter(name: str) -> str:
    """Return the variable's own name: ``d/weights/d/kernel:0`` is ``d/kernel``."""
    match = _PARAMETER.fullmatch(name)
    if match is not None:
        return match[2]
    variable = _VARIABLE.fullmatch(name)
    found = name if variable is None else variable[1]
    return found.removeprefix("weights/")


_BY_COLLECTION = {
    "weights": Role.WEIGHT,
    "biases": Role.BIAS,
    "labels": Role.LABEL,
    "predictions": Role.PREDICTION,
    "metrics": Role.SCALAR,
    "sm_metrics": Role.SCALAR,
    "scalars": Role.SCALAR,
    "inputs": Role.MODEL_INPUT,
    "outputs": Role.OUTPUT,
}
_BY_NAME = {
    "scalar": Role.SCALAR,
    "labels": Role.LABEL,
    "predictions": Role.PREDICTION,
    "loss": Role.LOSS,
}
