"""Slowdown of a transformer's training, against the same training unwatched.

At least 300 million parameters in bfloat16.  Trainings take turns in one process, in
blocks of steps that end when the device has done them; each block is compared with
the plain blocks of its round.  Peers are watched for a step or two: they are slow.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._harness import check
from benchmarks.gpu._device import Device, options
from benchmarks.gpu._model import Training
from benchmarks.gpu._result import Result
from benchmarks.gpu._watchers import WATCHERS, Watcher
from tdbg import _core
from tdbg.run.directory import writer_directories

TARGET_ROWS = 1.02
TARGET_EXCESS = 1.3
TARGET_RAW = 1.05
#: Steps in a block; a watched block takes that many too, but for peers.
BLOCK = 10
PEER_BLOCK = 1
RAW_BLOCK = 100


class Contender:
    """One training, watched in one way; None: not at all.

    Args:
        name: Of the watcher.
        device: Where.
        small: A tiny model.
        folder: For its run.
    """

    def __init__(
        self, name: str | None, device: Device, small: bool, folder: Path
    ) -> None:
        self.training = Training(device.name, small)
        kind = Watcher if name is None else WATCHERS[name]
        self.path = folder / (name or "plain").replace(" ", "-")
        self.watcher = kind(self.training, self.path)
        self._device = device

    def block(self, n_steps: int) -> float:
        """Seconds per step."""
        self._device.wait()
        start = time.perf_counter()
        for _ in range(n_steps):
            loss = self.training.step()
        self._device.wait()
        seconds = (time.perf_counter() - start) / n_steps
        check(bool(torch.isfinite(loss)), "the loss is not finite")
        return seconds


def main() -> None:
    given = options(__doc__).parse_args()
    device, result = Device(given.device), Result(given.out)
    rate = device.copy_rate(1 << 16 if given.small else 1 << 30, 5)["moved"]
    plain = Contender(None, device, given.small, given.folder)
    plain.block(3)
    result.add("parameters", plain.training.n_parameters)
    result.add("device", device.describe())
    deadline = time.monotonic() + given.seconds
    counts = device.is_cuda and not given.small
    shares = {"rows": 0.3, "every row": 0.3, "raw weights": 0.25}
    for name in WATCHERS:
        is_peer = name not in shares
        contender = Contender(name, device, given.small, given.folder)
        n_steps = block_of(name, given.small)
        contender.block(1 if is_peer else 3)  # Definitions, plans, memory.
        left = max(1.0, deadline - time.monotonic())
        until = time.monotonic() + left * shares.get(name, 0.5)
        # Those that fetch every tensor may need half a minute for a step.
        least, most = (1, 3) if is_peer else (3, 12)
        if given.small:
            least = most = 1
        pairs = alternate(plain, contender, n_steps, until, least, most)
        ratios = [watched / bare for watched, bare in pairs]
        bare = statistics.median(pair[1] for pair in pairs)
        ratio = statistics.median(ratios)
        found: dict[str, Any] = {
            "slowdown": ratio,
            "ratios": ratios,
            "plain_seconds_a_step": bare,
            "block": n_steps,
        }
        if not is_peer:
            found |= recorded(contender, name)
        contender.watcher.close()
        result.add(name, found)
        tell(result, name, found, rate, counts)
        del contender
        if device.is_cuda:
            torch.cuda.empty_cache()


def block_of(name: str, small: bool) -> int:
    """Steps between two looks at the clock."""
    if name == "raw weights":
        return 4 if small else RAW_BLOCK
    return BLOCK if name in {"rows", "every row"} else PEER_BLOCK


def alternate(
    plain: Contender,
    watched: Contender,
    n_steps: int,
    until: float,
    least: int,
    most: int,
) -> list[tuple[float, float]]:
    """Seconds per step of both, in turn and in either order."""
    pairs = []
    for number in range(most):
        if number % 2:
            bare = plain.block(n_steps)
            pairs.append((watched.block(n_steps), bare))
        else:
            slow = watched.block(n_steps)
            pairs.append((slow, plain.block(n_steps)))
        if number + 1 >= least and time.monotonic() > until:
            break
    return pairs


def recorded(contender: Contender, name: str) -> dict[str, Any]:
    """What the run holds; that nothing was lost, and that the answers are right."""
    hook: Any = contender.watcher.hook
    norms = last_step(contender.training)
    hook.flush(timeout=60.0)
    counters = hook.counters()
    check(counters["internal_errors"] == 0, f"{name}: errors of tdbg")
    check(counters["dropped"] == 0, f"{name}: {counters['dropped']} records dropped")
    (writer,) = writer_directories(contender.path)
    reader = _core.RunReader(str(writer.path))
    check(reader.problems() == [], f"{name}: the run is damaged")
    n_steps = contender.training.n_steps
    check(len(reader.steps()) >= 1, f"{name}: no step")
    rows = reader.rows()
    names = {each.id: each for each in reader.definitions()}
    last = rows[rows["step"] == n_steps - 1]
    if name == "raw weights":
        n_parameters = len(dict(contender.training.model.named_parameters()))
        check(len(reader.tensors()) >= n_parameters, f"{name}: values are missing")
    else:
        found = {names[int(row["definition"])].name: float(row["l2"]) for row in last}
        for key, norm in norms.items():
            off = abs(found.get(key, -1.0) - norm)
            check(off <= 1e-6 * norm, f"{name}: l2 of {key}: {found.get(key)}, {norm}")
    read = sum(
        int(row["count"]) * names[int(row["definition"])].item_size for row in last
    )
    return {
        "bytes_read_a_step": read,
        "stored_bytes": counters["written_bytes"],
        "file_bytes": counters["file_bytes"],
        "device_state": hook.device_state(),
    }


def last_step(training: Training) -> dict[str, float]:
    """One more step; the norms of the weights and gradients that it used."""
    norms = {}

    def look(*_: Any) -> None:
        for name, parameter in training.model.named_parameters():
            norms[name] = float(parameter.detach().double().norm())
            if parameter.grad is not None:
                norms[f"gradient/{name}"] = float(parameter.grad.double().norm())

    handle = training.optimizer.register_step_pre_hook(look)
    training.step()
    handle.remove()
    return norms


def tell(
    result: Result, name: str, found: dict[str, Any], rate: float, counts: bool
) -> None:
    """The lines of the table."""
    ratio, bare = found["slowdown"], found["plain_seconds_a_step"]
    text = f"{ratio:.3f} ({1e3 * bare:.1f} ms a step plain)"
    if name == "rows":
        result.line(
            "slowdown, rows of weights and gradients at every step",
            text,
            f"at most {TARGET_ROWS}",
            ratio <= TARGET_ROWS if counts else None,
        )
    elif name == "every row":
        excess = (ratio - 1) * bare / (found["bytes_read_a_step"] / rate)
        result.add("excess_over_reading", excess)
        result.line(
            "slowdown, rows of activations too",
            f"{text}, excess {excess:.2f} of reading "
            f"{found['bytes_read_a_step'] / 1e9:.2f} GB",
            f"excess at most {TARGET_EXCESS}",
            excess <= TARGET_EXCESS if counts else None,
        )
    elif name == "raw weights":
        result.line(
            "slowdown, raw weights every 100 steps",
            f"{text}, {found['stored_bytes'] / 1e9:.2f} GB stored",
            f"at most {TARGET_RAW}",
            ratio <= TARGET_RAW if counts else None,
        )
    else:
        result.line(f"slowdown, {name} at every step", text)


if __name__ == "__main__":
    main()
