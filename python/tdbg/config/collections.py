"""Collections: named sets of tensors, and what is captured of them.

Built-in collections select tensors by role (what a tensor is), custom ones by regular
expressions on names.  Nothing here is global: each hook has a registry of its
own.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tdbg.config.messages import nearest, printable
from tdbg.config.patterns import NamePattern
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError, InvalidCollectionConfiguration

__all__ = [
    "BUILT_IN",
    "NO_TENSORS",
    "Collection",
    "CollectionKeys",
    "CollectionRegistry",
    "Role",
    "role_numbered",
]


class Role(enum.IntEnum):
    """The role of a tensor.  On disk (docs/format.md): never renumber."""

    WEIGHT = 1
    BIAS = 2
    GRADIENT = 3
    INPUT = 4
    OUTPUT = 5
    LOSS = 6
    SCALAR = 7
    BUFFER = 8
    OPTIMIZER_STATE = 9
    UPDATE = 10
    UNIT_SUMMARY = 11
    SPAN = 12
    GRADIENT_UNCLIPPED = 13
    OUTPUT_GRADIENT = 14
    OTHER = 15
    PREDICTION = 16
    LABEL = 17
    MODEL_INPUT = 18
    GRADIENT_LOCAL = 19
    TABLE = 20


# Role(number) takes four times as long, and this runs for 100,000 tensors.
_ROLES = {role.value: role for role in Role}


def role_numbered(number: int) -> Role:
    """Return the role of a number; ``OTHER`` for one that a later tdbg added."""
    return _ROLES.get(number, Role.OTHER)


#: Roles of definitions that are no tensors.
NO_TENSORS = frozenset({Role.SPAN, Role.TABLE})


class CollectionKeys(enum.StrEnum):
    """Names of the built-in collections."""

    ALL = "all"
    DEFAULT = "default"
    WEIGHTS = "weights"
    BIASES = "biases"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    SCALARS = "scalars"
    BUFFERS = "buffers"
    OUTPUT_GRADIENTS = "output_gradients"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    UPDATES = "updates"
    UNCLIPPED_GRADIENTS = "unclipped_gradients"
    LOCAL_GRADIENTS = "local_gradients"
    PREDICTIONS = "predictions"
    LABELS = "labels"
    MODEL_INPUTS = "model_inputs"
    METRICS = "metrics"
    HYPERPARAMETERS = "hyperparameters"
    FEATURE_IMPORTANCE = "feature_importance"
    AVERAGE_SHAP = "average_shap"
    FULL_SHAP = "full_shap"
    TREES = "trees"


# Capturing these roles needs further hooks, or costs as much as gradients for each
# replica.  So it must be asked for, by the collection of the role or by an expression
# that contains these words.
_WORDS = {
    Role.OUTPUT_GRADIENT: ("gradient", "output"),
    Role.GRADIENT_UNCLIPPED: ("unclipped",),
    Role.GRADIENT_LOCAL: ("local",),
}

BUILT_IN: dict[str, frozenset[Role]] = {
    CollectionKeys.ALL.value: frozenset(Role)
    - {Role.UNIT_SUMMARY, *NO_TENSORS, *_WORDS},
    CollectionKeys.DEFAULT.value: frozenset(),
    CollectionKeys.WEIGHTS.value: frozenset({Role.WEIGHT}),
    CollectionKeys.BIASES.value: frozenset({Role.BIAS}),
    CollectionKeys.GRADIENTS.value: frozenset({Role.GRADIENT}),
    CollectionKeys.LOSSES.value: frozenset({Role.LOSS}),
    CollectionKeys.INPUTS.value: frozenset(
        {Role.INPUT, Role.PREDICTION, Role.LABEL, Role.MODEL_INPUT}
    ),
    CollectionKeys.OUTPUTS.value: frozenset({Role.OUTPUT}),
    CollectionKeys.SCALARS.value: frozenset({Role.SCALAR}),
    CollectionKeys.BUFFERS.value: frozenset({Role.BUFFER}),
    CollectionKeys.OUTPUT_GRADIENTS.value: frozenset({Role.OUTPUT_GRADIENT}),
    CollectionKeys.OPTIMIZER_VARIABLES.value: frozenset({Role.OPTIMIZER_STATE}),
    CollectionKeys.UPDATES.value: frozenset({Role.UPDATE}),
    CollectionKeys.UNCLIPPED_GRADIENTS.value: frozenset({Role.GRADIENT_UNCLIPPED}),
    CollectionKeys.LOCAL_GRADIENTS.value: frozenset({Role.GRADIENT_LOCAL}),
    CollectionKeys.PREDICTIONS.value: frozenset({Role.PREDICTION}),
    CollectionKeys.LABELS.value: frozenset({Role.LABEL}),
    CollectionKeys.MODEL_INPUTS.value: frozenset({Role.MODEL_INPUT}),
    # Collections of boosted trees: their hooks put tensors there by name.
    CollectionKeys.METRICS.value: frozenset(),
    CollectionKeys.HYPERPARAMETERS.value: frozenset(),
    CollectionKeys.FEATURE_IMPORTANCE.value: frozenset(),
    CollectionKeys.AVERAGE_SHAP.value: frozenset(),
    CollectionKeys.FULL_SHAP.value: frozenset(),
    CollectionKeys.TREES.value: frozenset(),
}
"""The roles that each built-in collection holds."""


class _Changes:
    """Counts the changes of the collections that share it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Collection:
    """A named set of tensors.

    A built-in collection holds the tensors of its roles.  Every collection also holds
    the tensors that its expressions find, and those that ``save_tensor`` puts there.

    Args:
        name: Name of the collection.
        include_regex: Expressions that find names of tensors (``re.search``).
        save_config: When the tensors are captured; None: as the hook says.
        reduction_config: What is saved of them; None: as the hook says.
        save_histogram: Whether histograms of them are stored, wherever statistics are
            computed; None: as the hook says.

    Raises:
        ConfigurationError: If a name, regex or configuration is bad.
    """

    def __init__(
        self,
        name: str,
        include_regex: str | Iterable[str] | None = None,
        *,
        save_config: SaveConfig | None = None,
        reduction_config: ReductionConfig | None = None,
        save_histogram: bool | None = None,
    ) -> None:
        self.name = _name(name)
        self.roles = BUILT_IN.get(self.name, frozenset())
        self._changes = _Changes()
        self.tensor_names: set[str] = set()
        self._patterns: list[NamePattern] = []
        self._save_config: SaveConfig | None = None
        self._reduction_config: ReductionConfig | None = None
        self._save_histogram: bool | None = None
        if include_regex is not None:
            self.include(include_regex)
        self.save_config = save_config
        self.reduction_config = reduction_config
        self.save_histogram = save_histogram

    def include(self, regex: str | Iterable[str]) -> None:
        """Include the tensors whose names *regex* finds, from the next step on.

        Raises:
            ConfigurationError: If it is not a regular expression.
        """
        given: object = regex
        if not isinstance(given, Iterable):
            msg = f"collection {self.name!r}: {given!r} is not a regular expression"
            raise ConfigurationError(msg)
        for pattern in [regex] if isinstance(regex, str) else list(regex):
            where = f"collection {self.name!r}"
            self._patterns.append(NamePattern.of_setting(where, pattern))
        self._changes.count += 1

    @property
    def include_regex(self) -> list[str]:
        """The expressions, as they were given."""
        return [pattern.pattern for pattern in self._patterns]

    @property
    def save_config(self) -> SaveConfig | None:
        """When the tensors are captured; None: as the hook says."""
        return self._save_config

    @save_config.setter
    def save_config(self, value: SaveConfig | SaveConfigMode | None) -> None:
        self._save_config = None if value is None else SaveConfig.parse(value)
        self._changes.count += 1

    @property
    def reduction_config(self) -> ReductionConfig | None:
        """The statistics and values to save; None: as the hook says."""
        return self._reduction_config

    @reduction_config.setter
    def reduction_config(self, value: ReductionConfig | None) -> None:
        given: object = value
        if given is not None and not isinstance(given, ReductionConfig):
            msg = f"reduction_config must be a ReductionConfig, not {given!r}"
            raise ConfigurationError(msg)
        self._reduction_config = given
        self._changes.count += 1

    @property
    def save_histogram(self) -> bool | None:
        """Whether histograms of the tensors are stored; None: as the hook says."""
        return self._save_histogram

    @save_histogram.setter
    def save_histogram(self, value: bool | None) -> None:
        given: object = value
        if given is not None and not isinstance(given, bool):
            msg = f"save_histogram must be True, False or None, not {given!r}"
            raise ConfigurationError(msg)
        self._save_histogram = given
        self._changes.count += 1

    def has(self, name: str, role: Role) -> bool:
        """Return whether a tensor of this name and role belongs to it."""
        if role in self.roles or name in self.tensor_names:
            return True
        # Most collections have no expressions, and this runs for thousands of names.
        return bool(self._patterns) and any(
            pattern.search(name) for pattern in self._patterns_for(role)
        )

    def chosen(self, names: Mapping[Role, Iterable[str]]) -> set[str]:
        """Return those of *names*, by role, that belong to it.

        A collection that has no expressions looks at no name by itself.
        """
        found: set[str] = set()
        for role, of_role in names.items():
            if role in self.roles:
                found.update(of_role)
            elif self._patterns_for(role):
                found.update(name for name in of_role if self.has(name, role))
            elif self.tensor_names:
                found.update(self.tensor_names.intersection(of_role))
        return found

    def may_hold(self, role: Role) -> bool:
        """Return whether tensors of this role may belong to it."""
        return role in self.roles or bool(self._patterns_for(role))

    def _patterns_for(self, role: Role) -> list[NamePattern]:
        """Return the expressions that apply to tensors of this role."""
        if role in {Role.UNIT_SUMMARY, *NO_TENSORS}:
            return []
        words = _WORDS.get(role)
        if words is None:
            return self._patterns
        return [
            each
            for each in self._patterns
            if all(word in each.pattern for word in words)
        ]

    def check(self) -> None:
        """Refuse a collection that can never hold a tensor.

        Raises:
            InvalidCollectionConfiguration: If this collection cannot.
        """
        is_built_in = self.name in BUILT_IN  # Hooks and scripts put tensors there.
        if not (is_built_in or self.roles or self._patterns or self.tensor_names):
            msg = (
                f"collection {self.name!r} selects nothing: it is not a built-in one "
                f"and has no include_regex; {nearest(self.name, BUILT_IN)}"
            )
            raise InvalidCollectionConfiguration(msg)

    @property
    def expects_names(self) -> bool:
        """Whether its expressions are to find tensors at some step."""
        save = self._save_config
        is_off = save is not None and save.base.is_empty and not save.modes
        return bool(self._patterns) and not is_off

    @property
    def in_words(self) -> str:
        """Its name and its expressions, in a sentence."""
        found = ", ".join(repr(printable(each)) for each in self.include_regex)
        return f"collection {printable(self.name)!r} (include_regex {found})"

    def as_json(self) -> dict[str, Any]:
        """Return what the collections event holds, without names of tensors."""
        save, reduction = self._save_config, self._reduction_config
        return {
            "include_regex": self.include_regex,
            "save_config": None if save is None else save.as_json(),
            "reduction_config": None if reduction is None else reduction.as_json(),
            "save_histogram": self._save_histogram,
        }

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {self.include_regex!r})"


