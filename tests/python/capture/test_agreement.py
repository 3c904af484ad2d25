"""Ranks that obey at one step, without processes: a board that is a dict."""

from __future__ import annotations

import itertools
import random

import pytest

from tdbg.capture.ranks import FORWARDS_PERIOD, MAX_PERIOD, READ_SECONDS, Consensus
from tdbg.run.requests import Request


class KeyValueStore:
    """A board in memory; raises *error* once it is set."""

    def __init__(self) -> None:
        self.notes: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.n_looks = 0

    def post(self, key: str, value: bytes) -> None:
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # One that holds no rank.
        self.notes[key] = value

    def look(self, key: str) -> bytes | None:
        self.n_looks += 1
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # One that holds no rank.
        return self.notes.get(key)

    def settle(self, key: str, value: str) -> str:
        if self.error is not None:
            raise type(self.error)(*self.error.args)
        return self.notes.setdefault(key, value.encode()).decode()

    def keep_pace(self) -> bool:
        return False


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def request(name: str = "1", type_: str = "stop") -> Request:
    return Request(name, type_, {0: 1}, "2026-01-01", {"reason": f"r{name}"})


class Rank:
    """A rank that notes at which step it obeyed what."""

    def __init__(
        self, board: KeyValueStore, *, leads: bool = False, clock: Clock | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.agreement = Consensus(board, leads=leads, now=self.clock)
        self.asked: list[Request] = []
        self.obeyed: list[tuple[int, str]] = []

    def hear(self) -> list[Request]:
        is_alone = self.agreement._store is None
        assert self.agreement._leads or is_alone, "only the leader hears requests"
        asked, self.asked = self.asked, []
        return asked

    def begin(self, step: int, *, is_training: bool = True) -> None:
        for each in self.agreement.poll(step, is_training, self.hear):
            self.obeyed.append((step, each.id))


class Ranks:
    """A leader and another one in lock step; the second has a clock of no use."""

    def __init__(self) -> None:
        self.board = KeyValueStore()
        self.clock = Clock()
        self.leader = Rank(self.board, leads=True, clock=self.clock)
        self.other = Rank(self.board)
        self.step = 0

    def train(self, n: int, seconds: float, *, other_first: bool = False) -> None:
        for _ in range(n):
            order = [self.leader, self.other]
            for rank in reversed(order) if other_first else order:
                rank.begin(self.step)
            self.clock.seconds += seconds
            self.step += 1
        assert self.leader.agreement.period == self.other.agreement.period

    def ask(self, name: str = "1") -> None:
        self.leader.asked.append(request(name))


@pytest.mark.parametrize("asked_at", [*range(4), *range(37, 61)])
@pytest.mark.parametrize("seconds", [0.001, 0.007, 0.3])
@pytest.mark.parametrize("other_first", [True, False])
def test_all_ranks_obey_at_one_step_whoever_is_ahead(
    asked_at: int, seconds: float, other_first: bool
) -> None:
    ranks = Ranks()
    ranks.train(asked_at, seconds, other_first=other_first)
    period = ranks.leader.agreement.period
    ranks.ask()
    ranks.train(2 * MAX_PERIOD, seconds, other_first=other_first)
    assert ranks.leader.obeyed == ranks.other.obeyed
    ((step, _),) = ranks.leader.obeyed
    assert asked_at < step <= asked_at + 1 + max(period - 1, 0)
    assert ranks.other.agreement.n_overdue == 0


@pytest.mark.parametrize(
    ("seconds", "period"),
    [(1e-5, 32), (0.001, 32), (0.002, 16), (0.01, 4), (0.03, 1), (0.3, 1), (20, 1)],
)
def test_looking_costs_little_and_is_not_late(seconds: float, period: int) -> None:
    """A look costs about 0.1 ms."""
    ranks = Ranks()
    ranks.train(64, seconds)
    assert ranks.other.agreement.period == period
    assert period * seconds <= max(READ_SECONDS, seconds)
    before = ranks.board.n_looks
    ranks.train(320, seconds)
    assert ranks.board.n_looks - before == 320 // period


@pytest.mark.parametrize("proposed_at", [1, *range(70, 80)])
@pytest.mark.parametrize("seconds", [0.001, 0.3])
def test_what_the_leader_proposes_at_the_end_of_a_step_all_obey_at_one_step(
    proposed_at: int, seconds: float
) -> None:
    ranks = Ranks()
    ranks.train(proposed_at, seconds)
    assert not ranks.other.agreement.propose(request("other"))
    assert ranks.leader.agreement.propose(request("leader", "throttle"))
    ranks.train(3 * MAX_PERIOD, seconds)
    assert ranks.leader.obeyed == ranks.other.obeyed
    ((step, name),) = ranks.leader.obeyed
    assert name == "leader"
    assert proposed_at < step
    assert ranks.other.agreement.n_overdue == 0


def test_ranks_without_a_store_obey_no_proposal_and_still_agree_on_requests() -> None:
    ranks = Ranks()
    ranks.train(70, 0.3)
    ranks.board.error = RuntimeError("there is no process group")
    assert not ranks.leader.agreement.propose(request("lost"))
    ranks.board.error = None
    ranks.ask("heard")
    ranks.train(8, 0.3)
    assert ranks.leader.obeyed == ranks.other.obeyed
    assert [name for _, name in ranks.leader.obeyed] == ["heard"]
    assert ranks.leader.agreement.n_failures == 0


def test_ranks_look_more_often_when_steps_become_slow() -> None:
    ranks = Ranks()
    ranks.train(80, 0.001)
    assert ranks.other.agreement.period == 32
    ranks.train(64, 0.3)
    assert ranks.other.agreement.period == 1
    # As they become fast again, not at once: lengths may alternate.
    ranks.train(40, 0.001)
    assert ranks.other.agreement.period == 1
    ranks.train(800, 0.001)
    assert ranks.other.agreement.period == 32
    assert len(ranks.board.notes) == 3


def test_steps_of_any_length_at_random() -> None:
    """Whatever the period is and becomes: one step, the same for all."""
    chance = random.Random(5)
    for _ in range(30):
        ranks = Ranks()
        names = map(str, itertools.count())
        for _ in range(60):
            seconds = chance.choice([0.0001, 0.002, 0.02, 0.06, 0.5])
            for _ in range(chance.randrange(12)):
                if chance.random() < 0.2:
                    ranks.ask(next(names))
                ranks.train(1, seconds, other_first=chance.random() < 0.5)
                if chance.random() < 0.2:  # The leader evaluates, or trains on.
                    ranks.leader.begin(ranks.step, is_training=False)
                if chance.random() < 0.1:
                    ranks.ask(next(names))
                    # A second forward of the step that has just begun.
                    ranks.leader.begin(max(ranks.step - 1, 0))
        ranks.train(200, 0.001)
        assert ranks.leader.obeyed == ranks.other.obeyed
        assert len(ranks.leader.obeyed) == int(next(names))
        assert ranks.other.agreement.n_overdue == 0


def test_requests_take_effect_once_and_in_order() -> None:
    board = KeyValueStore()
    leader, other = Rank(board, leads=True), Rank(board)
    leader.asked = [request("a"), request("b", "reconfigure")]
    for step in range(30):
        if step == 9:
            leader.asked.append(request("c"))
        for rank in (leader, other):
            rank.begin(step)
            rank.begin(step)  # A second micro-batch.
            rank.begin(step + 1, is_training=False)  # And an evaluation after it.
    assert [name for _, name in leader.obeyed] == ["a", "b", "c"]
    assert leader.obeyed == other.obeyed


def test_what_is_heard_in_a_step_that_has_begun_holds_a_step_later() -> None:
    """The others may be about to begin the next one already."""
    ranks = Ranks()
    ranks.train(3, 0.3)
    ranks.ask()
    ranks.leader.begin(2)  # A further forward, after the last collective of step 2.
    assert ranks.leader.obeyed == []
    ranks.train(4, 0.3, other_first=True)
    assert ranks.leader.obeyed == ranks.other.obeyed == [(4, "1")]


def test_evaluation_of_one_rank_alone_does_not_shift_the_step() -> None:
    board = KeyValueStore()
    leader, other = Rank(board, leads=True), Rank(board)
    for step in range(8):
        if step == 3:
            leader.asked = [request()]
        for rank in (leader, other):
            rank.begin(step)
        for _ in range(5):
            leader.begin(step + 1, is_training=False)
    assert leader.obeyed == other.obeyed == [(4, "1")]


class Behind(KeyValueStore):
    """Of a device that has done only what was asked of it before the look before.

    Collective operations are its: what the leader posts is seen by those whose
    devices have ended a step together with its device.
    """

    def keep_pace(self) -> bool:
        return True


@pytest.mark.parametrize("seconds", [0.001, 0.3])
@pytest.mark.parametrize("asked_at", range(40, 76))
def test_a_rank_ahead_of_its_device_obeys_at_the_same_step(
    asked_at: int, seconds: float
) -> None:
    """The other begins steps as early as its device allows it to at each look."""
    board = Behind()
    clock = Clock()
    leader, other = Rank(board, leads=True, clock=clock), Rank(board)
    next_step = last_look = 0  # Of the other.
    for step in range(160):
        if step == asked_at:
            leader.asked = [request()]
        leader.begin(step)
        clock.seconds += seconds
        while True:
            looks = next_step >= other.agreement._next_read
            # Before the last look: its device has done that, and so the leader, too.
            if looks and last_look > step + 1:
                break
            last_look = next_step if looks else last_look
            other.begin(next_step)
            next_step += 1
    assert leader.obeyed == other.obeyed
    assert other.agreement.n_overdue == 0
    ((obeyed_at, _),) = leader.obeyed
    assert obeyed_at <= asked_at + 2 * leader.agreement.period


def test_ranks_that_only_evaluate_agree_on_a_forward() -> None:
    board = KeyValueStore()
    ranks = [Rank(board, leads=True), Rank(board)]
    obeyed: list[list[int]] = [[], []]
    for forward in range(3 * FORWARDS_PERIOD):
        if forward == 5:
            ranks[0].asked = [request()]
        for rank, found in zip(ranks, obeyed, strict=True):
            rank.begin(0, is_training=False)
            found.append(len(rank.obeyed))
    assert obeyed[0] == obeyed[1]
    assert obeyed[0].index(1) == FORWARDS_PERIOD


@pytest.mark.parametrize("first", [0, 100])
def test_what_was_asked_in_an_evaluation_before_the_training_holds_for_it(
    first: int,
) -> None:
    """Also where the others have begun the first step, and wait in it."""
    board = KeyValueStore()
    leader, other = Rank(board, leads=True), Rank(board)
    leader.asked = [request()]
    other.begin(first)
    leader.begin(0, is_training=False)
    for step in range(first, first + 4):
        for rank in (leader, other):
            rank.begin(step)
    assert leader.obeyed == other.obeyed == [(first + 2, "1")]


def test_a_rank_out_of_step_obeys_when_it_learns_of_it() -> None:
    board = KeyValueStore()
    leader, other = Rank(board, leads=True), Rank(board)
    other.begin(8)
    leader.asked = [request()]
    leader.begin(0)
    other.begin(9)
    assert other.obeyed == [(9, "1")]
    assert other.agreement.n_overdue == 1


def test_ranks_that_leave_out_steps_look_as_soon_as_they_can() -> None:
    ranks = Ranks()
    ranks.train(64, 0.001)
    ranks.ask()
    ranks.train(1, 0.001, other_first=True)
    ranks.step = 99  # Numbers that no forward was seen of, or of a checkpoint.
    ranks.train(2, 0.001)
    assert ranks.leader.obeyed == ranks.other.obeyed == [(99, "1")]


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("gone")])
def test_a_board_that_fails_leaves_each_rank_alone(error: Exception) -> None:
    board = KeyValueStore()
    leader, other = Rank(board, leads=True), Rank(board)
    leader.begin(0)
    other.begin(0)
    board.error = error
    leader.asked = [request()]
    leader.begin(5)
    assert leader.obeyed == [(5, "1")], "at once"
    looks = board.n_looks
    for step in range(6, 30):
        other.begin(step)
    assert other.obeyed == []
    other.asked = [request(), request()]  # By itself, and each once.
    other.begin(30)
    assert other.obeyed == [(30, "1")]
    assert board.n_looks == looks + 1, "it is not asked again"
    assert leader.agreement.n_failures == other.agreement.n_failures == 1


def test_a_rank_looks_once_in_a_step() -> None:
    board = KeyValueStore()
    rank = Rank(board)
    for step in range(10):
        for _ in range(4):
            rank.begin(step)
    assert board.n_looks == 10


@pytest.mark.parametrize(
    "note",
    [
        *(b"", b"{}", b"[1]", b"\xff", b'{"clock": 1, "at": "x", "body": {}}'),
        b'{"clock": "steps", "at": 1, "period": 0}',
    ],
)
def test_a_note_that_no_leader_wrote_is_left_alone(note: bytes) -> None:
    board = KeyValueStore()
    leader, other = Rank(board, leads=True), Rank(board)
    board.notes["request/0"] = note
    other.begin(0)
    assert other.obeyed == []
    leader.agreement._n_published = 1
    leader.asked = [request()]
    leader.begin(1)
    other.begin(2)
    assert other.obeyed == [(2, "1")]
