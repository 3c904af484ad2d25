"""Vocabulary: the names that advice needs, one value for each framework.

Rules know no framework.  A rule whose advice names a function or a setting gives
``Description.advice`` a function of a ``Vocabulary``, which is called when a finding is
made: ``lambda words: f"Lower the learning rate, or use {words.clipping}."``

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["VOCABULARIES", "Vocabulary", "vocabulary_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Names and calls of one framework, for use within sentences.

    A field whose comment says "sentence" is one, or several, with capital and period;
    one with ``{}`` is formatted with the argument that the comment names.
    """

    # Data.
    normalizing: str
    finite_check: str
    shuffling: str
    oversampling: str
    class_weights: str
    # Losses.
    logit_losses: str
    cross_entropy: str
    class_axis: str
    one_output: str  # The loss of a model with one output for two classes.
    same_shape: str  # How a row of targets comes to the shape of a column of outputs.
    # Gradients.
    clipping: str
    clipping_at: str  # The largest norm.
    loss_scaling: str
    mixed_precision: str
    detaching: str
    graph_cuts: str
    freezing: str  # A verb and its object: set trainable = False.
    thawing: str
    backward_check: str  # Sentence: why no parameter may have a gradient.
    # Optimizers, modes.
    partial_loading: str  # Sentence: what a checkpoint may leave out.
    adding_parameters: str  # Sentence: how parameters come to an optimizer.
    stepping: str
    evaluating: str  # A verb and its object.
    exempting_from_decay: str  # Verbs and their objects.
    # Running statistics of normalizations.
    feeding_statistics: str  # Sentences: what to check where none were fed.
    freezing_statistics: str  # Sentences: how frozen layers keep theirs.
    # Sentence: whose weight the momentum {0} is, and that the right one is {1}.
    momentum_of_statistics: str
    # Initial weights.
    he: str
    glorot: str
    he_or_normal: str
    normal_default: str  # Sentence: which deviation a normal distribution has.
    # Runs.
    reproducing: str
    # Time.
    background_saving: str
    compiling: str
    allowing_tf32: str
    all_devices: str  # How a training uses every GPU of a machine.
    changing_shapes: str  # What else helps: ends the sentence, and may add others.
    # A new head beside LoRA: begins with a comma.
    thawing_beside_adapters: str = ""
    # What a model that learns badly needs.
    not_learning: str = (  # Sentences.
        "The model does not learn. Try a learning rate 10 times as high and one 10 "
        "times as low. Check that labels belong to their inputs and that the optimizer "
        "holds the parameters. Check whether the model can overfit a single batch."
    )
    underfitting: str = (  # Sentences.
        "Check that labels belong to their inputs, and whether the model can overfit a "
        "single batch. If it can, use more layers or units, better features, less "
        "weight decay and dropout, or a higher learning rate."
    )
    overfitting: str = (  # Sentences.
        "Go back to the checkpoint with the best validation loss. Then use more data "
        "or augmentation, weight decay, dropout, a smaller model, or early stopping. "
        "Check that the validation data resemble the training data."
    )
    stopping_early: str = (  # Sentence.
        "Stop the training and keep the checkpoint with the best validation loss; or "
        "lower the learning rate, if you never have."
    )
    # Data loaders: how their number of workers is set.
    loader_workers: str = "num_workers={}"
    # Trees.
    simpler_trees: str = (
        "set max_depth to {} or less, or raise min_child_weight or gamma"
    )
    allowing_splits: str = (
        "lower min_child_weight, gamma, lambda and alpha, and check max_depth"
    )
    # What else keeps trees from splitting: begins with a space.
    first_prediction: str = (  # Sentence.
        " If you set base_score, set it to the mean of the labels, or leave it out: "
        "the first trees only correct a value that is far from it."
    )
    column_sampling: str = "colsample_bytree"
    leaf_penalty: str = "lambda (reg_lambda)"
    starting_near: str = (  # Sentence.
        "Leave base_score out, or set it to the mean of the labels."
    )
    validating: str = (  # A verb and its objects.
        "give them last in evals or eval_set: early stopping goes by the last set"
    )


