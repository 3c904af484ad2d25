# The built-in rules, one line for each, by name.  Type checkers read this list, and so
# does catalog.py, for `tdbg.rules` to import the module of a rule on first use.
from __future__ import annotations

from tdbg.rules.builtin.activations.dead_embedding import DeadEmbedding as DeadEmbedding
from tdbg.rules.builtin.activations.dead_relu import DeadRelu as DeadRelu
from tdbg.rules.builtin.activations.saturated import (
    SaturatedActivation as SaturatedActivation,
)
from tdbg.rules.builtin.data.class_imbalance import ClassImbalance as ClassImbalance
from tdbg.rules.builtin.data.confusion import Confusion as Confusion
from tdbg.rules.builtin.data.data_leakage import DataLeakage as DataLeakage
from tdbg.rules.builtin.data.input_skew import InputSkew as InputSkew
from tdbg.rules.builtin.data.label_misuse import LabelMisuse as LabelMisuse
from tdbg.rules.builtin.data.label_shift import LabelShift as LabelShift
from tdbg.rules.builtin.data.loader_misuse import LoaderMisuse as LoaderMisuse
from tdbg.rules.builtin.data.nlp_sequence_ratio import (
    NLPSequenceRatio as NLPSequenceRatio,
)
from tdbg.rules.builtin.data.not_normalized import (
    NotNormalizedData as NotNormalizedData,
)
from tdbg.rules.builtin.data.redrawn_evaluation import (
    RedrawnEvaluation as RedrawnEvaluation,
)
from tdbg.rules.builtin.data.repeated import RepeatedData as RepeatedData
from tdbg.rules.builtin.data.repeated_order import RepeatedOrder as RepeatedOrder
from tdbg.rules.builtin.data.repeated_randomness import (
    RepeatedRandomness as RepeatedRandomness,
)
from tdbg.rules.builtin.data.sample_coverage import SampleCoverage as SampleCoverage
from tdbg.rules.builtin.data.sample_pairing import SamplePairing as SamplePairing
from tdbg.rules.builtin.data.unshuffled import UnshuffledData as UnshuffledData
from tdbg.rules.builtin.gradients.accumulation import (
    AccumulationMisuse as AccumulationMisuse,
)
from tdbg.rules.builtin.gradients.clipping import ClippingMisuse as ClippingMisuse
from tdbg.rules.builtin.gradients.exploding import (
    ExplodingGradient as ExplodingGradient,
)
from tdbg.rules.builtin.gradients.not_cleared import (
    GradientsNotCleared as GradientsNotCleared,
)
from tdbg.rules.builtin.gradients.precision import PrecisionLoss as PrecisionLoss
from tdbg.rules.builtin.gradients.vanishing import (
    VanishingGradient as VanishingGradient,
)
from tdbg.rules.builtin.loss.metric_misuse import MetricMisuse as MetricMisuse
from tdbg.rules.builtin.loss.misuse import LossMisuse as LossMisuse
from tdbg.rules.builtin.loss.not_decreasing import (
    LossNotDecreasing as LossNotDecreasing,
)
from tdbg.rules.builtin.loss.overfit import Overfit as Overfit
from tdbg.rules.builtin.loss.overtraining import Overtraining as Overtraining
from tdbg.rules.builtin.loss.spike import LossSpike as LossSpike
from tdbg.rules.builtin.loss.term_misuse import LossTermMisuse as LossTermMisuse
from tdbg.rules.builtin.loss.underfitting import Underfitting as Underfitting
from tdbg.rules.builtin.runs.broken_invariant import BrokenInvariant as BrokenInvariant
from tdbg.rules.builtin.runs.learnt import LearntInvariants as LearntInvariants
from tdbg.rules.builtin.runs.similar_across_runs import (
    SimilarAcrossRuns as SimilarAcrossRuns,
)
from tdbg.rules.builtin.runs.stalled import StalledTraining as StalledTraining
from tdbg.rules.builtin.tensors.all_zero import AllZero as AllZero
from tdbg.rules.builtin.tensors.exploding import ExplodingTensor as ExplodingTensor
from tdbg.rules.builtin.tensors.limits import Above as Above
from tdbg.rules.builtin.tensors.limits import Below as Below
from tdbg.rules.builtin.tensors.limits import Outside as Outside
from tdbg.rules.builtin.tensors.unchanged import UnchangedTensor as UnchangedTensor
from tdbg.rules.builtin.tensors.variance import TensorVariance as TensorVariance
from tdbg.rules.builtin.time.batch_size import BatchSize as BatchSize
from tdbg.rules.builtin.time.checkpoint_stall import CheckpointStall as CheckpointStall
from tdbg.rules.builtin.time.cpu_bottleneck import CPUBottleneck as CPUBottleneck
from tdbg.rules.builtin.time.cpu_contention import CpuContention as CpuContention
from tdbg.rules.builtin.time.cpu_throttled import CpuThrottled as CpuThrottled
from tdbg.rules.builtin.time.data_loader_bound import DataLoaderBound as DataLoaderBound
from tdbg.rules.builtin.time.dataloader import Dataloader as Dataloader
from tdbg.rules.builtin.time.device_throttled import DeviceThrottled as DeviceThrottled
from tdbg.rules.builtin.time.evaluation_share import EvaluationShare as EvaluationShare
from tdbg.rules.builtin.time.exposed_communication import (
    ExposedCommunication as ExposedCommunication,
)
from tdbg.rules.builtin.time.gc_pauses import GcPauses as GcPauses
from tdbg.rules.builtin.time.host_bound import HostBound as HostBound
from tdbg.rules.builtin.time.idle_between_steps import (
    IdleBetweenSteps as IdleBetweenSteps,
)
from tdbg.rules.builtin.time.io_bottleneck import IOBottleneck as IOBottleneck
from tdbg.rules.builtin.time.load_balancing import LoadBalancing as LoadBalancing
from tdbg.rules.builtin.time.low_gpu_utilization import (
    LowGPUUtilization as LowGPUUtilization,
)
from tdbg.rules.builtin.time.low_gpu_utilization import UnusedDevice as UnusedDevice
from tdbg.rules.builtin.time.max_initialization_time import (
    MaxInitializationTime as MaxInitializationTime,
)
from tdbg.rules.builtin.time.memory_leak import GPUMemoryIncrease as GPUMemoryIncrease
from tdbg.rules.builtin.time.memory_leak import MemoryLeak as MemoryLeak
from tdbg.rules.builtin.time.memory_pressure import MemoryPressure as MemoryPressure
from tdbg.rules.builtin.time.network_bound import NetworkBound as NetworkBound
from tdbg.rules.builtin.time.profiler_cost import ProfilerCost as ProfilerCost
from tdbg.rules.builtin.time.recompilation_storm import (
    RecompilationStorm as RecompilationStorm,
)
from tdbg.rules.builtin.time.step_outlier import StepOutlier as StepOutlier
from tdbg.rules.builtin.time.step_time_regression import (
    StepTimeRegression as StepTimeRegression,
)
from tdbg.rules.builtin.time.straggler import Straggler as Straggler
from tdbg.rules.builtin.time.sync_in_loop import SyncInLoop as SyncInLoop
from tdbg.rules.builtin.time.uncopied_ahead import UncopiedAhead as UncopiedAhead
from tdbg.rules.builtin.time.unused_tensor_cores import (
    UnusedTensorCores as UnusedTensorCores,
)
from tdbg.rules.builtin.time.worker_imbalance import WorkerImbalance as WorkerImbalance
from tdbg.rules.builtin.trees.feature_importance import (
    FeatureImportance as FeatureImportance,
)
from tdbg.rules.builtin.trees.tree_depth import TreeDepth as TreeDepth
from tdbg.rules.builtin.trees.tree_settings import TreeSettings as TreeSettings
from tdbg.rules.builtin.weights.batch_dependence import (
    BatchDependence as BatchDependence,
)
from tdbg.rules.builtin.weights.code_misuse import CodeMisuse as CodeMisuse
from tdbg.rules.builtin.weights.dropout_in_evaluation import (
    DropoutInEvaluation as DropoutInEvaluation,
)
from tdbg.rules.builtin.weights.eval_mode import TrainedInEvalMode as TrainedInEvalMode
from tdbg.rules.builtin.weights.initialization import (
    PoorWeightInitialization as PoorWeightInitialization,
)
from tdbg.rules.builtin.weights.mask_leak import MaskLeak as MaskLeak
from tdbg.rules.builtin.weights.missing_gradient import (
    MissingGradient as MissingGradient,
)
from tdbg.rules.builtin.weights.model_copies import ModelCopies as ModelCopies
from tdbg.rules.builtin.weights.nondeterministic_evaluation import (
    NondeterministicEvaluation as NondeterministicEvaluation,
)
from tdbg.rules.builtin.weights.not_in_optimizer import NotInOptimizer as NotInOptimizer
from tdbg.rules.builtin.weights.optimizer_misuse import (
    OptimizerMisuse as OptimizerMisuse,
)
from tdbg.rules.builtin.weights.replica_divergence import (
    ReplicaDivergence as ReplicaDivergence,
)
from tdbg.rules.builtin.weights.resumption_misuse import (
    ResumptionMisuse as ResumptionMisuse,
)
from tdbg.rules.builtin.weights.running_statistics import (
    RunningStatistics as RunningStatistics,
)
from tdbg.rules.builtin.weights.schedule_misuse import ScheduleMisuse as ScheduleMisuse
from tdbg.rules.builtin.weights.slow_schedule import SlowSchedule as SlowSchedule
from tdbg.rules.builtin.weights.stopped_optimizer import (
    StoppedOptimizer as StoppedOptimizer,
)
from tdbg.rules.builtin.weights.teacher_misuse import TeacherMisuse as TeacherMisuse
from tdbg.rules.builtin.weights.unregistered import (
    UnregisteredParameter as UnregisteredParameter,
)
from tdbg.rules.builtin.weights.update_ratio import (
    WeightUpdateRatio as WeightUpdateRatio,
)
from tdbg.rules.builtin.weights.vanishing_rate import (
    VanishingLearningRate as VanishingLearningRate,
)
from tdbg.rules.builtin.weights.weight_sharing import WeightSharing as WeightSharing
from tdbg.rules.builtin.weights.wrong_dimension import WrongDimension as WrongDimension
from tdbg.rules.builtin.weights.zero_learning_rate import (
    ZeroLearningRate as ZeroLearningRate,
)

BUILT_IN: dict[str, str]
