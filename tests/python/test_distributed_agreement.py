"""Ranks that obey at one step, without processes: a board that is a dict."""

from __future__ import annotations

import pytest

from tdbg.capture.agreement import INTERVAL, Agreement
from tdbg.control import Request


class Board:
    """A board in memory; raises *error* once it is set."""

    def __init__(self) -> None:
        self.notes: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.n_looks = 0

    def post(self, key: str, value: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.notes[key] = value

    def look(self, key: str) -> bytes | None:
        self.n_looks += 1
        if self.error is not None:
            raise self.error
        return self.notes.get(key)


def request(name: str = "1", type_: str = "stop") -> Request:
    return Request(name, type_, {0: 1}, "2026-01-01", {"reason": f"r{name}"})


class Rank:
    """A rank that notes at which step it obeyed what."""

    def __init__(self, board: Board, *, leads: bool = False) -> None:
        self.agreement = Agreement(board, leads=leads)
        self.asked: list[Request] = []
        self.obeyed: list[tuple[int, str]] = []

    def hear(self) -> list[Request]:
        assert self.agreement._leads, "only the leader hears requests"
        asked, self.asked = self.asked, []
        return asked

    def begin(self, step: int, *, is_training: bool = True) -> None:
        for each in self.agreement.poll(step, is_training, self.hear):
            self.obeyed.append((step, each.id))


@pytest.mark.parametrize("asked_at", range(INTERVAL + 2))
@pytest.mark.parametrize("ahead", [-1, 0, 1])
def test_all_ranks_obey_at_one_step_however_far_they_are_apart(
    asked_at: int, ahead: int
) -> None:
    """In lock step a rank is less than a step ahead of another, or behind."""
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    for step in range(4 * INTERVAL):
        if step == asked_at:
            leader.asked = [request()]
        order = [(leader, step), (other, step + ahead)]
        # Whoever is ahead has begun before the leader has heard.
        for rank, at in order if ahead < 1 else reversed(order):
            if at >= 0:
                rank.begin(at)
    assert leader.obeyed == other.obeyed
    ((step, _),) = leader.obeyed
    assert step % INTERVAL == 0
    assert asked_at + 2 <= step < asked_at + 2 + INTERVAL
    assert other.agreement.n_late == 0


def test_requests_take_effect_once_and_in_order() -> None:
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    leader.asked = [request("a"), request("b", "reconfigure")]
    for step in range(3 * INTERVAL):
        if step == INTERVAL - 1:
            leader.asked.append(request("c"))
        for rank in (leader, other):
            rank.begin(step)
            rank.begin(step)  # A second micro-batch.
            rank.begin(step + 1, is_training=False)  # And an evaluation after it.
    assert [name for _, name in leader.obeyed] == ["a", "b", "c"]
    assert leader.obeyed == other.obeyed


def test_evaluation_of_one_rank_alone_does_not_shift_the_step() -> None:
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    for step in range(3 * INTERVAL):
        if step == 3:
            leader.asked = [request()]
        for rank in (leader, other):
            rank.begin(step)
        for _ in range(5):
            leader.begin(step + 1, is_training=False)
    (at, _), *_ = other.obeyed
    assert at == INTERVAL
    assert leader.obeyed == [(INTERVAL, "1")]


def test_ranks_that_only_evaluate_agree_on_a_forward() -> None:
    board = Board()
    ranks = [Rank(board, leads=True), Rank(board)]
    obeyed: list[list[int]] = [[], []]
    for forward in range(3 * INTERVAL):
        if forward == 5:
            ranks[0].asked = [request()]
        for rank, found in zip(ranks, obeyed, strict=True):
            rank.begin(0, is_training=False)
            found.append(len(rank.obeyed))
    assert obeyed[0] == obeyed[1]
    assert obeyed[0].index(1) == INTERVAL


def test_what_was_asked_in_an_evaluation_before_the_training_holds_for_it() -> None:
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    leader.asked = [request()]
    leader.begin(0, is_training=False)
    for rank in (leader, other):
        rank.begin(0)
    assert leader.obeyed == other.obeyed == [(0, "1")]


def test_a_rank_out_of_step_obeys_when_it_learns_of_it() -> None:
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    other.begin(INTERVAL)
    leader.asked = [request()]
    leader.begin(0)
    other.begin(2 * INTERVAL)
    assert other.obeyed == [(2 * INTERVAL, "1")]
    assert other.agreement.n_late == 1


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("gone")])
def test_a_board_that_fails_leaves_the_leader_alone(error: Exception) -> None:
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    leader.begin(0)
    other.begin(0)
    board.error = error
    leader.asked = [request()]
    leader.begin(5)
    assert leader.obeyed == [(5, "1")], "at once"
    looks = board.n_looks
    for step in range(6, 4 * INTERVAL):
        other.begin(step)
    assert other.obeyed == []
    assert board.n_looks == looks + 1, "it is not asked again"
    assert leader.agreement.n_failures == other.agreement.n_failures == 1


def test_a_rank_looks_once_in_so_many_steps() -> None:
    board = Board()
    rank = Rank(board)
    for step in range(10 * INTERVAL):
        for _ in range(4):
            rank.begin(step)
    assert board.n_looks == 10


@pytest.mark.parametrize(
    "note", [b"", b"{}", b"[1]", b"\xff", b'{"clock": 1, "at": "x", "body": {}}']
)
def test_a_note_that_no_leader_wrote_is_left_alone(note: bytes) -> None:
    board = Board()
    leader, other = Rank(board, leads=True), Rank(board)
    board.notes["request/0"] = note
    other.begin(0)
    assert other.obeyed == []
    leader.agreement._n_posted = 1
    leader.asked = [request()]
    leader.begin(1)
    other.begin(INTERVAL)
    assert other.obeyed == [(INTERVAL, "1")]