_PYTORCH: Final = Vocabulary(
    finite_check="torch.isfinite(x).all()",
    normalizing="torchvision.transforms.Normalize or "
    "sklearn.preprocessing.StandardScaler",
    shuffling="DataLoader(..., shuffle=True)",
    oversampling="WeightedRandomSampler",
    class_weights="CrossEntropyLoss(weight=...)",
    logit_losses="torch.nn.CrossEntropyLoss or BCEWithLogitsLoss",
    cross_entropy="torch.nn.CrossEntropyLoss",
    class_axis="the second axis (dim=1). Without dim, PyTorch may take another axis",
    one_output="binary_cross_entropy_with_logits for a single output",
    same_shape="targets.unsqueeze(1) or outputs.squeeze(1)",
    clipping="torch.nn.utils.clip_grad_norm_",
    clipping_at="torch.nn.utils.clip_grad_norm_ with max_norm={}",
    loss_scaling="torch.amp.GradScaler",
    mixed_precision="torch.autocast",
    detaching="detach()",
    graph_cuts="detach(), .data, .item(), a conversion to NumPy, or no_grad()",
    freezing="call requires_grad_(False) on them",
    thawing="call requires_grad_(True) before you create the optimizer",
    thawing_beside_adapters=", or list it in modules_to_save of LoraConfig",
    backward_check="Check that you call backward() on the loss that the model "
    "produced, not on a copy (detach(), item(), torch.tensor(loss)), and that you call "
    "zero_grad() before backward(), not after it.",
    partial_loading="Check the result of load_state_dict(..., strict=False): it skips "
    "every name that does not match, for example because of a prefix such as module.",
    adding_parameters="Create the optimizer after the model is complete, or add them "
    "with optimizer.add_param_group. The optimizer does not pick up layers that you "
    "replace, add, or unfreeze (requires_grad_(True)) later.",
    stepping="optimizer.step()",
    exempting_from_decay="put them into the group without decay, which you choose by "
    "parameter.ndim < 2, not by names",
    evaluating="call model.eval() and torch.no_grad()",
    feeding_statistics="Find out why no forward pass in training mode updates these "
    "buffers (a copy of the model is trained, or the buffers are reset or loaded from "
    "a checkpoint without them). torch.optim.swa_utils.update_bn feeds them "
    "afterwards.",
    freezing_statistics="Call eval() on the frozen part after each model.train(), "
    "because requires_grad=False does not stop running statistics: it then uses the "
    "statistics that it was trained with, and keeps them.",
    momentum_of_statistics="PyTorch's momentum is the weight of the new batch; in "
    "Keras and TensorFlow, it is the weight of the past, so that their {0} is "
    "PyTorch's {1}.",
    he="torch.nn.init.kaiming_normal_",
    glorot="torch.nn.init.xavier_normal_",
    he_or_normal="torch.nn.init.kaiming_normal_, or normal_ for embeddings",
    normal_default="The default deviation of torch.nn.init.normal_ is 1, whatever the "
    "width of the layer.",
    reproducing="the seeds (torch.manual_seed, loaders, workers), "
    "torch.use_deterministic_algorithms(True)",
    background_saving="torch.distributed.checkpoint.async_save, or copy to the host "
    "and write in a thread",
    compiling="torch.compile",
    allowing_tf32="torch.set_float32_matmul_precision('high')",
    all_devices="torchrun --nproc-per-node",
    changing_shapes=", or mark the changing axis (torch._dynamo.mark_dynamic, "
    "dynamic=True). TORCH_LOGS=recompiles shows the reasons.",
)
_KERAS: Final = replace(
    _PYTORCH,
    finite_check="numpy.isfinite(x).all()",
    normalizing="keras.layers.Normalization or sklearn.preprocessing.StandardScaler",
    shuffling="fit(shuffle=True) for arrays, or tf.data's shuffle(n) with n set to the "
    "number of samples",
    oversampling="tf.data.Dataset.sample_from_datasets",
    class_weights="fit(class_weight=...)",
    logit_losses="from_logits=True of the loss",
    cross_entropy="SparseCategoricalCrossentropy(from_logits=True)",
    class_axis="the last axis (axis=-1)",
    one_output="activation='sigmoid' and BinaryCrossentropy for a single output",
    same_shape="keras.ops.expand_dims(targets, -1) or keras.ops.squeeze(outputs, -1)",
    clipping="the optimizer's argument global_clipnorm",
    clipping_at="the optimizer's argument global_clipnorm={}",
    loss_scaling="keras.optimizers.LossScaleOptimizer",
    mixed_precision="keras.mixed_precision.set_global_policy('mixed_bfloat16')",
    detaching="stop_gradient()",
    graph_cuts="stop_gradient(), a conversion to NumPy, a computation outside the tape",
    freezing="set trainable = False on them",
    thawing="set trainable = True before you compile the model",
    thawing_beside_adapters="",
    backward_check="Check that you compute the loss inside the tape and from the "
    "model's output, not from a copy (stop_gradient(), numpy(), tf.constant()).",
    partial_loading="Check what load_weights(..., skip_mismatch=True) skipped.",
    adding_parameters="Compile the model when it is complete. The optimizer does not "
    "pick up layers that you replace, add, or unfreeze (trainable = True) later.",
    stepping="optimizer.apply_gradients()",
    exempting_from_decay="call optimizer.exclude_from_weight_decay(var_names=['bias', "
    "'gamma', 'beta']) before you compile the model",
    evaluating="call the model with training=False",
    feeding_statistics="Call the model with training=True in your train_step, and "
    "keep the non-trainable variables that stateless_call returns.",
    freezing_statistics="Set trainable = False on the normalizations before you "
    "compile: they then use the statistics that they were trained with, and keep them.",
    momentum_of_statistics="In Keras, momentum is the weight of the past. Where it is "
    "that of the new batch, the same statistics have momentum {0}, and {1} here.",
    he="kernel_initializer='he_normal'",
    glorot="'glorot_normal'",
    he_or_normal="'he_normal', or 'random_normal' for embeddings",
    normal_default="keras.initializers.RandomNormal uses one deviation, whatever the "
    "width of the layer.",
    reproducing="the seed (keras.utils.set_random_seed), "
    "tf.config.experimental.enable_op_determinism() on TensorFlow",
    background_saving="copy to the host and write in a thread",
    loader_workers="workers={} of the PyDataset",
    compiling="jit_compile=True",
    allowing_tf32="tf.config.experimental.enable_tensor_float_32_execution on "
    "TensorFlow",
    all_devices="keras.distribution.DataParallel",
    changing_shapes=".",
)
_JAX: Final = replace(
    _PYTORCH,
    finite_check="jnp.isfinite(x).all()",
    normalizing="sklearn.preprocessing.StandardScaler",
    shuffling="rng.permutation of the samples, or Grain's shuffle",
    oversampling="rng.choice(n, p=weights)",
    class_weights="(losses * weights[labels]).mean()",
    logit_losses="optax.softmax_cross_entropy or sigmoid_binary_cross_entropy",
    cross_entropy="optax.softmax_cross_entropy_with_integer_labels",
    class_axis="the last axis (axis=-1)",
    one_output="optax.sigmoid_binary_cross_entropy for a single output",
    same_shape="targets[:, None] or outputs[:, 0]",
    clipping="optax.clip_by_global_norm",
    clipping_at="optax.clip_by_global_norm with max_norm={}",
    loss_scaling="a constant factor by which you then divide the gradients",
    mixed_precision="dtype=jnp.bfloat16 and param_dtype=jnp.float32 in Flax",
    detaching="stop_gradient()",
    graph_cuts="stop_gradient(), a conversion to NumPy",
    freezing="leave them out of what you differentiate",
    thawing="remove set_to_zero() from optax.multi_transform",
    thawing_beside_adapters="",
    backward_check="Check that the function you differentiate computes the loss from "
    "its own argument, not from a copy (stop_gradient(), float(), a closure).",
    partial_loading="Check that the names in the checkpoint are those of the model.",
    adding_parameters="Create the optimizer's state (tx.init, nnx.Optimizer) when the "
    "model is complete. It does not pick up parameters that you add later.",
    stepping="the optimizer's update()",
    exempting_from_decay="give optax.adamw a mask that is True where ndim > 1",
    evaluating="compile the step with hook.jit(..., mode=ModeKeys.EVAL)",
    feeding_statistics='Keep what apply(..., mutable=["batch_stats"]) returns: return '
    'new_state["batch_stats"] from the step, and give it to the next call and to the '
    "evaluation (state.replace(batch_stats=...) with a TrainState).",
    freezing_statistics="Call frozen normalizations with use_running_average=True.",
    momentum_of_statistics="In Flax, momentum is the weight of the past. Where it is "
    "that of the new batch, the same statistics have momentum {0}, and {1} here.",
    he="jax.nn.initializers.he_normal",
    glorot="glorot_normal",
    he_or_normal="jax.nn.initializers.he_normal, or normal for embeddings",
    normal_default="jax.random.normal has a deviation of 1, whatever the width of the "
    "layer.",
    reproducing="the seeds (jax.random.key, data pipeline), "
    "XLA_FLAGS=--xla_gpu_deterministic_ops=true",
    background_saving="orbax.checkpoint.AsyncCheckpointer, or copy to the host and "
    "write in a thread",
    compiling="jax.jit",
    allowing_tf32="jax.default_matmul_precision('tensorfloat32')",
    all_devices="jax.sharding",
    changing_shapes=". JAX_LOG_COMPILES=1 shows what is compiled.",
)
_MXNET: Final = replace(
    _PYTORCH,
    finite_check="numpy.isfinite(x.asnumpy()).all()",
    normalizing="gluon.data.vision.transforms.Normalize or "
    "sklearn.preprocessing.StandardScaler",
    shuffling="gluon.data.DataLoader(..., shuffle=True)",
    oversampling="a sampler of your own for gluon.data.DataLoader",
    class_weights="the argument sample_weight of a gluon.loss",
    logit_losses="gluon.loss.SoftmaxCrossEntropyLoss or SigmoidBCELoss",
    cross_entropy="gluon.loss.SoftmaxCrossEntropyLoss",
    class_axis="the last axis (axis=-1)",
    one_output="gluon.loss.SigmoidBCELoss for a single output",
    same_shape="targets.expand_dims(-1) or outputs.squeeze(-1)",
    clipping="gluon.utils.clip_global_norm",
    clipping_at="gluon.utils.clip_global_norm with max_norm={}",
    loss_scaling="amp.scale_loss",
    mixed_precision="multi_precision=True of the optimizer",
    graph_cuts="detach(), asnumpy(), a computation outside autograd.record()",
    freezing="set grad_req = 'null' on them",
    thawing="set grad_req = 'write' before you create the Trainer",
    thawing_beside_adapters="",
    backward_check="Check that you call backward() on the loss that you computed "
    "within autograd.record(), not on a copy (detach(), asnumpy()).",
    partial_loading="Check which names load_parameters(..., allow_missing=True, "
    "ignore_extra=True) skipped.",
    adding_parameters="Create the Trainer from net.collect_params() when the net is "
    "complete. The Trainer does not pick up blocks that you replace, add, or unfreeze "
    "(grad_req = 'write') later.",
    stepping="trainer.step()",
    exempting_from_decay="set wd_mult = 0 on them",
    evaluating="leave out autograd.record()",
    feeding_statistics="Call the net inside autograd.record().",
    freezing_statistics="Set use_global_stats=True on frozen normalizations.",
    momentum_of_statistics="In Gluon, momentum is the weight of the past. Where it is "
    "that of the new batch, the same statistics have momentum {0}, and {1} here.",
    he="mx.init.MSRAPrelu",
    glorot="mx.init.Xavier",
    he_or_normal="mx.init.MSRAPrelu, or mx.init.Normal for embeddings",
    normal_default="mx.init.Normal uses one deviation, whatever the width of the "
    "layer.",
    reproducing="the seeds (mx.random.seed, numpy.random.seed, workers)",
    background_saving="copy to the host and write in a thread",
    compiling="net.hybridize(static_alloc=True)",
    allowing_tf32="NVIDIA_TF32_OVERRIDE=1",
    all_devices="gluon.utils.split_and_load",
    changing_shapes=".",
)


