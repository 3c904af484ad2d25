"""The phases of a step that a run tells: by its framework, and by what its rows hold.

What a framework cannot tell is 0 in a step row, because phases add up to the step.
Whoever judges a phase asks here whether 0 means that there was none of it.

docs/profiler-steps.md has the table ``UNREPORTED`` in words.

Thread safety: immutable values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from tdbg.run.json_values import is_integer, mapping_of
from tdbg.run.profile_tables import MODEL_PHASES, PHASE_COLUMNS, Phase

__all__ = [
    "ALL_TOLD",
    "UNREPORTED",
    "UNREPORTED_WORDS",
    "ToldPhases",
    "spent_phases",
    "tells_model",
    "told_phases",
    "unrecorded_ranks",
    "world_size_of",
]

#: What a framework does not tell, in words that follow "does not tell".
UNREPORTED_WORDS: Final[Mapping[Phase, str]] = {
    Phase.DATA_WAIT: "how long a step waits for data",
    Phase.OTHER: "the model's time from that of other code",
    Phase.COMPILE: "when it compiles",
    Phase.CHECKPOINT: "when a checkpoint is saved",
    Phase.EVALUATION: "how long evaluation takes",
    Phase.COMMUNICATION: "how long ranks wait for each other",
}
_ELSEWHERE = frozenset({Phase.DATA_WAIT, Phase.CHECKPOINT, Phase.COMMUNICATION})
_OF_TREES = frozenset({Phase.EVALUATION, Phase.CHECKPOINT, Phase.COMMUNICATION})

#: The phases that each framework does not tell, unless a row of the run has one.
#: ``tells_model`` is about the model's own time.
UNREPORTED: Final[Mapping[str, frozenset[Phase]]] = {
    "PyTorch": frozenset(),
    "Keras on PyTorch": frozenset({Phase.CHECKPOINT}),
    "Keras on JAX": _ELSEWHERE - {Phase.DATA_WAIT},
    "Keras on TensorFlow": _ELSEWHERE,
    "JAX": _ELSEWHERE,
    "TensorFlow": _ELSEWHERE,
    "MXNet": _ELSEWHERE | {Phase.COMPILE},
    "XGBoost": _OF_TREES,
    "LightGBM": _OF_TREES,
    "CatBoost": _OF_TREES,
}
_BY_ADAPTER = {name.lower(): name for name in UNREPORTED}
# The share of steps that must have waited for data: where only those that capture see
# the wait, as in Keras on TensorFlow, the others have it in another phase.
_MOST = 0.5
# Keras's version has its backend's name and version in parentheses.
_BACKEND = re.compile(r"\((\w+)")


@dataclass(frozen=True, slots=True)
class ToldPhases:
    """The phases that a run tells.

    Attributes:
        framework: The framework, as people call it; "" if the run does not say.
        unreported: The phases that nobody told: what is 0 of them is not known.
    """

    framework: str = ""
    unreported: frozenset[Phase] = frozenset()

    @property
    def hook(self) -> str:
        """Whose hook wrote the run: "Keras", whatever computes; "": nobody knows."""
        return self.framework.partition(" on ")[0]

    def tells(self, *phases: Phase) -> bool:
        """Return whether the run tells each of some phases."""
        return self.unreported.isdisjoint(phases)

    def lacks(self, phases: Collection[Phase]) -> str:
        """Return which of some phases the run does not tell, in words; "": none.

        Example:
            >>> told_phases({"framework": {"name": "jax"}}, ()).lacks([Phase.DATA_WAIT])
            'JAX does not tell how long a step waits for data; hook.loader(batches) \
measures it'
        """
        words = [
            text
            for phase, text in UNREPORTED_WORDS.items()
            if phase in phases and phase in self.unreported
        ]
        if not words:
            return ""
        hint = ""
        if Phase.DATA_WAIT in phases and not self.framework.startswith("Keras"):
            hint = "; hook.loader(batches) measures it"
        framework = self.framework or "the framework"
        return f"{framework} does not tell {' or '.join(words)}{hint}"


#: Every phase is told.
ALL_TOLD: Final = ToldPhases()


def tells_model(spent: Collection[Phase]) -> bool:
    """Return whether the model's time is told from that of other code.

    TensorFlow's loops and Gluon tell neither a backward pass nor a whole training step:
    ``OTHER`` then holds the model, too.

    Args:
        spent: The phases in which steps spent any time.
    """
    return any(phase in spent for phase in MODEL_PHASES)


def spent_phases(steps: NDArray[Any], batches: NDArray[Any]) -> set[Phase]:
    """Return the phases in which steps spent any time; waiting, if most of them did.

    Args:
        steps: Rows of the table ``step``.
        batches: Rows of the table ``loader``: where there are any, steps wait for them.
    """
    found = {phase for phase, name in PHASE_COLUMNS.items() if (steps[name] > 0).any()}
    waited = int((steps["data_wait_ns"] > 0).sum())
    if max(waited, len(batches)) < _MOST * len(steps):
        return found - {Phase.DATA_WAIT}
    return found | ({Phase.DATA_WAIT} if len(batches) else set())


def told_phases(
    configuration: Mapping[str, Any], spent: Collection[Phase]
) -> ToldPhases:
    """Return the phases that a run tells.

    Args:
        configuration: That of the run (``Trial.configuration``).
        spent: The phases in which steps of the run spent any time.
    """
    framework = _framework(configuration)
    unreported = set(UNREPORTED.get(framework, UNREPORTED_WORDS) if framework else ())
    unreported -= {Phase.OTHER, *spent}
    if world_size_of(configuration) == 1:
        unreported.discard(Phase.COMMUNICATION)  # There is nobody to wait for.
    if not tells_model(spent):
        unreported.add(Phase.OTHER)
    return ToldPhases(framework, frozenset(unreported))


def world_size_of(configuration: Mapping[str, Any]) -> int:
    """Return how many ranks a training has; 1 if its configuration does not say."""
    size = configuration.get("world_size")
    return size if is_integer(size) and size > 0 else 1


def unrecorded_ranks(recorded: int, n_ranks: int) -> str:
    """Return what is missing where some ranks wrote nothing, in words; "": nothing is.

    Example:
        >>> unrecorded_ranks(1, 3)[:25]
        '1 of 3 ranks wrote alone,'
    """
    if n_ranks <= recorded:
        return ""
    wrote = "wrote" if recorded > 1 else "wrote alone"
    return (
        f"{recorded} of {n_ranks} ranks {wrote}, so nobody can tell which rank the "
        "others wait for. Set include_workers='all' to record all of them"
    )


def _framework(configuration: Mapping[str, Any]) -> str:
    told = mapping_of(configuration.get("framework"))
    name = str(told.get("name") or "")
    if name == "keras":
        backend = _BACKEND.search(str(told.get("version") or ""))
        return f"Keras on {backend[1]}" if backend else "Keras"
    return _BY_ADAPTER.get(name, name)
