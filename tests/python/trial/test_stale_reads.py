"""A reader on a file system that shows the past for a while, as NFS does.

``tests/shim/stale_reads.c`` stands between the reader and the files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WRITER = """
import sys, time
import numpy as np
from run_builder import RunBuilder

with RunBuilder(sys.argv[1], shard_bytes=1 << 16, codec="none") as run:
    for step in range(60):
        run.step(step, {"w": np.full(1000, step, np.float64)})
        time.sleep(0.03)
"""

READER = """
import sys, time, warnings
import numpy as np
from tdbg.errors import NotARun, TensorUnavailable
from tdbg.importers import wait_for_run
from tdbg.trial import create_trial

end = time.monotonic() + 60
wait_for_run(sys.argv[1], lambda: time.monotonic() > end)
trial = create_trial(sys.argv[1])
seen, looks = set(), 0
while time.monotonic() < end and not (
    trial.status == "closed" and len(seen) == 60
    # The commit page may be shown before what it counts.
    and trial.lost_records().in_order and not trial.problems()
):
    looks += 1
    try:
        tensor = trial.tensor("w")
    except TensorUnavailable:
        continue
    for step in tensor.steps():
        if step not in seen:
            assert tensor.stats(step).mean == step, step
            assert (tensor.value(step) == step).all(), step
            seen.add(step)
    table = trial.step_table()
    assert set(table["step"][table["complete"]]) <= set(range(60))
    time.sleep(0.005)
assert seen == set(range(60)), sorted(seen)
assert trial.status == "closed"
assert trial.step_table()["complete"].all()
assert trial.lost_records().in_order
assert trial.problems() == [], trial.problems()
print(looks)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = Path(__file__).parents[2] / "shim" / "stale_reads.c"
    path = tmp_path_factory.mktemp("shim") / "stale_reads.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(path), str(source)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True, timeout=60)
    return path


@pytest.mark.parametrize("stale_ms", [20, 300])
def test_a_live_run_is_read_right_however_late_its_files_are_shown(
    tmp_path: Path, library: Path, stale_ms: int
) -> None:
    run = tmp_path / "run"
    helpers = Path(__file__).parents[1] / "helpers"
    environment = {**os.environ, "PYTHONPATH": str(helpers)}
    stale = {
        "LD_PRELOAD": str(library),
        "STALE_PREFIX": str(run),
        "STALE_MS": str(stale_ms),
    }
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run)], env=environment
    ) as writer:
        reader = subprocess.run(
            [sys.executable, "-W", "error", "-c", READER, str(run)],
            env={**environment, **stale},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert writer.wait(60) == 0
    assert reader.returncode == 0, reader.stderr
    assert int(reader.stdout) > 5
