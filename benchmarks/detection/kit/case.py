"""What a case is, and the register of all of them.

    @first.sick("LossNotDecreasing Underfitting", "the labels were shuffled")
    def shuffled_labels(t: Training) -> None:
        '''What is done wrong, who says that people do this, when it is visible.'''
        ...

A sick case is one function that is run twice: with ``t.sick`` set, and without, which
is its healthy twin.  So the difference between the two is what depends on the switch,
and nothing else.

Cases stand by the kind of problem and are reported by collection, ``first`` to
``seventh``: only the first was at hand when the rules were written, and each of the
next five was written by somebody who knew no rule, and judged before any was changed.
The sixth has faults for which there was no rule: ``silent`` registers those, by the
words that name the cause (``causes``) instead of a rule's name.  The seventh has
healthy trainings only, and their author knew the rules.  The ninth and the tenth have
silent faults again, by people who knew no rule.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.detection.kit.causes import CAUSES, Cause
from benchmarks.detection.kit.training import Training

__all__ = [
    "HALVES",
    "ORIGINS",
    "TWIN",
    "Case",
    "Collection",
    "case_named",
    "cases",
    "eleventh",
    "fifth",
    "first",
    "fourth",
    "load",
    "ninth",
    "own",
    "second",
    "seventh",
    "sixth",
    "tenth",
    "third",
]

Program = Callable[[Training], None]
Asks = Mapping[str, Mapping[str, object]]
#: What the name of a healthy twin ends with.
TWIN = ".twin"
HALVES = ("tuning", "held out")
CASES = Path(__file__).parents[1] / "cases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training of the corpus.

    Attributes:
        name: Of the function; a twin's ends with ".twin".
        program: Runs it.
        origin: The collection that it was written for.
        half: Of the collection: thresholds are set on one half, checked on both.
        is_sick: Whether the mistake is made.
        named_by: Rules that name the cause; one of them must find it.
        cause: Words that name it, where no rule's name does.
        diagnosis: What is wrong, in a few words.
        asks: Rules with parameters that a user would ask for here beside the default
            ones, by name. "{other}" in a value is the directory of the other run.
        source: File that defines it.
    """

    name: str
    program: Program
    origin: str
    half: str
    is_sick: bool = False
    named_by: frozenset[str] = frozenset()
    cause: Cause | None = None
    diagnosis: str = ""
    asks: Asks = field(default_factory=dict)
    source: str = ""

    @property
    def story(self) -> str:
        """What its author says about it."""
        return inspect.cleandoc(self.program.__doc__ or "")

    def names(self, rule: str, message: str) -> bool:
        """Whether a finding that says this names the fault."""
        by_words = self.cause is not None and self.cause.is_named(rule, message)
        return by_words or rule in self.named_by

    @property
    def twin_of(self) -> str:
        """The sick case whose healthy twin it is, or nothing."""
        return self.name.removesuffix(TWIN) if self.name.endswith(TWIN) else ""


_registered: dict[str, Case] = {}


@dataclass(frozen=True, slots=True)
class Collection:
    """Registers cases that were written together.

    Attributes:
        origin: Its name.
        formerly: Cases that have another name now, since it was taken: the old name
            goes on deciding about the half.
    """

    origin: str
    formerly: Mapping[str, str] = field(default_factory=dict)

    def sick(
        self, named_by: str, diagnosis: str, *, asks: Asks | None = None
    ) -> Callable[[Program], Program]:
        """Register a training with a fault, and its healthy twin.

        Args:
            named_by: Rules that may name the fault, with spaces between them.
            diagnosis: What is wrong, in a few words.
            asks: Rules that a user would ask for, with their parameters.
        """

        def register(program: Program) -> Program:
            self._add(
                program,
                is_sick=True,
                named_by=frozenset(named_by.split()),
                diagnosis=diagnosis,
                asks=asks or {},
            )
            self._add(program, TWIN, asks=asks or {})
            return program

        return register

    def silent(
        self, cause: str | Cause, diagnosis: str
    ) -> Callable[[Program], Program]:
        """Register a fault that no rule's name stands for, and its healthy twin.

        Args:
            cause: What a finding must say, or its name in ``CAUSES``.
            diagnosis: What is wrong, in a few words.
        """

        def register(program: Program) -> Program:
            words = CAUSES[cause] if isinstance(cause, str) else cause
            self._add(program, is_sick=True, cause=words, diagnosis=diagnosis)
            self._add(program, TWIN)
            return program

        return register

    def healthy(self, program: Program) -> Program:
        """Register a training without fault."""
        self._add(program)
        return program

    def _add(self, program: Program, suffix: str = "", **more: object) -> None:
        name: str = program.__name__
        # By a hash of the name, so that nobody chooses; a twin goes with its case.
        digest = hashlib.sha256(self.formerly.get(name, name).encode()).digest()
        case = Case(
            name=name + suffix,
            program=program,
            origin=self.origin,
            half=HALVES[digest[0] & 1],
            source=inspect.getsourcefile(program) or "",
            **more,  # type: ignore[arg-type]
        )
        known = _registered.get(case.name, case)
        if known.source != case.source:
            msg = f"two cases are called {name}: in {known.source} and {case.source}"
            raise ValueError(msg)
        _registered[case.name] = case


first = Collection("first")
second = Collection(
    "second",
    {
        "annotators_guess": "annotators_disagree",
        "decay_ends_too_soon": "schedule_too_short",
        "distilled_at_a_temperature": "distillation",
        "empty_cell": "missing_value",
        "frozen_trunk": "frozen_backbone",
        "padded_to_the_maximum": "padded_to_the_longest",
        "softmax_before_the_loss": "softmax_twice",
        "warm_up_rounded_down": "warm_up_by_integers",
    },
)
third = Collection("third")
fourth = Collection("fourth")
fifth = Collection("fifth")
sixth = Collection("sixth")
seventh = Collection("seventh")
eighth = Collection("eighth")
ninth = Collection("ninth")
tenth = Collection("tenth")
eleventh = Collection("eleventh")
#: For cases in a file of a user's.
own = Collection("own")
ORIGINS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "own",
)


def cases(only: str = "", origins: Iterable[str] = ORIGINS) -> tuple[Case, ...]:
    """Those whose names begin so (several beginnings: with commas), by name."""
    beginnings = tuple(filter(None, only.replace(",", " ").split())) or ("",)
    return tuple(
        case
        for name, case in sorted(_registered.items())
        if name.startswith(beginnings) and case.origin in origins
    )


def case_named(name: str) -> Case:
    """The case of that name.

    Raises:
        KeyError: If there is none.
    """
    return _registered[name]


def load(paths: Iterable[str | Path] = ()) -> None:
    """Register this corpus, or instead the cases of these files and folders.

    Raises:
        ImportError: If a file cannot be imported.
    """
    files = [file for path in paths for file in _files(Path(path).resolve())]
    if not files:
        for file in sorted(CASES.glob("*/*.py")):
            if file.stem != "__init__":
                folder = f"benchmarks.detection.cases.{file.parent.name}"
                importlib.import_module(f"{folder}.{file.stem}")
    for file in files:
        name = f"corpus_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            msg = f"{file} is no Python file"
            raise ImportError(msg)
        module_of_file = importlib.util.module_from_spec(spec)
        sys.modules[name] = module_of_file
        spec.loader.exec_module(module_of_file)


def _files(path: Path) -> list[Path]:
    """The file, or the modules of a folder."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.glob("*.py")) if file.stem != "__init__"]
