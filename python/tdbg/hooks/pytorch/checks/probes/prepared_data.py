"""Find lines that prepare the data of training and of evaluation as if they were two.

A scaler that is fitted to the test set, too, gives the same measurement another number
there.  Inputs and labels that are shuffled by two permutations no longer belong to each
other.  Names say which data are meant, and the objects behind names what a call does.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tdbg.hooks.pytorch.checks.probes.known_names import (
    UNKNOWN,
    KnownNames,
    executed,
    parts_of,
)
from tdbg.hooks.pytorch.model.program_sources import functions_of
from tdbg.run.observations import Fault

__all__ = ["faults_of_preparation"]

# Words in the names of data.
_TRAINING = frozenset({"train", "training", "tr", "trn"})
_EVALUATION = frozenset(
    {"test", "te", "tst", "val", "valid", "validation", "eval", "dev", "holdout"}
)
_INPUTS = frozenset(
    {"x", "xs", "feature", "features", "input", "inputs", "image", "images", "img"}
    | {"imgs", "text", "texts", "sentences"}
)
_LABELS = frozenset({"y", "ys", "label", "labels", "target", "targets"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# Classes that learn from data how to transform them; and those that learn nothing.
_LEARNS = re.compile(
    r"(sklearn\.(preprocessing|feature_extraction|impute|compose|decomposition)(\.|$))"
)
_LEARNING_NAME = re.compile(r"(Scaler|Encoder|Vectorizer|Imputer|Discretizer)$")
_STATELESS = frozenset(
    {"Binarizer", "FeatureHasher", "FunctionTransformer", "HashingVectorizer"}
    | {"Normalizer", "PolynomialFeatures"}
)
_FITS = frozenset({"fit", "fit_transform"})
_SEEDS = frozenset(
    {"seed", "manual_seed", "set_state", "setstate", "default_rng", "RandomState"}
    | {"Random", "Generator", "set_rng_state", "seed_everything", "set_seed"}
)
_PERMUTES = frozenset({"permutation", "randperm"})

# What is wrong, how, and in which line.
_Found = tuple[Fault, str, Any]


def faults_of_preparation(
    body: Sequence[ast.stmt], names: KnownNames
) -> Iterator[_Found]:
    """Yield what is wrong in the statements of a function or a program.

    Args:
        body: Its statements that run.
        names: What its names stand for.

    Example:
        >>> body = ast.parse("np.random.shuffle(x); np.random.shuffle(y)").body
        >>> [(fault, _, node)] = faults_of_preparation(body, KnownNames({}))
        >>> fault.value, ast.unparse(node)
        ('shuffled_apart', 'np.random.shuffle(y)')
    """
    calls = [
        each
        for line in body
        for each in parts_of([line])
        if isinstance(each, ast.Call) and not _is_chosen(each, line)
    ]
    yield from _fitted_anew(calls, body, names)
    yield from _fitted_in_function(calls, names)
    yield from _shuffled_apart(body)


# ---- names ---------------------------------------------------------------------------


def _words(node: ast.AST) -> set[str]:
    """Return the words in the names of an expression."""
    found = set[str]()
    for each in ast.walk(node):
        text = getattr(each, "id", "") or getattr(each, "attr", "")
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            text = each.value
        for word in _WORD.findall(text):
            word = word.lower()  # noqa: PLW2901
            found.add(word)
            if word[0] in "xy" and word[1:] in _TRAINING | _EVALUATION:
                found |= {word[0], word[1:]}
    return found


def _part(node: ast.AST) -> str:
    """Return the part of the data that an expression is, by its names; "": unknown."""
    words = _words(node)
    is_trained, is_evaluated = bool(words & _TRAINING), bool(words & _EVALUATION)
    if is_trained == is_evaluated:
        return ""
    return "training" if is_trained else "evaluation"


def _is_called(call: ast.AST, names: Iterable[str]) -> bool:
    """Return whether a call is one of a function with such a name."""
    function = getattr(call, "func", None)
    return getattr(function, "attr", getattr(function, "id", "")) in names


# ---- what is fitted again ------------------------------------------------------------


def _fitted_anew(
    calls: Sequence[ast.Call], body: Sequence[ast.stmt], names: KnownNames
) -> Iterator[_Found]:
    """Yield fits to data of evaluation, beside those of the same class to training."""
    fits = [
        (kind, _part(call.args[0]), call)
        for call in calls
        if call.args and (kind := _fitted_class(call, body, names)) is not None
    ]
    trained = {kind for kind, part, _ in fits if part == "training"}
    for kind, part, call in fits:
        if part == "evaluation" and kind in trained and _is_kept(kind, call, body):
            yield Fault.FITTED_ANEW, f"{kind.__name__} line", call


def _fitted_class(
    call: ast.Call, body: Sequence[ast.stmt], names: KnownNames
) -> type | None:
    """Return the class that a call fits to data; None: it fits none that is known."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _FITS:
        return None
    owner: ast.AST = call.func.value
    found = names(owner)
    if found is UNKNOWN:
        owner = _made_in(ast.unparse(owner), body) or owner
    if isinstance(owner, ast.Call):
        found = names(owner.func)
    kind = found if isinstance(found, type) else type(found)
    return kind if _learns(kind) else None


