"""What a case is, and the register of all of them.

    @sick(named_by={"LossNotDecreasing"}, diagnosis="the labels were shuffled")
    def shuffled_labels(t: Training) -> None:
        '''What is done wrong, who says that people do this, when it is visible.'''
        ...

A sick case is one function that is run twice: with ``t.sick`` set, and without, which
is its healthy twin.  So the difference between the two is what depends on the switch,
and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.detection.corpus.training import Training

__all__ = ["TWIN", "Case", "Program", "cases", "healthy", "load", "sick"]

Program = Callable[[Training], None]
#: What the name of a healthy twin ends with.
TWIN = ".twin"

#: The modules of this corpus.
MODULES = (
    "data_faults",
    "text_faults",
    "loss_faults",
    "overfit_faults",
    "class_faults",
    "weight_faults",
    "update_faults",
    "gradient_faults",
    "number_faults",
    "tensor_faults",
    "run_faults",
    "activation_faults",
    "optimizer_faults",
    "precision_faults",
    "healthy_images",
    "healthy_text",
    "healthy_tables",
    "healthy_loops",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training of the corpus.

    Attributes:
        name: Of the function; a twin's ends with ".twin".
        program: Runs it.
        is_sick: Whether the mistake is made.
        named_by: Rules that name the cause; one of them must find it.
        diagnosis: What is wrong, in a few words.
        asks: Rules with parameters that a user would ask for here beside the default
            ones, by name. "{other}" in a value is the directory of the other run.
        source: File that defines it.
    """

    name: str
    program: Program
    is_sick: bool
    named_by: frozenset[str] = frozenset()
    diagnosis: str = ""
    asks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    source: str = ""

    @property
    def story(self) -> str:
        """What its author says about it."""
        return inspect.cleandoc(self.program.__doc__ or "")

    @property
    def twin_of(self) -> str:
        """The sick case whose healthy twin it is, or nothing."""
        return self.name.removesuffix(TWIN) if self.name.endswith(TWIN) else ""


_registered: dict[str, Case] = {}


def sick(
    *,
    named_by: Iterable[str],
    diagnosis: str,
    asks: Mapping[str, Mapping[str, object]] | None = None,
) -> Callable[[Program], Program]:
    """Register a training with a fault, and its healthy twin."""

    def register(program: Program) -> Program:
        name = _name(program)
        common = {"program": program, "asks": asks or {}, "source": _file(program)}
        _add(
            Case(
                name=name,
                is_sick=True,
                named_by=frozenset(named_by),
                diagnosis=diagnosis,
                **common,  # type: ignore[arg-type]
            )
        )
        _add(Case(name=name + TWIN, is_sick=False, **common))  # type: ignore[arg-type]
        return program

    return register


def healthy(program: Program) -> Program:
    """Register a training without fault."""
    _add(
        Case(
            name=_name(program),
            program=program,
            is_sick=False,
            source=_file(program),
        )
    )
    return program


def cases(only: str = "") -> tuple[Case, ...]:
    """Those whose names begin so (several beginnings: with commas), by name."""
    beginnings = tuple(filter(None, only.replace(",", " ").split())) or ("",)
    return tuple(
        case
        for name, case in sorted(_registered.items())
        if name.startswith(beginnings)
    )


def load(paths: Iterable[str | Path] = ()) -> None:
    """Register this corpus, or instead the cases of these files and folders.

    Raises:
        ImportError: If a file cannot be imported.
    """
    files = [file for path in paths for file in _files(Path(path).resolve())]
    if not paths:
        for module in MODULES:
            importlib.import_module(f"benchmarks.detection.corpus.{module}")
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


def _add(case: Case) -> None:
    known = _registered.get(case.name)
    if known is not None and known.source != case.source:
        msg = f"two cases are called {case.name}: in {known.source} and {case.source}"
        raise ValueError(msg)
    _registered[case.name] = case


def _name(program: Program) -> str:
    name: str = program.__name__
    return name


def _file(program: Program) -> str:
    return inspect.getsourcefile(program) or ""
