"""Rules about fingerprints: what they find, and what healthy trainings look like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tdbg.pytorch as td
from sample_trainings import (
    HEALTHY,
    clients,
    folds,
    halves_of_an_epoch,
    naive,
    random_splits,
)
from samples_fake import Given, Samples
from tdbg.rules import (
    DataLeakage,
    RepeatedOrder,
    SampleCoverage,
    SamplePairing,
    check,
)
from tdbg.rules.builtin.data.sample_rule import SampleRule
from tdbg.rules.samples import SampleFacts
from tdbg.run.findings import Severity

INFO, WARNING = Severity.INFO, Severity.WARNING
SHUFFLED = {
    "samples": 400,
    "draws": 400,
    "batches": 20,
    "workers": 0,
    "shuffles": True,
    "replaces": False,
    "sampler": "RandomSampler",
}
RULES = (DataLeakage, RepeatedOrder, SampleCoverage, SamplePairing)


def said(facts: SampleFacts, *rules: type[SampleRule]) -> list[tuple[Severity, str]]:
    """Return what some rules find, or all of them."""
    verdicts = [each for rule in rules or RULES for each in rule().verdicts(facts)]
    return [
        (each.severity, each.describe().message)
        for each in verdicts
        if each.severity is not None
    ]


def one(facts: SampleFacts) -> tuple[Severity, str]:
    """Return the only thing that is found."""
    (found,) = said(facts)
    return found


# ---- leakage ----------------------------------------------------------------------


def test_evaluated_samples_that_were_trained_on_are_leaked() -> None:
    made = Samples()
    told = [*range(380, 400), *range(400, 440)]
    made.random.shuffle(told)
    for _ in range(3):
        made.epoch(range(400), dict.fromkeys(range(400), 0))
        made.evaluate(told, n=20)
    severity, message = one(made.facts())
    assert severity is WARNING
    assert "20 of the 60 different evaluation samples (33%)" in message


def test_nearly_all_evaluated_samples_may_be_leaked() -> None:
    made = Samples()
    copies = np.repeat(np.arange(400), 3)
    made.random.shuffle(copies)
    told, known = copies[:300], copies[300:]
    for _ in range(3):
        made.epoch(known)
        made.evaluate(told, n=300)
    severity, message = one(made.facts())
    assert severity is WARNING
    assert "Data leakage" in message


def test_few_leaked_samples_are_an_info_and_tokens_need_more() -> None:
    for kind, n, expected in (("f", 8, INFO), ("i", 40, INFO), ("i", 120, WARNING)):
        made = Samples(kind=kind)
        told = made.random.permutation([*range(n), *range(1000, 1200 - n)])
        for _ in range(3):
            made.epoch(range(400))
        made.evaluate(told)
        assert one(made.facts())[0] is expected


def leaked_in_bins(n_bins: int) -> SampleFacts:
    made = Samples()
    told = made.random.permutation([*range(60), *range(1000, 1040)])
    for _ in range(4):
        made.epoch(range(400))
        made.evaluate(told)
    return made.facts(n_bins)


def test_bins_do_not_change_what_is_leaked() -> None:
    leaks = [leaked_in_bins(n).leak for n in (1, 2, 7)]
    assert leaks[0] is not None
    assert leaks[0].trained == 60
    assert all(leak is not None and leak.trained == 60 for leak in leaks)


@pytest.mark.parametrize("training", HEALTHY, ids=lambda each: each.__name__)
@pytest.mark.parametrize("loader", [None, SHUFFLED], ids=["by hand", "loader"])
def test_nothing_is_said_of_a_healthy_training(
    training: Callable[[Samples], None], loader: Mapping[str, Any] | None
) -> None:
    for n_bins in (1, 5):
        made = Samples(loader and {**loader, "samples": None})
        training(made)
        assert said(made.facts(n_bins)) == []


@pytest.mark.parametrize(
    "training", [*HEALTHY, naive, clients, halves_of_an_epoch], ids=lambda f: f.__name__
)
def test_folds_are_held_out_of_all_others_in_turn(
    training: Callable[[Samples], None],
) -> None:
    made = Samples()
    training(made)
    found = made.facts(5).folds
    if training in {folds, naive, random_splits}:
        assert found is not None
        assert found.turns >= 3
        assert found.samples == 80
    else:
        assert found is None


def test_samples_that_may_be_equal_by_chance_are_not_compared() -> None:
    made = Samples(SHUFFLED, n_varied=4)
    told = made.random.permutation([*range(60), *range(1000, 1040)])
    for _ in range(4):
        made.epoch(made.random.integers(0, 4, 400), dict(enumerate(range(4))))
        made.evaluate(told)
    assert said(made.facts(), DataLeakage, SampleCoverage, SamplePairing) == []


# ---- order ------------------------------------------------------------------------


def in_one_order(loader: Mapping[str, Any] | None, n: int = 20) -> SampleFacts:
    made = Samples(loader)
    for _ in range(4):
        for batch in np.arange(20 * n).reshape(n, 20):
            made.train(batch)
    return made.facts(3)


def test_a_fixed_order_is_an_info() -> None:
    for loader in (None, {**SHUFFLED, "shuffles": False}):
        severity, message = one(in_one_order(loader))
        assert severity is INFO
        assert "20 batches, 4 times" in message


def test_a_fixed_order_is_a_warning_where_the_loader_is_to_shuffle() -> None:
    assert one(in_one_order(SHUFFLED))[0] is WARNING
    facts = in_one_order({**SHUFFLED, "sampler": "DistributedSampler"})
    (verdict,) = RepeatedOrder().verdicts(facts)
    assert "set_epoch" in str(verdict.describe().advice)


def test_a_loader_that_is_read_once_does_not_claim_to_shuffle_later() -> None:
    made = Samples(SHUFFLED)
    for epoch in range(4):
        for batch in np.arange(400).reshape(20, 20):
            made.train(batch)
        if epoch == 0:
            made.loader, loader = None, made.loader
    made.loader = loader
    assert said(made.facts(), RepeatedOrder)[0][0] is INFO


def test_a_few_fixed_batches_are_no_epochs() -> None:
    assert said(in_one_order(None, n=1)) == []
    assert said(in_one_order(None, n=3)) == []


# ---- coverage ---------------------------------------------------------------------


def test_few_samples_of_a_large_dataset_are_an_info() -> None:
    made = Samples({**SHUFFLED, "samples": 4000, "draws": 4000, "batches": 200})
    for _ in range(40):
        made.train(made.random.integers(0, 7, 20))
    severity, message = one(made.facts(3))
    assert severity is INFO
    assert "7 in 800 draws from a dataset with 4,000" in message


def test_draws_with_replacement_repeat_some() -> None:
    made = Samples({**SHUFFLED, "replaces": True, "draws": 4000})
    for _ in range(200):
        made.train(made.random.integers(0, 400, 20))
    assert said(made.facts()) == []
    found = made.facts().coverage
    assert found is not None
    assert found.expected == pytest.approx(400, abs=1)


def test_workers_that_draw_the_same_numbers_are_a_warning() -> None:
    made = Samples({**SHUFFLED, "workers": 4, "samples": 10_000, "draws": 10_000})
    for i in range(12):
        for _ in range(4):
            made.train(20 * i + np.arange(20), [0] * 20)
    severity, message = one(made.facts())
    assert severity is WARNING
    assert "4 equal ones in a row" in message


def test_workers_that_read_the_same_stream_are_a_warning() -> None:
    made = Samples({**SHUFFLED, "workers": 2, "samples": None, "is_iterable": True})
    for i in range(12):
        for _ in range(2):
            made.train(20 * i + np.arange(20), [0] * 20)
    (verdict,) = SampleCoverage().verdicts(made.facts())
    assert verdict.severity is WARNING
    assert "get_worker_info()" in str(verdict.describe().advice)


def test_a_dataset_that_is_repeated_is_no_news() -> None:
    made = Samples({**SHUFFLED, "samples": 1200, "draws": 1200, "batches": 60})
    for _ in range(3):
        made.epoch(np.repeat(np.arange(400), 3))
    assert said(made.facts()) == []


def test_coordinates_that_are_the_same_in_each_batch_have_other_labels() -> None:
    made = Samples({**SHUFFLED, "samples": 1000, "draws": 1000})
    for i in range(50):
        made.train(range(20), np.arange(20 * i, 20 * i + 20) % 1000)
    assert said(made.facts(), SampleCoverage) == []


# ---- ranks ------------------------------------------------------------------------


def of_ranks(draw: Callable[[int, int], Given], n_ranks: int = 2) -> SampleFacts:
    made = Samples()
    for i in range(40):
        for rank in range(n_ranks):
            made.train(draw(i, rank), worker=rank)
    return made.facts(3, n_workers=n_ranks)


def test_ranks_with_equal_batches_are_a_warning() -> None:
    severity, message = one(of_ranks(lambda i, _: 20 * i + np.arange(20)))
    assert severity is WARNING
    assert "equal on 2 ranks at each of" in message


def test_ranks_that_shuffle_all_data_share_samples() -> None:
    orders = [np.random.default_rng(rank).permutation(800) for rank in range(2)]
    found = one(of_ranks(lambda i, rank: orders[rank][20 * i : 20 * i + 20]))
    assert found[0] is INFO
    assert found[1].startswith("The ranks share samples")


def test_ranks_that_share_the_data_are_sound() -> None:
    order = np.random.default_rng(0).permutation(1600)
    padded = np.concatenate([order, order[:20]])
    found = of_ranks(lambda i, rank: padded[40 * i + rank : 40 * i + 40 + rank : 2])
    assert found.shares is not None
    assert found.shares.steps >= 35
    assert said(found) == []


def test_some_ranks_that_have_equal_batches_may_share_a_model() -> None:
    facts = of_ranks(lambda i, rank: 800 * (rank // 2) + 20 * i + np.arange(20), 4)
    assert [severity for severity, _ in said(facts)] == [INFO]


# ---- pairs ------------------------------------------------------------------------


def of_views(step: Callable[[Samples, np.ndarray], None]) -> SampleFacts:
    made = Samples()
    for i in range(30):
        step(made, 40 * i + np.arange(20))
    return made.facts(2)


def halves(made: Samples, x: np.ndarray) -> None:
    made.train([*x, *x])


def inputs(made: Samples, x: np.ndarray) -> None:
    made.train(x, views=[x])


def calls(made: Samples, x: np.ndarray) -> None:
    made.train(x)
    made.train(x, x % 7, call=1)


@pytest.mark.parametrize("step", [halves, inputs, calls])
def test_equal_views_are_an_info(step: Callable[[Samples, np.ndarray], None]) -> None:
    severity, message = one(of_views(step))
    assert severity is INFO
    assert "steps in a row" in message


def two_views(made: Samples, x: np.ndarray) -> None:
    made.train([*x, *(x + 20)])


def other_input(made: Samples, x: np.ndarray) -> None:
    made.train(x, views=[x + 20])


def sharpness(made: Samples, x: np.ndarray) -> None:
    made.train(x, x % 7)
    made.train(x, x % 7, call=1)


@pytest.mark.parametrize("step", [two_views, other_input, sharpness])
def test_other_views_are_sound(step: Callable[[Samples, np.ndarray], None]) -> None:
    assert said(of_views(step)) == []


# ---- labels -----------------------------------------------------------------------


def labelled(draw: Callable[[Samples, int, np.ndarray], Given]) -> SampleFacts:
    made = Samples()
    for epoch in range(8):
        for batch in made.random.permutation(400).reshape(20, 20):
            made.train(batch, draw(made, epoch, batch))
    return made.facts(4)


@pytest.mark.parametrize("n_classes", [2, 10])
def test_labels_that_are_shuffled_apart_are_a_warning(n_classes: int) -> None:
    random = np.random.default_rng(1)
    facts = labelled(lambda _, __, batch: random.integers(0, n_classes, len(batch)))
    severity, message = one(facts)
    assert severity is WARNING
    assert message.startswith("Labels do not belong to their inputs")


def own(_: Samples, __: int, batch: np.ndarray) -> Given:
    return batch % 10


def at_random_for_good(_: Samples, __: int, batch: np.ndarray) -> Given:
    return batch * 7919 % 10


def noisy(made: Samples, _: int, batch: np.ndarray) -> Given:
    other = made.random.integers(0, 10, len(batch))
    return np.where(made.random.random(len(batch)) < 0.3, other, batch % 10)


def flipped(made: Samples, _: int, batch: np.ndarray) -> Given:
    return (batch + (made.random.random(len(batch)) < 0.2)) % 2


def of_tasks_in_turn(_: Samples, epoch: int, batch: np.ndarray) -> Given:
    return batch // [1, 7, 40][epoch % 3] % 10


def places(_: Samples, __: int, batch: np.ndarray) -> Given:
    return np.arange(len(batch))


@pytest.mark.parametrize(
    "draw", [own, at_random_for_good, noisy, flipped, of_tasks_in_turn, places]
)
def test_labels_that_are_meant_are_sound(
    draw: Callable[[Samples, int, np.ndarray], Given],
) -> None:
    assert said(labelled(draw)) == []


def test_actions_in_a_game_change() -> None:
    made = Samples()
    for _ in range(400):
        states = made.random.geometric(0.05, 20)
        made.train(states, made.random.integers(0, 4, 20))
    assert said(made.facts()) == []


# ---- trainings --------------------------------------------------------------------


def trained(out: Path, *, leaks: bool) -> list[tuple[str, Severity]]:
    """Return what is found in a training of four epochs with evaluations."""
    torch.manual_seed(0)
    x = torch.randn(300, 12)
    y = (x[:, 0] > 0).long()
    data = TensorDataset(x[:200], y[:200])
    sampler = DistributedSampler(data, 1, 0)
    loader = DataLoader(data, 16, sampler=sampler)
    told = (torch.randperm(100) + (150 if leaks else 200)).split(25)
    model, criterion = nn.Sequential(nn.Linear(12, 2)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=out)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            criterion(model(batch), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for rows in told:
                criterion(model(x[rows]), y[rows])
        model.train()
    hook.close()
    found = check(out, [rule() for rule in RULES], record=False).findings
    return [(each.rule, each.severity) for each in found]


@pytest.mark.torch
def test_a_training_that_leaks_is_told(tmp_path: Path) -> None:
    sick = trained(tmp_path / "sick", leaks=True)
    assert sick == [("DataLeakage", WARNING)]
    assert trained(tmp_path / "twin", leaks=False) == []


def judged(
    out: Path, epochs: Iterator[Iterable[Any]], rule: SampleRule
) -> list[tuple[Severity, str]]:
    torch.manual_seed(0)
    model, criterion = nn.Sequential(nn.Linear(12, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=out)
    for loader in epochs:
        for batch, labels in loader:
            optimizer.zero_grad()
            criterion(model(batch), labels).backward()
            optimizer.step()
    hook.close()
    found = check(out, [rule], record=False).findings
    return [(each.severity, f"{each.message} {each.advice}") for each in found]


@pytest.mark.torch
@pytest.mark.parametrize("keeps", [False, True])
def test_loaders_that_are_made_anew_shuffle_alike(tmp_path: Path, keeps: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(160, 12), torch.arange(160) % 3
    kept: list[Any] = []

    def epochs(seed: Callable[[int], int]) -> Iterator[Iterable[Any]]:
        for epoch in range(4):
            generator = torch.Generator().manual_seed(seed(epoch))
            data = TensorDataset(x, y)
            loader = DataLoader(data, 16, shuffle=True, generator=generator)
            kept.extend([loader] if keeps else [])
            yield loader

    found = judged(tmp_path / "sick", epochs(lambda _: 7), RepeatedOrder())
    assert [severity for severity, _ in found] == [WARNING]
    assert "Seed once, before the first epoch" in found[0][1]
    assert judged(tmp_path / "twin", epochs(lambda epoch: epoch), RepeatedOrder()) == []


@pytest.mark.torch
def test_the_sampler_of_a_loader_is_known(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(160, 12), torch.arange(160) % 3
    data = TensorDataset(x, y)
    loader = DataLoader(data, 16, sampler=DistributedSampler(data, 1, 0))
    (found,) = judged(tmp_path / "run", iter([loader] * 4), RepeatedOrder())
    assert found[0] is WARNING
    assert "DistributedSampler" in found[1]
    assert "set_epoch" in found[1]