def _made_in(name: str, body: Sequence[ast.stmt]) -> ast.Call | None:
    """Return the call that makes the value of a variable, if there is only one."""
    made = [
        each.value
        for each in body
        if isinstance(each, ast.Assign)
        and any(ast.unparse(target) == name for target in each.targets)
    ]
    value = made[0] if len(made) == 1 else None
    return value if isinstance(value, ast.Call) else None


def _learns(kind: type) -> bool:
    is_known = _LEARNS.match(kind.__module__) or _LEARNING_NAME.search(kind.__name__)
    transforms = hasattr(kind, "transform") and hasattr(kind, "fit")
    return bool(is_known) and transforms and kind.__name__ not in _STATELESS


def _is_kept(kind: type, call: ast.Call, body: Sequence[ast.stmt]) -> bool:
    """Return whether the data are replaced, if the result could be meant to be drawn.

    Components of the test set alone make a figure.
    """
    if ".decomposition" not in kind.__module__:
        return True
    taken = ast.unparse(call.args[0])
    return any(
        isinstance(each, ast.Assign)
        and each.value is call
        and any(ast.unparse(target) == taken for target in each.targets)
        for each in body
    )


def _is_chosen(call: ast.Call, line: ast.stmt) -> bool:
    """Return whether a call stands in one way of an expression that has two."""
    ways = (each for each in ast.walk(line) if isinstance(each, ast.IfExp))
    return any(call in ast.walk(each) for each in ways)


def _chosen(root: ast.AST) -> set[ast.AST]:
    """Return the parts that only some calls of a function run."""
    return {
        each
        for choice in ast.walk(root)
        if isinstance(choice, ast.If | ast.IfExp)
        for each in ast.walk(choice)
    }


def _fitted_in_function(
    calls: Sequence[ast.Call], names: KnownNames
) -> Iterator[_Found]:
    """Yield calls, for evaluation, of a function that fits, and that training calls."""
    by_function = dict[Any, dict[str, ast.Call]]()
    for call in calls:
        function = names(call.func)
        if isinstance(function, type):
            function = vars(function).get("__init__")
        given = ast.Tuple([*call.args, *(each.value for each in call.keywords)])
        if isinstance(function, types.FunctionType) and (part := _part(given)):
            by_function.setdefault(function, {}).setdefault(part, call)
    for function, parts in by_function.items():
        if len(parts) == 2 and (kind := _class_fitted_by(function)) is not None:
            yield Fault.FITTED_ANEW, f"{kind.__name__} function", parts["evaluation"]


def _class_fitted_by(function: types.FunctionType) -> type | None:
    """Return the class that a function makes and fits in each call."""
    names = KnownNames({**function.__globals__})
    for node in functions_of(function.__code__)[:1]:
        arguments = {
            each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)
        }
        body = executed(node, names)
        chosen = _chosen(node)
        for call in parts_of(body):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            kind = _fitted_class(call, body, names)
            owner = getattr(call.func, "value", None)
            is_given = getattr(owner, "id", "") in arguments
            if kind is not None and not is_given and call not in chosen:
                return kind
    return None


# ---- what is shuffled apart ----------------------------------------------------------


class _Draw(NamedTuple):
    """A line that brings an array into a random order.

    Attributes:
        how: The function that draws, as written.
        node: The line's call.
        array: The array.
    """

    how: str
    node: ast.Call
    array: ast.AST


def _shuffled_apart(body: Sequence[ast.stmt]) -> Iterator[_Found]:
    """Yield draws of another order for labels than for their inputs."""
    lines = sorted(body, key=lambda each: each.lineno)
    draws = [found for each in lines if (found := _draw_in(each)) is not None]
    of_inputs = [each for each in draws if _words(each.array) & _INPUTS]
    of_labels = [each for each in draws if _words(each.array) & _LABELS]
    for first in of_inputs:
        for second in of_labels:
            one, other = sorted((first, second), key=lambda each: each.node.lineno)
            is_pair = first.how == second.how and _part(first.array) == _part(
                second.array
            )
            if is_pair and first is not second and not _seeds(lines, one, other):
                yield Fault.SHUFFLED_APART, "apart", other.node


def _draw_in(line: ast.stmt) -> _Draw | None:
    """Return what a statement brings into a random order."""
    value = getattr(line, "value", None)
    if isinstance(value, ast.Call) and len(value.args) == 1:
        # A shuffle in its place, or one that returns the result.
        names = {"shuffle"} | ({"train_test_split"} if _is_assignment(line) else set())
        is_fixed = {"random_state", "shuffle", None} & {k.arg for k in value.keywords}
        if _is_called(value, names) and not is_fixed:
            return _Draw(ast.unparse(value.func), value, value.args[0])
    elif isinstance(value, ast.Subscript) and _is_assignment(line):
        order = value.slice
        is_plain = isinstance(order, ast.Call) and not (
            order.keywords or _calls_in(order.func)
        )
        if isinstance(order, ast.Call) and is_plain and _is_called(order, _PERMUTES):
            return _Draw(ast.unparse(order.func), order, value.value)
    return None


def _is_assignment(line: ast.stmt) -> bool:
    return isinstance(line, ast.Assign)


def _calls_in(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _seeds(lines: Sequence[ast.stmt], one: _Draw, other: _Draw) -> bool:
    """Return whether a line between two draws sets a generator to where it was."""
    return any(
        _is_called(each, _SEEDS)
        for line in lines
        if one.node.lineno <= line.lineno <= other.node.lineno
        for each in ast.walk(line)
    )