def _of_trees(
    allowing_splits: str,
    simpler: str,
    early: str,
    sampling: str,
    class_weights: str,
    first_prediction: str = "",
    leaf_penalty: str = _PYTORCH.leaf_penalty,
    starting_near: str = "Leave boost_from_average=False out.",
    validating: str = "give them as eval_set",
) -> Vocabulary:
    """Return the vocabulary of boosted trees.

    Args:
        allowing_splits: How to allow more splits: a verb and its objects.
        simpler: How to get simpler trees, with ``{}`` for a depth.
        early: The setting that stops early.
        sampling: The setting that leaves out features.
        class_weights: How to weight the loss by class.
        first_prediction: What to check of the value that the first trees start from.
        leaf_penalty: The setting that makes the values of leaves smaller.
        starting_near: How the first trees start near the labels: a sentence.
        validating: How to give validation data: a verb and its objects.
    """
    return replace(
        _PYTORCH,
        not_learning="The trees do not fit the labels. Check that labels belong to "
        f"their rows. Raise learning_rate, or {allowing_splits}.",
        underfitting="Check that labels belong to their rows. If they do, use more "
        f"rounds, a higher learning_rate, deeper trees, or better features; or "
        f"{allowing_splits}.",
        overfitting="Use the round with the best validation loss "
        f"({early}). Then {simpler.format(6)}, use {sampling} below 1, lower "
        "learning_rate with more rounds, or get more data. Check that the validation "
        "data resemble the training data.",
        stopping_early="Use the round with the best validation loss, and stop there "
        f"({early}).",
        simpler_trees=simpler,
        allowing_splits=allowing_splits,
        column_sampling=sampling,
        first_prediction=first_prediction,
        finite_check="numpy.isfinite(x).all()",
        oversampling="sklearn.utils.resample",
        class_weights=class_weights,
        reproducing="the seeds (of the model, NumPy and the split of the data)",
        leaf_penalty=leaf_penalty,
        starting_near=starting_near,
        validating=validating,
        background_saving="copy the model and write the copy in a thread",
        compiling="deeper trees",
        allowing_tf32="NVIDIA_TF32_OVERRIDE=1",
        all_devices="training through Dask",
        changing_shapes=".",
    )


