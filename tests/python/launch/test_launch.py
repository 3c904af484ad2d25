"""``tdbg run``: scripts that know no tdbg, captured as they stand."""

from __future__ import annotations

import ast
import io
import os
import runpy
import shlex
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdbg.launch
from tdbg.launch import environment_of
from tdbg.modes import TRAIN
from tdbg.pytorch import create_trial

pytestmark = pytest.mark.torch
PROGRAMS = Path(__file__).parents[1] / "helpers" / "programs"
PROGRAM = str(PROGRAMS / "plain_training.py")
PYTHON = sys.executable


def tdbg_run(
    run_dir: Path, *command: str, given: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    settings: dict[str, Any] = {
        "input": "",
        "capture_output": True,
        "text": True,
        "timeout": 120,
    }
    return subprocess.run(
        [PYTHON, "-m", "tdbg", "run", "--out", str(run_dir), *given, "--", *command],
        check=False,
        **{**settings, **options},
    )


def alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, n_steps: int
) -> list[float]:
    """The losses without tdbg."""
    monkeypatch.setattr(sys, "argv", [PROGRAM, "--steps", str(n_steps)])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit):
        runpy.run_path(PROGRAM, run_name="__main__")
    return losses_of(capsys.readouterr().out)


def losses_of(output: str) -> list[float]:
    lines = output.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("loss")]


def test_a_script_is_captured_from_its_first_step(
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = run_dir.with_name("somebody's run")
    given = ("--statistics-interval", "1", "--include", "weights")
    result = tdbg_run(
        run_dir,
        *(PYTHON, PROGRAM, "--workers", "1", "--child", "--exit", "5"),
        given=(*given, "--save-interval", "2"),
        input="some input",
    )
    assert result.returncode == 5, result.stderr
    last = result.stdout.splitlines()[-1]
    assert "--exit" in last
    assert last.endswith("input some input")
    assert f"tdbg: writing the run to {run_dir}" in result.stderr
    assert result.stderr.count(f"next: tdbg check {shlex.quote(str(run_dir))}") == 1
    assert "tdbg: where the time went: " in result.stderr
    trial = create_trial(run_dir)
    assert trial.workers() == ["worker_0"]
    assert len(trial.attempts()) == 1, "the loader's worker is left alone"
    child = create_trial(run_dir.with_name(f"{run_dir.name}-2"))
    assert child.steps(mode=TRAIN) == [0, 1], "the child's training is a run of its own"
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3]
    for name in ("0_output_0", "1_output_0", "gradient/0.weight", "2.weight"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2, 3], name
    assert trial.tensor("0.weight").steps(mode=TRAIN, what="values") == [0, 2]
    loss = trial.tensor("CrossEntropyLoss_output_0")
    values = [float(loss.value(step, mode=TRAIN)) for step in range(4)]
    printed = losses_of(result.stdout)
    assert np.allclose(values, printed[:4], atol=1e-6)
    own, childs = alone(capsys, monkeypatch, 4), alone(capsys, monkeypatch, 2)
    assert printed == own + childs, "as without tdbg"


@pytest.mark.slow
def test_two_models_one_of_them_compiled(run_dir: Path) -> None:
    command = [PYTHON, "-W", "error", str(PROGRAMS / "two_models.py"), "--compile"]
    result = tdbg_run(run_dir, *command, given=("--statistics-interval", "1"))
    assert result.returncode == 0, result.stderr
    said = [line.partition(":")[2][:8] for line in result.stderr.splitlines()]
    assert said == [" writing", " capture", " where t"], result.stderr
    trial = create_trial(run_dir)
    steps = trial.tensor("Critic.0.weight").steps(mode=TRAIN)
    assert steps == [0, 1, 2]
    for name in (
        "Critic.1_output_0",
        "Generator.1_output_0",
        "gradient/Critic.0.weight",
    ):
        assert set(steps) <= set(trial.tensor(name).steps(mode=TRAIN)), name
    # Step 0 lacks those of the optimizer that steps last: docs/steps.md.
    assert trial.steps_made() == {TRAIN: (0, 3)}
    assert trial.tensor("gradient/Generator.0.weight").steps(mode=TRAIN) == [1, 2]
    rates = {
        name: float(trial.tensor(f"scalar/{name}/group_0/lr").value(2, mode=TRAIN))
        for name in ("optimizer", "optimizer_2")
    }
    assert rates == {"optimizer": 0.02, "optimizer_2": 0.01}
    for number in ("", "_2", "_3"):
        loss = trial.tensor(f"BCEWithLogitsLoss{number}_output_0")
        assert set(loss.steps(mode=TRAIN)) <= {0, 1, 2}


