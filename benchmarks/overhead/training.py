"""A training that advances step by step, always in the same way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.overhead.models import recipe

__all__ = ["Snapshot", "Training"]

N_BATCHES = 8  # Used in turn: making data is no part of a step.


@dataclass
class Snapshot:
    """What a contender must have seen at a step, as NumPy arrays by name."""

    step: int
    loss: float = 0.0
    #: As the forward used them, and as the optimizer left them.
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    #: Of modules, by path.
    outputs: dict[str, Any] = field(default_factory=dict)


class Training:
    """A model, its data and its optimizer, seeded.

    Two trainings of the same model compute the same losses, bit for bit.

    Attributes:
        model: The module that is trained.
        criterion: Its loss, a module.
        optimizer: Of all parameters.
        n_steps: How many are done.
    """

    def __init__(self, model_name: str, device: str = "cpu") -> None:
        how = recipe(model_name)
        torch.manual_seed(1)
        self.model = how.make().to(device).train()
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = how.optimizer(list(self.model.parameters()))
        dice = torch.Generator().manual_seed(2)
        batches = (how.batch(dice) for _ in range(N_BATCHES))
        self._batches = [(x.to(device), y.to(device)) for x, y in batches]
        self.n_steps = 0

    def step(self) -> float:
        """Do one step; returns its loss."""
        inputs, targets = self._batches[self.n_steps % N_BATCHES]
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.n_steps += 1
        return float(loss.detach())

    def step_with_snapshot(self) -> Snapshot:
        """The same, keeping some of the step's tensors."""
        parameters = dict(self.model.named_parameters())
        names = list(parameters)
        chosen = {names[0], names[len(names) // 2], names[-1]}
        leaves = [k for k, v in self.model.named_modules() if not list(v.children())]
        path = leaves[-1]
        snapshot = Snapshot(self.n_steps)

        def keep(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            snapshot.outputs[path] = array(output)

        handle = self.model.get_submodule(path).register_forward_hook(keep)
        snapshot.before = {name: array(parameters[name]) for name in chosen}
        snapshot.loss = self.step()
        handle.remove()
        snapshot.after = {name: array(parameters[name]) for name in chosen}
        for name in chosen:
            gradient = parameters[name].grad
            snapshot.gradients[name] = None if gradient is None else array(gradient)
        return snapshot

    def distinct_bytes(self) -> int:
        """Bytes of everything that a capture of everything must read in a step.

        Parameters, gradients, and all inputs and outputs of modules; memory that is
        seen twice without a change in between counts once.  Does a step.
        """
        seen: dict[tuple[int, int], torch.Tensor] = {}

        def look(_module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in (*inputs, output):
                if isinstance(tensor, torch.Tensor):
                    # Alive as long as it is a value here: no address comes twice.
                    seen[tensor.data_ptr(), tensor._version] = tensor.detach()

        modules = [*self.model.modules(), self.criterion]
        handles = [module.register_forward_hook(look) for module in modules]
        self.step()
        for handle in handles:
            handle.remove()
        parameters = list(self.model.parameters())
        held = parameters + [p.grad for p in parameters if p.grad is not None]
        return sum(tensor.nbytes for tensor in (*seen.values(), *held))


def array(tensor: torch.Tensor) -> Any:
    return tensor.detach().clone().cpu().numpy()