VOCABULARIES: Final[Mapping[str, Vocabulary]] = {
    "pytorch": _PYTORCH,
    "keras": _KERAS,
    "tensorflow": _KERAS,
    "jax": _JAX,
    "mxnet": _MXNET,
    "xgboost": _of_trees(
        _PYTORCH.allowing_splits,
        _PYTORCH.simpler_trees,
        "early_stopping_rounds",
        "colsample_bytree",
        "scale_pos_weight, or the argument weight of DMatrix",
        _PYTORCH.first_prediction,
        starting_near=_PYTORCH.starting_near,
        validating=_PYTORCH.validating,
    ),
    "lightgbm": _of_trees(
        "lower min_data_in_leaf, min_sum_hessian_in_leaf, min_gain_to_split, lambda_l1 "
        "and lambda_l2",
        "set max_depth to {} or less, lower num_leaves, or raise min_data_in_leaf or "
        "min_gain_to_split",
        "lightgbm.early_stopping",
        "feature_fraction",
        "class_weight, or the argument weight of Dataset",
        leaf_penalty="lambda_l2 (reg_lambda)",
        validating="give them in valid_sets or eval_set",
    ),
    "catboost": _of_trees(
        "lower min_data_in_leaf and l2_leaf_reg, and raise depth",
        "set max_depth (depth) to {} or less, or raise l2_leaf_reg",
        "early_stopping_rounds",
        "rsm",
        "auto_class_weights='Balanced'",
        leaf_penalty="l2_leaf_reg",
    ),
}
"""Vocabularies by the name that the adapter of a framework gives."""


def vocabulary_of(framework: object = None) -> Vocabulary:
    """Return the vocabulary of a framework by its name; PyTorch's for any other."""
    known = VOCABULARIES.get(framework) if isinstance(framework, str) else None
    return known or _PYTORCH
