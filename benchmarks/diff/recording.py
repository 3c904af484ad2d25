"""What it costs to record two trainings so that they can be compared, and who is named.

    python -m benchmarks.diff.recording [--quick]

A small transformer trains on one thread.  Beside tdbg: PyTorch's DebugMode with hashes
of every operator's outputs; forward hooks that keep every module's output, as one
writes them by hand; and a dump of outputs, gradients and parameters into one file a
step, as scripts for Megatron make them.  Then each compares a healthy training with
three faulty ones, and with one that rounds otherwise, which it should not accuse.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._debug_mode import DebugMode

import tdbg
import tdbg.pytorch as td
from benchmarks._harness import (
    Measured,
    Report,
    Table,
    check,
    check_equal,
    interleave,
    options,
)
from examples.where_runs_part.__main__ import FAULTS, LENGTH, TOKENS, Model

PLAIN = "not recorded (baseline)"
TDBG, ROWS = "tdbg, values", "tdbg, statistics"
HASHES, HOOKS, DUMP = "DebugMode, hashes", "hooks by hand", "dump of a step"
NOBODY = "no difference"


class InHalves(nn.Linear):
    """The same layer, after somebody has split its sums in two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.in_features // 2
        one = nn.functional.linear(x[..., :half], self.weight[:, :half], self.bias)
        return one + nn.functional.linear(x[..., half:], self.weight[:, half:])


def refactored() -> Model:
    """The same model, which rounds otherwise."""
    model = Model()
    for block in (model.first, model.second):
        block.narrow.__class__ = InHalves
    return model


class Training:
    """A training of the example's model, a step at a time."""

    def __init__(self, make: Callable[[], Model], batch: int) -> None:
        torch.manual_seed(0)
        self.model, self.criterion = make(), nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._generator = torch.Generator().manual_seed(1)
        self._batch = batch

    def step(self) -> None:
        """Make one step."""
        shape = (self._batch, LENGTH)
        x = torch.randint(0, TOKENS, shape, generator=self._generator)
        self.optimizer.zero_grad()
        logits = self.model(x)[:, :-1].flatten(0, 1)
        self.criterion(logits, x[:, 1:].flatten()).backward()
        self.optimizer.step()


class Recorder:
    """Records nothing; what others derive from.

    ``found`` is what it has of the last step, by name or in order.
    """

    def __init__(self, training: Training, out: Path) -> None:
        self.training, self.out = training, out
        self.found: Any = None

    def step(self) -> None:
        """Make one step and record it."""
        self.training.step()

    def close(self) -> None:
        """Write what is left."""


class ByTdbg(Recorder):
    """Everything, with values at every step."""

    values = True

    def __init__(self, training: Training, out: Path) -> None:
        super().__init__(training, out)
        self._hook = td.Hook(
            out,
            include_collections=["all"],
            save_config=td.SaveConfig(save_interval=1, statistics_interval=1),
            reduction_config=td.ReductionConfig(save_raw_tensor=self.values),
        )
        self._hook.register_module(training.model)
        self._hook.register_loss(training.criterion)

    def close(self) -> None:
        self._hook.close()


class ByRows(ByTdbg):
    values = False


class ByHashes(Recorder):
    """A hash of every output of every operator, forward and backward."""

    def step(self) -> None:
        with DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes():
            self.training.step()
        self.found = mode.logs


