"""UnshuffledData: batches in the order of their classes, and batches that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from rules_classes import LABELS
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.rules import UnshuffledData
from tdbg.run.findings import Severity
from torch_helpers import digits

Labels = NDArray[np.int64]
SAMPLES, BATCH = 1600, 32
LOSS = LABELS.replace("input_1", "output_0")


def of_shares(*shares: int) -> Labels:
    """So many samples of each class for each of a hundred, in their order."""
    return np.repeat(np.arange(len(shares)), np.array(shares) * SAMPLES // 100)


TEN = of_shares(*[10] * 10)


def shuffled(labels: Labels, seed: int = 0) -> Labels:
    return np.random.default_rng(seed).permutation(labels)


def in_batches(
    labels: Labels, size: int = BATCH, name: str = LABELS, at_changes: float = 5.0
) -> FakeRun:
    """Two epochs of these labels as they lie.

    Args:
        labels: The labels.
        size: Of a batch.
        name: Of the labels.
        at_changes: The loss when the mean of the labels changes; 0.2 otherwise.
    """
    run = FakeRun()
    before = np.nan
    for step, batch in enumerate(
        np.array_split(np.tile(labels, 2), 2 * SAMPLES // size)
    ):
        loss = 0.2 if abs(batch.mean() - before) < 0.5 else at_changes
        before = batch.mean()
        run.step(step, {name: batch, LOSS: [loss if step else np.log(10)]})
        run.tensor_of(name).dtype = "int64"
    return run


@pytest.mark.parametrize(
    "labels", [TEN, of_shares(50, 50), of_shares(90, 10)], ids=["ten", "two", "rare"]
)
def test_sorted_labels_are_named(labels: Labels) -> None:
    run = in_batches(labels)
    note, finding, *others = judge(run, UnshuffledData())
    assert (finding.rule, finding.tensor) == ("UnshuffledData", LABELS)
    assert (note.severity, finding.severity) == (Severity.INFO, Severity.WARNING)
    assert note.step < len(run.steps) / 2, "in the second epoch"
    assert finding.value is not None
    assert finding.value >= finding.threshold == 50.0
    assert "Each batch has only a few of the classes" in finding.message
    assert "the loss rises to 5," in finding.message
    assert "shuffle=True" in finding.advice
    assert judge_in_parts(run, range(0, 100, 7), UnshuffledData())[:2] == [
        note,
        finding,
    ]
    assert not [each for each in others if each.phase != "end"]


@pytest.mark.parametrize(
    ("order", "at_changes", "severity"),
    [
        # A stream whose regimes last, one class or task a batch, and the order of
        # numbers: only the last must be better than a guess, which has log(10).
        ("stream", 2.8, Severity.INFO),
        ("stream", 3.0, Severity.WARNING),
        ("tasks", 2.8, Severity.INFO),
        ("tasks", 3.0, Severity.WARNING),
        ("sorted", 2.2, Severity.INFO),
        ("sorted", 2.4, Severity.WARNING),
    ],
)
def test_order_is_a_fault_where_the_loss_shows_its_harm(
    order: str, at_changes: float, severity: Severity
) -> None:
    random = np.random.default_rng(0)
    of_batch = random.integers(0, 10, SAMPLES // BATCH)
    if order == "stream":
        of_batch = np.repeat(random.permutation(10), SAMPLES // BATCH // 10)
    labels = TEN if order == "sorted" else np.repeat(of_batch, BATCH)
    found = judge(in_batches(labels, at_changes=at_changes), UnshuffledData())
    assert max(each.severity for each in found) is severity
    if severity is Severity.INFO:
        assert "one task a batch" in found[0].advice


def test_without_a_loss_its_harm_is_not_known() -> None:
    run = in_batches(TEN)
    other = FakeRun()
    for step, tensors in enumerate(np.array_split(np.tile(TEN, 2), 100)):
        other.step(step, {LABELS: tensors})
        other.tensor_of(LABELS).dtype = "int64"
    (finding,) = judge(other, UnshuffledData())
    assert finding.severity is Severity.INFO
    assert len(judge(run, UnshuffledData())) == 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [8, 32])
@pytest.mark.parametrize(
    "labels", [TEN, of_shares(50, 50), of_shares(95, 5)], ids=["ten", "two", "rare"]
)
def test_shuffled_labels_are_not(labels: Labels, size: int, seed: int) -> None:
    run = in_batches(shuffled(labels, seed), size)
    assert judge(run, UnshuffledData()) == []


def in_turns() -> Labels:
    """Source and target of an adversary: each batch is of one of them."""
    return np.tile(np.repeat([0, 1], BATCH), SAMPLES // BATCH // 2)


def with_ignored() -> Labels:
    """A sample of each batch is not to be learned from."""
    return np.where(np.arange(len(TEN)) % BATCH, TEN, -100)


@pytest.mark.parametrize("labels", [in_turns(), of_shares(100), with_ignored()])
def test_what_says_nothing_of_the_order_is_silent(labels: Labels) -> None:
    assert judge(in_batches(labels), UnshuffledData()) == []


UNIFORM = shuffled(TEN)


@pytest.mark.parametrize("at", [0.02, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("later", [0, 9], ids="class {}".format)
@pytest.mark.parametrize("is_back", [False, True], ids=["from", "until"])
def test_a_class_that_becomes_frequent_is_no_order(
    at: float, later: int, is_back: bool
) -> None:
    """Nearly all samples are of one class from some step on, or until then."""
    labels = np.tile(UNIFORM, 2)
    rare = np.random.default_rng(1).random(len(labels)) < 0.05
    shifted = np.where(rare, labels, later)
    is_first = np.arange(len(labels)) < at * len(labels)
    run = FakeRun()
    mixed = np.where(is_first == is_back, shifted, labels)
    for step, batch in enumerate(mixed.reshape(-1, BATCH)):
        run.step(step, {LABELS: batch})
        run.tensor_of(LABELS).dtype = "int64"
    assert judge(run, UnshuffledData()) == []


def test_classes_that_are_added_are_no_order() -> None:
    """A curriculum that begins with two of ten classes."""
    labels = np.where(np.arange(SAMPLES) < SAMPLES / 2, UNIFORM % 2, UNIFORM)
    assert judge(in_batches(labels), UnshuffledData()) == []


def of_images(shape: tuple[int, ...], *, is_sorted: bool) -> FakeRun:
    """One image a batch, most of whose pixels are of one class and the rest of class 0.

    The loss is given labels of this shape.
    """
    random = np.random.default_rng(0)
    classes = np.tile(np.arange(1, 9), 20)
    classes = np.sort(classes) if is_sorted else random.permutation(classes)
    run = FakeRun()
    for step, of_image in enumerate(classes):
        image = np.where(random.random(shape) < 0.95, of_image, 0)
        run.step(step, {"Model_input_0": np.zeros((1, 3, 8, 8)), LABELS: image})
        run.tensor_of(LABELS).dtype = "int64"
    return run


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)], ids=["dense", "flattened"])
def test_samples_are_counted_and_not_labels(shape: tuple[int, ...]) -> None:
    assert judge(of_images(shape, is_sorted=False), UnshuffledData()) == []
    (finding,) = judge(of_images(shape, is_sorted=True), UnshuffledData())
    assert finding.tensor == LABELS


@pytest.mark.parametrize("shape", [(1, 32), (32,)], ids=["in_rows", "flattened"])
def test_stretches_of_text_are_not_sorted(shape: tuple[int, ...]) -> None:
    """A document a batch, of some words of its own."""
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(80):
        tokens = 8 * random.integers(100) + random.integers(0, 8, (1, 32))
        run.step(step, {"Model_input_0": tokens, LABELS: tokens.reshape(shape)})
        run.tensor_of(LABELS).dtype = "int64"
    assert judge(run, UnshuffledData()) == []


def test_labels_of_no_classifier_are_not_judged() -> None:
    run = in_batches(TEN, name="MSELoss_input_1")
    assert judge(run, UnshuffledData()) == []
    run = in_batches(TEN)
    run.tensor_of(LABELS).dtype = "float32"
    assert judge(run, UnshuffledData()) == []


def test_tokens_of_a_text_are_not_sorted() -> None:
    """Each batch holds stretches of text, with what stands in it often."""
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(60):
        topic = random.integers(0, 1000, 20)
        common = random.zipf(1.5, (8, 64)).clip(max=1000) - 1
        of_topic = random.random((8, 64)) < 0.3
        run.step(
            step, {LABELS: np.where(of_topic, random.choice(topic, (8, 64)), common)}
        )
        run.tensor_of(LABELS).dtype = "int64"
    assert judge(run, UnshuffledData()) == []


def test_fewer_than_ten_batches_are_not_judged() -> None:
    assert judge(in_batches(TEN, size=2 * SAMPLES // 9), UnshuffledData()) == []


@pytest.mark.parametrize(("shuffle", "n_findings"), [(False, 1), (True, 0)])
def test_of_real_data_only_what_is_not_shuffled_is_named(
    shuffle: bool, n_findings: int, run_dir: Path
) -> None:
    torch.manual_seed(0)
    inputs, labels = next(digits(640))
    order = labels.argsort()
    data = TensorDataset(inputs[order], labels[order])
    model, criterion = nn.Linear(64, 10), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with td.watch(model, criterion, out=run_dir, min_free_bytes=0):
        for _ in range(2):
            for x, y in DataLoader(data, 32, shuffle=shuffle):
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    found = tdbg.rules.check(run_dir, UnshuffledData(), record=False).findings
    assert [each.tensor for each in found] == [LABELS] * n_findings
    assert [each.severity for each in found[-1:]] == [Severity.WARNING][:n_findings]
