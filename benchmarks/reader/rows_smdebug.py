"""Growth with the number of rows, of smdebug: opening a run that holds only losses.

    python -m benchmarks.reader.rows_smdebug [--quick]

A loss at each of 100, 1,000 and 10,000 steps (with ``--quick``: to 1,000): the least
that smdebug keeps of a training.  The last value is checked.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from smdebug.pytorch import Hook, SaveConfig
from smdebug.trials import create_trial

from benchmarks._harness import Curves, Report, Table, check_equal, interleave, options
from benchmarks._harness.intervals import median_interval

ENVIRONMENT = "smdebug"
STEPS = (100, 1000, 10_000)
LOSS = "CrossEntropyLoss_output_0"


def build(path: Path, n_steps: int) -> float:
    """A training of one layer; returns its last loss."""
    torch.manual_seed(1)
    model, criterion = torch.nn.Linear(4, 4), torch.nn.CrossEntropyLoss()
    hook = Hook(out_dir=str(path), save_config=SaveConfig(save_interval=1))
    hook.register_module(model)
    hook.register_loss(criterion)
    inputs, targets = torch.randn(8, 4), torch.randint(4, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    hook.close()
    return float(loss.detach())


def main() -> None:
    given = options(__doc__).parse_args()
    torch.set_num_threads(1)
    table = Table("Growth with the number of rows", ("rows, what", "ms", "95 %"))
    curves = Curves(
        "growth_rows", table.title, "rows of a run", "ms", log_x=True, log_y=True
    )
    data = {}
    for n_steps in STEPS[:-1] if given.quick else STEPS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            last = build(path, n_steps)

            def value(path: Path = path, n_steps: int = n_steps) -> float:
                return float(create_trial(str(path)).tensor(LOSS).value(n_steps - 1))

            check_equal(value(), last, "loss of the last step")
            samples = interleave(
                {
                    "open": lambda path=path: create_trial(str(path)),
                    "open, loss of the last step": value,
                },
                baseline="open",
                rounds=given.rounds or 6,
                warmup=0,
                seed=given.seed,
            )
        data[n_steps] = samples.to_json()
        for name in ("open", "open, loss of the last step"):
            low, high = (1e3 * x for x in median_interval(samples.seconds[name]))
            ms = 1e3 * samples.seconds_of(name)
            label = f"{n_steps:,}, smdebug {name}"
            table.add(label, f"{ms:.3g}", f"{low:.3g}-{high:.3g}")
            curves.add(f"smdebug: {name}", n_steps, ms, low, high)
    found = {"tables": [table], "plots": [curves], "data": data}
    names = ("numpy", "torch", "smdebug")
    Report("reader/rows_smdebug", given, names, **found).save()


if __name__ == "__main__":
    main()
