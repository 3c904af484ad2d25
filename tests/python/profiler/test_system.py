"""The sampler of the machine: what a run has of it, and what it never does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core_helpers import open_capture
from tdbg import _core
from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.opening import SessionSpec, open_session
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.config import CollectionRegistry, ProfilerConfig
from tdbg.config.options import SessionOptions
from tdbg.errors import ConfigurationError
from tdbg.profiler import Profiler, system
from tdbg.run.profile_tables import (
    TABLES,
    ProcessKind,
    core_type,
    written_columns,
)
from tdbg.trial import create_trial

FAST = 0.05
SETTINGS = ProfilerConfig(system_interval=FAST)
SAMPLED = ("system", "disk", "network", "gpu", "process")

Rows = NDArray[np.void]


def open_one(run_dir: Path) -> Session:
    """A session that captures nothing."""
    spec = SessionSpec(run_dir, Policy(CollectionRegistry()), SessionOptions())
    return open_session(spec, FrameworkAdapter())


@pytest.fixture
def session(run_dir: Path) -> Iterator[Session]:
    """An open session, with a sampler and nothing else."""
    session = open_one(run_dir)
    Profiler(session, SETTINGS, [system.start])
    yield session
    session.close()


@pytest.fixture
def program() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Python programs, which are killed in the end."""
    started = []

    def start(text: str, *arguments: object) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", text, *map(str, arguments)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return answer


def machine_events(run_dir: Path) -> list[dict[str, Any]]:
    """What the run says about its machine."""
    events = create_trial(run_dir).events("configuration")
    return [each.data for each in events if each.data.get("what") == "machine"]


# --- What is written ----------------------------------------------------------


def test_the_core_writes_the_columns_of_the_tables() -> None:
    columns = _core.sampled_columns()
    assert columns.pop("core") == written_columns(core_type(4))
    assert columns == {name: written_columns(TABLES[name]) for name in SAMPLED}


def test_a_run_has_samples_of_its_machine(session: Session, run_dir: Path) -> None:
    wait_for(lambda: len(create_trial(run_dir).profile.system()) > 5)
    session.close()
    profile = create_trial(run_dir).profile
    rows = profile.system()
    assert (np.diff(rows["time"]) > 0).all()
    assert rows["memory_total"][-1] == os.sysconf("SC_PHYS_PAGES") * os.sysconf(
        "SC_PAGE_SIZE"
    )
    assert np.isnan(rows["cpu_user"][0])  # Nothing was read before it.
    assert 0 < rows["allowed_cores"][-1] <= len(os.sched_getaffinity(0))
    cores = profile.cores()
    assert len(cores) == len(rows)
    assert cores["busy"].shape[1] == os.sysconf("SC_NPROCESSORS_CONF")
    own = profile.processes()
    assert set(own["pid"]) == {os.getpid()}
    assert set(own["kind"]) == {ProcessKind.RANK}
    assert own["resident_bytes"][-1] > 10 << 20


def test_a_run_says_once_what_its_machine_is(session: Session, run_dir: Path) -> None:
    session.close()
    (machine,) = machine_events(run_dir)
    assert machine["node"] == os.uname().nodename
    assert machine["kernel"] == os.uname().release
    assert machine["boot_id"] == system.boot_id()
    assert machine["cores"] == os.sysconf("SC_NPROCESSORS_CONF")
    assert machine["allowed_cores"] == len(os.sched_getaffinity(0))
    assert machine == create_trial(run_dir).profile.machine()


def test_the_shortest_training_has_a_first_and_a_last_sample(run_dir: Path) -> None:
    session = open_one(run_dir)
    slow = ProfilerConfig(system_interval=3600.0)
    part = Profiler(session, slow, [system.start]).parts[0]
    assert isinstance(part, system.SystemPart)
    wait_for(lambda: part.sampler.n_samples >= 2)  # The host and the processes.
    session.close()
    assert len(create_trial(run_dir).profile.system()) == 2


