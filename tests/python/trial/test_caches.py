"""Index and commit page are caches: who deletes them changes no answer.

Readers and the writer are processes; what they are asked, and the truth, is in
programs/check_answers.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tdbg.trial import create_trial

HELPERS = Path(__file__).parents[1] / "helpers"
PROGRAMS = HELPERS / "programs"
N_STEPS = 500
WRITER = f"from check_answers import write; write(Path(sys.argv[1]), {N_STEPS}, 2e-3)"
N_READERS = 4
N_DELETIONS = 10_000


def start(*command: str) -> subprocess.Popen[str]:
    """A Python process that can import the programs and helpers."""
    path = os.pathsep.join(
        [str(PROGRAMS), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def readers(run: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Half of them map files, half do not."""
    for i in range(N_READERS):
        options = (str(i), str(seconds), str(i % 2))
        yield start(str(PROGRAMS / "check_answers.py"), str(run), *options)


def results(
    processes: list[subprocess.Popen[str]], writer: subprocess.Popen[str]
) -> list[Counter[str]]:
    """How often each reader asked what; a wrong answer ends it, and is shown."""
    found = []
    try:
        for process in [*processes, writer]:
            out, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            found.append(out)
    finally:
        for process in [*processes, writer]:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
    return [Counter(json.loads(out)) for out in found[:-1]]


def vandal(directory: Path, seed: int) -> Callable[[], int]:
    """Deletes an index at each call, now and then damages or swaps it; restores others.

    Returns how many it deleted so far.
    """
    dice = np.random.default_rng(seed)
    originals: dict[str, bytes] = {}
    gone: list[str] = []
    n_calls = n = 0

    def put(name: str, content: bytes) -> None:
        """As a whole, as whoever builds an index again would."""
        temporary = directory / "some-other-file"
        temporary.write_bytes(content)
        temporary.rename(directory / name)

    def act() -> int:
        nonlocal n_calls, n
        if n_calls % 50 == 0:
            for path in directory.glob("*.tdi"):
                # The writer may have created it a moment ago, and written nothing.
                if path.name not in originals and (content := path.read_bytes()):
                    originals[path.name] = content
        n_calls += 1
        there = sorted(originals.keys() - set(gone))
        if there:
            name = there[dice.integers(len(there))]
            (directory / name).unlink()
            n += 1
            gone.append(name)
            choice = dice.random()
            if choice < 0.05:
                damaged = bytearray(originals[name])
                damaged[dice.integers(len(damaged))] ^= 1 << dice.integers(8)
                put(name, bytes(damaged))
            elif choice < 0.1:
                put(name, originals[there[dice.integers(len(there))]])
        if len(gone) > len(originals) // 2:
            name = gone.pop(dice.integers(len(gone)))
            put(name, originals[name])
        return n

    return act


@pytest.mark.slow
@pytest.mark.stress
def test_caches_that_go_and_come_under_readers_change_no_answer(run_dir: Path) -> None:
    """Seen to fail when no checksum of an index is compared."""
    writer = start(
        "-c", f"import sys; from pathlib import Path; {WRITER}", str(run_dir)
    )
    processes = list(readers(run_dir, 0.7))
    directory = run_dir / "w" / "train-0-1"
    act, n = vandal(directory, seed=1), 0
    while any(process.poll() is None for process in processes):
        n = act()
        time.sleep(1e-4)
    asked = results(processes, writer)
    assert len(list(directory.glob("*.tds"))) > 10
    # All that was asked of a live run and of an ended one, of each kind.
    for of_one in asked:
        assert of_one["opened"] >= 5
        assert min(of_one.values()) >= 3
    assert sum(sum(of_one.values()) for of_one in asked) > 500
    assert n > 500


@pytest.mark.slow
@pytest.mark.stress
def test_ten_thousand_deletions_under_a_reader_change_no_answer(run_dir: Path) -> None:
    """The same in one process: a question after every twelve deletions."""
    sys.path.insert(0, str(PROGRAMS))
    try:
        from check_answers import Truth, write
    finally:
        sys.path.remove(str(PROGRAMS))
    write(run_dir, 120)
    directory = run_dir / "w" / "train-0-1"
    act, truth, n, asked = vandal(directory, seed=2), Truth(2), 0, Counter[str]()
    commit = (directory / "COMMIT").read_bytes()
    while n < N_DELETIONS:
        (directory / "COMMIT").unlink(missing_ok=True)
        if n % 3 == 0:
            (directory / "COMMIT").write_bytes(commit)
        trial = create_trial(run_dir)
        for _ in range(20):
            for _ in range(12):
                n = act()
            asked[truth.ask(trial)] += 1
        assert len(trial.steps("global", what="any")) == 120
        assert trial.problems() == []
    assert min(asked.values()) > N_DELETIONS / 250


@pytest.mark.slow
@pytest.mark.stress
def test_four_readers_beside_a_writer_see_only_what_was_written(run_dir: Path) -> None:
    """Nothing is deleted here: shards are opened by their indexes as they come."""
    command = f"import sys; from pathlib import Path; {WRITER}"
    writer = start("-c", command, str(run_dir))
    asked = results(list(readers(run_dir, 0.3)), writer)
    assert sum(sum(of_one.values()) for of_one in asked) > 500
    assert create_trial(run_dir).steps("global", what="any") == list(range(N_STEPS))
