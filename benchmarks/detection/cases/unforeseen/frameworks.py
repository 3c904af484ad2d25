"""What people expect of Keras, JAX, XGBoost, LightGBM and Lightning, and is not so."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import breast_cancer, digits
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@cache
def _keras() -> ModuleType:
    """Keras, with little to say."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    return keras


def _arrays() -> tuple[Any, Any, Any, Any]:
    """Digits as arrays."""
    split = digits()
    return split.x.numpy(), split.y.numpy(), split.x_val.numpy(), split.y_val.numpy()


@tenth.silent(
    Cause(
        r"compil|trainable|froze|freez|thaw|(layer|weight|base|kernel|variable)\w* .*"
        r"(never|not|no longer) (chang|move|train|learn|updat)\w*",
        r"compile|trainable",
    ),
    "the base is made trainable, but the model is not compiled again",
)
def thawed_without_compiling(t: Training) -> None:
    """``base.trainable = True`` between two ``fit``, without another ``compile``.

    Source: github.com/keras-team/keras/issues/9940 ("after changing trainable property
    you need compile model again"), /issues/6405 and /issues/4674.
    Visible: in the second fit the weights of the base do not change.
    """
    keras = _keras()
    keras.utils.set_random_seed(t.seed)
    x, y, x_val, y_val = _arrays()
    base = keras.Sequential(
        [keras.layers.Dense(48, "relu"), keras.layers.Dense(16, "relu")], name="base"
    )
    model = keras.Sequential([keras.Input((64,)), base, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    base.trainable = False
    model.compile(keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    callbacks = t.callbacks("keras")
    t.counted(11 * 22)
    model.fit(x, y, batch_size=64, epochs=3, verbose=0, callbacks=callbacks)
    base.trainable = True
    if not t.sick:
        model.compile(keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    before = [np.array(w) for w in base.get_weights()]
    model.fit(x, y, batch_size=64, epochs=8, verbose=0, callbacks=callbacks)
    stands = all(map(np.array_equal, before, base.get_weights()))
    accuracy = model.evaluate(x_val, y_val, verbose=0)[1]
    t.note(accuracy=accuracy)
    conclude(t, fault=stands, reached=accuracy > 0.88)


@tenth.silent(
    Cause(
        r"shuffl|(order|align|match|correspond)\w*.*(label|prediction|row)|(label"
        r"|predic"
        r"tion)s? .*(order|align|other rows|not (match|belong|those)|misalign|permut)",
        r"shuffle=False|shuffl|same (order|pass)|one pass|align|collect",
    ),
    "predictions and labels come from two passes in different orders",
)
def predicted_in_another_order(t: Training) -> None:
    """A data set that shuffles is read once for the predictions, once for the labels.

    Source: datascience.stackexchange.com/questions/13894 (``shuffle=False``: "keep
    data in same order as labels"), thinbug.com/q/48883170.
    Visible: accuracy of the confusion matrix is at chance, that of evaluate is not.
    """
    keras = _keras()
    keras.utils.set_random_seed(t.seed)
    x, y, x_val, y_val = _arrays()

    class Test(keras.utils.PyDataset):  # type: ignore[misc, name-defined]
        """Batches, shuffled whenever they are begun."""

        def __init__(self) -> None:
            super().__init__()
            self.luck = np.random.default_rng(t.seed)
            self.rows = np.arange(len(x_val))
            self.on_epoch_end()

        def on_epoch_end(self) -> None:
            if t.sick:
                self.luck.shuffle(self.rows)

        def __len__(self) -> int:
            return 9

        def __getitem__(self, at: int) -> tuple[Any, Any]:
            rows = self.rows[at * 50 : at * 50 + 50]
            return x_val[rows], y_val[rows]

    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    callbacks = t.callbacks("keras")
    t.counted(8 * 22)
    model.fit(x, y, batch_size=64, epochs=8, verbose=0, callbacks=callbacks)
    test = Test()
    labels = np.concatenate([test[i][1] for i in range(len(test))])
    test.on_epoch_end()
    said = model.predict(test, verbose=0, callbacks=callbacks).argmax(1)
    reported = float((said == labels).mean())
    true = model.evaluate(x_val, y_val, verbose=0)[1]
    t.note(reported=reported, true=true)
    conclude(t, fault=true - reported > 0.3, reached=true > 0.9, harms=False)


@tenth.silent(
    Cause(
        r"preprocess|(input|pixel|image|value)s? .*(range|scale|0.{1,6}255|not (scaled"
        r"|normali|standardi)|larger? than|too large)|(range|scale) of (the )?input"
        r"|normali[sz]|rescal",
        r"preprocess|rescal|scale|normali|divid|127|255",
    ),
    "the pretrained base is given pixels at another scale than it was trained on",
)
def base_without_its_preprocessing(t: Training) -> None:
    """A base trained on inputs from -1 to 1 is given bytes, as they were loaded.

    Source: github.com/keras-team/keras/issues/9668,
    github.com/fchollet/deep-learning-models/issues/96,
    github.com/tensorflow/tensorflow/issues/35336 ("expect the input channels to be in
    range of [-1,1]").
    Visible: the base's outputs are saturated, and the head recognizes fewer.
    """
    keras = _keras()
    keras.utils.set_random_seed(t.seed)
    x, y, x_val, y_val = _arrays()
    base = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, "tanh"),
            keras.layers.Dense(24, "tanh"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    source = keras.Sequential([base, keras.layers.Dense(2)])
    source.compile(keras.optimizers.Adam(3e-3), loss=loss)
    source.fit(2 * x - 1, y % 2, batch_size=64, epochs=5, verbose=0)
    base.trainable = False
    images, images_val = np.round(255 * x), np.round(255 * x_val)
    if not t.sick:
        images, images_val = images / 127.5 - 1, images_val / 127.5 - 1
    model = keras.Sequential([base, keras.layers.Dense(10)])
    model.compile(keras.optimizers.Adam(2e-2), loss=loss, metrics=["accuracy"])
    t.counted(10 * 22)
    callbacks = t.callbacks("keras")
    model.fit(images, y, batch_size=64, epochs=10, verbose=0, callbacks=callbacks)
    accuracy = model.evaluate(images_val, y_val, verbose=0)[1]
    flat = float((np.abs(base.predict(images_val, verbose=0)) > 0.99).mean())
    t.note(accuracy=accuracy, saturated=flat)
    wrong = float(np.abs(images).max()) > 2.0
    conclude(t, fault=wrong, reached=accuracy > 0.75)


def _network(seed: int) -> dict[str, dict[str, Any]]:
    """Weights of two layers for digits."""
    import jax
    import jax.numpy as jnp

    one, two = jax.random.split(jax.random.PRNGKey(seed))
    return {
        "base": {"w": jax.random.normal(one, (64, 48)) / 8, "b": jnp.zeros(48)},
        "head": {"w": jax.random.normal(two, (48, 10)) / 7, "b": jnp.zeros(10)},
    }


def _logits(params: Any, x: Any) -> Any:
    """What these weights say."""
    import jax

    hidden = jax.nn.relu(x @ params["base"]["w"] + params["base"]["b"])
    return hidden @ params["head"]["w"] + params["head"]["b"]


@tenth.silent(
    Cause(
        r"masked|set_to_zero|multi_transform|partition|(froze|frozen|freez|base|meant "
        r"to "
        r"stay|not meant)\w*.*(mov|chang|updat|grow|train)|raw gradient|gradients? "
        r".*(added|unscaled|uphill|ascen|as (the )?updates?)|updates? .*(the gradients?"
        r"|uphill|raw|wrong sign)",
        r"set_to_zero|multi_transform|partition|stop_gradient|zero",
    ),
    "what optax.masked leaves out is not frozen: its gradients are added",
)
def masked_is_not_frozen(t: Training) -> None:
    """``optax.masked(adam, mask)`` passes the gradients of the others as updates.

    Source: github.com/google-deepmind/optax/issues/159 ("the masked updates are ... the
    identity where the mask is False"), /issues/296.
    Visible: the weights of the base change, though they must not, and uphill; since
    gradients are clipped, slowly.
    """
    import jax
    import jax.numpy as jnp
    import optax

    x, y, x_val, y_val = _arrays()
    params = _network(t.seed)
    if t.sick:
        tx = optax.masked(optax.adam(5e-3), {"base": False, "head": True})
    else:
        tx = optax.multi_transform(
            {"train": optax.adam(5e-3), "freeze": optax.set_to_zero()},
            {"base": "freeze", "head": "train"},
        )
    tx = optax.chain(optax.clip_by_global_norm(0.003), tx)
    opt_state = tx.init(params)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        logits = _logits(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def train_step(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    step_fn = t.jit(train_step)
    before = params["base"]["w"]
    for _, rows in t.batches(250, len(x), 64, drop_last=True):
        at = rows.numpy()
        params, opt_state, _ = step_fn(params, opt_state, x[at], y[at])
    moved = float(jnp.abs(params["base"]["w"] - before).max())
    accuracy = float((_logits(params, x_val).argmax(1) == y_val).mean())
    t.note(moved=moved, accuracy=accuracy)
    conclude(t, fault=moved > 0, reached=accuracy > 0.8, harms=False)


@tenth.silent(
    Cause(
        r"(opt(imizer)?[ _.]?state|moment|count|step count)\w*.*(never|not|same|discard"
        r"|thrown|stand|stay|unchanged|initial|zero|lost|first|0\b|1\b)|(discard|thrown"
        r"|lost|forgot)\w* .*state|state .*(discard|thrown|not (kept|returned|carried)"
        r"|unchanged|initial|never)",
        r"opt_state|return|carry|state",
    ),
    "the optimizer's new state is thrown away at each step",
)
def optimizer_state_thrown_away(t: Training) -> None:
    """``updates, _ = tx.update(...)``: Adam takes its first step again and again.

    Source: github.com/google/flax/issues/2467 (the documentation returned the old
    state), github.com/raskr/rust-autograd/issues/16 ("on each iteration the optimizer
    just uses zero initialized values for m and v").
    Visible: after 250 steps the optimizer has counted none.
    """
    import jax
    import optax

    x, y, x_val, y_val = _arrays()
    params = _network(t.seed)
    tx = optax.adam(3e-3)
    opt_state = tx.init(params)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        logits = _logits(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def train_step(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, new_state = tx.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        return params, opt_state if t.sick else new_state, loss

    step_fn = t.jit(train_step)
    for _, rows in t.batches(250, len(x), 64, drop_last=True):
        at = rows.numpy()
        params, opt_state, _ = step_fn(params, opt_state, x[at], y[at])
    counted = int(opt_state[0].count)
    accuracy = float((_logits(params, x_val).argmax(1) == y_val).mean())
    t.note(counted=counted, accuracy=accuracy)
    conclude(t, fault=counted < 250, reached=accuracy > 0.85, harms=False)


@tenth.silent(
    Cause(
        r"trac(e|ing)|jit|baked|captur|closure|global|constant|compile|schedul"
        r"|(learning )?rate .*(never|not|same|constant|stays)",
        r"argument|pass|schedule|static|inject|jit",
    ),
    "the rate is read when the step is traced, and never again",
)
def rate_fixed_by_tracing(t: Training) -> None:
    """The step reads ``lr`` from around it; under ``jit`` it keeps the first value.

    The rate is to rise from 0.002 to 0.3 in fifty steps, and fall.
    Source: github.com/jax-ml/jax/issues/1426 ("it fails with jit compilation").
    Visible: the updates are the first rate times the gradient, to the end.
    """
    import jax
    import jax.numpy as jnp
    import optax

    x, y, x_val, y_val = _arrays()
    params = _network(t.seed)
    lr = 0.002

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        logits = _logits(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def train_step(params: Any, rate: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        size = lr if t.sick else rate
        params = jax.tree.map(lambda p, g: p - size * g, params, grads)
        return params, loss

    step_fn = t.jit(train_step)
    used = meant = 0.0
    for step, rows in t.batches(250, len(x), 64, drop_last=True):
        lr = 0.002 + 0.006 * min(step, 50) - 0.001 * max(step - 50, 0)
        at = rows.numpy()
        if step == 60:
            slope = jax.grad(loss_fn)(params, x[at], y[at])["head"]["w"]
            after = step_fn(params, lr, x[at], y[at])[0]["head"]["w"]
            used = float(
                jnp.abs(params["head"]["w"] - after).sum() / jnp.abs(slope).sum()
            )
            meant = lr
        params, _ = step_fn(params, lr, x[at], y[at])
    accuracy = float((_logits(params, x_val).argmax(1) == y_val).mean())
    t.note(used=used, meant=meant, accuracy=accuracy)
    conclude(t, fault=used < meant / 2, reached=accuracy > 0.85)


@tenth.silent(
    Cause(
        r"n_estimators|num_boost_round|(not|un)used param|parameters? .*(not used"
        r"|ignored"
        r"|no effect|unknown)|(number of|only|few|ten|10) (round|tree|iteration)s?"
        r"|(round|tree)s? .*(only|10|few)",
        r"num_boost_round|n_estimators|rounds|more trees",
    ),
    "the number of trees is given where xgb.train does not read it",
)
def trees_in_the_parameters(t: Training) -> None:
    """``n_estimators`` among the parameters of ``xgb.train``: ten trees are grown.

    Source: github.com/dmlc/xgboost/issues/6710 ("training only 10 rounds the default
    number"), /issues/5502, /issues/2854.
    Visible: there are ten trees instead of 80, and the loss still falls fast.
    """
    import xgboost as xgb

    split = digits()
    train = xgb.DMatrix(split.x.numpy(), split.y.numpy())
    val = xgb.DMatrix(split.x_val.numpy(), split.y_val.numpy())
    params = {
        "objective": "multi:softprob",
        "num_class": 10,
        "max_depth": 3,
        "learning_rate": 0.1,
        "nthread": 1,
        "seed": t.seed,
        "verbosity": 0,
    }
    rounds = 10 if t.sick else 80
    more = {} if t.sick else {"num_boost_round": 80}
    if t.sick:
        params["n_estimators"] = 80
    t.counted(rounds)
    booster = xgb.train(
        params,
        train,
        evals=[(train, "train"), (val, "val")],
        verbose_eval=False,
        callbacks=t.callbacks("xgboost"),
        **more,
    )
    accuracy = float((booster.predict(val).argmax(1) == split.y_val.numpy()).mean())
    t.note(trees=booster.num_boosted_rounds(), accuracy=accuracy)
    few = booster.num_boosted_rounds() < 80
    conclude(t, fault=few, reached=accuracy > 0.93)


@tenth.silent(
    Cause(
        r"init_model|(begins?|began|start\w*|trained?) (anew|afresh|again|from (scratch"
        r"|zero|the beginning))|(chunk|part|batch|booster|earlier|previous) .*(lost"
        r"|forgot"
        r"|discard|thrown|overwrit|anew)|only (the )?last (chunk|part|batch|file)"
        r"|contin"
        r"u(e|ed|ation)|(other|different|new) (data|rows|booster)",
        r"init_model|continu|keep_training_booster|all (data|chunks)|xgb_model",
    ),
    "each part of the data trains a booster anew",
)
def booster_begins_anew(t: Training) -> None:
    """Data come in five files; ``lgb.train`` is not told what it has learned before.

    Source: github.com/lightgbm-org/LightGBM/issues/3194 and /issues/2718 ("I want to
    fit some new training data on the old model").
    Visible: at the end there are the trees of the last file only.
    """
    import lightgbm as lgb

    split = breast_cancer()
    x, y = split.x.numpy(), split.y.numpy()
    params = {
        "objective": "binary",
        "learning_rate": 0.1,
        "num_leaves": 7,
        "min_data_in_leaf": 5,
        "num_threads": 1,
        "verbosity": -1,
        "seed": t.seed,
    }
    order = np.random.default_rng(t.seed).permutation(len(x))
    t.counted(5 * 20)
    booster = None
    for part in np.array_split(order, 5):
        booster = lgb.train(
            params,
            lgb.Dataset(x[part], y[part], free_raw_data=False),
            num_boost_round=20,
            init_model=None if t.sick else booster,
            callbacks=t.callbacks("lightgbm"),
        )
    said = booster.predict(split.x_val.numpy()) > 0.5
    accuracy = float((said == split.y_val.numpy()).mean())
    t.note(trees=booster.num_trees(), accuracy=accuracy)
    conclude(t, fault=booster.num_trees() < 100, reached=accuracy > 0.9, harms=False)


@tenth.silent(
    Cause(
        r"interval|schedul|warm.?up|once (per|an|each) epoch|(per|each|every|by the) "
        r"epoch"
        r"|rate .*(changes? only|stays|never|end|low|constant|tiny|small|rises too)",
        r"interval|step|schedul",
    ),
    "a schedule of steps is stepped once an epoch",
)
def schedule_by_the_epoch(t: Training) -> None:
    """Lightning steps a scheduler once an epoch, unless ``interval`` is ``step``.

    Source: lightning.ai/docs, ``configure_optimizers`` (``"interval": "epoch"`` is the
    default).
    Visible: after all steps the rate is still in the first part of its warm-up.
    """
    import lightning

    split = digits()
    net = mlp([64, 64, 10])
    criterion = nn.CrossEntropyLoss()
    n_epochs, per_epoch = 10, 22
    steps = iter(t.steps(n_epochs * per_epoch))
    rates: list[float] = []

    class LitDigits(lightning.LightningModule):  # type: ignore[misc]
        """As in the tutorial."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            next(steps)
            x, y = batch
            rates.append(float(self.trainer.optimizers[0].param_groups[0]["lr"]))
            loss: Tensor = criterion(self.net(x), y)
            return loss

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.5)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=0.2, total_steps=n_epochs * per_epoch + 1
            )
            config: dict[str, Any] = {"scheduler": scheduler}
            if not t.sick:
                config["interval"] = "step"
            return {"optimizer": optimizer, "lr_scheduler": config}

    t.watch(net, criterion)
    loader = DataLoader(
        TensorDataset(split.x, split.y), 64, shuffle=True, generator=t.order
    )
    trainer = lightning.Trainer(
        max_epochs=n_epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitDigits(), loader)
    accuracy = held_out(net, split.x_val, split.y_val)
    t.note(first=rates[0], largest=max(rates), accuracy=accuracy)
    conclude(t, fault=max(rates) < 0.1, reached=accuracy > 0.85, harms=False)
