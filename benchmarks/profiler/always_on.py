"""What the always-on part of the profiler costs a step, beside its peers.

    python -m benchmarks.profiler.always_on [--rounds 20] [--seconds 120] [--quick]

The same training runs in a process for each contender: a multilayer perceptron that a
DataLoader feeds, with steps of 10 ms and then of 100 ms. Blocks of steps take turns in
random order, one process at a time. The cost is the processor time of the contender's
process, with all its threads, and of processes that it started for itself.

- ``tdbg without profiler`` is the baseline: what the profiler adds is ``tdbg``.
- ``torch.profiler``: always on, and its results are dropped after each block.
- ``MLflow``, ``wandb``: their system metrics at their defaults, every 10 s.
- ``py-spy``: 20 samples a second from outside, without stopping the training.

Peers that are not installed are left out; ``--peers FOLDER`` is a folder of
``pip install --target``. All contenders must have the same losses, bit for bit. The
profiler must have a row for each step, and its phases must add up to the step.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tdbg.pytorch as td
from benchmarks._harness import (
    Measured,
    Report,
    Samples,
    Table,
    WrongAnswer,
    check,
    check_equal,
    interleave,
    options,
)
from tdbg.run.profile_tables import PHASE_COLUMNS
from tdbg.trial import create_trial

BASELINE, OURS = "tdbg without profiler", "tdbg"
MILLISECONDS = (10, 100)
WIDTH = 256
ROOT = Path(__file__).parents[2]


class Batches(Dataset[torch.Tensor]):
    """One batch, over and over."""

    def __init__(self, rows: int) -> None:
        self.batch = torch.randn(
            rows, WIDTH, generator=torch.Generator().manual_seed(1)
        )

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


class Training:
    """A training of which blocks of steps are asked for."""

    def __init__(self, rows: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        layers = [
            each for _ in range(4) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())
        ]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batches = iter(DataLoader(Batches(rows), batch_size=None))

    def train(self, n: int) -> float:
        """Make steps; return the last loss."""
        loss = torch.zeros(())
        for _ in range(n):
            batch = next(self.batches)
            self.optimizer.zero_grad()
            loss = self.model(batch).square().mean()
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())


def rows_for(milliseconds: float) -> int:
    """Rows of a batch whose step takes about so long."""

    def cost(rows: int) -> float:
        training = Training(rows)
        training.train(3)
        start = time.process_time()
        training.train(10)
        return (time.process_time() - start) / 10

    few, many = (min(cost(rows) for _ in range(3)) for rows in (64, 576))
    a_row = (many - few) / 512
    return max(1, round(64 + (milliseconds / 1e3 - few) / a_row))


# ---- a contender's process -----------------------------------------------------


@contextlib.contextmanager
def observed(name: str, training: Training, out: Path) -> Iterator[list[int]]:
    """Start what observes the training; yield processes whose time counts, too."""
    if name in (OURS, BASELINE):
        with td.Hook(out, profiler=name == OURS) as hook:
            hook.register_module(training.model)
            yield []
    elif name == "MLflow":
        os.environ["MLFLOW_TRACKING_URI"] = out.as_uri()
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow = importlib.import_module("mlflow")
        mlflow.enable_system_metrics_logging()
        with mlflow.start_run():
            yield []
    elif name == "wandb":
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
        wandb, psutil = map(importlib.import_module, ("wandb", "psutil"))
        out.mkdir()
        run = wandb.init(dir=out, settings=wandb.Settings(console="off"))
        yield [each.pid for each in psutil.Process().children(recursive=True)]
        run.finish()
    elif name == "py-spy":
        command = [str(py_spy()), "record", "--nonblocking", "-r", "20", "-d", "100000",
                   "-f", "raw", "-o", str(out), "-p", str(os.getpid())]  # fmt: skip
        spy = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(1.0)
        check(spy.poll() is None, "py-spy runs")
        yield [spy.pid]
        spy.kill()
        spy.wait()
    else:
        yield []


def run_ns(pid: int) -> int:
    """Processor time of the threads of a process."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads)


def lane(name: str, rows: int, out: Path) -> None:
    """Make as many steps as each line of the input says; print what they cost."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # Libraries print.
    training = Training(rows)
    with observed(name, training, out) as others:
        for line in sys.stdin:
            n, profile = int(line), contextlib.nullcontext()
            if name == "torch.profiler":
                profile = torch.autograd.profiler.profile(use_kineto=True)
            start, start_ns = time.process_time(), sum(map(run_ns, others))
            with profile:
                loss = training.train(n)
            cost = (
                time.process_time()
                - start
                + (sum(map(run_ns, others)) - start_ns) / 1e9
            )
            answers.write(json.dumps([cost, loss]) + "\n")
            answers.flush()


class Lane:
    """A contender's process, as the others see it."""

    def __init__(self, name: str, rows: int, out: Path, peers: str) -> None:
        self.name, self.n_steps = name, 0
        self.losses: list[float] = []
        path = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH"), peers))
        )
        program = [sys.executable, "-m", "benchmarks.profiler.always_on"]
        arguments = [
            "--lane",
            name,
            "--rows",
            str(rows),
            "--out",
            str(out),
            "--peers",
            peers,
        ]
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self.requests = cast(IO[str], self.process.stdin)
        self.answers = cast(IO[str], self.process.stdout)

    def block(self, n: int) -> Measured:
        """Make steps; their processor time, by the step."""
        self.requests.write(f"{n}\n")
        self.requests.flush()
        answer = self.answers.readline()
        check(bool(answer), f"{self.name} answers")
        cost, loss = json.loads(answer)
        self.n_steps += n
        self.losses.append(loss)
        return Measured(cost / n)

    def close(self) -> None:
        """End the process as a program ends."""
        self.requests.close()
        self.process.wait(60)


