"""How long a training of several ranks goes on after it was asked to stop.

    python -m benchmarks.hooks.stop_latency [--ranks 2] [--trials 200] [--quick]

A trial is a training that is asked to stop at a random moment, by another process.
Its latency is the time until the last rank has left; all must leave at the same step,
and none may wait for another one that has left.  Steps have a length that varies by
a few percent from step to step, and ranks begin and end them at different moments.

Most trials are simulated: the ranks' own agreement, with a clock and a board in
memory, so that there can be thousands.  Those in processes train in lock step with
``DistributedDataParallel`` over gloo, and wait in each step until it is as long as it
should be.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import ProcessContext, start_processes
from torch.nn.parallel import DistributedDataParallel

import tdbg.pytorch as td
from benchmarks._harness import Report, Table, check, check_equal, options
from tdbg.capture.ranks import Consensus
from tdbg.errors import TrainingStopped
from tdbg.run.requests import Request, request_stop

SECONDS = (0.002, 0.05, 0.3, 1.0)
#: In processes these shares of the trials are enough, for they take long.
SHARES = {0.002: 1.0, 0.05: 0.75, 0.3: 0.5, 1.0: 0.0}
COLUMNS = ("a step", "trials", "median", "99 %", "longest", "99 % <= 1 step + 1 s")
LISTENS_EVERY = 0.1  # Seconds; docs/distributed.md.
#: After so long a rank hangs.
PATIENCE = 30.0


class Stop(NamedTuple):
    """Of one trial: the step at which all left, and seconds from asking to leaving."""

    step: int
    latency: float


# ---- simulated -----------------------------------------------------------------


class KeyValueStore:
    """What all ranks share."""

    def __init__(self) -> None:
        self._notes: dict[str, bytes] = {}
        self.look = self._notes.get
        self.post = self._notes.__setitem__

    def keep_pace(self) -> bool:
        """There is no device."""
        return False


class Simulated:
    """A rank that is asked at a moment, if it leads."""

    def __init__(self, rank_store: KeyValueStore, asked: float, *, leads: bool) -> None:
        self._now = 0.0
        self._asked: float | None = asked
        self._next_look = 0.0
        self._agreement = Consensus(rank_store, leads=leads, now=lambda: self._now)

    def close(self) -> None:
        """End its thread, which asks the store."""
        self._agreement.close()

    def begins(self, step: int, now: float) -> bool:
        """A forward begins; whether it is refused, for the training is to stop."""
        self._now = now
        return bool(self._agreement.poll(step, True, self._hear))

    def _hear(self) -> list[Request]:
        if self._now < self._next_look:
            return []
        self._next_look = self._now + LISTENS_EVERY
        if self._asked is None or self._asked > self._now:
            return []
        self._asked = None
        return [Request("", "stop", {}, "", {})]


def simulate(n_ranks: int, seconds: float, chance: random.Random) -> Stop:
    """One trial, in no time."""
    rank_store = KeyValueStore()
    asked = chance.uniform(0, 40 * seconds + 0.5)
    ranks = [Simulated(rank_store, asked, leads=not rank) for rank in range(n_ranks)]
    with contextlib.ExitStack() as stack:
        for rank in ranks:
            stack.callback(rank.close)
        return _run(ranks, asked, seconds, chance)


def _run(
    ranks: list[Simulated], asked: float, seconds: float, chance: random.Random
) -> Stop:
    """Train until all ranks have left."""
    n_ranks = len(ranks)
    ended = 0.0  # The collective operation of the step before.
    for step in range(1_000_000):
        # Each goes on when it learns of the end, and has something else to do.
        begins = [ended + chance.expovariate(20 / seconds) for _ in ranks]
        order = sorted(range(n_ranks), key=begins.__getitem__)
        left = [rank for rank in order if ranks[rank].begins(step, begins[rank])]
        if left:
            check_equal(len(left), n_ranks, f"ranks that leave at step {step}")
            return Stop(step, max(begins) - asked)
        work = [begin + seconds * chance.uniform(0.9, 1.0) for begin in begins]
        ended = max(work)
    raise AssertionError


# ---- in processes --------------------------------------------------------------


def rank_main(rank: int, n_ranks: int, port: int, folder: Path, trials: Any) -> None:
    """What a process does: a training for each trial."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=n_ranks,
    )
    chance = random.Random(rank)
    model = nn.Linear(8, 8)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for number, seconds in enumerate(trials):
        workers = ("one", "all")[number % 2]
        # The hook of the trial before is replaced.
        hook = td.Hook(
            folder / str(number), include_collections=[], include_workers=workers
        )
        hook.register_module(model)
        step = 0
        try:
            while True:
                began = time.monotonic()
                output = ddp(torch.ones(2, 8))
                time.sleep(chance.uniform(0, seconds / 2))
                optimizer.zero_grad()
                output.sum().backward()
                optimizer.step()
                left = seconds * chance.uniform(0.95, 1) - (time.monotonic() - began)
                time.sleep(max(0.0, left))
                step += 1
        except TrainingStopped:
            found = [step, time.monotonic()]
        hook.close()
        (folder / f"{number}-{rank}.new").write_text(json.dumps(found))
        (folder / f"{number}-{rank}.new").rename(folder / f"{number}-{rank}.json")
        distributed.barrier()  # So that none begins the next one in between.
    distributed.destroy_process_group()


