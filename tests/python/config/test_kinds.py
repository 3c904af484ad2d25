"""Kinds: by names of classes and losses, and in needs."""

from __future__ import annotations

from typing import Any

import pytest

from tdbg.config import Kind, Needs, missing
from tdbg.config.class_kinds import kind_of_class, kind_of_leaf, kind_of_loss


@pytest.mark.parametrize(
    ("name", "kind", "leaf"),
    [
        ("ConvTranspose3d", Kind.CONV_TRANSPOSE, Kind.CONV_TRANSPOSE),
        ("EmbeddingBag", Kind.EMBEDDING, Kind.EMBEDDING),
        ("TokenEmbedding", None, Kind.EMBEDDING),
        ("FrozenBatchNorm2d", None, Kind.BATCH_NORM),
        ("_WeightNorm", None, Kind.NORM),
        ("FlattenHead", None, Kind.FLATTEN),
        ("LeakyReLU", None, None),
    ],
)
def test_a_class_of_an_author_goes_by_a_word_where_it_is_a_leaf(
    name: str, kind: Kind | None, leaf: Kind | None
) -> None:
    assert (kind_of_class(name), kind_of_leaf(name)) == (kind, leaf)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CrossEntropyLoss_input_0", Kind.CROSS_ENTROPY),
        ("cross_entropy_2_input_1@3", Kind.CROSS_ENTROPY),
        ("binary_cross_entropy_with_logits_input_0", Kind.BCE_WITH_LOGITS),
        ("binary_cross_entropy_input_0", None),
        ("SmoothL1Loss_output_0", Kind.SMOOTH_L1),
        ("PoissonNLLLoss_output_0", None),
        ("my_mse_loss_output_0", None),
    ],
)
def test_the_name_of_a_tensor_tells_its_loss(name: str, kind: Kind | None) -> None:
    assert kind_of_loss(name) is kind


def units(*modules: str) -> Needs:
    return Needs(
        collections=frozenset({"outputs"}),
        modules=frozenset(modules),
        statistics=False,
        unit_summaries=True,
    )


@pytest.mark.parametrize(
    ("captured", "needed", "is_served"),
    [
        (["ReLU", "ReLU6", "Threshold"], [Kind.RELU], True),
        (["relu"], ["ReLU6"], True),
        (["Tanh"], [Kind.TANH, Kind.SIGMOID], False),
        (["Own"], ["Own"], True),
        (["tanh"], ["Own"], False),
        ([], ["tanh"], True),
        (["tanh"], [], False),
    ],
)
def test_a_need_by_classes_serves_one_by_kinds(
    captured: list[str], needed: list[str], is_served: bool
) -> None:
    """Runs that were recorded before there were kinds have needs by classes."""
    asked: dict[str, Any] = {
        "collections": ["outputs"],
        "modules": captured,
        "statistics": False,
        "unit_summaries": True,
    }
    configuration = {"include_collections": [], "needs": [asked]}
    assert (not missing(units(*needed), {}, configuration)) == is_served
