"""``smdebug.trials.trial``: a run as a reader sees it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from tdbg import errors
from tdbg import trial as native
from tdbg.collections import Role
from tdbg.compat.smdebug.core.collection import (
    DEFAULT_PYTORCH_COLLECTIONS,
    Collection,
    CollectionKeys,
)
from tdbg.compat.smdebug.core.logger import get_logger
from tdbg.compat.smdebug.core.tensor import StepState, Tensor
from tdbg.compat.smdebug.exceptions import (
    MissingCollectionFiles,
    NoMoreData,
    SMDebugTypeError,
    SMDebugValueError,
    StepUnavailable,
    TensorUnavailable,
)
from tdbg.config import nearest
from tdbg.modes import ModeKeys

__all__ = ["LocalTrial", "Trial"]


class Trial:
    """A run, by smdebug's methods; ``create_trial`` makes one.

    Every question takes in what was written meanwhile, unless ``dynamic_refresh`` is
    off. Several threads may ask.

    Args:
        trial: The run.
        range_steps: Steps that it is limited to, as they were given.
    """

    def __init__(
        self, trial: native.Trial, range_steps: Sequence[int | None] | None = None
    ) -> None:
        self._trial = trial
        self._frozen: contextlib.ExitStack | None = None
        self.name = trial.name
        self.path = trial.path
        self.range_steps = range_steps
        self.logger: logging.Logger = get_logger()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, status={self._trial.status!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trial):
            return NotImplemented
        return (self.name, self.path) == (other.name, other.path)

    def __hash__(self) -> int:
        return hash((self.name, self.path))

    # --- The run ------------------------------------------------------------

    @property
    def loaded_all_steps(self) -> bool:
        """Whether the training has ended: no further step will come."""
        return self._trial.loaded_all_steps

    @property
    def last_complete_step(self) -> int:
        """Global step up to which nothing more will come; -1 if there is none."""
        return self._trial.last_complete_step

    @property
    def num_workers(self) -> int:
        """How many workers write."""
        return len(self._trial.workers())

    @property
    def last_index_token(self) -> None:
        """None: there are no index files to go through."""
        return

    @property
    def dynamic_refresh(self) -> bool:
        """Whether questions take in what is new; set it, or use ``no_refresh``."""
        return self._frozen is None

    @dynamic_refresh.setter
    def dynamic_refresh(self, value: bool) -> None:
        if value and self._frozen is not None:
            self._frozen.close()
            self._frozen = None
        elif not value and self._frozen is None:
            self._frozen = contextlib.ExitStack()
            self._frozen.enter_context(self._trial.no_refresh())

    def maybe_refresh(self, name: str | None = None) -> None:
        """Take in what is new, unless ``dynamic_refresh`` is off."""
        del name
        if self.dynamic_refresh:
            self._trial.refresh()

    def refresh_data(self) -> None:
        """Take in what is new."""
        self._trial.refresh()

    def refresh_tensor(self, tname: str, steps: Iterable[int] | None = None) -> None:
        """Take in what is new, of all tensors."""
        del tname, steps
        self._trial.refresh()

    def workers(self) -> list[str]:
        """Names of the workers, by rank."""
        return self._trial.workers()

    # --- Steps --------------------------------------------------------------

    def steps(
        self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False
    ) -> list[int]:
        """Steps at which something was saved."""
        return self._trial.steps(mode, show_incomplete_steps=show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Modes that have steps; never GLOBAL."""
        return [mode for mode in self._trial.modes() if mode is not ModeKeys.GLOBAL]

    def mode(self, global_step: int) -> ModeKeys | None:
        """The mode of a global step; None if it was not recorded."""
        return self._trial.mode(global_step)

    def mode_step(self, global_step: int) -> int | None:
        """The step in its own mode's count; None if it was not recorded."""
        return self._trial.mode_step(global_step)

    def mode_modestep(self, global_step: int) -> tuple[ModeKeys | None, int | None]:
        """Mode and mode step of a global step; (None, None) if not recorded."""
        return self._trial.mode_modestep(global_step)

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """The global step of a step of *mode*; None if it was not recorded."""
        return self._trial.global_step(mode, mode_step)

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Whether the step is there, may still come, or never will."""
        return self._trial.has_passed_step(step, mode)

    def wait_for_steps(
        self, required_steps: Iterable[int], mode: ModeKeys = ModeKeys.GLOBAL
    ) -> None:
        """Block until all of these are available.

        Raises:
            StepUnavailable: If one was not saved, and never will be.
            NoMoreData: If the training ended before one.
        """
        for step in required_steps:
            try:
                self._trial.wait_for_steps([step], mode)
            except errors.NoMoreData as error:
                last = max(self.steps(mode, show_incomplete_steps=True), default=-1)
                raise NoMoreData(step, mode, last) from error
            except errors.StepUnavailable as error:
                raise StepUnavailable(step, mode) from error

    # --- Tensors ------------------------------------------------------------

    def tensor_names(
        self,
        show_prefixed_tensors: bool = False,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: Any = None,
        collection: str | Collection | None = None,
    ) -> list[str]:
        """Names of tensors and scalars, sorted; all conditions given must hold.

        Args:
            show_prefixed_tensors: Accepted; no name is hidden.
            step: Saved at this step, in the count of *mode*.
            mode: Saved in this mode.
            regex: This expression, or one of a list, is found in the name.
            collection: In this collection.

        Raises:
            SMDebugTypeError: If *collection* is none.
            SMDebugValueError: If an expression is none, or there is no such
                collection.
        """
        del show_prefixed_tensors
        try:
            names = self._trial.tensor_names(
                step=step, mode=mode, regex=None if regex is None else _flat(regex)
            )
        except errors.ConfigurationError as error:
            raise SMDebugValueError(str(error)) from error
        if collection is None:
            return names
        given: object = collection
        name = given.name if isinstance(given, Collection) else given
        if not isinstance(name, str):
            msg = f"collection must be a name or a Collection, not {given!r}"
            raise SMDebugTypeError(msg)
        wanted = self.collection(name).tensor_names
        return [found for found in names if found in wanted]

    def tensor(self, tname: str) -> Tensor:
        """The tensor of that name.

        Raises:
            TensorUnavailable: If there is none so far.
        """
        try:
            return Tensor(self._trial.tensor(tname))
        except errors.TensorUnavailable as error:
            raise TensorUnavailable(tname) from error

    def has_tensor(self, tname: str) -> bool:
        """Whether there is a tensor of that name."""
        return self._trial.has_tensor(tname)

    def inputs(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[NDArray[Any]]:
        """Values of the collection ``inputs`` at a step, by their index."""
        try:
            names = self.tensor_names(
                step=step, mode=mode, collection=CollectionKeys.INPUTS
            )
        except SMDebugValueError:
            names = []
        return self._values(names, step, mode)

    def labels(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[NDArray[Any]]:
        """Values of what is called labels, by its index."""
        names = self.tensor_names(step=step, mode=mode, regex="labels")
        return self._values(names, step, mode)

    def predictions(
        self, step: int, mode: ModeKeys = ModeKeys.GLOBAL
    ) -> list[NDArray[Any]]:
        """Values of what is called predictions, by its index."""
        names = self.tensor_names(step=step, mode=mode, regex="predictions")
        return self._values(names, step, mode)

    def collections(self) -> dict[str, Collection]:
        """The collections, each with the names of its tensors."""
        with self._trial.no_refresh():
            told: dict[str, Any] = {}
            for event in self._trial.events("collections"):
                content = event.data.get("collections")
                told |= content if isinstance(content, dict) else {}
            found = {name: Collection(name) for name in DEFAULT_PYTORCH_COLLECTIONS}
            for name, entry in told.items():
                with contextlib.suppress(errors.ConfigurationError, AttributeError):
                    found[name] = Collection(
                        name, entry.get("include_regex"), entry.get("tensor_names")
                    )
            names = self._trial.tensor_names()
            roles = {each: self._trial.tensor(each).role.upper() for each in names}
        for item in found.values():
            for each, role in roles.items():
                if item.has(each, Role.__members__.get(role, Role.OTHER)):
                    item.tensor_names.add(each)
        return found

    def collection(self, coll_name: str) -> Collection:
        """The collection of that name.

        Raises:
            SMDebugValueError: If there is none.
        """
        found = self.collections()
        if coll_name not in found:
            msg = f"no collection {coll_name!r}; {nearest(coll_name, found)}"
            raise SMDebugValueError(msg)
        return found[coll_name]

    def _values(
        self, names: list[str], step: int, mode: ModeKeys
    ) -> list[NDArray[Any]]:
        ordered = sorted(names, key=_index)
        return [self.tensor(name).value(step, mode) for name in ordered]


class LocalTrial(Trial):
    """A run in a local directory; the other arguments are those of ``create_trial``.

    Raises:
        MissingCollectionFiles: If there is no run.
        StorageError: If it cannot be read.
        ConfigurationError: If an argument can never work.
    """

    def __init__(
        self,
        name: str | None,
        dirname: str | os.PathLike[str],
        range_steps: Sequence[int | None] | None = None,
        parallel: bool = True,
        check: bool = False,
        index_mode: bool = True,
        cache: bool = False,
        *,
        wait: float = 0.0,
    ) -> None:
        # Checksums are always verified, and nothing is read that is not asked for.
        del parallel, check, index_mode, cache
        steps = None
        if range_steps is not None:
            first, end = range_steps
            steps = (first or 0, end)
        try:
            found = native.create_trial(
                dirname, name=name, range_steps=steps, wait=wait
            )
        except errors.NotARun as error:
            raise MissingCollectionFiles(str(error)) from error
        super().__init__(found, range_steps)


def _flat(regex: Any) -> list[str]:
    """The expressions of a list of expressions and lists."""
    if isinstance(regex, list | tuple | set):
        return [each for item in regex for each in _flat(item)]
    return [regex]


def _index(name: str) -> tuple[int, str]:
    _, _, last = name.rpartition("_")
    return (int(last) if last.isdigit() else 0, name)
