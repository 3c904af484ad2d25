"""What the run of ``_run.py`` holds: its tensors, its steps, and what is wrong with it.

Something for every default rule to judge, and for each but two a fault of its own in a
known tensor from a known step on: StalledTraining goes by the clock, and RepeatedData
asks for labels that stay the same, which would leave nothing to rules of classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdbg.config import Role
from tdbg.run.loss_facts import LossFact, LossFault, UntrainedParameter
from tdbg.run.model_info import ModelInfo, ParameterFacts

__all__ = ["EMBEDDING", "N_ELEMENTS", "N_FEATURES", "N_ROWS", "SHAPE", "Fault", "Plan"]

SHAPE = 4, 4
N_ELEMENTS = 16
# Of every hundred tensors, in the order of execution.
N_LAYERS, N_BIASES = 23, 4
N_FEATURES = 20
# Rows of the embedding.
N_ROWS = 100
EMBEDDING = "emb"
# Passes of evaluation in the whole run, and steps of each.
N_PASSES, PASS_STEPS = 20, 5
# In these float16 layers updates are rounded away.
HALF_LAYERS = (10,)
NOT_IN_OPTIMIZER = 7


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong.

    Attributes:
        since: Step of training from which on it is.
        within: Steps of training within which it must be found.
    """

    since: int
    within: int = 100


