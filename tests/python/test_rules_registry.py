"""Rules by name, and what they need captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from tdbg import rules
from tdbg.errors import ConfigurationError, UnknownRule
from tdbg.needs import Needs, every_need
from tdbg.rules import (
    DeadRelu,
    Judgement,
    Rule,
    TensorInfo,
    VanishingGradient,
    Window,
    registry,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThirdParty(Rule):
    """As another package would bring it."""

    limit: float = 1.0

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        return Needs(collections=frozenset({"weights"}), interval=5)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        del window
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(ThirdParty):
    """A rule that needs different things of different tensors."""

    @property
    def needs(self) -> tuple[Needs, ...]:
        return (
            Needs(collections=frozenset({"weights"})),
            Needs(collections=frozenset({"labels"}), raw=True, interval=5),
        )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ThirdParty is installed, and so is a rule that cannot be imported."""
    points = [
        EntryPoint("ThirdParty", f"{__name__}:ThirdParty", registry.GROUP),
        EntryPoint("Missing", "no_such_package:Rule", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(EntryPoint, "load", _load)


def _load(point: EntryPoint) -> object:
    if point.name == "Missing":
        msg = "No module named 'no_such_package'"
        raise ImportError(msg)
    return ThirdParty


def test_rules_of_tdbg_are_there_by_name_and_by_default():
    assert list(registry.BUILT_IN) == sorted(registry.BUILT_IN)
    assert set(registry.BUILT_IN) <= set(rules.names())
    default = [rule.name for rule in rules.default_rules()]
    assert default == [n for n in registry.BUILT_IN if n not in registry.NOT_BY_DEFAULT]
    for name in registry.BUILT_IN:
        assert rules.get(name).__name__ == name
        assert getattr(rules, name) is rules.get(name)
        assert name in rules.__all__


def test_what_is_no_rule_is_no_attribute():
    with pytest.raises(AttributeError, match="NoSuchRule"):
        _ = rules.NoSuchRule


def test_an_unknown_name_says_what_is_near():
    with pytest.raises(UnknownRule, match="did you mean VanishingGradient"):
        rules.get("vanishinggradient")
    with pytest.raises(UnknownRule, match="there are AllZero, "):
        rules.get("zzz")


def test_rules_are_made_with_parameters():
    rule = rules.make("VanishingGradient", threshold=1e-9)
    assert rule == VanishingGradient(threshold=1e-9)
    assert rule.parameters()["threshold"] == 1e-9
    with pytest.raises(ConfigurationError, match="no parameter 'treshold'"):
        rules.make("VanishingGradient", treshold=1e-9)


@pytest.mark.usefixtures("installed")
def test_another_package_brings_a_rule():
    assert "ThirdParty" in rules.names()
    assert rules.get("ThirdParty") is ThirdParty
    assert rules.make("ThirdParty", limit=2.0) == ThirdParty(limit=2.0)


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_imported_is_named():
    with pytest.raises(ConfigurationError, match=r"Missing \(no_such_package:Rule\)"):
        rules.get("Missing")


def test_only_frozen_dataclasses_that_are_rules_can_be_registered():
    @dataclass
    class Thawed(Rule):
        def evaluate(self, window: Window) -> Iterator[Judgement]:
            del window
            yield from ()

    for bad in (Thawed, dict, 3):
        with pytest.raises(ConfigurationError, match="cannot be registered"):
            rules.register(bad)  # type: ignore[type-var]


def test_a_name_is_not_taken_twice():
    other = dataclass(frozen=True)(
        type("VanishingGradient", (ThirdParty,), {"__module__": "elsewhere"})
    )
    with pytest.raises(ConfigurationError, match="has a rule of that name"):
        rules.register(other)


def test_needs_of_several_rules_are_theirs_side_by_side():
    dead, vanishing, third = DeadRelu(), VanishingGradient(), ThirdParty()
    needs = rules.needs_of(["DeadRelu", vanishing, third])
    assert needs == (*dead.needs, *vanishing.needs, third.needs)
    assert rules.needs_of(["DeadRelu", dead]) == dead.needs
    assert rules.needs_of(Several()) == every_need(Several().needs)
    assert rules.needs_of(None) == rules.needs_of(rules.default_rules())


def test_a_rule_of_several_needs_sees_what_any_of_them_names():
    labels, weights = (TensorInfo(name="t", role=r) for r in ("label", "weight"))
    inputs, biases = (TensorInfo(name="t", role=r) for r in ("input", "bias"))
    assert Several().selects(labels)
    assert Several().selects(weights)
    assert not Several().selects(inputs)
    assert not Several().selects(biases)


def test_rules_are_values():
    assert VanishingGradient() == VanishingGradient()
    assert hash(VanishingGradient()) == hash(VanishingGradient())
    with pytest.raises(AttributeError):
        VanishingGradient().threshold = 1.0  # type: ignore[misc]


def test_whoever_reads_values_has_rows_to_find_them_by() -> None:
    # Tables show rows: of values alone a rule would never hear.
    for rule in rules.default_rules():
        needed = every_need(rule.needs)
        with_rows = frozenset().union(*(n.collections for n in needed if n.statistics))
        for need in needed:
            assert not need.raw or need.collections <= with_rows, rule.name