def py_spy(peers: str = "") -> Path | None:
    """The program, where it is installed."""
    beside = Path(peers or os.environ.get("TDBG_BENCH_PEERS", ".")) / "bin" / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    return Path(found) if found else None


def contenders(peers: str) -> list[str]:
    """All that can run here."""
    names = [BASELINE, OURS, "plain", "torch.profiler"]
    for name, module in (("MLflow", "mlflow"), ("wandb", "wandb")):
        is_beside = bool(peers) and (Path(peers) / module).is_dir()
        if is_beside or importlib.util.find_spec(module) is not None:
            names.append(name)
    return [*names, "py-spy"] if py_spy(peers) else names


# ---- the comparison --------------------------------------------------------------


def leave_out_what_fails(lanes: dict[str, Lane], n: int) -> None:
    """Let each make a first block, and go on without peers that cannot."""
    for name in [*lanes]:
        try:
            lanes[name].block(n)
        except (WrongAnswer, BrokenPipeError):
            if name in (BASELINE, OURS, "plain"):
                raise
            print(f"{name} does not run here: left out", file=sys.stderr)
            lanes.pop(name).process.wait(60)


def compare(
    milliseconds: float, peers: str, rounds: int, seconds: float
) -> tuple[Samples, Mapping[str, float]]:
    """Let the contenders take turns; return their costs, and shares of steps.

    Args:
        milliseconds: Of a step.
        peers: Folder of the peers; empty: none.
        rounds: At most.
        seconds: At most, for the rounds.
    """
    rows = rows_for(milliseconds)
    n = max(5, round(400 / milliseconds))
    with tempfile.TemporaryDirectory() as folder:
        lanes = {
            name: Lane(name, rows, Path(folder) / name.replace(" ", "-"), peers)
            for name in contenders(peers)
        }
        try:
            leave_out_what_fails(lanes, n)
            blocks: dict[str, Callable[[], object]] = {
                name: lambda each=each: each.block(n)  # type: ignore[misc]
                for name, each in lanes.items()
            }
            samples = interleave(
                blocks, baseline=BASELINE, rounds=rounds, at_most_seconds=seconds
            )
        finally:
            for each in lanes.values():
                each.close()
        first = lanes["plain"].losses
        for name, each in lanes.items():
            shared = min(len(first), len(each.losses))
            check_equal(each.losses[:shared], first[:shared], f"losses of {name}")
        found = verify(Path(folder) / OURS, lanes[OURS].n_steps)
    return samples, found


def verify(run: Path, n_steps: int) -> Mapping[str, float]:
    """Check the rows of the profiler; return shares of what they say."""
    profile = create_trial(run).profile
    rows = profile.steps()
    check_equal(len(rows), n_steps, "rows of steps")
    phases = sum(rows[column].astype("int64") for column in PHASE_COLUMNS.values())
    check(bool((phases == rows["duration_ns"]).all()), "phases add up")
    check(len(profile.python_lines()) > 0, "lines of Python")
    check(len(profile.system()) > 0, "samples of the machine")
    # The step before a block waits for its turn.
    busy = rows[rows["duration_ns"] < 3 * statistics.median(rows["duration_ns"])]
    total = float(busy["duration_ns"].sum())
    return {"named": 1.0 - float(busy["other_ns"].sum()) / total}


def measure(given: argparse.Namespace) -> Report:
    """Compare at each length of a step."""
    rounds = given.rounds or (4 if given.quick else 40)
    seconds = given.seconds or (20.0 if given.quick else 120.0)
    table = Table(
        "The always-on part: processor time of a step, over tdbg without profiler",
        ("what", *(f"steps of {each} ms" for each in MILLISECONDS)),
    )
    found = {each: compare(each, given.peers, rounds, seconds) for each in MILLISECONDS}
    names = [name for name in found[10][0].seconds if name != BASELINE]
    for name in names:
        table.add(name, *(samples.text(name) for samples, _ in found.values()))
    shares = [f"{100 * shares['named']:.1f} %" for _, shares in found.values()]
    table.add("time in named phases", *shares)
    data = {f"{each} ms": samples.to_json() for each, (samples, _) in found.items()}
    return Report("profiler/always_on", given, ("torch", "tdbg"), [table], data=data)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--seconds", type=float, help="at most, of each length of a step"
    )
    parser.add_argument("--peers", default="", help="folder of pip install --target")
    for name in ("--lane", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.lane:
        os.environ["TDBG_BENCH_PEERS"] = given.peers
        lane(given.lane, given.rows, Path(given.out))
    else:
        measure(given).save()


if __name__ == "__main__":
    main()
