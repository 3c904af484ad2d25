"""Replicas are compared over a store: who is late, dead or different, and why."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tdbg.capture import replica_check
from tdbg.capture.replica_check import RankGroup, ReplicaCheck, is_look
from tdbg.capture.replica_differences import Difference, Differences
from tdbg.capture.replica_prints import Print, Standing
from tdbg.run.observations import Fault

NAMES = ("a", "b", "c")
REDUCED = (Standing.REDUCED,) * 3
ALONE = (Standing.ALONE,) * 3


def made(
    n: int = 1,
    weights: tuple[int, ...] = (10, 20, 30),
    gradients: tuple[int, ...] = (1, 2, 3),
    *,
    standings: tuple[int, ...] = REDUCED,
    sizes: Any = None,
    **changes: Any,
) -> Print:
    """A print whose tensors have these plain sums."""
    facts: dict[str, Any] = {
        "n_forwards": n + 1,
        "group": (),
        "kind": "kind",
        "spots": {},
        "inputs": {},
        "averages": True,
        **changes,
    }
    found = np.array([[w, 2 * w, 3 * w + 1] for w in weights])
    size = np.array(
        [[w * w, w, g * g, g] for w, g in zip(weights, gradients, strict=True)]
    )
    return Print(
        n=n,
        standings=tuple(map(int, standings)),
        weights=found,
        gradients=np.array([[g, g, g] for g in gradients]),
        sizes=np.array(size if sizes is None else sizes, float),
        **facts,
    )


def compare(prints: Mapping[int, Print], before: bool = True) -> list[Difference]:
    """What is found, after a look at which all were equal."""
    differences = Differences()
    if before:
        first = next(iter(prints.values()))
        equal = made(0, standings=first.standings, group=first.group)
        assert differences.find(NAMES, dict.fromkeys(prints, equal)) == []
    return differences.find(NAMES, prints)


def fault(prints: Mapping[int, Print]) -> Fault | None:
    found = compare(prints)
    return found[0].fault if found else None


def test_looks_become_rare() -> None:
    looks = [n for n in range(10_000) if is_look(n)]
    assert looks[:6] == [0, 1, 2, 4, 8, 16]
    assert looks[-4:] == [2048, 4096, 6144, 8192]


# ---- what is a difference --------------------------------------------------------


def test_equal_replicas_have_none() -> None:
    assert compare({0: made(), 1: made(), 2: made()}) == []


def test_the_majority_is_right() -> None:
    (found,) = compare({0: made(), 1: made(weights=(11, 21, 31)), 2: made()})
    assert (found.ranks, found.odd) == ((0, 1, 2), (1,))
    assert (found.n, found.since, found.names) == (1, 0, NAMES)


def test_two_ranks_have_no_majority() -> None:
    (found,) = compare({0: made(), 1: made(weights=(11, 21, 31))})
    assert found.odd == ()


def test_gradients_alone_are_no_difference() -> None:
    assert compare({0: made(), 1: made(gradients=(5, 6, 7))}) == []


def test_another_model_is_no_replica() -> None:
    other = made(weights=(11, 21, 31), kind="other")
    assert compare({0: made(), 1: other}) == []


def test_ranks_of_another_group_are_no_replicas() -> None:
    prints = {
        0: made(group=(0, 1)),
        1: made(group=(0, 1)),
        2: made(group=(2, 3), weights=(11, 21, 31)),
        3: made(group=(2, 3), weights=(11, 21, 31)),
    }
    assert compare(prints) == []


def test_ranks_of_one_group_are_compared() -> None:
    prints = {
        0: made(group=(0, 1)),
        1: made(group=(0, 1)),
        2: made(group=(2, 3)),
        3: made(group=(2, 3), weights=(11, 21, 31)),
    }
    (found,) = compare(prints)
    assert found.ranks == (2, 3)


@pytest.mark.parametrize("standing", [0, Standing.HOOKED])
def test_nothing_is_said_of_what_nobody_keeps_equal(standing: int) -> None:
    standings = (standing,) * 3
    prints = {
        0: made(standings=standings),
        1: made(standings=standings, weights=(11, 21, 31)),
    }
    assert compare(prints) == []


def test_nothing_is_said_where_ranks_do_not_agree_on_it() -> None:
    prints = {0: made(), 1: made(standings=(0, 0, 0), weights=(11, 21, 31))}
    assert compare(prints) == []


# ---- why -------------------------------------------------------------------------


def test_replicas_that_differ_from_the_start_on() -> None:
    prints = {0: made(0), 1: made(0, weights=(11, 21, 31))}
    (found,) = compare(prints, before=False)
    assert (found.fault, found.since) == (Fault.REPLICAS_START, -1)


def test_one_element() -> None:
    other = made()
    bits = other.weights.copy()
    bits[1] += [4, 4 * 6, 4 * 36]
    prints = {0: made(), 1: made(), 2: dataclasses.replace(other, weights=bits)}
    (found,) = compare(prints)
    assert (found.fault, found.names) == (Fault.REPLICAS_ELEMENT, ("b",))
    assert (found.numbers["index"], found.numbers["bit"], found.odd) == (6, 2, (2,))


def test_equal_gradients_mean_another_update() -> None:
    other = made(weights=(11, 21, 31))
    assert fault({0: made(), 1: other}) is Fault.REPLICAS_UPDATES


def test_other_forwards_mean_other_steps() -> None:
    other = made(weights=(11, 21, 31), gradients=(3, 5, 9), n_forwards=3)
    (found,) = compare({0: made(), 1: other})
    assert found.fault is Fault.REPLICAS_STEPS
    assert (found.numbers["least"], found.numbers["most"]) == (2, 3)


def test_longer_gradients_are_scaled() -> None:
    other = made(weights=(11, 21, 31), gradients=(2, 4, 6))
    (found,) = compare({0: made(), 1: other})
    assert found.fault is Fault.REPLICAS_SCALED
    assert found.numbers["ratio"] == pytest.approx(2)


def test_other_gradients_are_not_reduced() -> None:
    other = made(weights=(11, 21, 31), gradients=(9, 1, 3))
    (found,) = compare({0: made(), 1: other})
    assert (found.fault, found.names) == (Fault.REPLICAS_GRADIENTS, ("a", "b"))


def test_a_tiny_difference_is_rounding() -> None:
    sizes = [[1.0, 1.0, 1.0, 1.0]] * 3
    close = [[1.0, 1.0 + 1e-9, 1.0, 1.0]] * 3
    prints = {
        0: made(sizes=sizes),
        1: made(weights=(11, 21, 31), gradients=(5, 6, 7), sizes=close),
    }
    assert fault(prints) is Fault.REPLICAS_ROUNDING


def test_parameters_that_came_late() -> None:
    standings = (Standing.REDUCED, Standing.REDUCED, Standing.LATE)
    prints = {
        0: made(standings=standings),
        1: made(standings=standings, weights=(10, 20, 31)),
    }
    (found,) = compare(prints)
    assert (found.fault, found.names) == (Fault.REPLICAS_LATE_PARAMETERS, ("c",))


def test_buffers_that_drift_are_told_once_and_apart() -> None:
    standings = (Standing.REDUCED, Standing.REDUCED, Standing.BUFFER)
    differences = Differences()
    for n in (0, 1, 2):
        prints = {
            0: made(n, standings=standings),
            1: made(n, standings=standings, weights=(10, 20, 31)),
        }
        found = differences.find(NAMES, prints)
        assert [each.fault for each in found] == [Fault.REPLICAS_BUFFERS] * (n == 0)


# ---- replicas that meet, or prove that they are some -----------------------------


@pytest.mark.parametrize(
    ("standing", "n_apart", "expected"),
    [
        (Standing.BYPASSED, 4, None),
        (Standing.BYPASSED, 8, Fault.REPLICAS_BYPASS),
        (Standing.UNSYNCED, 8, None),
        (Standing.UNSYNCED, 64, Fault.REPLICAS_UNSYNCED),
    ],
)
def test_a_wrapper_that_reduces_nothing_is_sure_after_some_steps(
    standing: Standing, n_apart: int, expected: Fault | None
) -> None:
    spots = {n: n for n in range(n_apart + 1)}
    others = {n: n + 1000 for n in spots}
    standings = (standing,) * 3
    prints = {
        0: made(standings=standings, spots=spots),
        1: made(standings=standings, spots=others, weights=(11, 21, 31)),
    }
    assert fault(prints) is expected


def given(*sums: int, **changes: Any) -> Print:
    """A print of a rank that was given batches with these sums."""
    return made(16, inputs=dict(enumerate(sums)), **changes)


def test_ranks_with_equal_batches_are_named_once_with_their_number() -> None:
    differences = Differences()
    prints = dict.fromkeys((0, 1), given(*range(16)))
    (found,) = differences.find(NAMES, prints)
    assert found.fault is Fault.RANKS_SAME_INPUTS
    assert (found.ranks, found.names) == ((0, 1), ())
    assert found.numbers == {"steps": 16}
    assert differences.find(NAMES, {0: made(32), 1: made(32)}) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (given(*range(16)), given(*range(15), 99)),
        (given(*[7] * 16), given(*[7] * 16)),
        (given(*range(9)), given(*range(9))),
        (given(*range(16), averages=False), given(*range(16), averages=False)),
    ],
    ids=["one differs", "always the same", "too few", "nothing is averaged"],
)
def test_equal_batches_say_nothing_where(first: Print, second: Print) -> None:
    assert Differences().find(NAMES, {0: first, 1: second}) == []


def test_replicas_that_meet_once_are_local_sgd() -> None:
    spots = {n: n for n in range(65)}
    others = {n: n if n == 40 else n + 1000 for n in spots}
    standings = (Standing.UNSYNCED,) * 3
    prints = {
        0: made(standings=standings, spots=spots),
        1: made(standings=standings, spots=others, weights=(11, 21, 31)),
    }
    assert fault(prints) is None


def alone(n: int, shift: int = 0, gradients: tuple[int, ...] = (1, 2, 3)) -> Print:
    weights = (10 + n + shift, 20 + n + shift, 30 + n + shift)
    return made(n, weights, gradients, standings=ALONE)


def find_alone(*looks: tuple[Print, Print]) -> list[Fault]:
    differences = Differences()
    found = []
    for first, second in looks:
        found += differences.find(NAMES, {0: first, 1: second})
    return [each.fault for each in found]


def test_ranks_that_reduce_without_a_wrapper_are_replicas() -> None:
    equal = [(alone(n), alone(n)) for n in (0, 1, 2)]
    assert find_alone(*equal, (alone(4), alone(4, 1))) == [Fault.REPLICAS_UPDATES]


def test_ranks_whose_first_gradients_differ_are_no_replicas() -> None:
    first = alone(0), alone(0, gradients=(4, 5, 6))
    equal = [(alone(n), alone(n)) for n in (1, 2)]
    assert find_alone(first, *equal, (alone(4), alone(4, 1))) == []


def test_ranks_that_part_at_once_are_no_replicas() -> None:
    looks = [(alone(0), alone(0)), (alone(1), alone(1, 1)), (alone(2), alone(2, 1))]
    assert find_alone(*looks, (alone(4), alone(4, 1))) == []


def test_ranks_without_any_gradient_prove_nothing() -> None:
    none = (0, 0, 0)
    first = alone(0, gradients=none), alone(0, gradients=none)
    equal = [(alone(n), alone(n)) for n in (1, 2)]
    assert find_alone(first, *equal, (alone(4), alone(4, 1))) == []


# ---- over the store --------------------------------------------------------------


class Store:
    """A store in memory, which may fail."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.fails = False
        self.lock = threading.Lock()

    def post(self, key: str, value: bytes) -> None:
        if self.fails:
            raise RuntimeError
        with self.lock:
            self.values[key] = value

    def look(self, key: str) -> bytes | None:
        if self.fails:
            raise RuntimeError
        with self.lock:
            return self.values.get(key)

    def settle(self, key: str, value: str) -> str:
        raise NotImplementedError

    def keep_pace(self) -> bool:
        return False


