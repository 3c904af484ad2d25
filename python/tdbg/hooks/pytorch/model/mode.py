"""The mode of a model of PyTorch, and the layers whose results depend on it.

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import nn

from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.hooks.pytorch.model.call_context import is_in_function, is_in_transform
from tdbg.hooks.pytorch.model.module_tree import class_name, named_modules
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["TorchMode", "evaluating"]


class TorchMode(CurrentMode):
    """The mode that the user has set, or else ``model.training`` of the first root.

    Args:
        session: As for ``CurrentMode``.
        roots: The registered modules; grows.

    Attributes:
        is_functional: Whether transforms of ``torch.func`` train the model.  Forwards
            outside of them are then evaluations.
    """

    def __init__(
        self, session: Session, roots: Sequence[weakref.ref[nn.Module]]
    ) -> None:
        super().__init__(session)
        self._roots = roots
        self.is_functional = False

    def now(self) -> ModeKeys:
        """Return the mode that a forward would have now."""
        if self.said is not None:
            return self.said
        machine = self._machine
        for root in self._roots:
            module = root()
            if module is None:
                continue
            if module.training:
                if machine.trains_in_evaluation:
                    self._trains_in_training()
                if self.is_functional and not is_in_transform():
                    return EVAL
                return TRAIN
            if not torch.is_grad_enabled():
                return EVAL
            # The optimizer is about to use the gradients of its closure.
            if machine.is_in_closure and not machine.trains_in_evaluation:
                self._trains_in_evaluation()
            return TRAIN if machine.trains_in_evaluation else EVAL
        return TRAIN

    def of_part(self, module: nn.Module | None) -> ModeKeys:
        """Return the mode of a call of a module in a root, from outside of all roots.

        The call evaluates if the module is in evaluation mode, or if it can give no
        gradient: a training calls the wrapped model, and its evaluation calls the
        model inside.
        """
        mode = self.now()
        if self.said is not None or mode is not TRAIN or self._machine.is_in_closure:
            return mode
        if module is not None and not module.training:
            return EVAL
        return TRAIN if torch.is_grad_enabled() or is_in_function() else EVAL

    def of_loss(self) -> ModeKeys:
        """Return the mode of a loss: that of the evaluation before it, if any.

        A loss without gradients, while no training step is open, belongs to an
        evaluation, such as that of a copy of the model.
        """
        mode, machine = self.now(), self._machine
        if self.said is not None or mode is not TRAIN or machine.depth:
            return mode
        has_no_gradient = not torch.is_grad_enabled()
        is_between = machine.training is None
        evaluates = machine.evaluation is not None
        evaluates &= machine.called is machine.evaluation
        if evaluates and (has_no_gradient or is_between):
            return EVAL
        return EVAL if has_no_gradient and is_between else mode

    def may_train(self) -> bool:
        """Return whether gradients of a forward in evaluation could still be used."""
        return self.said is None and torch.is_grad_enabled()


# Layers that are named, at most.
MOST = 1000


def evaluating(
    root: nn.Module, trained: AbstractSet[int], dropping: AbstractSet[str]
) -> list[str]:
    """Return the paths of layers whose results evaluation mode changes.

    The list is empty if any of these layers is in training mode, or if most trained
    parameters lie elsewhere.

    Args:
        root: The model.
        trained: Ids of the parameters that optimizers train.
        dropping: Classes of modules that call dropout as a function in training.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
        >>> evaluating(model, {id(item) for item in model.parameters()}, set())
        ['1']
    """
    if root.training:
        return []
    found: list[str] = []
    modules = dict(named_modules(root))
    for path, module in modules.items():
        if not (_differs(module) or class_name(module) in dropping):
            continue
        if module.training:
            return []
        own = [*module.parameters(recurse=False)]
        above = modules.get(path.rpartition(".")[0], root)
        if _share(own or above.parameters(), trained) >= 0.5:
            found.append(path)
    return found[:MOST]


def _differs(module: nn.Module) -> bool:
    """Return whether training mode changes the result of a module."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return bool(module.track_running_stats) and module.running_mean is not None
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.RReLU):
        return True
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    # Other packages have DropPath, StochasticDepth and the like.
    rate = getattr(module, "p", getattr(module, "drop_prob", 0.0))
    is_drop = "Drop" in name or name == "StochasticDepth"
    return is_drop and isinstance(rate, int | float) and rate > 0


def _share(parameters: Iterable[torch.Tensor], trained: AbstractSet[int]) -> float:
    """Return the share of the elements that are trained."""
    sizes = [(each.numel(), id(each) in trained) for each in parameters]
    of_trained = sum(size for size, is_trained in sizes if is_trained)
    return of_trained / max(1, sum(size for size, _ in sizes))