def ask(
    folder: Path,
    n_ranks: int,
    trials: list[float],
    chance: random.Random,
    context: ProcessContext,
) -> Iterator[Stop]:
    """Ask each of the trainings to stop, and wait until all its ranks have left."""
    for number, seconds in enumerate(trials):
        run = folder / str(number)
        wait_for(lambda run=run: any(run.glob("w/train-0-1/COMMIT")), context)
        time.sleep(chance.uniform(0, 10 * seconds + 0.2))
        asked = time.monotonic()
        request_stop(run, reason="trial")
        notes = [folder / f"{number}-{rank}.json" for rank in range(n_ranks)]
        wait_for(lambda notes=notes: all(map(Path.exists, notes)), context)
        found = [json.loads(note.read_text()) for note in notes]
        check_equal([step for step, _ in found], [found[0][0]] * n_ranks, "steps")
        yield Stop(found[0][0], max(at for _, at in found) - asked)


def wait_for(is_there: Callable[[], bool], context: ProcessContext) -> None:
    """Wait; a rank that fails raises, one that hangs, too."""
    end = time.monotonic() + PATIENCE
    while not is_there():
        check(time.monotonic() < end, "no rank hangs")
        time.sleep(0.002)
        if not all(process.is_alive() for process in context.processes):
            context.join(1.0)


def train(n_ranks: int, trials: list[float], seed: int) -> list[Stop]:
    """Trials with steps of these lengths, in real processes."""
    folder = Path(tempfile.mkdtemp(prefix="stop-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (n_ranks, port, folder, trials)
    context = start_processes(rank_main, arguments, nprocs=n_ranks, join=False)
    if context is None:
        raise RuntimeError
    try:
        found = list(ask(folder, n_ranks, trials, random.Random(seed), context))
        context.join(PATIENCE)
        return found
    finally:
        for process in context.processes:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


# ---- both ----------------------------------------------------------------------


def measure(given: argparse.Namespace) -> Report:
    """Simulated trials and real ones, of steps of several lengths."""
    seed = given.seed or 1
    chance = random.Random(seed)
    simulated = table("Stopping several ranks, simulated", given.ranks)
    real = table("Stopping several ranks, in processes", given.ranks)
    data: dict[str, Any] = {}
    for seconds in given.lengths:
        one = functools.partial(simulate, given.ranks, seconds, chance)
        found = [one() for _ in range(given.simulated)]
        data[f"simulated {seconds:g}"] = add(simulated, seconds, found)
        n_trials = round(SHARES.get(seconds, 1.0) * given.trials)
        if n_trials:
            found = train(given.ranks, [seconds] * n_trials, seed)
            data[f"processes {seconds:g}"] = add(real, seconds, found)
    return Report(
        "hooks/stop_latency",
        given,
        packages=("torch", "tdbg"),
        tables=[simulated, real],
        data=data,
    )


def table(title: str, n_ranks: int) -> Table:
    """An empty one."""
    note = (
        f"{n_ranks} ranks.  Seconds from the request to the last rank's leaving; in "
        "every trial all ranks left at the same step, and none hung."
    )
    return Table(title, COLUMNS, note=note)


def add(table: Table, seconds: float, stops: list[Stop]) -> list[float]:
    """The row of one length of a step."""
    latencies = [stop.latency for stop in stops]
    pending = float(np.quantile(latencies, 0.99, method="higher"))
    table.add(
        f"{1000 * seconds:g} ms",
        len(latencies),
        f"{np.median(latencies):.3f}",
        f"{pending:.3f}",
        f"{max(latencies):.3f}",
        "yes" if pending <= seconds + 1 else "no",
    )
    return latencies


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=200, help="in processes")
    parser.add_argument("--simulated", type=int, default=2000, help="trials")
    parser.add_argument("--lengths", type=float, nargs="+", default=list(SECONDS))
    given = parser.parse_args()
    if given.quick:
        given.trials, given.simulated = 4, 50
    measure(given).save()


if __name__ == "__main__":
    main()
