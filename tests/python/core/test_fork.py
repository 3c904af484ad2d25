"""The child of a fork is inert, and its parent does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from core_helpers import address, define, open_capture, take
from tdbg import _core
from tdbg.run.directory import open_run, writer_directories

# Forking while threads run is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def wait_for(child: int, seconds: float) -> int:
    """The wait status of *child*; killed, and a failure, when it hangs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def in_child(capture: _core.Capture, id_: int, array: np.ndarray) -> None:
    """Everything that a child may try; ends the process."""
    code = 1
    try:
        before = capture.counters()
        taken = take(capture, 0, id_, array)
        capture.statistics(0, [id_], [address(array)])
        taken |= capture.scalar(0, id_, 1.0, 0)
        taken |= capture.end_step(0, 1, 0)
        capture.define("new", 1, "float32", (2,))
        capture.counters()
        capture.close(timeout=3600.0)  # It waits for no thread that is not there.
        code = 0 if not taken and before else 2
    finally:
        os._exit(code)


@pytest.mark.stress
@pytest.mark.parametrize(
    "forks", [80, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.nightly])]
)
def test_forks_while_the_queue_is_busy(run_dir: Path, forks: int) -> None:
    """Sabotage that it caught: a Writer that is never inert."""
    capture = open_capture(run_dir, queue_bytes=4 << 20)
    array = np.arange(5_000, dtype=np.float32)
    id_ = define(capture, "x", array)
    stop = threading.Event()
    taken = [0, 0]
    allowed = 0

    def hammer(thread: int) -> None:
        while not stop.is_set():
            if taken[thread] > allowed:  # Or it fills the disk.
                time.sleep(1e-4)
                continue
            taken[thread] += take(capture, taken[thread], id_, array)

    threads = [threading.Thread(target=hammer, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    busy = 0
    try:
        for _ in range(forks):
            allowed += 40
            while min(taken) <= allowed:  # Until the threads have begun.
                if capture.counters()["queued_bytes"] > 0:
                    busy += 1
                    break
                time.sleep(1e-5)
            child = os.fork()
            if child == 0:
                in_child(capture, id_, array)
            assert wait_for(child, 120.0) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    capture.flush()
    assert busy > forks // 10, "the queue was idle: the test proves nothing"
    counters = capture.counters()
    assert counters["written"] == counters["offered"] - counters["dropped"]
    assert counters["failed"] == 0
    assert capture.close()
    run = open_run(run_dir)
    (writer,) = writer_directories(run)
    reader = _core.RunReader(str(writer.path), run.uuid)
    assert [problem.message for problem in reader.problems()] == []
    assert len(reader.tensors()) == sum(taken)
    assert reader.steps().size == 0, "a child ended a step in its parent's shard"
    for index in range(0, len(reader.tensors()), 97):
        assert reader.read_tensor(index).tobytes() == array.tobytes()


WORKERS = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import numpy as np
from tdbg import _core
from tdbg.run.directory import create_run

def main():
    run = create_run(sys.argv[1])
    capture = _core.Capture(str(run.path), run_uuid=run.uuid, attempt_uuid=bytes(16),
                            min_free_bytes=0)
    array = np.arange(100, dtype=np.float32)
    id_ = capture.define("x", 1, "float32", (100,))
    data = TensorDataset(torch.arange(64.0))
    # Starting a worker anew imports PyTorch anew.
    epochs = 3 if sys.argv[2] == "fork" else 1
    for epoch in range(epochs):
        loader = DataLoader(data, batch_size=8, num_workers=2,
                            multiprocessing_context=sys.argv[2])
        total = 0.0
        for step, (batch,) in enumerate(loader):
            total += float(batch.sum())
            capture.values(step, id_, array.ctypes.data)
        assert total == 2016.0
    assert capture.close()
    counters = capture.counters()
    assert counters["written"] == counters["offered"] == 8 * epochs

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "method",
    [
        "fork",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "forkserver")),
    ],
)
def test_data_loader_workers_are_not_affected(
    run_dir: Path, tmp_path: Path, method: str, io_fault: dict[str, str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(WORKERS)
    counters = tmp_path / "counters"
    result = subprocess.run(
        [sys.executable, str(program), str(run_dir), method],
        env={
            **os.environ,
            **io_fault,
            "IO_FAULT_PREFIX": str(run_dir),
            "IO_FAULT_COUNTERS": str(counters),
        },
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    if method == "fork":
        calls, _, foreign = np.fromfile(counters, np.uint64).tolist()
        assert calls > 5
        assert foreign == 0, "a worker wrote to the run"


def test_a_child_inherits_no_descriptor_over_exec(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    script = (
        "import os, sys\n"
        "links = [os.path.realpath(f'/proc/self/fd/{fd}')"
        " for fd in os.listdir('/proc/self/fd')]\n"
        "sys.exit(any(sys.argv[1] in link for link in links))\n"
    )
    command = [sys.executable, "-c", script, str(run_dir)]
    assert subprocess.run(command, check=False, close_fds=False).returncode == 0
    own = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
    assert any(str(run_dir) in path for path in own), "it holds none itself"
    assert capture.close()
