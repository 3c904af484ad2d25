"""Collections: what belongs to them, and what is refused."""

from __future__ import annotations

import pytest

from tdbg.config import (
    Collection,
    CollectionKeys,
    CollectionRegistry,
    Role,
    SaveConfig,
    SaveConfigMode,
)
from tdbg.errors import ConfigurationError, InvalidCollectionConfiguration


def members(registry: CollectionRegistry, name: str, role: Role) -> set[str]:
    return {item.name for item in registry if item.has(name, role)}


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (Role.WEIGHT, "weights"),
        (Role.BIAS, "biases"),
        (Role.GRADIENT, "gradients"),
        (Role.INPUT, "inputs"),
        (Role.OUTPUT, "outputs"),
        (Role.LOSS, "losses"),
        (Role.SCALAR, "scalars"),
    ],
)
def test_built_in_collections_go_by_role_not_by_name(role: Role, name: str) -> None:
    assert members(CollectionRegistry(), "gradient_bias_loss", role) == {name, "all"}


def test_unit_summaries_are_in_no_built_in_collection() -> None:
    registry = CollectionRegistry(collections=[Collection("custom", ".*")])
    assert members(registry, "unit/relu_output_0", Role.UNIT_SUMMARY) == set()


def test_custom_collections_find_their_expressions_anywhere_in_a_name() -> None:
    custom = Collection("custom", ["relu_out", r"^fc\."])
    assert custom.has("layer1.relu_output_0", Role.OUTPUT)
    assert custom.has("fc.weight", Role.WEIGHT)
    assert not custom.has("layer.fc.weight", Role.WEIGHT)


def test_a_built_in_collection_can_be_widened() -> None:
    weights = Collection("weights", "special")
    assert weights.has("a", Role.WEIGHT)
    assert weights.has("special", Role.OUTPUT)


def test_what_is_given_is_captured_and_nothing_else() -> None:
    registry = CollectionRegistry(["weights"], [Collection("custom", "x")])
    assert [item.name for item in registry.captured()] == ["custom", "weights"]


def test_every_change_is_a_new_revision() -> None:
    registry = CollectionRegistry(["weights"])
    seen = [registry.revision]
    for change in (
        lambda: registry.include("biases"),
        lambda: registry.get("weights").include("x"),
        lambda: setattr(registry.get("weights"), "save_config", SaveConfig()),
        lambda: registry.add(Collection("weights", "y")),
        lambda: registry.put("new", "tensor"),
        lambda: registry.put("new", "other"),
    ):
        change()
        assert registry.revision not in seen
        seen.append(registry.revision)
    registry.put("new", "other")
    assert registry.revision == seen[-1]


def test_a_tensor_put_into_several_new_collections_is_in_all_of_them() -> None:
    registry = CollectionRegistry()
    for name in ("c1", "c2"):
        registry.put(name, "t")
    assert members(registry, "t", Role.OTHER) == {"all", "c1", "c2"}


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'weights'"):
        CollectionRegistry(["wieghts"])


def test_a_collection_that_selects_nothing_is_refused() -> None:
    with pytest.raises(InvalidCollectionConfiguration, match="selects nothing"):
        CollectionRegistry(collections=[Collection("custom")])


def test_a_bad_expression_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        Collection("custom", "(")


def test_a_schedule_of_one_mode_is_taken_for_all() -> None:
    collection = Collection("c", "x")
    collection.save_config = SaveConfigMode(save_interval=2)  # type: ignore[assignment]
    assert isinstance(collection.save_config, SaveConfig)


def test_keys_are_the_names() -> None:
    assert CollectionKeys.WEIGHTS == "weights"
    assert CollectionRegistry([CollectionKeys.WEIGHTS]).get("weights")
