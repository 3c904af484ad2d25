"""Which labels and predictions belong together, and what a step's batch is of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdbg.rules.builtin.data.classifier_batches import Batch, Pair, _read, pairs_of

CE, BCE = "CrossEntropyLoss", "BCEWithLogitsLoss"


def table(*names: str, **values: Any) -> Any:
    """Tensors whose role is told by their names, of a single step."""
    return SimpleNamespace(
        names=names,
        roles=tuple(
            "label"
            if "_input_1" in name
            else "prediction"
            if "_input_0" in name
            else "other"
            for name in names
        ),
        steps=np.array([7]),
        value=lambda name, step: values.get(name) if step == 7 else None,
    )


def bare(pairs: list[Pair]) -> list[tuple[int, int | None]]:
    return [(pair.label, pair.prediction) for pair in pairs]


def test_labels_go_with_what_the_same_call_was_given():
    """Sabotaged: paired by their order, or by the loss without its call."""
    given = table(
        f"{CE}_input_1@2", f"{BCE}_input_0", f"{CE}_input_0", "x",
        f"{CE}_input_0@2", f"{CE}_input_1", f"{BCE}_input_1",
    )  # fmt: skip
    pairs = pairs_of(given, None, None)
    assert bare(pairs) == [(0, 4), (5, 2), (6, 1)]
    # The others of a pair are the other calls of its own loss.
    assert [bare(list(pair.others)) for pair in pairs] == [[(5, 2)], [(0, 4)], []]


def test_the_others_are_all_other_calls():
    names = [f"{CE}_input_{i}{call}" for call in ("", "@2", "@3") for i in (0, 1)]
    pairs = pairs_of(table(*names), None, None)
    assert bare(pairs) == [(1, 0), (3, 2), (5, 4)]
    assert [bare(list(pair.others)) for pair in pairs] == [
        [(3, 2), (5, 4)],
        [(1, 0), (5, 4)],
        [(1, 0), (3, 2)],
    ]


def test_labels_without_predictions_stand_alone():
    assert bare(pairs_of(table(f"{CE}_input_1", "x"), None, None)) == [(0, None)]
    assert pairs_of(table(f"{CE}_input_0", "x"), None, None) == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # A single one of each belongs together, whatever they are called.
        (("y", "logits"), [(0, 1)]),
        (("Head_output_0", "x", "y"), [(2, 0)]),
        ((f"{BCE}_input_1", f"{CE}_input_0"), [(0, 1)]),
        (("y@2", "logits@1"), [(0, 1)]),
        # Of several it is not known which.
        ((f"{BCE}_input_1", f"{CE}_input_1", "logits"), [(0, None), (1, None)]),
        (("y", f"{BCE}_input_0", f"{CE}_input_0"), [(0, None)]),
        (("y",), [(0, None)]),
    ],
)
def test_what_is_named_by_hand_belongs_together_if_there_is_one_of_each(
    names: tuple[str, ...], expected: list[tuple[int, int | None]]
):
    found = pairs_of(table(*names), "^y|_input_1", "^logits|Head|_input_0")
    assert bare(found) == expected


def test_names_by_hand_take_the_place_of_roles():
    given = table(f"{CE}_input_1", f"{CE}_input_0", "y", "logits")
    assert bare(pairs_of(given, "^y$", None)) == [(2, 1)]
    assert bare(pairs_of(given, None, "^logits$")) == [(0, 3)]
    assert bare(pairs_of(given, None, None)) == [(0, 1)]
    assert pairs_of(given, "nothing", None) == []


# ---- the batch of a step ---------------------------------------------------------

NAMES = tuple(f"{BCE}_input_{i}{call}" for call in ("", "@2") for i in (0, 1))


def read(
    first: Any, second: Any, scores: Any = (0.0, 0.0), other_scores: Any = (0.0, 0.0)
) -> Batch | None:
    """What the first of two calls has seen."""
    values = {
        name: np.array(value)
        for name, value in zip(
            NAMES, (scores, first, other_scores, second), strict=True
        )
        if value is not None
    }
    given = table(*NAMES, **values)
    return _read(given, pairs_of(given, None, None)[0], 0)


def content(batch: Batch | None) -> tuple[list[int], list[int] | None, int] | None:
    if batch is None:
        return None
    said = None if batch.predicted is None else batch.predicted.tolist()
    return batch.labels.tolist(), said, batch.n_classes


ONES, ZEROS, BOTH = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)


def test_calls_of_one_class_each_are_one_batch():
    assert content(read(ONES, ZEROS, (5.0, -5.0), (-1.0, 1.0))) == (
        [1, 1, 0, 0],
        [1, 0, 0, 1],
        2,
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # With both classes a call is a batch by itself, and so is its neighbour.
        (BOTH, ZEROS),
        (ONES, BOTH),
    ],
)
def test_a_call_with_both_classes_is_a_batch_by_itself(first: Any, second: Any):
    found = content(read(first, second))
    assert found is not None
    assert found[0] == [int(each) for each in first]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Of the others those that are smoothed count as what they stand for.
        (ONES, (0.1, 0.1), [1, 1, 0, 0]),
        (ZEROS, (0.9, 0.9), [0, 0, 1, 1]),
        # What is beyond is no label.
        (ONES, (-0.1, -0.1), [1, 1]),
        (ONES, (1.1, 1.1), [1, 1]),
        # Nor are different ones smoothed labels.
        (ONES, (0.1, 0.2), [1, 1]),
        (ONES, (0, 0), [1, 1, 0, 0]),
        (ONES, None, [1, 1]),
    ],
)
def test_what_the_other_calls_were_given(first: Any, second: Any, expected: list[int]):
    found = content(read(first, second))
    assert found is not None
    assert found[0] == expected


def test_smoothed_labels_of_the_first_call_are_none_of_a_classifier():
    """They may be a regression's; a call that knows better leads."""
    assert read((0.9, 0.9), ZEROS) is None
    assert read(None, ZEROS) is None


def test_predictions_of_all_calls_or_none():
    found = content(read(ONES, ZEROS, None, None))
    assert found == ([1, 1, 0, 0], None, 2)
    # Where predictions of a call are wanting, and they should be there.
    found = content(read(ONES, ZEROS, None, (1.0, 1.0)))
    assert found == ([1, 1, 0, 0], None, 2)
    found = content(read(ONES, ZEROS, (1.0, 1.0), None))
    assert found == ([1, 1, 0, 0], None, 2)


def test_the_classes_are_those_of_all_calls():
    names = [f"{CE}_input_{i}{call}" for call in ("", "@2") for i in (0, 1)]
    values = {names[1]: np.zeros(3, np.int64), names[3]: np.full(2, 4)}
    given = table(names[1], names[3], **values)
    found = content(_read(given, pairs_of(given, None, None)[0], 0))
    assert found == ([0, 0, 0, 4, 4], None, 5)
    values[names[3]] = np.zeros(2, np.int64)
    given = table(names[1], names[3], **values)
    found = content(_read(given, pairs_of(given, None, None)[1], 0))
    assert found == ([0] * 5, None, 1)
