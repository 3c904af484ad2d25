"""Mistakes with gradient boosting, and with gradients of JAX."""

from __future__ import annotations

import numpy as np

from benchmarks.detection.kit.case import eleventh
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import breast_cancer, digits
from benchmarks.detection.kit.harm import conclude
from benchmarks.detection.kit.training import Training


@eleventh.silent(
    Cause(
        r"(class|label)\w* .*(regress|squared|order|continuous|number|truncat)"
        r"|(regress|squared.?error)\w* .*(class|label|integer|discrete|few distinct)"
        r"|objective",
        r"objective|softmax|softprob|classif|multi:|num_class",
    ),
    "class numbers are learned as quantities",
)
def classes_by_regression(t: Training) -> None:
    """``reg:squarederror`` on class numbers; the prediction is cut to an integer.

    Source: asked often of xgboost.train, whose default objective is a regression.
    Visible: outputs are not whole; many digits are taken for a neighbouring number.
    """
    import xgboost as xgb

    split = digits()
    x, x_val = split.x.numpy(), split.x_val.numpy()
    y, y_val = split.y.numpy(), split.y_val.numpy()
    train, valid = xgb.DMatrix(x, label=y), xgb.DMatrix(x_val, label=y_val)
    params = {"eta": 0.3, "max_depth": 4, "nthread": 1, "seed": t.seed}
    if t.sick:
        params |= {"objective": "reg:squarederror"}
    else:
        params |= {"objective": "multi:softmax", "num_class": 10}
    rounds = 30
    booster = xgb.train(
        params,
        train,
        num_boost_round=rounds,
        evals=[(train, "train"), (valid, "valid")],
        verbose_eval=False,
        callbacks=t.callbacks("xgboost"),
    )
    t.counted(rounds)
    out = booster.predict(valid)
    accuracy = float((out.astype(int) == y_val).mean())
    t.note(accuracy=accuracy)
    conclude(t, fault=bool((out != out.round()).any()), reached=accuracy > 0.9)


@eleventh.silent(
    Cause(
        r"(part|half|subset|some|first|not all)\w* .*(param|weight|layer)s? .*(updat"
        r"|train|gradient|optimi|learn)|(param|weight|layer)\w* .*(never|not|no) .*"
        r"(updat|chang|train|gradient|learn|mov)|argnums|never (changes|learns|moves)"
        r"|frozen|NotInOptimizer",
        r"argnums|all param|both|gradient",
    ),
    "only the first argument's gradient is taken",
)
def gradient_of_one_argument(t: Training) -> None:
    """``jax.grad`` of ``loss(encoder, head, ...)`` without ``argnums=(0, 1)``.

    Source: docs.jax.dev on ``jax.grad``: argnums is 0 by default.
    Visible: the head is what it was drawn as.
    """
    import jax
    import jax.numpy as jnp
    import optax

    split = breast_cancer()
    x, y = jnp.asarray(split.x.numpy()), jnp.asarray(split.y.numpy())
    rng = np.random.default_rng(t.seed)
    encoder = {"w": jnp.asarray(rng.normal(0, 0.2, (30, 16)), jnp.float32)}
    head = {"w": jnp.asarray(rng.normal(0, 0.2, (16, 2)), jnp.float32)}
    first = np.asarray(head["w"])
    tx = optax.adam(3e-3)
    state = tx.init((encoder, head))

    def loss_fn(encoder, head, x, y):  # type: ignore[no-untyped-def]
        logits = jnp.tanh(x @ encoder["w"]) @ head["w"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(encoder, head, state, x, y):  # type: ignore[no-untyped-def]
        if t.sick:
            loss, g = jax.value_and_grad(loss_fn)(encoder, head, x, y)
            grads = (g, jax.tree.map(jnp.zeros_like, head))
        else:
            loss, grads = jax.value_and_grad(loss_fn, (0, 1))(encoder, head, x, y)
        updates, state = tx.update(grads, state)
        encoder, head = optax.apply_updates((encoder, head), updates)
        return encoder, head, state, loss

    train_step = t.jit(step)
    for _, rows in t.batches(200, len(x), 32):
        i = rows.numpy()
        encoder, head, state, _ = train_step(encoder, head, state, x[i], y[i])
    out = jnp.tanh(jnp.asarray(split.x_val.numpy()) @ encoder["w"]) @ head["w"]
    accuracy = float((np.asarray(out).argmax(1) == split.y_val.numpy()).mean())
    still = bool(np.array_equal(first, np.asarray(head["w"])))
    t.note(accuracy=accuracy)
    conclude(t, fault=still, reached=accuracy > 0.9, harms=False)
