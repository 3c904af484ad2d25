"""Healthy trainings, as the fingerprints of their samples show them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samples_fake import Samples

__all__ = [
    "HEALTHY",
    "clients",
    "folds",
    "halves_of_an_epoch",
    "naive",
    "random_splits",
]


def naive(made: Samples) -> None:
    """Folds that are evaluated before they are trained without, too."""
    for fold in range(5):
        told = np.arange(80 * fold, 80 * fold + 80)
        made.evaluate(told, n=20)
        for _ in range(4):
            made.epoch(np.setdiff1d(np.arange(400), told))
        made.evaluate(told, n=20)


def clients(made: Samples) -> None:
    """Each trains the model on its own data, and evaluates it there."""
    for turn in range(12):
        own = np.arange(80 * (turn % 4), 80 * (turn % 4) + 80)
        made.evaluate(own)
        for _ in range(3):
            made.epoch(own)
        made.evaluate(own)


def halves_of_an_epoch(made: Samples) -> None:
    """All data of the training are evaluated twice in each epoch, in their order."""
    for i in range(80):
        made.train(np.arange(20 * (i % 20), 20 * (i % 20) + 20))
        if i % 10 == 9:
            made.evaluate(np.arange(400), n=20)


def held_out(made: Samples) -> None:
    for _ in range(4):
        made.epoch(range(400))
        made.evaluate(range(400, 600))


def all_of_the_training_data(made: Samples) -> None:
    for _ in range(4):
        made.epoch(range(400))
        made.evaluate(range(400))
        made.evaluate(range(400, 600))


def part_of_the_training_data(made: Samples) -> None:
    for _ in range(4):
        made.epoch(range(400))
        made.evaluate(range(100))


def both_sets_in_one_batch(made: Samples) -> None:
    for _ in range(4):
        made.epoch(range(400))
        made.evaluate([*range(100), *range(400, 500)], n=200)


def the_whole_dataset_shuffled(made: Samples) -> None:
    for _ in range(4):
        made.epoch(range(400))
        made.evaluate(made.random.permutation(500))


def training_data_in_the_first_epoch(made: Samples) -> None:
    order = made.random.permutation(4000)
    for i, batch in enumerate(order.reshape(-1, 20)):
        made.train(batch)
        if i % 20 == 0:
            made.evaluate(made.random.integers(0, 4000, 200))


def folds(made: Samples) -> None:
    for fold in range(5):
        told = np.arange(80 * fold, 80 * fold + 80)
        for _ in range(4):
            made.epoch(np.setdiff1d(np.arange(400), told))
            made.evaluate(made.random.permutation(told), n=20)


def random_splits(made: Samples) -> None:
    for _ in range(5):
        order = made.random.permutation(400)
        for _ in range(5):
            made.epoch(order[80:])
            made.evaluate(order[:80], n=20)


def states_of_a_game(made: Samples) -> None:
    seen: list[int] = []
    for step in range(600):
        state = int(made.random.integers(0, 40)) + step
        made.evaluate(state + np.arange(8) % (1 + step % 3))
        seen.append(state)
        made.train(made.random.choice(seen, 20))


def online_learning(made: Samples) -> None:
    for i in range(200):
        batch = np.arange(20 * i, 20 * i + 20)
        made.evaluate(batch)
        made.train(batch)


def drawn_by_weights(made: Samples) -> None:
    weights = np.where(np.arange(4000) < 200, 20.0, 1.0)
    for i in range(600):
        made.train(made.random.choice(4000, 20, p=weights / weights.sum()))
        if i % 50 == 0:
            made.evaluate(made.random.integers(0, 4000, 400))


def a_growing_pool(made: Samples) -> None:
    for n in range(100, 400, 50):
        for _ in range(4):
            made.epoch(range(n))
        made.evaluate(made.random.permutation(1000))


def easy_ones_first(made: Samples) -> None:
    for n in (200, 300, 400):
        for _ in range(4):
            made.epoch(range(n))
            made.evaluate(range(1000, 1200))


def a_graph(made: Samples) -> None:
    for _ in range(40):
        made.train(range(300))
        made.evaluate(range(300), n=300)


def augmented(made: Samples) -> None:
    for i in range(20):
        made.epoch(1000 + 400 * i + np.arange(400))
        made.evaluate(range(400))


def made_of_noise(made: Samples) -> None:
    for i in range(200):
        made.train(range(20), [1] * 20)
        made.train(100 + 20 * i + np.arange(20), [0] * 20, call=1)


def memory_of_games(made: Samples) -> None:
    for i in range(600):
        made.train(made.random.integers(max(0, i - 200), i + 20, 20))


def windows_of_text(made: Samples) -> None:
    for i in range(300):
        made.train(made.random.integers(0, 30_000, 20))
        if i % 30 == 0:
            made.evaluate(30_000 + made.random.integers(0, 5000, 200))


def examples_in_context(made: Samples) -> None:
    for i in range(200):
        made.train(20 * i + np.arange(20), made.random.integers(0, 5, 20))
        if i % 20 == 0:
            made.evaluate(20_000 + 20 * i + np.arange(20))


HEALTHY: list[Callable[[Samples], None]] = [
    *(held_out, all_of_the_training_data, part_of_the_training_data),
    *(both_sets_in_one_batch, the_whole_dataset_shuffled, folds, random_splits),
    *(training_data_in_the_first_epoch, states_of_a_game, online_learning),
    *(drawn_by_weights, a_growing_pool, easy_ones_first, a_graph, augmented),
    *(made_of_noise, memory_of_games, windows_of_text, examples_in_context),
]
