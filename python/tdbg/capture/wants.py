"""What is wanted at a step, and what a budget leaves out of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = [
    "HISTOGRAM",
    "LIMITED_VALUES",
    "ROWS",
    "SMALL_VALUES",
    "UNITS",
    "VALUES",
    "StepWants",
    "Throttle",
]

# What is wanted of a tensor at a step; cpp/bindings/taker.h has them too.
ROWS = 1
VALUES = 2
SMALL_VALUES = 4  # Its value, if it is a single number.
HISTOGRAM = 8
UNITS = 16  # The counts of its units.
LIMITED_VALUES = 32  # Its value, if it is not larger than its limit.


class Throttle(NamedTuple):
    """What is left out of what was asked for; losses and scalars never are.

    Attributes:
        beginning: Whether rules have every step of the beginning.
        histograms: Whether histograms are taken.
        values: Whether raw values are; where not, their statistics are.
        activations: Multiplies the intervals of collections that may hold inputs
            or outputs of modules.
        others: Multiplies those of all others.
    """

    beginning: bool = True
    histograms: bool = True
    values: bool = True
    activations: int = 1
    others: int = 1

    def text(self) -> str:
        """What is left out, in words; empty for nothing."""
        parts = []
        if not self.beginning:
            parts.append("the beginning no more often than the rest")
        if not self.histograms:
            parts.append("no histograms")
        if not self.values:
            parts.append("no raw values")
        for factor, what in (
            (self.activations, "activations"),
            (self.others, "parameters and gradients"),
        ):
            if factor > 1:
                parts.append(f"statistics of {what} {factor} times as rarely")
        return ", ".join(parts)


class _Plan(Protocol):
    """A captured name, as the recorder keeps it."""

    profile: int


class StepWants:
    """What is wanted at a step.

    Attributes:
        is_active: Whether anything may be.
        takes_activations: Whether inputs or outputs of modules may be.
        is_light: Whether nothing is but what comes by itself, losses and scalars: who
            would fetch tensors need not even ask.
        by_profile: What of the tensors of each profile; grows with the profiles.
    """

    __slots__ = (
        "_by_plan",
        "_flags",
        "_profiles",
        "by_profile",
        "is_active",
        "is_light",
        "takes_activations",
    )

    def __init__(
        self,
        profiles: list[tuple[str, ...]],
        flags: dict[str, int],
        takes_activations: bool,
        *,
        is_light: bool = False,
    ) -> None:
        self._profiles = profiles
        self._flags = flags
        self._by_plan: dict[_Plan, int] = {}
        self.is_active = any(flags.values())
        self.takes_activations = takes_activations
        self.is_light = is_light
        self.by_profile: list[int] = []

    def only(self, mask: int) -> StepWants:
        """Of what is wanted, these flags."""
        flags = {name: wanted & mask for name, wanted in self._flags.items()}
        return StepWants(self._profiles, flags, self.takes_activations)

    def want_any_of(self, other: StepWants) -> bool:
        """Whether anything is wanted of a tensor that *other* was asked about."""
        return any(
            self.of_plan(plan) for plan, flags in other._by_plan.items() if flags
        )

    def of_plan(self, plan: _Plan) -> int:
        """What is wanted of this tensor, counts of its units included."""
        wanted = self._by_plan.get(plan)
        if wanted is None:
            wanted = self._by_plan[plan] = self.of(plan.profile)
        return wanted

    def of(self, profile: int) -> int:
        """What is wanted of the tensors of a profile."""
        if profile < len(self.by_profile):
            return self.by_profile[profile]
        names_by_profile = self._profiles
        while len(self.by_profile) <= profile:
            wanted = 0
            for name in names_by_profile[len(self.by_profile)]:
                wanted |= self._flags.get(name, 0)
            self.by_profile.append(wanted)
        return self.by_profile[profile]
