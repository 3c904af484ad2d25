"""The kinds of PyTorch's modules and losses, as its adapter and a run have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from rules_asked import asks
from tdbg.config import Kind, Needs
from tdbg.hooks.pytorch.adapter import TorchAdapter
from tdbg.pytorch import Hook
from tdbg.rules import LossMisuse, check
from tdbg.trial import create_trial


class Gated(nn.Linear):
    """A subclass, as libraries make them."""


class Entropy(nn.CrossEntropyLoss):
    """A loss of somebody."""


class Sigmoid(nn.Module):
    """An activation of a library, called as PyTorch's."""


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Conv2d(1, 1, 1), Kind.CONV),
        (nn.ConvTranspose1d(1, 1, 1), Kind.CONV_TRANSPOSE),
        (nn.LazyLinear(3), Kind.LINEAR),
        (Gated(2, 2), Kind.LINEAR),
        (nn.MultiheadAttention(4, 2).out_proj, Kind.LINEAR),
        (nn.SyncBatchNorm(2), Kind.BATCH_NORM),
        (nn.InstanceNorm3d(2), Kind.INSTANCE_NORM),
        (nn.ReLU6(), Kind.RELU),
        (nn.Hardtanh(), Kind.HARD_TANH),
        (Sigmoid(), Kind.SIGMOID),
        (nn.LeakyReLU(), None),
        (nn.Sequential(nn.ReLU()), None),
        (Entropy(), Kind.CROSS_ENTROPY),
        (functional.kl_div, Kind.KL_DIV),
        (functools.partial(functional.mse_loss, reduction="sum"), Kind.MSE),
        (lambda x, y: (x - y).sum(), None),
    ],
)
def test_a_class_is_of_the_kind_of_its_nearest_base(
    module: Callable[..., Any], kind: Kind | None
) -> None:
    assert TorchAdapter().kind_of(module) is kind


def test_a_run_has_the_kinds_of_modules_and_losses(run_dir: Path) -> None:
    """A loss by the name that it was given, which its tensors have too."""
    model = nn.Sequential(Gated(3, 4), nn.GELU(), nn.Linear(4, 12), nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = Entropy()
    torch.manual_seed(0)
    with Hook(run_dir, rules=["LossMisuse"], min_free_bytes=0) as hook:
        hook.register_module(model)
        hook.register_loss(criterion, name="main")
        for _ in range(30):
            optimizer.zero_grad()
            scores = model(torch.randn(8, 3))
            criterion(scores, torch.randint(12, (8,))).backward()
            optimizer.step()
    (info,) = create_trial(run_dir).model_info()
    assert info.losses == ("Entropy",)
    assert info.kinds == {
        "Gated": "linear",
        "Linear": "linear",
        "main": "cross_entropy",
    }
    assert info.kind_of("gradient/0.weight") == Kind.LINEAR
    assert info.kind_of("1_output_0") is None
    assert info.kind_of("main_input_0") == Kind.CROSS_ENTROPY
    # The loss is given probabilities: the rule knows it by its kind alone.
    (finding,) = check(run_dir, [LossMisuse()]).findings
    assert (finding.tensor, "softmax" in finding.message) == ("main_output_0", True)


def test_a_need_names_kinds_or_classes(run_dir: Path) -> None:
    model = nn.Sequential(Gated(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Sigmoid())
    asked = [
        Needs(collections=frozenset({"outputs"}), modules=frozenset({name}), interval=1)
        for name in (Kind.LINEAR, "Sigmoid")
    ]
    with Hook(run_dir, rules=[asks(*asked)], min_free_bytes=0) as hook:
        hook.register_module(model)
        model(torch.randn(5, 3))
    names = create_trial(run_dir).tensor_names(collection="outputs")
    assert sorted(names) == ["0_output_0", "2_output_0", "3_output_0"]