def test_processes_are_followed_until_they_end(
    session: Session, run_dir: Path, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    worker = program("import time; time.sleep(600)")
    system.follow_process(session, worker.pid, worker=4)
    system.follow_process(session, 2**22 + 1)  # There is none.

    def of_worker() -> Rows:
        rows = create_trial(run_dir).profile.processes()
        return rows[rows["pid"] == worker.pid]

    wait_for(lambda: len(of_worker()) > 2)
    worker.kill()
    worker.wait()
    ended = time.monotonic_ns()
    rows = of_worker()
    assert set(rows["kind"]) == {ProcessKind.LOADER_WORKER}
    assert set(rows["loader_worker"]) == {4}
    assert set(rows["rank"]) == {0}
    count = session.counters()["written"]
    wait_for(lambda: session.counters()["written"] > count + 4)
    assert (of_worker()["time"] <= ended).all()


def test_the_interval_can_be_changed_while_the_training_runs(run_dir: Path) -> None:
    session = open_one(run_dir)
    slow = ProfilerConfig(system_interval=3600.0)
    part = Profiler(session, slow, [system.start]).parts[0]
    assert isinstance(part, system.SystemPart)
    part.change(SETTINGS)
    wait_for(lambda: part.sampler.n_samples > 10)
    with pytest.raises(ConfigurationError, match=r"0\.001"):
        part.sampler.set_interval(0.001)
    session.close()


class Samples:
    """A data set of numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        return float(index)


@pytest.fixture
def signals() -> Iterator[None]:
    """Take back the handler that a DataLoader with workers sets."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.torch
@pytest.mark.usefixtures("signals")
def test_loader_workers_are_sampled_with_their_rank(run_dir: Path) -> None:
    from torch.utils.data import DataLoader

    session = open_one(run_dir)
    settings = ProfilerConfig(system_interval=FAST, python_interval=None)
    profiler = Profiler(session, settings)
    batches = iter(DataLoader(Samples(), batch_size=4, num_workers=2))  # type: ignore[arg-type, var-annotated]

    def workers() -> Rows:
        rows = create_trial(run_dir).profile.processes()
        return rows[rows["kind"] == ProcessKind.LOADER_WORKER]

    wait_for(lambda: set(workers()["loader_worker"]) == {0, 1})
    assert {each.pid for each in batches._workers} == set(workers()["pid"])  # type: ignore[attr-defined]
    assert set(workers()["rank"]) == {0}
    del batches
    profiler.close()
    session.close()


# --- What it never does -------------------------------------------------------


def test_samples_go_on_while_a_call_holds_the_interpreters_lock(
    session: Session, run_dir: Path
) -> None:
    usleep = ctypes.PyDLL(None).usleep  # Keeps the lock, unlike CDLL.
    start = time.monotonic_ns()
    usleep(1_000_000)
    end = time.monotonic_ns()
    session.close()
    times = create_trial(run_dir).profile.system()["time"]
    assert np.count_nonzero((times > start) & (times < end)) >= 3


def test_a_forked_child_samples_nothing_and_the_parent_goes_on(
    session: Session, run_dir: Path
) -> None:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            session.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    n = len(create_trial(run_dir).profile.system())
    wait_for(lambda: len(create_trial(run_dir).profile.system()) > n + 3)


def test_an_interval_below_the_least_is_refused(run_dir: Path) -> None:
    capture = open_capture(run_dir)
    for interval in (0.049, 0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(ConfigurationError, match=r"from 0\.05 to 86400 s"):
            _core.SystemSampler(capture, interval)
    capture.close()


def test_a_sampler_that_cannot_start_says_why_and_the_session_goes_on(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "node_file", lambda _: str(tmp_path))
    session = open_one(run_dir)
    assert Profiler(session, SETTINGS, [system.start]).parts == []
    assert session.counters()["internal_errors"] == 0
    session.close()
    (event,) = [
        each.data
        for each in create_trial(run_dir).events("change")
        if each.data.get("what") == "profiler"
    ]
    assert event["part"] == "system"
    assert str(tmp_path) in event["off"]


def test_the_file_that_processes_share_goes_with_the_last_of_them(
    session: Session,
) -> None:
    assert session.writes_as is not None
    path = Path(system.node_file(session.writes_as.run))
    assert path.stat().st_mode & 0o777 == 0o600
    session.close()
    assert not path.exists()


# --- Several processes of a node ----------------------------------------------

RANK = """
import sys, time
sys.path[:0] = {paths!r}
from core_helpers import open_capture
from tdbg import _core
capture = open_capture({run!r}, rank=int(sys.argv[1]), world_size=2)
sampler = _core.SystemSampler(capture, 0.05, {node!r})
sampler.add_process(__import__("os").getpid(), int(sys.argv[1]), 1)
print("started", flush=True)
while not sampler.is_sampling:
    time.sleep(0.01)
print("samples", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_sampler_is_replaced_and_its_processes_are_still_followed(
    run_dir: Path, tmp_path: Path, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    open_capture(run_dir).close()
    node = str(tmp_path / "node")
    text = RANK.format(paths=sys.path, run=str(run_dir), node=node)
    first, second = program(text, 0), None
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(2)] == [b"started\n", b"samples\n"]
    second = program(text, 1)
    assert second.stdout is not None
    assert second.stdout.readline() == b"started\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert second.stdout.readline() == b"samples\n"

    def of_second() -> Rows:
        rows = create_trial(run_dir).profile.processes()
        return rows[rows["pid"] == second.pid]

    wait_for(lambda: len(of_second()) > 3)
    assert set(of_second()["rank"]) == {1}


# --- Against others, and against what is done to the machine --------------------


@pytest.mark.needs("psutil")
@pytest.mark.usefixtures("session")
def test_the_figures_agree_with_psutil(run_dir: Path) -> None:
    import psutil

    def figures() -> dict[str, int]:
        swap = psutil.swap_memory()
        found = {"swap_in_bytes": swap.sin, "swap_out_bytes": swap.sout}
        for name, disk in psutil.disk_io_counters(perdisk=True).items():
            found[f"disk/{name}/read_bytes"] = disk.read_bytes
            found[f"disk/{name}/write_bytes"] = disk.write_bytes
            found[f"disk/{name}/reads"] = disk.read_count
            found[f"disk/{name}/busy_ns"] = disk.busy_time * 1_000_000
        for name, net in psutil.net_io_counters(pernic=True).items():
            found[f"network/{name}/received_bytes"] = net.bytes_recv
            found[f"network/{name}/sent_packets"] = net.packets_sent
        own = psutil.Process().io_counters()
        found["process/all_read_bytes"] = own.read_chars
        found["process/write_bytes"] = own.write_bytes
        return found

    before, start = figures(), time.monotonic_ns()
    profile = create_trial(run_dir).profile
    # Rows of devices are written every five seconds.
    tables = (profile.system, profile.processes, profile.disks, profile.networks)
    for table in tables:
        wait_for(lambda table=table: np.any(table()["time"] > start + 200_000_000))
    after = figures()

    def sampled(rows: Rows) -> np.void:
        return rows[rows["time"] > start][0]

    for name, least in before.items():
        *table, column = name.split("/")
        if not table:
            row = sampled(profile.system())
        elif table == ["process"]:
            row = sampled(profile.processes())
        else:
            rows = profile.disks() if table[0] == "disk" else profile.networks()
            rows = rows[rows["instance"] == table[1]]
            if not len(rows):
                assert least == 0 or table[1].startswith(("loop", "zram"))
                continue
            row = sampled(rows)
        assert least <= row[column] <= after[name], name
    memory = psutil.virtual_memory()
    row = profile.system()[-1]
    assert row["memory_total"] == memory.total
    assert abs(int(row["memory_available"]) - memory.available) < memory.total / 10


READER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | int(sys.argv[2]))
page = mmap.mmap(-1, 1 << 20)
while True:
    offset = 0
    while n := os.preadv(fd, [page], offset):
        offset += n
    print("read", flush=True)
    sys.stdin.readline() if len(sys.argv) > 3 else None
"""


def test_what_comes_from_a_disk_is_told_from_what_lies_in_memory(
    session: Session,
    run_dir: Path,
    tmp_path: Path,
    program: Callable[..., subprocess.Popen[bytes]],
) -> None:
    size = 8 << 20
    file = tmp_path / "data"
    file.write_bytes(os.urandom(size))
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system knows no direct reads")
    direct, cached = program(READER, file, os.O_DIRECT), program(READER, file, 0)
    for each in (direct, cached):
        system.follow_process(session, each.pid)
        assert each.stdout is not None
        assert each.stdout.readline() == b"read\n"

    def last(pid: int) -> np.void | None:
        rows = create_trial(run_dir).profile.processes()
        rows = rows[rows["pid"] == pid]
        return rows[-1] if len(rows) and rows[-1]["all_read_bytes"] >= size else None

    row = wait_for(lambda: last(direct.pid))
    assert row["read_bytes"] >= size
    row = wait_for(lambda: last(cached.pid))
    assert row["read_bytes"] < size


GROUPS = {"cpu": Path("/sys/fs/cgroup/cpu"), "memory": Path("/sys/fs/cgroup/memory")}

HELD_BACK = """
import sys, time
sys.path[:0] = {paths!r}
from core_helpers import open_capture
from tdbg import _core
capture = open_capture({run!r})
sampler = _core.SystemSampler(capture, 0.05)
held = bytearray(64 << 20)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
sampler.close()
capture.close()
"""


@contextlib.contextmanager
def control_group(controller: str, **limits: int) -> Iterator[Path]:
    """A control group of version 1, of which the caller may be a member."""
    group = GROUPS[controller] / f"tdbg-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip(f"no control group of version 1 for {controller} can be made")
    try:
        for name, value in limits.items():
            (group / f"{controller}.{name}").write_text(str(value))
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.slow
def test_a_quota_and_a_limit_are_measured_as_they_bite(run_dir: Path) -> None:
    quota = control_group("cpu", cfs_period_us=100_000, cfs_quota_us=20_000)
    limit = 256 << 20
    text = HELD_BACK.format(paths=sys.path, run=str(run_dir))
    with quota as cpu, control_group("memory", limit_in_bytes=limit) as memory:

        def join() -> None:
            for group in (cpu, memory):
                (group / "cgroup.procs").write_text(str(os.getpid()))

        words = [sys.executable, "-c", text]
        subprocess.run(words, preexec_fn=join, check=True)
    rows = create_trial(run_dir).profile.system()
    last = rows[-1]
    assert last["allowed_cores"] == pytest.approx(0.2)
    assert last["cgroup_limit"] == limit
    assert 64 << 20 <= last["cgroup_memory"] <= limit
    assert last["cgroup_oom_kills"] == 0
    assert 0 < last["cgroup_throttled"] <= last["cgroup_periods"]
    assert last["cgroup_throttled_ns"] > 0