class Ranks:
    """The checks of all ranks of a training."""

    def __init__(self, n: int) -> None:
        self.store = Store()
        self.found: list[Difference] = []
        self.checks = [
            ReplicaCheck(RankGroup(self.store, rank, n, rank == 0), self.found.append)
            for rank in range(n)
        ]

    def add(self, rank: int, made: Print) -> None:
        self.checks[rank].add(made.n, NAMES, lambda: made)

    def close(self, *ranks: int) -> None:
        """Close these checks, the one that leads last."""
        for rank in sorted(ranks, reverse=True):
            self.checks[rank].close()


def test_a_difference_is_found_where_the_first_rank_compares() -> None:
    ranks = Ranks(3)
    for n in (0, 1):
        ranks.add(0, made(n))
        ranks.add(1, made(n, (10 + n, 20 + n, 30 + n)))
        ranks.add(2, made(n))
    ranks.close(0, 1, 2)
    (found,) = ranks.found
    assert (found.fault, found.odd) == (Fault.REPLICAS_UPDATES, (1,))
    assert all(check.is_over for check in ranks.checks)


def test_polls_find_it_before_the_end() -> None:
    ranks = Ranks(2)
    for n in (0, 1):
        ranks.add(0, made(n))
        ranks.add(1, made(n, (10 + n, 20 + n, 30 + n)))
    end = time.monotonic() + 60
    while not ranks.found and time.monotonic() < end:
        for check in ranks.checks:
            check.poll()
        time.sleep(0.01)
    assert ranks.found
    ranks.close(0, 1)


