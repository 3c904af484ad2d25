"""``tdbg run``: which of the processes below it look for a training.

PyTorch is a stand-in here that takes no time: who looks for a training in it says that
there is nothing to be found.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdbg.launch import environment_of

PYTHON = shlex.quote(sys.executable)
TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "RANK": "1"}
SCRIPT = """
import os, subprocess, sys
import torch
print("trains", sys.argv[1:], flush=True)
if "--child" in sys.argv:
    subprocess.run([sys.executable, __file__])
if "--fork" in sys.argv and os.fork() == 0:
    import torch
    os._exit(0)
if "--again" in sys.argv:
    os.execv(sys.executable, [sys.executable, __file__])
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the processes find: a script, packages, and something called torch."""
    path = tmp_path_factory.mktemp("processes")
    for name, text in {
        "torch.py": "",
        "train.py": SCRIPT,
        "job/__init__.py": "",
        "job/inner/__init__.py": "",
        "job/inner/train.py": SCRIPT,
        "accelerate/__init__.py": "",
        "accelerate/commands/__init__.py": "",
        "accelerate/commands/launch.py": LAUNCHER,
        "bin/accelerate": "import sys; sys.argv.pop(1)\n" + LAUNCHER,
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


CASES: dict[str, tuple[str, dict[str, str], int, int]] = {
    # The command, further variables; how many train, and how many of them are seen.
    "a script": ("{python} train.py", {}, 1, 1),
    "a module of a package": ("{python} -m job.inner.train", {}, 1, 1),
    "a shell": ("bash -c '{python} train.py; exit 0'", {}, 1, 1),
    "a shell that becomes it": ("bash -c 'exec {python} train.py'", {}, 1, 1),
    "a shell in a shell": (
        """bash -c "bash -c '{python} train.py; :'; :" """,
        {},
        1,
        1,
    ),
    "one script after another": (
        "bash -c '{python} train.py; {python} train.py'",
        {},
        2,
        2,
    ),
    "by env": ("env A=1 {python} train.py", {}, 1, 1),
    "what it starts": ("{python} train.py --child", {}, 2, 1),
    "what it starts, in a shell": ("bash -c '{python} train.py --child; :'", {}, 2, 1),
    "what it forks": ("{python} train.py --fork", {}, 1, 1),
    "what it becomes": ("{python} train.py --again", {}, 2, 2),
    "accelerate launch": ("{python} bin/accelerate launch train.py --child", {}, 2, 1),
    "accelerate by its module": (
        "{python} -m accelerate.commands.launch train.py",
        {},
        1,
        1,
    ),
    "a worker of torchrun": (
        "{python} train.py --child",
        {**TORCHRUN, "TDBG_LAUNCH_FIRST": "1"},
        2,
        1,
    ),
    "switched off": ("{python} train.py", {"TDBG_DISABLED": "1"}, 1, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_who_looks_for_a_training(folder: Path, case: str) -> None:
    command, variables, n_train, n_seen = CASES[case]
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    plain = {k: v for k, v in os.environ.items() if not k.startswith("TDBG_")}
    environment = environment_of({"out_dir": "run"}, {**plain, "PYTHONPATH": path})
    result = subprocess.run(
        shlex.split(command.format(python=PYTHON)),
        env=environment | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = result.stderr.count("tdbg: nothing is captured")
    assert (result.stdout.count("trains"), seen) == (n_train, n_seen), result.stderr


@pytest.mark.parametrize(
    ("number", "handler", "expected"),
    [
        (signal.SIGTERM, "", -15),
        (signal.SIGINT, "", -2),
        (signal.SIGKILL, "", -9),
        (signal.SIGTERM, "signal.signal(15, lambda *_: sys.exit(7))", 7),
        (signal.SIGINT, "signal.signal(2, lambda *_: sys.exit(7))", 7),
    ],
)
def test_signals_are_the_programs_own(
    folder: Path, number: signal.Signals, handler: str, expected: int
) -> None:
    """There is no process of tdbg between who sends one and the program."""
    program = (
        f"import signal, sys, time, os\n{handler}\n"
        "print(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "tdbg", "run", "--", sys.executable, "-c", program],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(number)
        assert process.wait(30) == expected
