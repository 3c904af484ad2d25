"""JAX: what the program of a step shows: its loss, its indices, its arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import tdbg
import tdbg.jax as tj
from tdbg.hooks.jax.programs import Integers, ancestors, values_of
from tdbg.run.findings import Finding

N, IDS, CLASSES = 16, 20, 5
RULES = ("LossMisuse", "LabelMisuse", "WrongDimension", "InputSkew", "OptimizerMisuse")
LUCK = np.random.default_rng(0)
ONE_COLUMN = {"w": LUCK.normal(size=(3, 1)).astype(np.float32)}
TABLE = {
    "emb": LUCK.normal(size=(IDS, 8)).astype(np.float32),
    "w": LUCK.normal(size=(8, CLASSES)).astype(np.float32),
}
TEXTS = {"emb": TABLE["emb"], "w": LUCK.normal(size=(8, IDS)).astype(np.float32)}
PIXELS = {"w": LUCK.normal(size=(12, CLASSES)).astype(np.float32)}

by_labels = optax.softmax_cross_entropy_with_integer_labels
by_bits = optax.sigmoid_binary_cross_entropy

ROWS = LUCK.normal(size=(N, 3)).astype(np.float32)
NUMBERS = LUCK.normal(size=N).astype(np.float32)
BITS = LUCK.integers(0, 2, N)
TOKENS = LUCK.integers(0, IDS, (N, 7))
BEYOND = np.where(TOKENS == 3, IDS + 2, TOKENS)
LABELS = LUCK.integers(0, CLASSES, N)
FROM_ONE = np.arange(N) % CLASSES + 1
BYTES = LUCK.integers(0, 256, (N, 12)).astype(np.uint8)
IS_TEXT = np.arange(7) < LUCK.integers(3, 7, N)[:, None]
PADDED = np.where(IS_TEXT, np.maximum(TOKENS, 1), 0)
MASK = IS_TEXT.astype(np.int32)


def column(p: Any, x: Any) -> Any:
    return x @ p["w"]


def scores(p: Any, t: Any) -> Any:
    return p["emb"][t].mean(1) @ p["w"]


def hot(p: Any, t: Any, y: Any) -> Any:
    terms = jax.nn.one_hot(y, CLASSES) * jax.nn.log_softmax(scores(p, t))
    return -terms.sum(-1).mean()


def over_samples(p: Any, t: Any, y: Any) -> Any:
    shares = jax.nn.log_softmax(scores(p, t), axis=0)
    return -jnp.take_along_axis(shares, y[:, None], 1).mean()


def next_tokens(p: Any, t: Any) -> Any:
    return by_labels(p["emb"][t[:, :-1]] @ p["w"], t[:, 1:])


def of_texts(p: Any, batch: Any) -> Any:
    return next_tokens(p, batch["ids"]).mean()


def of_texts_by_mask(p: Any, batch: Any) -> Any:
    mask = batch["mask"][:, 1:]
    return (next_tokens(p, batch["ids"]) * mask).sum() / mask.sum()


def of_texts_by_padding(p: Any, batch: Any) -> Any:
    mask = batch["ids"][:, 1:] != 0
    return (next_tokens(p, batch["ids"]) * mask).sum() / mask.sum()


def of_pixels(x: Callable[[Any], Any]) -> Any:
    return lambda p, pixels, y: by_labels(x(pixels) @ p["w"], y).mean()


def energy(p: Any, x: Any, y: Any) -> Any:
    made = column(p, x)
    own = jnp.abs(made[:, 0][:, None] - made[:, 0][None])
    return 2 * jnp.abs(made - y).mean() - own.mean()


def both_ways(p: Any, t: Any, other: Any, y: Any) -> Any:
    pairs = p["emb"][t].mean(1) @ p["emb"][other].mean(1).T
    chosen = jnp.arange(N), y
    ways = jax.nn.log_softmax(pairs, 0)[chosen], jax.nn.log_softmax(pairs, 1)[chosen]
    return -sum(ways).mean()


TEXT_BATCH = {"ids": PADDED, "mask": MASK}
FAULTY: dict[str, tuple[Any, Any, tuple[Any, ...], str, str]] = {
    "a softmax before the loss": (
        lambda p, t, y: by_labels(jax.nn.softmax(scores(p, t)), y).mean(),
        TABLE,
        (TOKENS, LABELS),
        "LossMisuse",
        "The loss gets the result of a softmax, of shape (16, 5)",
    ),
    "a sigmoid before the loss": (
        lambda p, x, y: by_bits(jax.nn.sigmoid(column(p, x)), y[:, None]).mean(),
        ONE_COLUMN,
        (ROWS, BITS),
        "LossMisuse",
        "The loss gets the result of a sigmoid",
    ),
    "a softmax over the samples": (
        over_samples,
        TABLE,
        (TOKENS, LABELS),
        "LossMisuse",
        "over the 16 samples of a batch instead of the 5 classes",
    ),
    "a column and a row": (
        lambda p, x, y: ((column(p, x) - y) ** 2).mean(),
        ONE_COLUMN,
        (ROWS, NUMBERS),
        "LossMisuse",
        "outputs of shape (16, 1) and targets of another shape broadcast to (16, 16)",
    ),
    "classes as bits": (
        lambda p, x, y: by_bits(column(p, x)[:, 0], y).mean(),
        ONE_COLUMN,
        (ROWS, LABELS),
        "LossMisuse",
        "sigmoid_binary_cross_entropy takes targets from 0 to 1",
    ),
    "ids beyond the table": (
        lambda p, t, y: by_labels(scores(p, t), y).mean(),
        TABLE,
        (BEYOND, LABELS),
        "WrongDimension",
        "emb has 20 rows, and 7 of 112 indices",
    ),
    "labels that begin with 1": (
        hot,
        TABLE,
        (TOKENS, FROM_ONE),
        "LabelMisuse",
        "Labels lie between 1 and 5, but jax.nn.one_hot makes 5 classes",
    ),
    "bytes that wrap": (
        of_pixels(lambda x: (x - 128) / 128.0),
        PIXELS,
        (BYTES, LABELS),
        "InputSkew",
        "computes a subtraction of the batch in uint8",
    ),
    "ids of 64 bits": (
        lambda p, t, y: by_labels(scores(p, t % IDS), y).mean(),
        TABLE,
        (TOKENS + (1 << 40), LABELS),
        "InputSkew",
        "112 of 112 integers of an argument do not fit int32",
    ),
    "a mask that nobody reads": (
        of_texts,
        TEXTS,
        (TEXT_BATCH,),
        "LabelMisuse",
        "the step is given a mask (argument 3/mask), and nothing is computed of it",
    ),
}
HEALTHY: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "scores": (
        lambda p, t, y: by_labels(scores(p, t), y).mean(),
        TABLE,
        (TOKENS, LABELS),
    ),
    "an entropy beside the loss": (
        lambda p, t, y: (
            by_labels(scores(p, t), y)
            + optax.softmax_cross_entropy(scores(p, t), jax.nn.softmax(scores(p, t)))
        ).mean(),
        TABLE,
        (TOKENS, LABELS),
    ),
    "a contrast in both directions": (both_ways, TABLE, (TOKENS, TOKENS[:12], BITS)),
    "equal shapes": (
        lambda p, x, y: ((column(p, x) - y[:, None]) ** 2).mean(),
        ONE_COLUMN,
        (ROWS, NUMBERS),
    ),
    "an energy distance": (energy, ONE_COLUMN, (ROWS, NUMBERS)),
    "the nearest target": (
        lambda p, x, y: ((column(p, x) - y) ** 2).min(1).mean(),
        ONE_COLUMN,
        (ROWS, NUMBERS),
    ),
    "bits and soft bits": (
        lambda p, x, y: by_bits(column(p, x)[:, 0], 0.9 * y + 0.05).mean(),
        ONE_COLUMN,
        (ROWS, BITS),
    ),
    "labels of both signs": (
        lambda p, x, y: jax.nn.softplus(-y * column(p, x)[:, 0]).mean(),
        ONE_COLUMN,
        (ROWS, 2 * BITS - 1),
    ),
    "ids that are clipped": (
        lambda p, t, y: by_labels(scores(p, jnp.clip(t, 0, IDS - 1)), y).mean(),
        TABLE,
        (BEYOND, LABELS),
    ),
    "ids that are hashed": (
        lambda p, t, y: by_labels(scores(p, (31 * t + 7) % IDS), y).mean(),
        TABLE,
        (100 * BEYOND, LABELS),
    ),
    "ids beyond the table that are masked": (
        lambda p, t, m, y: by_labels(
            (p["emb"][t] * m[..., None]).sum(1) @ p["w"], y
        ).mean(),
        TABLE,
        (np.where(IS_TEXT, TOKENS, IDS), MASK, LABELS),
    ),
    "labels that are no class on purpose": (
        hot,
        TABLE,
        (TOKENS, np.where(BITS == 1, LABELS, -1)),
    ),
    "a number for what has no class": (
        hot,
        TABLE,
        (TOKENS, np.where(BITS == 1, LABELS, 255)),
    ),
    "bytes that are converted": (
        of_pixels(lambda x: (x.astype(jnp.float32) - 128) / 128.0),
        PIXELS,
        (BYTES, LABELS),
    ),
    "bytes that fit": (of_pixels(lambda x: (255 - x) / 255.0), PIXELS, (BYTES, LABELS)),
    "a mask that counts": (of_texts_by_mask, TEXTS, (TEXT_BATCH,)),
    "a mask that the tokens make": (of_texts_by_padding, TEXTS, (TEXT_BATCH,)),
}


def trained(
    run_dir: Path, loss: Any, params: Any, batch: tuple[Any, ...], n: int = 3
) -> list[Finding]:
    """Train, and return what the rules say."""
    hook = tj.Hook(run_dir, include_collections=["losses"])

    @hook.jit
    def step(params: Any, rate: Any, *batch: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda w, g: w - rate * g, params, slope), value

    for _ in range(n):
        params, _ = step(params, 1e-3, *batch)
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    rules = [getattr(tdbg.rules, name)() for name in RULES]
    return list(tdbg.rules.check(run_dir, rules, record=False).findings)


@pytest.mark.parametrize("name", FAULTY)
def test_a_mistake_in_the_program_is_named(tmp_path: Path, name: str) -> None:
    loss, params, batch, rule, message = FAULTY[name]
    found = trained(tmp_path / "run", loss, params, batch)
    assert [each.rule for each in found] == [rule]
    assert message in found[0].message
    assert found[0].severity.name == "WARNING"
    assert "torch" not in found[0].advice


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_is_not_named(tmp_path: Path, name: str) -> None:
    assert trained(tmp_path / "run", *HEALTHY[name]) == []


def test_a_state_that_the_step_makes_itself_is_named(tmp_path: Path) -> None:
    hook = tj.Hook(tmp_path / "run", include_collections=["losses"])
    tx = optax.adam(1e-3)

    def step(params: Any, state: Any, x: Any) -> Any:
        loss, slope = jax.value_and_grad(lambda p: (column(p, x) ** 2).mean())(params)
        updates, state = tx.update(slope, tx.init(params), params)
        return optax.apply_updates(params, updates), state, loss

    compiled, params, state = hook.jit(step), ONE_COLUMN, tx.init(ONE_COLUMN)
    for _ in range(10):
        params, state, _ = compiled(params, state, ROWS)
    hook.close()
    rules = [tdbg.rules.OptimizerMisuse()]
    (found,) = tdbg.rules.check(tmp_path / "run", rules, record=False).findings
    assert "made its state inside of the training step" in found.message


@pytest.mark.parametrize(
    ("n_rows", "is_twice", "expected"),
    [
        (IDS, False, set()),
        (IDS, True, {"LossMisuse"}),
        (IDS - 2, False, {"WrongDimension"}),
    ],
)
def test_steps_of_flax_nnx_are_read(
    tmp_path: Path, n_rows: int, is_twice: bool, expected: set[str]
) -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.words = nnx.Embed(n_rows, 8, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.head = nnx.Linear(8, CLASSES, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            made = self.head(self.drop(self.words.embedding[tokens].mean(1)))
            return jax.nn.softmax(made) if is_twice else made

    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    hook = tj.Hook(tmp_path / "run", include_collections=["losses"])

    @hook.jit(jit=nnx.jit)
    def step(net: Any, optimizer: Any, tokens: Any, labels: Any) -> Any:
        def loss(net: Any) -> Any:
            return by_labels(net(tokens), labels).mean()

        value, slope = nnx.value_and_grad(loss)(net)
        optimizer.update(net, slope)
        return value

    for _ in range(3):
        step(net, optimizer, TOKENS, LABELS)
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    rules = [getattr(tdbg.rules, name)() for name in RULES]
    found = tdbg.rules.check(tmp_path / "run", rules, record=False).findings
    assert {each.rule for each in found} == expected


@pytest.mark.parametrize("is_twice", [True, False])
def test_steps_of_equinox_are_read(tmp_path: Path, is_twice: bool) -> None:
    net = eqx.nn.MLP(3, CLASSES, 8, 1, key=jax.random.key(0))
    tx = optax.adam(1e-3)
    state = tx.init(eqx.filter(net, eqx.is_array))
    hook = tj.Hook(tmp_path / "run", include_collections=["losses"])

    @hook.jit(jit=eqx.filter_jit)
    def step(net: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(net: Any) -> Any:
            made = jax.vmap(net)(x)
            return by_labels(jax.nn.softmax(made) if is_twice else made, y).mean()

        value, slope = eqx.filter_value_and_grad(loss)(net)
        updates, state = tx.update(slope, state, net)
        return eqx.apply_updates(net, updates), state, value

    for _ in range(3):
        net, state, _ = step(net, state, ROWS, LABELS)
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    rules = [getattr(tdbg.rules, name)() for name in RULES]
    found = tdbg.rules.check(tmp_path / "run", rules, record=False).findings
    assert [each.rule for each in found] == ["LossMisuse"] * is_twice


def test_integers_are_computed_as_jax_does() -> None:
    def chosen(x: Any) -> Any:
        near = jnp.where(x < 3, x + 2, x % 4)[:, ::2]
        return jnp.concatenate([near, jnp.arange(2)[None] * jnp.ones_like(near)], 0).T

    x = LUCK.integers(0, 9, (3, 4)).astype(np.int32)
    (value,) = values_of(jax.make_jaxpr(chosen)(x))
    computed = Integers(lambda _: x).of(value)
    assert computed is not None
    np.testing.assert_array_equal(computed, chosen(x))


def test_a_program_is_read_through_the_functions_that_it_calls() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        return jax.checkpoint(jnp.sin)(x) + 1

    (value,) = values_of(jax.make_jaxpr(lambda x: inner(x) * 2)(1.0))
    assert {each.op for each in ancestors([value])} >= {"sin", "add", "mul", "argument"}