def test_many_looks_reuse_the_store() -> None:
    ranks = Ranks(2)
    for n in range(40):
        ranks.add(0, made(n))
        ranks.add(1, made(n))
        for check in ranks.checks[::-1]:
            while check._posts or check._waiting:
                check._exchange(60.0)
    ranks.close(0, 1)
    assert not ranks.found
    assert len(ranks.store.values) == 2 * 2 * replica_check._KEPT


def test_a_rank_that_is_dead_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_check, "_LAST_SECONDS", 0.05)
    ranks = Ranks(3)
    for n in (0, 1):
        ranks.add(0, made(n))
        ranks.add(1, made(n))
    ranks.close(0, 1)
    assert not ranks.found


def test_the_others_are_compared_without_a_dead_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_check, "_PATIENCE_NS", 0)
    ranks = Ranks(3)
    for n in (0, 1):
        ranks.add(1, made(n, (10 + n, 20 + n, 30 + n)))
    ranks.close(1)
    for n in (0, 1):
        ranks.add(0, made(n))
    ranks.close(0)
    (found,) = ranks.found
    assert found.ranks == (0, 1)


def test_a_rank_that_is_late_is_compared_when_it_comes() -> None:
    ranks = Ranks(2)
    for n in (0, 1):
        ranks.add(0, made(n))
    ranks.checks[0]._exchange(60.0)
    assert not ranks.found
    for n in (0, 1):
        ranks.add(1, made(n, (10 + n, 20 + n, 30 + n)))
    ranks.close(0, 1)
    assert len(ranks.found) == 1


def test_a_store_that_fails_ends_the_check() -> None:
    ranks = Ranks(2)
    ranks.store.fails = True
    ranks.add(0, made(0))
    check = ranks.checks[0]
    check._exchange(60.0)
    assert check.is_over
    ranks.add(0, made(1))
    check.close()
    assert not ranks.found


def test_something_else_in_the_store_is_passed_over() -> None:
    ranks = Ranks(2)
    ranks.store.values["replicas/0/1/digest"] = b'{"n": 0, "digest": "x"}'
    ranks.store.values["replicas/0/1/print"] = b"nonsense"
    ranks.add(0, made(0))
    ranks.close(0)
    assert not ranks.found
