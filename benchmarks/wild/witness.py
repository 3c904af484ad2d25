"""Runs a program as ``python program.py`` does, and tells what its training has made.

    python witness.py OUT.json program.py

OUT.json then has a digest of all parameters and buffers, in the order in which they
were made, the number of parameters that were trained, and that of optimizer steps.
What it uses of PyTorch is public and changes no number; it keeps weights from being
freed, which is why results are also compared with those of the program by itself.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module
from torch.optim import optimizer


def main() -> None:
    """Run the program and write the file."""
    out, program = map(Path, sys.argv[1:3])
    made: dict[int, torch.Tensor] = {}
    trained: dict[int, torch.Tensor] = {}
    steps: Counter[int] = Counter()
    kept: list[Any] = []  # An address is nobody else's while its owner lives.

    def keep(_module: Any, _name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            made.setdefault(id(tensor), tensor)

    def stepped(one: Any, _args: Any, _kwargs: Any) -> None:
        kept.append(one)
        steps[id(one)] += 1
        for group in one.param_groups:
            for tensor in group["params"]:
                made.setdefault(id(tensor), tensor)
                if tensor.grad is not None:
                    trained.setdefault(id(tensor), tensor)

    module.register_module_parameter_registration_hook(keep)
    module.register_module_buffer_registration_hook(keep)
    optimizer.register_optimizer_step_pre_hook(stepped)
    sys.argv, sys.path[0] = [str(program)], str(program.parent)
    names = runpy.run_path(str(program), run_name="__main__")

    for value in names.values():
        if isinstance(value, torch.Tensor):
            made.setdefault(id(value), value)
    if not steps:  # Of a hand-written update.
        trained = {key: each for key, each in made.items() if _has_gradient(each)}
    digest = hashlib.sha256()
    for tensor in made.values():
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        flat = tensor.detach().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    told = {
        "weights": digest.hexdigest(),
        "n_weights": len(made),
        "n_trained": len(trained),
        "n_steps": max(steps.values(), default=0),
    }
    out.write_text(json.dumps(told), encoding="utf-8")


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is not None


if __name__ == "__main__":
    main()