class CollectionRegistry:
    """The collections of one hook, and which of them are captured.

    Args:
        included: Names of the collections to capture.
        collections: Custom collections, and built-in ones with a configuration; these
            are captured as well.

    Attributes:
        built_in: Names of the collections that every registry has; a subclass may have
            those of another library.
        changes: Its ``count`` is the ``revision``, for callers that poll it.

    Raises:
        ConfigurationError: If a name is unknown.
        InvalidCollectionConfiguration: If a collection selects nothing.
    """

    built_in: tuple[str, ...] = tuple(BUILT_IN)

    def __init__(
        self,
        included: Iterable[str] = (),
        collections: Iterable[Collection] = (),
    ) -> None:
        self._collections: dict[str, Collection] = {}
        self._included: set[str] = set()
        self._narrowed: frozenset[str] | None = None
        self.changes = _Changes()
        for name in self.built_in:
            self._own(self._make(name))
        for collection in collections:
            self.add(collection)
        for name in [included] if isinstance(included, str) else included:
            self.include(name)

    def add(self, collection: Collection) -> None:
        """Capture this collection; it replaces one of the same name.

        Raises:
            ConfigurationError: If *collection* is no collection.
            InvalidCollectionConfiguration: If the collection selects nothing.
        """
        given: object = collection
        if not isinstance(given, Collection):
            msg = f"expected a Collection, not {given!r}"
            raise ConfigurationError(msg)
        collection.check()
        self._own(collection)
        self._included.add(collection.name)

    def include(self, name: str) -> None:
        """Capture the collection of this name.

        Raises:
            ConfigurationError: If there is no such collection.
        """
        self._included.add(self.get(name).name)
        self.changes.count += 1

    def get(self, name: str) -> Collection:
        """Return the collection of this name.

        Raises:
            ConfigurationError: If there is no such collection.
        """
        found = self._collections.get(_name(name))
        if found is None:
            msg = f"no collection {name!r}; {nearest(name, self._collections)}"
            raise ConfigurationError(msg)
        return found

    def put(self, name: str, tensor_name: str) -> None:
        """Put a tensor into a collection, which is made if it does not exist."""
        collection = self._collections.get(name)
        if collection is None:
            collection = self._own(self._make(name))
        if tensor_name not in collection.tensor_names or name not in self._included:
            collection.tensor_names.add(tensor_name)
            self._included.add(name)
            self.changes.count += 1

    @property
    def revision(self) -> int:
        """Grows whenever membership or a configuration may have changed."""
        return self.changes.count

    def captured(self) -> list[Collection]:
        """Return the collections that are captured, in order of their names."""
        names = self._included
        if self._narrowed is not None:
            names = names & self._narrowed
        return [self._collections[name] for name in sorted(names)]

    def remove(self, name: str) -> None:
        """Remove the collection of this name, if there is one."""
        self._included.discard(name)
        self._collections.pop(name, None)
        self.changes.count += 1

    def narrow(self, names: Iterable[str] | None) -> None:
        """Restrict capture to some of the included collections; None: to all."""
        self._narrowed = None if names is None else frozenset(names)
        self.changes.count += 1

    def __iter__(self) -> Iterator[Collection]:
        return iter(self._collections.values())

    def _make(self, name: str) -> Collection:
        """Return a new collection of that name."""
        return Collection(name)

    def _own(self, collection: Collection) -> Collection:
        collection._changes = self.changes
        self._collections[collection.name] = collection
        self.changes.count += 1
        return collection


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        msg = f"the name of a collection must be text, not {value!r}"
        raise ConfigurationError(msg)
    return str(value)