class ByHooks(Recorder):
    """A copy of the output of every module."""

    def __init__(self, training: Training, out: Path) -> None:
        super().__init__(training, out)
        self.found = {}
        for name, module in training.model.named_modules():
            if name and not any(module.children()):
                module.register_forward_hook(self._keeping(name))

    def _keeping(self, name: str) -> Callable[[Any, Any, torch.Tensor], None]:
        def keep(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            self.found[name] = output.detach().clone()

        return keep


class ByDump(ByHooks):
    """Outputs, gradients and parameters of a step in one file."""

    def step(self) -> None:
        super().step()
        named = dict(self.training.model.named_parameters())
        gradients = {f"{name}.grad": each.grad for name, each in named.items()}
        torch.save(self.found | gradients | named, self.out.with_suffix(".pt"))


RECORDERS: dict[str, type[Recorder]] = {
    PLAIN: Recorder,
    TDBG: ByTdbg,
    ROWS: ByRows,
    HASHES: ByHashes,
    HOOKS: ByHooks,
    DUMP: ByDump,
}


@contextmanager
def recording(name: str, make: Callable[[], Model], batch: int) -> Iterator[Recorder]:
    """Yield a recorder of a new training."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = RECORDERS[name](Training(make, batch), Path(folder) / "run")
        yield recorder
        recorder.close()


def measure(batch: int, steps: int, rounds: int, seed: int | None) -> Any:
    """Time some steps under each recorder."""

    def contender(name: str) -> Callable[[], Measured]:
        def run() -> Measured:
            with recording(name, Model, batch) as recorder:
                recorder.step()
                started = time.perf_counter()
                for _ in range(steps):
                    recorder.step()
                seconds = time.perf_counter() - started
                answer = float(recorder.training.model.head.weight.sum())
            return Measured(seconds, answer)

        return run

    def verify(answers: Any) -> None:
        for name, answer in answers.items():
            check_equal(answer, answers[PLAIN], f"the weights after training: {name}")

    contenders = {name: contender(name) for name in RECORDERS}
    return interleave(
        contenders, baseline=PLAIN, rounds=rounds, seed=seed, verify=verify
    )


def named(name: str, other: Callable[[], Model], batch: int) -> str:
    """Say at which module a recorder sees the healthy training and another part."""
    with recording(name, Model, batch) as one, recording(name, other, batch) as two:
        for recorder in (one, two):
            recorder.step()
            recorder.close()
        if isinstance(one, ByTdbg):
            first = tdbg.diff(one.out, two.out).first
            return NOBODY if first is None else first.module
        if isinstance(one, ByHashes):
            return _of_hashes(one.found, two.found)
        return _of_outputs(one.found, two.found)


def _of_outputs(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> str:
    for name, output in one.items():
        if not torch.allclose(output, other[name]):
            return name
    return NOBODY


def _of_hashes(one: list[Any], other: list[Any]) -> str:
    """The module around the first operator that, or whose hash, is another one.

    ``DebugMode.check_hash_mismatches`` knows no modules, and refuses other operators.
    """
    modules: list[tuple[int, str]] = []
    for a, b in zip(one, other, strict=False):
        modules = [each for each in modules if each[0] < a.call_depth]
        if hasattr(a, "tag"):
            modules.append((a.call_depth, a.tag))
        elif _said(a) != _said(b):
            return modules[-1][1] if modules else "an operator"
    return NOBODY


def _said(call: Any) -> tuple[str, Any]:
    return str(getattr(call, "op", "")), (call.log or {}).get("hash")


def main() -> None:
    given = options(__doc__).parse_args()
    torch.set_num_threads(1)
    batch, steps = (16, 2) if given.quick else (64, 10)
    rounds = given.rounds or (3 if given.quick else 20)
    samples = measure(batch, steps, rounds, given.seed)
    costs = Table("Cost of recording every step", ("recorder", "time of a step"))
    for name in RECORDERS:
        if name != PLAIN:
            costs.add(name, samples.text(name))
    others = {"healthy, rounds otherwise": refactored} | {
        fault.what: fault.make for fault in FAULTS.values()
    }
    culprits = Table("What is named", ("fault", "by", "named", "right"))
    for what, make in others.items():
        right = next((f.module for f in FAULTS.values() if f.what == what), NOBODY)
        for name in RECORDERS:
            if name != PLAIN:
                said = named(name, make, batch)
                culprits.add(what, name, said, "yes" if said.endswith(right) else "no")
                is_ours = name == TDBG
                check(not is_ours or said == right, f"tdbg names {right}, not {said}")
    data = {"samples": samples.to_json(), "batch": batch, "steps": steps}
    Report(
        "diff/recording", given, ("torch", "tdbg"), [costs, culprits], [], data
    ).save()


if __name__ == "__main__":
    main()
