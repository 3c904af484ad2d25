"""What advice calls things, in the words of the framework that a run was written by.

Rules know no framework: they say what to do in the words of PyTorch. Each row of the
table has such a phrase, and what takes its place in the advice about a run of another
framework. A phrase that is longer than another one comes first, wherever it stands.

Thread safety: pure functions over a constant.
"""

from __future__ import annotations

import functools
import re
from typing import Final

__all__ = ["FRAMEWORKS", "PHRASES", "in_words_of"]

_KERAS, _JAX, _MXNET = "keras", "jax", "mxnet"
_LIGHTGBM, _CATBOOST = "lightgbm", "catboost"
# Frameworks that have the words of another one.
_SAME: Final = {"tensorflow": _KERAS}

PHRASES: Final[dict[str, dict[str, str]]] = {
    # ---- data ----------------------------------------------------------------------
    "torchvision.transforms.Normalize, ": {
        _KERAS: "keras.layers.Normalization, ",
        _JAX: "",
        _MXNET: "gluon.data.vision.transforms.Normalize, ",
    },
    "DataLoader(..., shuffle=True), or": {
        _KERAS: "fit(shuffle=True) for arrays, tf.data's shuffle(n) with an n of all "
        "samples, or",
        _JAX: "rng.permutation of the samples, Grain's shuffle, or",
        _MXNET: "gluon.data.DataLoader(..., shuffle=True), or",
    },
    "WeightedRandomSampler": {
        _KERAS: "tf.data.Dataset.sample_from_datasets",
        _JAX: "rng.choice(n, p=weights)",
        _MXNET: "a sampler of your own for gluon.data.DataLoader",
    },
    "CrossEntropyLoss(weight=...)": {
        _KERAS: "fit(class_weight=...)",
        _JAX: "(losses * weights[labels]).mean()",
        _MXNET: "the argument sample_weight of a gluon.loss",
    },
    # ---- loss ----------------------------------------------------------------------
    "torch.nn.CrossEntropyLoss, BCEWithLogitsLoss": {
        _KERAS: "from_logits=True of the loss",
        _JAX: "optax.softmax_cross_entropy, sigmoid_binary_cross_entropy",
        _MXNET: "gluon.loss.SoftmaxCrossEntropyLoss, SigmoidBCELoss",
    },
    "torch.nn.CrossEntropyLoss": {
        _KERAS: "SparseCategoricalCrossentropy(from_logits=True)",
        _JAX: "optax.softmax_cross_entropy_with_integer_labels",
        _MXNET: "gluon.loss.SoftmaxCrossEntropyLoss",
    },
    "which is the second (dim=1; without a dim another one may be taken)": {
        _KERAS: "which is the last (axis=-1)",
        _JAX: "which is the last (axis=-1)",
        _MXNET: "which is the last (axis=-1)",
    },
    "call backward() on the loss itself, and not on a copy of its value "
    "(torch.tensor(loss), loss.item(), loss.detach())": {
        _KERAS: "differentiate the loss itself, and not a copy of its value "
        "(tf.constant(loss), loss.numpy(), stop_gradient(loss))",
        _JAX: "differentiate the loss itself, and not a copy of its value "
        "(float(loss), jax.lax.stop_gradient(loss))",
        _MXNET: "call backward() on the loss itself, and not on a copy of its value "
        "(loss.asscalar(), loss.detach())",
    },
    # ---- gradients -----------------------------------------------------------------
    "call optimizer.zero_grad() once in each step, before loss.backward() (in the "
    "closure, if there is one); with gradient accumulation, after each "
    "optimizer.step()": {
        _KERAS: "give the optimizer the gradients of one step, and not a sum that goes "
        "on from step to step; for accumulation there is the optimizer's "
        "gradient_accumulation_steps",
        _JAX: "give the optimizer the gradients of one step, and not a sum that goes "
        "on from step to step; for accumulation there is optax.MultiSteps",
        _MXNET: "set grad_req to 'write', or, with 'add', call net.zero_grad() after "
        "each trainer.step()",
    },
    "call model.zero_grad(), or set the .grad of each parameter to None, after each "
    "update": {
        _KERAS: "compute the gradients of each step anew",
        _JAX: "compute the gradients of each step anew",
        _MXNET: "set grad_req to 'write', or call net.zero_grad() after each update",
    },
    "torch.nn.utils.clip_grad_norm_ with max_norm=": {
        _KERAS: "the optimizer's argument global_clipnorm=",
        _JAX: "optax.clip_by_global_norm with max_norm=",
        _MXNET: "gluon.utils.clip_global_norm with max_norm=",
    },
    "torch.nn.utils.clip_grad_norm_": {
        _KERAS: "the optimizer's argument global_clipnorm",
        _JAX: "optax.clip_by_global_norm",
        _MXNET: "gluon.utils.clip_global_norm",
    },
    "the state of Adam and clip_grad_norm_": {
        _KERAS: "the state of Adam and the norm for clipping",
        _JAX: "the state of Adam and the norm for clipping",
        _MXNET: "the state of Adam and the norm for clipping",
    },
    "torch.amp.GradScaler": {
        _KERAS: "keras.optimizers.LossScaleOptimizer",
        _JAX: "times a constant by which the gradients are divided",
        _MXNET: "amp.scale_loss",
    },
    "torch.autocast": {
        _KERAS: "keras.mixed_precision.set_global_policy('mixed_bfloat16')",
        _JAX: "dtype=jnp.bfloat16, param_dtype=jnp.float32 of Flax",
        _MXNET: "multi_precision=True of the optimizer",
    },
    "whether a detach() cuts it off": {
        _KERAS: "whether a stop_gradient() cuts it off",
        _JAX: "whether a stop_gradient() cuts it off",
    },
    "a detach(), .data, .item(), a conversion to NumPy, no_grad() or": {
        _KERAS: "a stop_gradient(), a conversion to NumPy, a computation outside of "
        "the tape or",
        _JAX: "a stop_gradient(), a conversion to NumPy or",
        _MXNET: "a detach(), asnumpy(), a computation outside of autograd.record() or",
    },
    "(x) - x).detach() does": {
        _KERAS: "(x) - x) with a stop_gradient() around the bracket does",
        _JAX: "(x) - x) with a stop_gradient() around the bracket does",
    },
    "what is not to be trained needs no gradient: requires_grad_(False)": {
        _KERAS: "what is not to be trained needs no gradient: trainable = False",
        _JAX: "what is not to be trained needs no gradient: leave it out of what is "
        "differentiated",
        _MXNET: "what is not to be trained needs no gradient: grad_req = 'null'",
    },
    "see that backward() is called on the loss that the model gave (not on a copy: "
    "detach(), item(), torch.tensor(loss)), and that zero_grad() comes before it and "
    "not after": {
        _KERAS: "see that the loss is computed within the tape and from what the model "
        "gave (not from a copy: stop_gradient(), numpy(), tf.constant())",
        _JAX: "see that the function that is differentiated computes the loss from its "
        "own argument (not from a copy: stop_gradient(), float(), what it closes over)",
        _MXNET: "see that backward() is called on the loss that was computed within "
        "autograd.record() (not on a copy: detach(), asnumpy())",
    },
    # ---- what is trained -----------------------------------------------------------
    "let them learn (requires_grad_(True), before the optimizer is made)": {
        _KERAS: "let them learn (trainable = True, before the model is compiled)",
        _JAX: "let them learn (without set_to_zero() in optax.multi_transform)",
        _MXNET: "let them learn (grad_req = 'write', before the Trainer is made)",
    },
    "see what load_state_dict(..., strict=False) returns: it passes over all names "
    "that do not match (a prefix such as module.)": {
        _KERAS: "see what load_weights(..., skip_mismatch=True) has passed over",
        _JAX: "see whether all names of the checkpoint are those of the model",
        _MXNET: "see what load_parameters(..., allow_missing=True, ignore_extra=True) "
        "has passed over",
    },
    "requires_grad_(False) for the others saves": {
        _KERAS: "trainable = False for the others saves",
        _JAX: "differentiating nothing but these saves",
        _MXNET: "grad_req = 'null' for the others saves",
    },
    "requires_grad_(False) saves their gradients": {
        _KERAS: "trainable = False saves their gradients",
        _JAX: "leaving them out of what is differentiated saves their gradients",
        _MXNET: "grad_req = 'null' saves their gradients",
    },
    "make the optimizer after the model is complete, or add them with "
    "optimizer.add_param_group; layers that were replaced, added or thawed "
    "(requires_grad_(True)) later": {
        _KERAS: "compile the model when it is complete; layers that were replaced, "
        "added or thawed (trainable = True) later",
        _JAX: "make the optimizer's state (tx.init, nnx.Optimizer) when the model is "
        "complete; parameters that were added later",
        _MXNET: "make the Trainer of net.collect_params() when the net is complete; "
        "blocks that were replaced, added or thawed (grad_req = 'write') later",
    },
    "put layers into torch.nn.ModuleList or ModuleDict and not into a plain list, and "
    "other tensors into a module, so that parameters(), to(), state_dict() and train() "
    "know them": {
        _KERAS: "keep layers as attributes of the model or of its layers, and make "
        "other tensors by add_weight, so that trainable_variables and save() know them",
        _JAX: "keep modules as attributes of the model (nnx.List), and other tensors "
        "as parameters of it, so that the optimizer's state knows them",
        _MXNET: "put blocks into gluon.nn.Sequential or call register_child, so that "
        "collect_params() knows them",
    },
    "their module is in eval()": {
        _KERAS: "their layer is called with training=False",
        _JAX: "their module is in evaluation",
        _MXNET: "their block is called outside of autograd.record()",
    },
    "see what keeps optimizer.step() from being called": {
        _KERAS: "see what keeps optimizer.apply_gradients() from being called",
        _JAX: "see what keeps the optimizer's update() from being called",
        _MXNET: "see what keeps trainer.step() from being called",
    },
    "call model.eval() and torch.no_grad() for what is evaluation": {
        _KERAS: "call the model with training=False for what is evaluation",
        _JAX: "compile what is evaluation by hook.jit(..., mode=ModeKeys.EVAL)",
        _MXNET: "leave autograd.record() out for what is evaluation",
    },
    "call model.train() before the training loop, and again after each validation": {
        _KERAS: "call the model with training=True in the training loop, as fit does",
        _JAX: "call model.train() of NNX before the training loop and again after each "
        "validation, or modules of Linen with deterministic=False and "
        "use_running_average=False",
        _MXNET: "compute the forward of the training loop within autograd.record()",
    },
    "say whether the model trains: F.dropout(x, p, training=self.training); or use the "
    "module torch.nn.Dropout, which knows.  To drop on purpose (Monte Carlo dropout), "
    "say training=True": {
        _KERAS: "say whether the model trains: Dropout(p)(x, training=training).  To "
        "drop on purpose (Monte Carlo dropout), say training=True",
        _JAX: "say whether the model trains: nn.Dropout(p, deterministic=not training) "
        "in Linen, model.eval() in NNX.  To drop on purpose (Monte Carlo dropout), "
        "say deterministic=False",
        _MXNET: "evaluate outside of autograd.record().  To drop on purpose (Monte "
        "Carlo dropout), say mode='always'",
    },
    # ---- first weights -------------------------------------------------------------
    "torch.nn.init.kaiming_normal_ for ReLU, xavier_normal_ for tanh and sigmoid": {
        _KERAS: "kernel_initializer='he_normal' for ReLU, 'glorot_normal' for tanh "
        "and sigmoid",
        _JAX: "jax.nn.initializers.he_normal for ReLU, glorot_normal for tanh and "
        "sigmoid",
        _MXNET: "mx.init.MSRAPrelu for ReLU, mx.init.Xavier for tanh and sigmoid",
    },
    "torch.nn.init.kaiming_normal_, for embeddings normal_": {
        _KERAS: "'he_normal', for embeddings 'random_normal'",
        _JAX: "jax.nn.initializers.he_normal, for embeddings normal",
        _MXNET: "mx.init.MSRAPrelu, for embeddings mx.init.Normal",
    },
    "torch.nn.init.kaiming_normal_; Glorot's is smaller still": {
        _KERAS: "'he_normal'; Glorot's is smaller still",
        _JAX: "jax.nn.initializers.he_normal; Glorot's is smaller still",
        _MXNET: "mx.init.MSRAPrelu; Glorot's is smaller still",
    },
    "the default of torch.nn.init.normal_ is 1, whatever the width": {
        _KERAS: "keras.initializers.RandomNormal takes one deviation, whatever the "
        "width",
        _JAX: "jax.random.normal has a deviation of 1, whatever the width",
        _MXNET: "mx.init.Normal takes one deviation, whatever the width",
    },
    # ---- runs ----------------------------------------------------------------------
    "seeds (torch.manual_seed, of loaders and workers too), "
    "torch.use_deterministic_algorithms(True)": {
        _KERAS: "seeds (keras.utils.set_random_seed), "
        "tf.config.experimental.enable_op_determinism() on TensorFlow",
        _JAX: "seeds (jax.random.key, and of what draws the data), "
        "XLA_FLAGS=--xla_gpu_deterministic_ops=true",
        _MXNET: "seeds (mx.random.seed, numpy.random.seed, of workers too)",
    },
    # ---- trees: the words are XGBoost's --------------------------------------------
    ", or raise min_child_weight or gamma": {
        _LIGHTGBM: ", lower num_leaves, or raise min_data_in_leaf or min_gain_to_split",
        _CATBOOST: " (depth), or raise l2_leaf_reg",
    },
    "colsample_bytree below 1": {
        _LIGHTGBM: "feature_fraction below 1",
        _CATBOOST: "rsm below 1",
    },
}
"""What PyTorch's (or XGBoost's) phrases are in other frameworks; without an entry they
are the same."""

FRAMEWORKS: Final = frozenset(
    {*_SAME, *(name for words in PHRASES.values() for name in words)}
)
"""Frameworks with words of their own."""


def in_words_of(framework: str, advice: str) -> str:
    """Return advice in the words of a framework.

    Args:
        framework: Its name, as its adapter says; of another one than ``FRAMEWORKS`` the
            advice stays as it is.
        advice: As a rule says it.

    Example:
        >>> in_words_of("jax", "lower the rate or use torch.nn.utils.clip_grad_norm_")
        'lower the rate or use optax.clip_by_global_norm'
    """
    words = _words(_SAME.get(framework, framework))
    if not words:
        return advice
    return _pattern(tuple(words)).sub(lambda found: words[found[0]], advice)


@functools.cache
def _words(framework: str) -> dict[str, str]:
    return {
        phrase: words[framework]
        for phrase, words in PHRASES.items()
        if framework in words
    }


@functools.cache
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(phrases, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))