@pytest.mark.slow
def test_workers_of_torchrun_are_captured(run_dir: Path) -> None:
    result = tdbg_run(
        run_dir,
        *(PYTHON, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", PROGRAM, "--distributed"),
        given=("--statistics-interval", "1"),
    )
    assert result.returncode == 0, result.stderr
    trial = create_trial(run_dir)
    assert trial.steps(mode=TRAIN) == [0, 1, 2, 3]
    assert trial.tensor("gradient/0.weight").steps(mode=TRAIN) == [0, 1, 2, 3]
    assert len(trial.attempts()) == 1


def test_a_module_and_the_users_own_sitecustomize_are_run(
    run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MINE'] = '1'\n")
    job = "import os, sys; print(os.environ['MINE'], len(sys.modules))\n"
    (tmp_path / "job.py").write_text(job)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    result = tdbg_run(run_dir, "-m", "job", env=environment)
    assert result.returncode == 0, result.stderr
    mine, n_modules = result.stdout.split()
    assert mine == "1"
    command = [PYTHON, "-m", "job"]
    plain = subprocess.run(
        command, check=True, env=environment, capture_output=True, text=True
    )
    n_alone = int(plain.stdout.split()[1])
    assert int(n_modules) <= n_alone + 1, "nothing is imported"
    assert not run_dir.exists()


SITE = Path(tdbg.launch.__file__).parent / "site"
# What Python 2.7 cannot read, of what Python 3.4 can.
NEW_SYNTAX = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.YieldFrom)


def test_what_every_python_runs_is_read_by_every_python() -> None:
    tree = ast.parse((SITE / "sitecustomize.py").read_text(), feature_version=(3, 4))
    for node in ast.walk(tree):
        assert not isinstance(node, NEW_SYNTAX), ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            given = node.args
            assert not node.returns
            assert not given.kwonlyargs + given.posonlyargs
            assert not any(each.annotation for each in given.args)
        if isinstance(node, ast.Raise):
            assert node.cause is None
    # The search may be newer, as its finder of imports may.
    ast.parse((SITE / "tdbg_search.py").read_text(), feature_version=(3, 6))


def other_pythons() -> list[str]:
    """The Pythons of this machine, by version; the one that runs this if no other."""
    versions = ["2.7", *(f"3.{minor}" for minor in range(4, 15))]
    by_pyenv = Path("~/.pyenv/versions").expanduser()
    found = [next(by_pyenv.glob(f"{each}.*/bin/python"), None) for each in versions]
    return [str(each) for each in found if each is not None] or [PYTHON]


@pytest.mark.parametrize("python", other_pythons())
@pytest.mark.parametrize("own", ["import os; os.environ['MINE'] = '1'", None, "1 / 0"])
def test_a_child_of_another_python_starts_as_without_tdbg(
    tmp_path: Path, python: str, own: str | None
) -> None:
    if own is not None:
        (tmp_path / "sitecustomize.py").write_text(own)
    program = "import os, sys; print([os.environ.get('MINE'), sys.path, sys.argv])"
    alone = {**os.environ, "PYTHONPATH": str(tmp_path), "TDBG_LAUNCH_FIRST": "1"}
    below = environment_of({"out_dir": str(tmp_path / "run"), "existing": {}}, alone)
    without, within = (
        subprocess.run(
            [python, "-c", program],
            check=False,
            env=each,
            capture_output=True,
            text=True,
        )
        for each in (alone, {**below, "TDBG_LAUNCH_FIRST": "1"})
    )
    assert (within.stdout, within.returncode) == (without.stdout, without.returncode)
    assert within.stderr == without.stderr
    assert ("'1'" in within.stdout) is (own is not None and "MINE" in own)


# It finds torch by itself, and does not ask the finders that come after it.
SELFISH = """
import importlib.machinery, sys

class Selfish:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            return importlib.machinery.PathFinder.find_spec(name, path)

sys.meta_path.insert(0, Selfish)
"""
# As of libraries that trace a program: its loader stands in for another one.
PROXIED = """
import importlib.machinery, sys

class Proxy:
    def __init__(self, loader):
        self.__dict__["__wrapped__"] = loader

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name, value):
        setattr(self.__wrapped__, name, value)

    @property
    def exec_module(self):
        return lambda module: self.__wrapped__.exec_module(module)

class Proxied:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Proxy(spec.loader)
            return spec

sys.meta_path.insert(0, Proxied)
"""
FIVE_STEPS = """
import torch
{later}
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("site", "job", "last"),
    [
        (SELFISH, FIVE_STEPS.format(later=""), "5 steps"),
        (PROXIED, FIVE_STEPS.format(later=""), "5 steps"),
        ("", SELFISH + FIVE_STEPS.format(later="import colorsys"), "5 steps"),
        ("", SELFISH + "import torch", "nothing was captured: torch was imported by"),
    ],
)
def test_an_import_hook_that_asks_no_other_one_hides_no_training(
    run_dir: Path, tmp_path: Path, site: str, job: str, last: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(site)
    (tmp_path / "job.py").write_text(job)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    result = tdbg_run(
        run_dir, "-m", "job", env={**os.environ, "PYTHONPATH": path, "COLUMNS": "80"}
    )
    assert result.returncode == 0, result.stderr
    assert last in result.stderr


def test_a_loss_that_is_a_function_and_a_signal_that_reaches_the_script(
    run_dir: Path,
) -> None:
    script = [PROGRAM, "--wait", "--loss", "function"]
    with subprocess.Popen(
        [PYTHON, "-m", "tdbg", "run", "--out", run_dir, *script],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        while "waiting" not in (line := process.stdout.readline()):
            assert process.poll() is None
            lines.append(line)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7
    trial = create_trial(run_dir)
    assert trial.loaded_all_steps
    loss = trial.tensor("cross_entropy_output_0")
    values = [float(loss.value(step, mode=TRAIN)) for step in range(4)]
    assert np.allclose(values, losses_of("".join(lines)), atol=1e-6)


@pytest.mark.slow
def test_broken_and_missing(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    broken = tdbg_run(tmp_path / "file" / "run", PROGRAM)
    assert broken.returncode == 0, broken.stderr
    assert len(losses_of(broken.stdout)) == 4
    assert "tdbg captures nothing" in broken.stderr
    assert tdbg_run(run_dir, "no-such-program-here").returncode == 127
    assert tdbg_run(run_dir, PROGRAM, given=("--rules", "NoSuchRule")).returncode == 2


# ---- processes below it ----------------------------------------------------------


QUOTED_PYTHON = shlex.quote(sys.executable)
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2"}
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
LAUNCHER = """
import subprocess, sys
import torch
subprocess.run([sys.executable, *sys.argv[1:]])
"""


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
        "bin/torchrun": LAUNCHER,
        "asks.py": ASKS,
        "lazy.py": LAZY,
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


# As transformers and datasets do, before anything imports torch.
ASKS = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
assert importlib.util.find_spec("torch") is not None
import train
"""
LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["torch"] = module
spec.loader.exec_module(module)
module.__doc__
import train
"""

CASES: dict[str, tuple[str, dict[str, str], int, int]] = {
    # The command, further variables; how many train, and how many of them are seen.
    "a script": ("{python} train.py", {}, 1, 1),
    "a command": ("{python} -c 'import train'", {}, 1, 1),
    "a module of a package": ("{python} -m job.inner.train", {}, 1, 1),
    "asked for before it is imported": ("{python} asks.py", {}, 1, 1),
    "imported lazily": ("{python} lazy.py", {}, 1, 1),
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
    "what it starts": ("{python} train.py --child", {}, 2, 2),
    "what it forks": ("{python} train.py --fork", {}, 1, 1),
    "what it becomes": ("{python} train.py --again", {}, 2, 2),
    "accelerate launch": ("{python} bin/accelerate launch train.py", {}, 1, 1),
    "accelerate by its module": (
        "{python} -X dev -m accelerate.commands.launch train.py",
        {},
        1,
        1,
    ),
    "torchrun": ("{python} -u bin/torchrun train.py", {}, 1, 1),
    "a rank": ("{python} train.py", {**RANK_1, "TDBG_LAUNCH_FIRST": "1"}, 1, 1),
    "switched off": ("{python} train.py", {"TDBG_DISABLED": "1"}, 1, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_which_processes_search(folder: Path, case: str) -> None:
    command, variables, n_train, n_seen = CASES[case]
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    plain = {k: v for k, v in os.environ.items() if not k.startswith("TDBG_")}
    settings = {"out_dir": "run", "existing": {}}
    environment = environment_of(settings, {**plain, "PYTHONPATH": path})
    result = subprocess.run(
        shlex.split(command.format(python=QUOTED_PYTHON)),
        env=environment | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = result.stderr.count("tdbg: nothing is captured")
    assert (result.stdout.count("trains"), seen) == (n_train, n_seen), result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print('done')", "the program imported no framework that tdbg run searches"),
        # The interpreter ends threads first; no pool of threads can begin after it.
        (
            "import logging",
            "the program imported no framework that tdbg run searches",
        ),
        (
            "import sys; sys.modules['tensorflow'] = sys",
            (
                "the program imported no framework that tdbg run searches; tdbg run "
                "finds no trainings of tensorflow"
            ),
        ),
        (
            "import no_such_module",
            "the program ended with ModuleNotFoundError before it imported a framework",
        ),
    ],
)
def test_a_program_without_a_framework_is_told_apart(
    run_dir: Path, text: str, expected: str
) -> None:
    result = tdbg_run(run_dir, PYTHON, "-c", text)
    line = result.stderr.splitlines()[-1]
    assert line == f"tdbg: nothing was captured: {expected}"


def test_that_a_program_has_ended_by_an_error_is_said_once(run_dir: Path) -> None:
    """Whatever it has imported."""
    text = "import torch, lightgbm; int('one')"
    result = tdbg_run(run_dir, PYTHON, "-c", text)
    lines = [each for each in result.stderr.splitlines() if each.startswith("tdbg: ")]
    (line,) = lines[1:]
    assert line == (
        "tdbg: nothing was captured: the program ended with ValueError before it "
        "trained"
    )


def test_options_of_python_by_which_nothing_can_be_captured_are_named(
    run_dir: Path,
) -> None:
    result = tdbg_run(run_dir, "env", "A=1", PYTHON, "-uI", "-c", "print(1)")
    assert result.returncode == 0
    assert "nothing will be captured: with -I, Python ignores PYTHONPATH" in (
        result.stderr
    )


def test_a_python_without_tdbg_is_named(run_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    (tmp_path / "torch.py").touch()
    result = tdbg_run(
        run_dir, str(bare / "bin/python"), "-c", "import torch", cwd=tmp_path
    )
    assert f"tdbg is not installed for {bare}/bin/python" in result.stderr


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
        assert process.wait(120) == expected
