"""``TrainingFacts``: what a training consists of, for rules that do not apply to it.

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdbg.config.kinds import CLASSIFICATIONS, REGRESSIONS
from tdbg.config.needs import Needs
from tdbg.modes import EVALUATION, ModeKeys
from tdbg.run.model_info import TREES
from tdbg.run.profile_tables import Phase
from tdbg.run.told_phases import ALL_TOLD, ToldPhases

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo
    from tdbg.run.observations import Observation

__all__ = [
    "NOT_EVALUATED",
    "NO_CLASSES",
    "NO_LAYERS",
    "NO_PROFILE",
    "NO_TREES",
    "OF_LAYERS",
    "ONE_WORKER",
    "TrainingFacts",
]

#: Why what is asked of validation is not asked.
NOT_EVALUATED = "the training has no validation (no steps of mode EVAL)"
#: Why what is asked of classes is not asked.
NO_CLASSES = "the losses compare numbers, not classes"
#: Why what is asked of time is not asked.
NO_PROFILE = "the run has no profile"
#: With less, the beginning apart, nothing can last.
FEWEST_BINS = 5
TOO_SHORT = "the training is too short to judge its time"
# Why a profile has no rows of a table, where that is no matter of settings.
_ABSENT = {
    "loader": "tdbg saw no data loader",
    "gpu": "tdbg saw no GPU",
    "collective": "ranks do not communicate",
}
#: Why what is asked of trees is not asked.
NO_TREES = "this training has no boosted trees"
#: Why what is asked of layers, or of their optimizer, is not asked of trees.
NO_LAYERS = "boosted trees have no layers and no optimizer"
#: Why what is asked of ranks is not asked.
ONE_WORKER = "the training has one worker"
#: Collections that only layers and their optimizers fill.
OF_LAYERS = frozenset(
    {"weights", "biases", "gradients", "updates", "inputs", "outputs", "model_inputs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """What a training consists of: whether the question of a rule arises in it.

    Attributes:
        modes: The modes that have steps.
        has_trees: Whether it grows boosted trees.
        model_infos: What is known of its model; empty where nothing is.
        kinds: The kinds of its modules, functions and losses
            (``tdbg.config.Kind``), as far as tdbg knows them.
        profile: The tables of its profile that have rows.
        n_workers: How many workers it has.
        n_bins: How many bins of 10 s its profile has.
        told: The phases of a step that it tells.
        n_ranks: How many ranks train; those that write nothing count, too.
        observations: What hooks saw once.
        hook: The framework whose hook wrote the run ("PyTorch"), or "imported runs";
            "" if that is not known.
    """

    modes: frozenset[ModeKeys] = frozenset()
    has_trees: bool = False
    model_infos: tuple[ModelInfo, ...] = ()
    kinds: frozenset[str] = frozenset()
    profile: frozenset[str] = frozenset()
    n_workers: int = 1
    n_bins: int = 0
    told: ToldPhases = ALL_TOLD
    n_ranks: int = 1
    observations: tuple[Observation, ...] = ()
    hook: str = ""

    @classmethod
    def of(
        cls,
        modes: Iterable[ModeKeys],
        model_infos: Iterable[ModelInfo],
        units: Iterable[str],
        *,
        has_trees: bool,
        profile: Iterable[str] = (),
        n_workers: int = 1,
        n_bins: int = 0,
        told: ToldPhases = ALL_TOLD,
        n_ranks: int = 1,
        observations: Iterable[Observation] = (),
        hook: str = "",
    ) -> TrainingFacts:
        """Return the facts of a training.

        Args:
            modes: The modes that have steps.
            model_infos: What is known of its model.
            units: Names of the unit summaries, which functions have, too.
            has_trees: Whether it grows boosted trees.
            profile: The tables of its profile that have rows.
            n_workers: How many workers it has.
            n_bins: How many bins of 10 s its profile has.
            told: The phases of a step that it tells.
            n_ranks: How many ranks train; those that write nothing count, too.
            observations: What hooks saw once.
            hook: Whose hook wrote the run.
        """
        infos, names = tuple(model_infos), tuple(units)
        kinds = {kind for info in infos for kind in _kinds(info, names)}
        return cls(
            modes=frozenset(modes),
            has_trees=has_trees,
            model_infos=infos,
            kinds=frozenset(kinds),
            profile=frozenset(profile),
            n_workers=n_workers,
            n_bins=n_bins,
            told=told,
            n_ranks=max(n_workers, n_ranks),
            observations=tuple(observations),
            hook=hook,
        )

    @property
    def is_evaluated(self) -> bool:
        """Whether it has steps of evaluation."""
        return not EVALUATION.isdisjoint(self.modes)

    @property
    def is_regression(self) -> bool:
        """Whether each of its losses is known to compare numbers, not classes."""
        return bool(self.kinds & REGRESSIONS) and not self.kinds & CLASSIFICATIONS

    def not_observed_by(self, hooks: Container[str]) -> str:
        """Return that the run comes from none of these hooks; "": it does, or may.

        Example:
            >>> TrainingFacts(hook="JAX").not_observed_by({"PyTorch"})
            'tdbg does not look for this in JAX'
        """
        if not self.hook or self.hook in hooks:
            return ""
        return f"tdbg does not look for this in {self.hook}"

    def dtypes(self) -> set[str]:
        """Return the element types of its parameters."""
        return {
            parameter.dtype
            for info in self.model_infos
            for parameter in info.parameters.values()
        }

    def lacks(self, needs: Iterable[Needs]) -> str:
        """Return why the training cannot have what these needs are about; "": it may.

        Example:
            >>> trees = Needs(collections=frozenset({"trees"}))
            >>> TrainingFacts().lacks([trees])
            'this training has no boosted trees'
        """
        every = tuple(needs)
        tables = frozenset[str]().union(*(need.profile for need in every))
        if tables:
            return self._lacks_of_profile(tables)
        collections = frozenset().union(*(need.collections for need in every))
        if collections and collections <= TREES:
            return "" if self.has_trees else NO_TREES
        if self.has_trees:
            return NO_LAYERS if collections & OF_LAYERS else ""
        asked = frozenset().union(*(need.modules for need in every))
        is_of_modules = bool(every) and all(need.modules for need in every)
        if is_of_modules and self.model_infos and not asked & self.kinds:
            return f"tdbg saw no {' or '.join(sorted(asked))} in the model"
        return ""

    def _lacks_of_profile(self, tables: frozenset[str]) -> str:
        """Return why the profile cannot tell what is asked; "": it may."""
        if "step" not in self.profile:
            return NO_PROFILE
        if self.n_bins < FEWEST_BINS:
            return TOO_SHORT
        lacking = tables - self.profile
        if not self.told.tells(Phase.DATA_WAIT):
            lacking -= {"loader"}  # There may be one.
        absent = (_ABSENT.get(table, "") for table in sorted(lacking))
        return next(filter(None, absent), "")


def _kinds(info: ModelInfo, units: Iterable[str]) -> set[str]:
    """Return the kinds of modules, losses and functions that a model info knows."""
    classes = map(info.kind_of_class, {*info.modules.values()})
    found = {*info.kinds.values(), *classes, *map(info.kind_of, units)}
    return {kind for kind in found if kind is not None}
