"""Layers that work otherwise in training, of a model that is trained in eval().

A model in evaluation mode is trained well if no layer minds.  Dropout does, and
normalization by batches: these are named, but not where somebody has chosen.  That is,
where other such layers of the model do train; where the layer has parameters and they
are frozen; and where it is in a part of the model that is mostly frozen, whose features
are to stay as they were learned.

Thread safety: pure functions; the training's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import torch
from torch import nn

from tdbg.hooks.pytorch.paths import named_modules

__all__ = ["evaluating"]

# So many are named.
MOST = 1000


def evaluating(root: nn.Module, trained: AbstractSet[int]) -> list[str]:
    """The paths of such layers in a model.

    Args:
        root: The model.
        trained: Ids of the parameters that optimizers train.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
        >>> evaluating(model, {id(item) for item in model.parameters()})
        ['1']
    """
    if root.training:
        return []
    found: list[str] = []
    modules = dict(named_modules(root))
    for path, module in modules.items():
        if not _differs(module):
            continue
        if module.training:
            return []
        own = [*module.parameters(recurse=False)]
        above = modules.get(path.rpartition(".")[0], root)
        if _share(own or above.parameters(), trained) >= 0.5:
            found.append(path)
    return found[:MOST]


def _differs(module: nn.Module) -> bool:
    """Whether it computes something else in training than in evaluation."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return bool(module.track_running_stats) and module.running_mean is not None
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.RReLU):
        return True
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    # Of other packages: DropPath, StochasticDepth and their like.
    rate = getattr(module, "p", getattr(module, "drop_prob", 0.0))
    is_drop = "Drop" in name or name == "StochasticDepth"
    return is_drop and isinstance(rate, int | float) and rate > 0


def _share(parameters: Iterable[torch.Tensor], trained: AbstractSet[int]) -> float:
    """How much of them is trained."""
    sizes = [(each.numel(), id(each) in trained) for each in parameters]
    of_trained = sum(size for size, is_trained in sizes if is_trained)
    return of_trained / max(1, sum(size for size, _ in sizes))