class Plan:
    """A run of a size.

    Args:
        n_tensors: Weights, biases, outputs, gradients and updates together.
        n_steps: Steps of training; a tenth of it more are of evaluation.

    Attributes:
        n_layers: Layers with a weight.
        layers: Their paths.
        outputs: The output of each: of itself, or of the activation behind it.
    """

    def __init__(self, n_tensors: int, n_steps: int) -> None:
        self.n_steps = n_steps
        self.n_layers = N_LAYERS * n_tensors // 100
        self.n_biases = N_BIASES * n_tensors // 100
        self.layers = [f"layer{i:03}" for i in range(self.n_layers)]
        self.outputs = [
            f"{layer}.act_output_0" if i % 2 == 0 else f"{layer}_output_0"
            for i, layer in enumerate(self.layers)
        ]
        self._between = max(1, n_steps // N_PASSES)

    def global_step(self, step: int) -> int:
        """The number that a step of training has among all."""
        return step + PASS_STEPS * (step // self._between)

    def ends_pass(self, step: int) -> bool:
        """Whether a pass of evaluation follows this step of training."""
        return (step + 1) % self._between == 0

    def activation(self, i: int) -> str | None:
        """Class of the activation behind a layer."""
        return {0: "ReLU", 2: "Tanh"}.get(i % 4)

    def tensors(self) -> list[tuple[str, Role, np.dtype[np.generic]]]:
        """Name, role and type of all that has a row at every step of training."""
        single, half = np.dtype(np.float32), np.dtype(np.float16)
        types = [half if i in HALF_LAYERS else single for i in range(self.n_layers)]
        weights = [f"{layer}.weight" for layer in self.layers]
        found = list(zip(weights, [Role.WEIGHT] * self.n_layers, types, strict=True))
        found += [
            (f"{layer}.bias", Role.BIAS, single)
            for layer in self.layers[: self.n_biases]
        ]
        found += [("gradient/" + name, Role.GRADIENT, t) for name, _, t in found]
        found += [
            ("update/" + name, Role.UPDATE, t) for name, _, t in found[: self.n_layers]
        ]
        found += [
            (name, Role.OUTPUT, t) for name, t in zip(self.outputs, types, strict=True)
        ]
        return found

    def at(self, share: float) -> int:
        """The step of training at this share of the run."""
        return int(share * self.n_steps)

    def faults(self) -> dict[tuple[str, str], Fault]:
        """What is wrong with it, by rule and tensor."""
        at = self.at
        middle = self.n_layers // 2 | 1
        entropy = "CrossEntropyLoss"
        a_tenth = self.n_steps // 10
        later = max(100, 2 * a_tenth)
        return {
            ("AllZero", self.outputs[5]): Fault(at(0.3)),
            ("ClassImbalance", f"{entropy}_input_1"): Fault(0, later),
            ("Confusion", f"{entropy}_input_1"): Fault(0, later),
            ("DeadEmbedding", f"gradient/{EMBEDDING}.weight"): Fault(at(0.4), later),
            ("DeadRelu", self.outputs[4]): Fault(at(0.25)),
            ("DropoutInEvaluation", "Model_output_0"): Fault(0, a_tenth),
            ("ExplodingGradient", f"gradient/{self.layers[20]}.weight"): Fault(at(0.8)),
            ("ExplodingTensor", self.outputs[middle]): Fault(at(0.7)),
            ("FeatureImportance", "feature_importance/weight"): Fault(at(0.5)),
            ("GradientsNotCleared", "Model_output_0"): Fault(0),
            ("LossMisuse", f"{entropy}_output_0"): Fault(0),
            ("LossNotDecreasing", f"{entropy}_output_0"): Fault(0, 400),
            ("LossSpike", "MSELoss_output_0"): Fault(at(0.45)),
            ("MissingGradient", "gradient/unused.weight"): Fault(0),
            ("NLPSequenceRatio", f"{EMBEDDING}_input_0"): Fault(at(0.3)),
            (
                "NotInOptimizer",
                f"gradient/{self.layers[NOT_IN_OPTIMIZER]}.weight",
            ): Fault(0),
            ("NotNormalizedData", "Model_input_0"): Fault(at(0.15)),
            ("Overfit", "SmoothL1Loss_output_0"): Fault(at(0.4), 4 * a_tenth),
            ("Overtraining", "SmoothL1Loss_output_0"): Fault(at(0.4), 6 * a_tenth),
            ("PoorWeightInitialization", f"{self.layers[2]}.weight"): Fault(0),
            ("PrecisionLoss", f"{self.layers[HALF_LAYERS[0]]}.weight"): Fault(at(0.35)),
            ("SaturatedActivation", self.outputs[6]): Fault(at(0.25)),
            ("StoppedOptimizer", "Model_output_0"): Fault(0),
            ("TensorVariance", self.outputs[9]): Fault(at(0.65)),
            ("TrainedInEvalMode", "Model_output_0"): Fault(0),
            ("TreeDepth", "trees/Node"): Fault(at(0.6)),
            ("Underfitting", f"{entropy}_output_0"): Fault(0, 400),
            ("UnchangedTensor", f"{self.layers[-1]}.weight"): Fault(at(0.5)),
            # What is rounded away does not change.
            ("UnchangedTensor", f"{self.layers[HALF_LAYERS[0]]}.weight"): Fault(
                at(0.35)
            ),
            ("UnregisteredParameter", "Model_output_0"): Fault(0),
            ("UnshuffledData", "NLLLoss_input_1"): Fault(0),
            ("VanishingGradient", f"gradient/{self.layers[3]}.weight"): Fault(at(0.2)),
            ("VanishingLearningRate", "scalar/optimizer/1/lr"): Fault(0),
            ("WeightUpdateRatio", f"{self.layers[15]}.weight"): Fault(at(0.55)),
            ("ZeroLearningRate", "scalar/optimizer/0/lr"): Fault(at(0.9)),
        }

    def model_info(self) -> ModelInfo:
        """What is known of its model."""
        modules = {"Model": "Model", EMBEDDING: "Embedding"}
        parameters = {
            f"{EMBEDDING}.weight": _parameter((N_ROWS, 4), "Embedding"),
            "unused.weight": _parameter(SHAPE, "Linear"),
        }
        modules["unused"] = "Linear"
        for i, layer in enumerate(self.layers):
            modules[layer] = "Linear"
            kind = self.activation(i)
            if kind is not None:
                modules[f"{layer}.act"] = kind
            parameters[f"{layer}.weight"] = _parameter(
                SHAPE, "Linear", None if i == NOT_IN_OPTIMIZER else 0
            )
            if i < self.n_biases:
                parameters[f"{layer}.bias"] = _parameter((N_ELEMENTS,), "Linear")
        return ModelInfo(
            step=0,
            models=("Model",),
            losses=("CrossEntropyLoss", "MSELoss", "NLLLoss", "SmoothL1Loss"),
            optimizers=("Adam",),
            modules=modules,
            parameters=parameters,
            complete=True,
            evaluating=(EMBEDDING,),
            dropping=("Model",),
            keeps_gradients=True,
            has_stopped=True,
            loss_facts=(LossFact(LossFault.SOFTMAX_TWICE, "nll_loss", ((64, 10),)),),
            untrained=(UntrainedParameter("Model.layers[0].weight", SHAPE, True),),
        )


def _parameter(
    shape: tuple[int, ...], module: str, optimizer: int | None = 0
) -> ParameterFacts:
    return ParameterFacts(
        shape=shape,
        dtype="float32",
        requires_grad=True,
        module=module,
        optimizer=optimizer,
    )
