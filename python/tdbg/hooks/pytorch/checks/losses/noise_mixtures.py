"""Find out how a program mixes data with noise, in losses that ask for the noise.

Diffusions mix data and noise so that squares of their shares, or the shares, add up to
one.  Each sample has a level of its own, and at the highest one, noise is all there is:
that is where sampling begins.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph, saved_of
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.run.observations import Fault

if TYPE_CHECKING:
    from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found

__all__ = ["Mixtures", "is_spread_evenly"]

# Samples, and numbers of each, at least and at most; tensors that are tried.
_LEAST_MIXED, _LEAST_OF_SAMPLE, _MOST_MIXED, _MOST_OF_SAMPLE = 4, 8, 16, 1024
_MOST_TRIED, _MOST_NUMBERS = 8, 4096
# How exact a mixture is, and its shares; what they must at least span.
_EXACT, _EXACT_SHARES, _LEAST_SPAN = 1e-3, 3e-3, 0.05
_MIDDLE = (0.1, 0.9)
# Losses without a mixture, mixtures, and samples in these, that tell enough.
_MOST_IN_VAIN, _ENOUGH, _ENOUGH_SAMPLES = 2, 8, 96
# The largest share of noise that is far from all; and shares that are the same.
_LARGEST, _SAME = 0.5, 1e-3
_LEAST_UNIFORM = 64

# The shares of the data and of the noise in each sample.
_Shares = tuple[torch.Tensor, torch.Tensor]


class Mixtures:
    """Reads how the first losses of a diffusion mix data and noise.

    ``GraphFaults`` calls it.

    Attributes:
        is_over: Whether nothing more will be found out.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._n_in_vain = 0
        # The shares of noise in each batch.
        self._levels: list[torch.Tensor] = []

    def __call__(self, graph: Graph) -> Iterator[Found]:
        """Yield what is wrong with the mixture in a loss."""
        has_mixture = False
        names = {"MseLoss", "SmoothL1Loss", "HuberLoss"}
        for node in () if names.isdisjoint(graph.names) else graph.named(names)[:1]:
            noise = saved_of(node, "target")
            if not isinstance(noise, torch.Tensor):
                continue
            is_uniform = _is_of_samples(noise) and is_spread_evenly(noise)
            if not (is_uniform or _is_noise(noise)):
                continue
            for a, b in _mixtures(noise, graph):
                has_mixture = True
                n_before = len(self._levels)
                yield from self._look_at(a, b, is_uniform=is_uniform)
                if len(self._levels) > n_before:
                    break
        self._n_in_vain += not has_mixture
        n_samples = sum(map(len, self._levels))
        is_enough = len(self._levels) >= _ENOUGH and n_samples >= _ENOUGH_SAMPLES
        if is_enough:
            yield from _of_levels(self._levels)
        self.is_over = is_enough or self._n_in_vain >= _MOST_IN_VAIN

    def _look_at(
        self, a: torch.Tensor, b: torch.Tensor, *, is_uniform: bool
    ) -> Iterator[Found]:
        """Look at the shares of the data and of the noise."""
        inside = (b > _MIDDLE[0]) & (b < _MIDDLE[1])
        if int(inside.sum()) > 1 and float(b.max() - b.min()) >= _LEAST_SPAN:
            missing = "noise" if _add_up(a**2 + b) else ""
            missing = missing or ("data" if _add_up(a + b**2) else "")
            if missing:
                yield Fault.SHARE_WITHOUT_ROOT, {}, {"of": missing}
        if _add_up(a**2 + b**2):
            self._levels.append(b)
            if is_uniform:
                yield Fault.NOISE_IS_UNIFORM, {}, {"of": "mixture"}


def _of_levels(levels: list[torch.Tensor]) -> Iterator[Found]:
    """Yield that no sample is nearly all noise, or that batches have one level each."""
    every = torch.cat(levels).abs()
    most, least = float(every.max()), float(every.min())
    if most - least < _SAME:
        return
    if all(float(each.max() - each.min()) < _SAME for each in levels):
        yield Fault.ONE_LEVEL_OF_NOISE, {"batches": float(len(levels))}, {}
    elif most < _LARGEST:
        numbers = {"most": most, "samples": float(len(every))}
        yield Fault.NEVER_ALL_NOISE, numbers, {}


