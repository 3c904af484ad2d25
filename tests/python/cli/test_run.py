"""``tdbg run --on-finding``: a training is judged while it runs, and is as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdbg.cli import _tdbg
from tdbg.trial import create_trial

TRAINING = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for step in range(int(sys.argv[1])):
    x = torch.randn(32, 10)
    if step == 20 and "sick" in sys.argv:
        with torch.no_grad():
            model[0].weight[0, 0] = float("nan")
    optimizer.zero_grad()
    criterion(model(x), (x[:, 0] > 0).long()).backward()
    optimizer.step()
    time.sleep(0.005)
print("trained", step)
sys.exit(7)
"""


@pytest.fixture
def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def started(
    tmp_path: Path, environment: dict[str, str], *options: str, program: list[str]
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tdbg", "run", "--out", str(tmp_path / "run")]
    return subprocess.Popen(
        [*command, "--rules", "ExplodingTensor", *options, "--", *program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return str(path)


def test_a_sick_training_is_stopped_and_says_why_in_a_line(
    tmp_path: Path, environment: dict[str, str]
):
    program = ["bash", "-c", f"{sys.executable} {script(tmp_path)} 4000 sick"]
    run = started(tmp_path, environment, "--on-finding", "stop", program=program)
    out, err = run.communicate(timeout=100)
    assert run.returncode == 1
    assert "trained" not in out
    assert "Traceback" not in err
    assert "ExplodingTensor at step 20" in err
    trial = create_trial(tmp_path / "run")
    assert f"tdbg: stopped at step {trial.steps(what='any')[-1]}: " in err
    assert len(trial.steps()) < 4000
    assert trial.rule_statuses()["ExplodingTensor"]["status"] == "IssuesFound"


def test_a_healthy_training_keeps_its_output_and_exit_code(
    tmp_path: Path, environment: dict[str, str]
):
    marker = tmp_path / "ran"
    option = ("--on-finding", f"command:touch {marker}")
    program = [sys.executable, script(tmp_path), "30"]
    run = started(tmp_path, environment, *option, program=program)
    out, err = run.communicate(timeout=100)
    assert (run.returncode, out) == (7, "trained 29\n")
    assert "30 recorded steps judged by rules: no finding" in err
    assert not marker.exists()


@pytest.mark.slow
def test_a_dry_run_stops_nothing(tmp_path: Path, environment: dict[str, str]):
    program = [sys.executable, script(tmp_path), "40", "sick"]
    options = ("--on-finding", "stop", "--dry-run")
    run = started(tmp_path, environment, *options, program=program)
    out, err = run.communicate(timeout=100)
    assert (run.returncode, out) == (7, "trained 39\n")
    assert "action stop would be taken: ExplodingTensor at step 20" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_training_and_its_end_is_ours(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals
):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    program = [sys.executable, "-c", code]
    run = started(tmp_path, environment, "--on-finding", "report", program=program)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    os.kill(run.pid, number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == -number
    assert "no training was captured" in err


def test_a_stopped_program_stops_us_and_goes_on_with_us(
    tmp_path: Path, environment: dict[str, str]
):
    code = (
        "import os, signal\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "print('went on')\n"
    )
    program = [sys.executable, "-c", code]
    run = started(tmp_path, environment, "--on-finding", "report", program=program)
    assert run.stdout is not None
    run.stdout.readline()
    deadline = time.monotonic() + 120
    while state_of(run.pid) != "T" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state_of(run.pid) == "T"
    os.kill(run.pid, signal.SIGCONT)
    out, _ = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, "went on\n")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_that_is_not_there_is_told(
    tmp_path: Path, environment: dict[str, str]
):
    program = ["/no/such/program"]
    run = started(tmp_path, environment, "--on-finding", "report", program=program)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 127
    assert "/no/such/program" in err


def test_an_action_that_cannot_work_is_refused_before_anything_runs(
    tmp_path: Path, environment: dict[str, str]
):
    marker = tmp_path / "ran"
    option = ("--on-finding", "webhok:https://x")
    run = started(tmp_path, environment, *option, program=["touch", str(marker)])
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "did you mean 'webhook'" in err
    assert not marker.exists()


@pytest.mark.slow
def test_a_rule_in_a_file_with_parameters_is_captured_for_and_judges(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tdbg", "new-rule", "LargeWeights"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    elsewhere = "import os; os.chdir('/')\n" + TRAINING
    rule = "./large_weights.py:LargeWeights(limit=0.1)"
    command = [*command[:3], "run", "--out", "run", "--rules", rule]
    program = [sys.executable, "-c", elsewhere, "30"]
    done = subprocess.run(
        [*command, "--on-finding", "report", "--", *program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "LargeWeights at step 0" in done.stderr
    trial = create_trial(tmp_path / "run")
    assert {finding.rule for finding in trial.findings()} == {"LargeWeights"}
    (told,) = trial.configuration()["hook"]["rules"]
    assert (told["name"], told["limit"]) == ("LargeWeights", 0.1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--nosuch", "--", "x"), "No such option '--nosuch'"),
        (("--statistic-interval=1", "python"), "'--statistics-interval'"),
        (("-x",), "No such option '-x'"),
    ],
)
def test_an_option_that_there_is_not_is_no_program(
    words: tuple[str, ...], told: str
) -> None:
    result = CliRunner().invoke(_tdbg, ["run", *words])
    assert result.exit_code == 2
    assert told in result.stderr
    assert "writing the run" not in result.stderr


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_url_with_credentials_is_refused_before_the_program_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "s3://key:secret@bucket/run"
    if given == "variable":
        monkeypatch.setenv("TDBG_OUT", url)
    out = ["--out", url] if given == "option" else []
    result = CliRunner().invoke(_tdbg, ["run", *out, "--", "python", "-c", "1"])
    assert result.exit_code != 0
    told = str(result.exception) + result.output
    assert "must not hold credentials" in told
    assert "secret" not in told
    assert list(tmp_path.iterdir()) == []
