"""What is known of a model in JAX, as its steps are traced and called.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from tdbg.capture.model_info import ModelMarks
from tdbg.config.kinds import Kind
from tdbg.hooks.jax.arguments import Arguments
from tdbg.hooks.jax.chains import faults_of_chain
from tdbg.hooks.jax.kinds import kind_of_name
from tdbg.hooks.jax.program_faults import loss_facts_of
from tdbg.hooks.jax.programs import Value
from tdbg.run.loss_facts import LossFact
from tdbg.run.model_info import ModelInfo, ParameterFacts
from tdbg.run.observations import Observation

__all__ = ["ModelFacts"]


class ModelFacts:
    """Gathers what is known of a model, for ``ModelInfoWriter``.

    Args:
        observe: Receives what is seen of the optimizer; None: nobody does.

    Attributes:
        modules: The class of each module by its path, and of each function by that of
            its output.
    """

    def __init__(self, observe: Callable[[Observation], None] | None = None) -> None:
        self._observe = observe
        # The names of faults of optimizers that were seen.
        self._faults: set[str] = set()
        self.modules: dict[str, str] = {}
        self._kinds: dict[str, Kind] = {}
        self._models: dict[str, None] = {}
        self._losses: dict[str, Kind | None] = {}
        self._optimizers: tuple[str, ...] = ()
        self._parameters: dict[str, ParameterFacts] = {}
        self._trained: set[str] = set()
        self._frozen: set[str] = set()
        self._loss_facts: tuple[LossFact, ...] = ()
        self._n_changes = 0

    def add_model(self, name: str) -> None:
        """Add the class of a model."""
        self._models[name] = None
        self._n_changes += 1

    def add_loss(self, name: str, kind: Kind | None) -> None:
        """Add a loss, by what the name of its value begins with."""
        self._losses[name] = kind
        self._n_changes += 1

    def add_program(
        self, loss: Value, parameters: Collection[int], leaves: Sequence[Any]
    ) -> None:
        """Add what the program of a step shows to be wrong with its loss.

        Args:
            loss: The loss.
            parameters: Places of the parameters among the arguments.
            leaves: The arguments.
        """
        facts = loss_facts_of(loss, parameters, leaves)
        new = [each for each in facts if each not in self._loss_facts]
        self._loss_facts += tuple(new)
        self._n_changes += len(new)

    def add_module(
        self, path: str, name: str, kind: Kind | None, bases: Collection[str] = ()
    ) -> frozenset[str]:
        """Add a module, or a function that a module calls.

        Args:
            path: Where it is in the model.
            name: Of its class.
            kind: Its kind.
            bases: Names of the base classes.

        Returns:
            The names and the kind that needs of rules may ask for.
        """
        if self.modules.get(path) != name:
            self.modules[path] = name
            self._n_changes += 1
        if kind is not None and name not in self._kinds:
            self._kinds[name] = kind
        return frozenset({name, *bases, *(() if kind is None else (kind.value,))})

    def classes_of(self, path: str, kind: str) -> frozenset[str]:
        """Add what the user says to be of a kind; return what needs may ask for."""
        return self.add_module(path, kind, kind_of_name(kind))

    def add_chain(self, transformation: Any) -> None:
        """Look at the order of an optimizer's transformations; tell each fault once."""
        if self._observe is None:
            return
        for each in faults_of_chain(transformation):
            if each.fault not in self._faults:
                self._faults.add(each.fault)
                self._observe(each)

    def add_trained(self, name: str) -> None:
        """Add a parameter of which an optimizer is given a gradient."""
        if name not in self._trained or name in self._frozen:
            self._trained.add(name)
            self._frozen.discard(name)
            self._n_changes += 1

    def add_frozen(self, name: str) -> None:
        """Add a parameter whose updates an optimizer sets to zero, on purpose."""
        if name not in self._frozen:
            self._frozen.add(name)
            self._n_changes += 1

    def add_arguments(self, found: Arguments) -> None:
        """Add the parameters and optimizers that a step was called with."""
        if found.optimizers and found.optimizers != self._optimizers:
            self._optimizers = found.optimizers
            self._n_changes += 1
        for name, array, is_buffer in found.parameters:
            if not is_buffer and name not in self._parameters:
                self._parameters[name] = ParameterFacts(
                    shape=tuple(array.shape),
                    dtype=array.dtype.name,
                    requires_grad=True,
                    module="",
                )
                self._n_changes += 1

    # ---- for ModelInfoWriter -----------------------------------------------------

    def marks(self) -> ModelMarks:
        """Count the facts, so that a change shows."""
        return ModelMarks(len(self._parameters), (self._n_changes,))

    def model_info(
        self, step: int, trained_in_evaluation: Collection[Hashable]
    ) -> ModelInfo:
        """Describe the model."""
        del trained_in_evaluation
        kinds = dict(self._kinds)
        kinds.update({n: kind for n, kind in self._losses.items() if kind is not None})
        return ModelInfo(
            step=step,
            models=tuple(self._models),
            losses=tuple(self._losses),
            optimizers=self._optimizers or ("optimizer",),
            modules=dict(self.modules),
            kinds=kinds,
            parameters={
                name: self._complete(name, facts)
                for name, facts in self._parameters.items()
            },
            complete=bool(self._trained),
            loss_facts=self._loss_facts,
        )

    def _complete(self, name: str, facts: ParameterFacts) -> ParameterFacts:
        path = name.rpartition("/")[0]
        is_trained = name in self._trained and name not in self._frozen
        return ParameterFacts(
            shape=facts.shape,
            dtype=facts.dtype,
            requires_grad=is_trained or not self._trained,
            module=self.modules.get(path, ""),
            optimizer=0 if is_trained else None,
            # XLA leaves out a gradient that an optimizer gets and drops.
            has_gradient=True if is_trained else None,
        )