def _is_of_samples(some: torch.Tensor) -> bool:
    """Return whether there are enough samples, with enough numbers each."""
    if some.dim() < 2 or not some.is_floating_point() or some.is_cuda:
        return False
    return len(some) >= _LEAST_MIXED and some[0].numel() >= _LEAST_OF_SAMPLE


def _is_noise(some: torch.Tensor) -> bool:
    """Return whether numbers look like standard normal noise, for several samples."""
    if not _is_of_samples(some):
        return False
    few = some.detach().flatten()[:_MOST_NUMBERS].float()
    near = 5.0 / math.sqrt(len(few))
    return abs(float(few.mean())) < near and abs(float(few.std()) - 1.0) < near


def is_spread_evenly(noise: torch.Tensor) -> bool:
    """Return whether numbers look like uniform noise between 0 and 1.

    Args:
        noise: Any numbers.

    Example:
        >>> is_spread_evenly(torch.linspace(0, 0.999, 100))
        True
    """
    if noise.numel() < _LEAST_UNIFORM:
        return False
    some = noise.detach().flatten()[:_MOST_NUMBERS].float()
    near = 4.0 / math.sqrt(12 * some.numel())
    is_spread = abs(float(some.std()) - 12**-0.5) < near
    is_within = float(some.min()) >= 0.0 and float(some.max()) < 1.0
    return is_within and is_spread and abs(float(some.mean()) - 0.5) < near


def _mixtures(noise: torch.Tensor, graph: Graph) -> Iterator[_Shares]:
    """Yield the shares in which data and this noise make up another tensor."""
    others = list(_like(noise, graph))
    for data, mixed in itertools.permutations(others[:_MOST_TRIED], 2):
        shares = _shares(data, noise, mixed)
        if shares is not None:
            yield shares


def _like(noise: torch.Tensor, graph: Graph) -> Iterator[torch.Tensor]:
    """Yield tensors of a shape: what convolutions get, and variables of the program."""
    seen = {noise.data_ptr()}
    inputs = [
        saved_of(node, "input")
        for node in graph.named({"Convolution", "CudnnConvolution"})
        if node.next_functions[0][0] is None
    ]
    variables = (
        value for scope in namespaces(sys._getframe(1)) for value in scope.values()
    )
    for each in itertools.chain(inputs, variables):
        if type(each) is not torch.Tensor or each.shape != noise.shape:
            continue
        is_number = each.is_floating_point() and not each.requires_grad
        if is_number and each.data_ptr() not in seen:
            seen.add(each.data_ptr())
            yield each


def _shares(
    data: torch.Tensor, noise: torch.Tensor, mixed: torch.Tensor
) -> _Shares | None:
    """Return the shares of data and noise in a mixture; None: it is none of them."""
    x, e, y = (
        each.detach()[:_MOST_MIXED].flatten(1)[:, :_MOST_OF_SAMPLE].double()
        for each in (data, noise, mixed)
    )
    pairs = ((x, x), (e, e), (x, e), (x, y), (e, y))
    xx, ee, xe, xy, ey = ((one * other).sum(1) for one, other in pairs)
    size = xx * ee - xe * xe
    if not bool((size > _EXACT * xx * ee).all()):
        return None
    a, b = (ee * xy - xe * ey) / size, (xx * ey - xe * xy) / size
    rest = y - a[:, None] * x - b[:, None] * e
    if not bool((rest.norm(dim=1) < _EXACT * y.norm(dim=1)).all()):
        return None
    return (
        (a, b) if bool((a.abs() > _EXACT).any() and (b.abs() > _EXACT).all()) else None
    )


def _add_up(shares: torch.Tensor) -> bool:
    return bool(((shares - 1).abs() < _EXACT_SHARES).all())
