"""``smdebug.trials``: reads runs by smdebug's methods."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import NDArray

from tdbg import errors
from tdbg import trial as native
from tdbg.compat.smdebug.core.base import CallbackHook, current_hook, get_logger
from tdbg.compat.smdebug.core.collection import (
    DEFAULT_PYTORCH_COLLECTIONS,
    Collection,
    CollectionKeys,
)
from tdbg.compat.smdebug.core.config_constants import (
    INCOMPLETE_STEP_WAIT_WINDOW_DEFAULT,
    INCOMPLETE_STEP_WAIT_WINDOW_KEY,
)
from tdbg.compat.smdebug.core.tensor import StepState, Tensor
from tdbg.compat.smdebug.exceptions import (
    MissingCollectionFiles,
    NoMoreData,
    SMDebugTypeError,
    SMDebugValueError,
    StepUnavailable,
    TensorUnavailable,
    translated,
)
from tdbg.config import collections as base
from tdbg.config.collections import Role
from tdbg.config.messages import nearest
from tdbg.errors import TdbgError
from tdbg.modes import ModeKeys
from tdbg.run.json_values import texts_of

if TYPE_CHECKING:
    from tdbg.compat.smdebug.trials.profiler_trial import ProfilerTrial

__all__ = [
    "LocalTrial",
    "S3Trial",
    "Trial",
    "create_trial",
    "wait_for_runs",
]

SCALAR_PREFIX = CallbackHook.SCALAR_PREFIX


@overload
def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    profiler: Literal[False] = False,
    output_dir: str = "",
    **kwargs: Any,
) -> Trial: ...


@overload
def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    profiler: Literal[True],
    output_dir: str = "",
    **kwargs: Any,
) -> ProfilerTrial: ...


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    profiler: bool = False,
    output_dir: str = "",
    **kwargs: Any,
) -> Trial | ProfilerTrial:
    """Open the run at *path*, finished or not.

    Args:
        path: Directory of the run, smdebug's output directory, or the URL of either in
            a store, as ``s3://bucket/prefix``.
        name: What to call the trial; the directory's name by default.
        profiler: Return a ``ProfilerTrial``, of a run or of a profile of smdebug.
        output_dir: Where a rule of the profiler writes.
        **kwargs: ``range_steps``: the first global step to read, and the one after the
            last. ``wait``: seconds to wait for the run to appear; None: as
            ``wait_for_runs`` says, or not at all. ``check``, ``index_mode``, ``cache``
            and ``parallel`` are ignored.

    Raises:
        MissingCollectionFiles: If there is no run, after *wait* seconds.
        StorageError: If the run cannot be read.
        ConfigurationError: If an argument can never work.
    """
    _flush_own(path)
    text = os.fspath(path).strip()
    if profiler:
        from tdbg.compat.smdebug.trials.profiler_trial import ProfilerTrial

        return ProfilerTrial(name or Path(text).name, text, output_dir)
    scheme, _, rest = text.partition("://")
    if rest and scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        return S3Trial(name, bucket, prefix, **kwargs)
    return LocalTrial(name, text, **kwargs)


_waits: list[float] = [0.0]


def wait_for_runs(seconds: float) -> None:
    """Set for how long trials wait for their runs, where they are not told."""
    _waits[:] = [seconds]


def _flush_own(path: str | os.PathLike[str]) -> None:
    """Flush the program's own hook, so that the program can read what it recorded."""
    hook = current_hook()
    given = Path(os.fspath(path).strip()).expanduser()
    if hook is not None and Path(hook.out_dir).absolute() == given.absolute():
        with contextlib.suppress(TdbgError):
            hook.flush(timeout=5.0)


class Trial:
    """Reads a run by smdebug's methods; ``create_trial`` makes one.

    Every call reads what was written meanwhile, unless ``dynamic_refresh`` is off.
    Several threads may use a trial.

    Args:
        trial: tdbg's trial of the run.
        range_steps: The steps that the trial is limited to, as they were given.
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
        # Those that were asked for are kept: they may have been extended since.
        self._collections: dict[str, Collection] = {}
        self._lock = threading.Lock()

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
        """The global step up to which all steps are complete; -1: there is none."""
        return self._trial.last_complete_step

    @property
    def num_workers(self) -> int:
        """Number of workers that write."""
        return len(self._trial.workers())

    @property
    def last_index_token(self) -> None:
        """Return None, since tdbg has no index files."""
        return

    @property
    def dynamic_refresh(self) -> bool:
        """Whether calls read what is new; set it, or use ``no_refresh``."""
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
        """Read what is new, unless ``dynamic_refresh`` is off."""
        del name
        if self.dynamic_refresh:
            self._trial.refresh()

    def refresh_data(self) -> None:
        """Read what is new."""
        self._trial.refresh()

    def refresh_tensor(self, tname: str, steps: Iterable[int] | None = None) -> None:
        """Read what is new, for all tensors."""
        del tname, steps
        self._trial.refresh()

    def workers(self) -> list[str]:
        """Names of the workers, by rank."""
        return self._trial.workers()

    # --- Steps --------------------------------------------------------------

    def steps(
        self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False
    ) -> list[int]:
        """Steps at which tensors were saved; scalars alone count where there are none.

        tdbg records a scalar at its step, whether tensors are saved there or not.
        """
        what = "tensors" if self._has_tensors() else "any"
        return self._trial.steps(mode, what, show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Modes that have steps; never GLOBAL."""
        return [mode for mode in self._trial.modes() if mode is not ModeKeys.GLOBAL]

    def mode(self, global_step: int) -> ModeKeys | None:
        """Return the mode of a global step; None if it was not recorded."""
        return self._trial.mode(global_step)

    def mode_step(self, global_step: int) -> int | None:
        """Return the step in its own mode's count; None if it was not recorded."""
        return self._trial.mode_step(global_step)

    def mode_modestep(self, global_step: int) -> tuple[ModeKeys | None, int | None]:
        """Mode and mode step of a global step; (None, None) if not recorded."""
        return self._trial.mode_modestep(global_step)

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Return the global step of a step of *mode*; None if it was not recorded."""
        return self._trial.global_step(mode, mode_step)

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Return whether the step is there, may still come, or will never come."""
        state = self._trial.has_passed_step(step, mode)
        if state is StepState.AVAILABLE and not self._has_tensors(step, mode):
            return StepState.UNAVAILABLE if self._has_tensors() else state
        return state

    def wait_for_steps(
        self, required_steps: Iterable[int], mode: ModeKeys = ModeKeys.GLOBAL
    ) -> None:
        """Block until all of these are available.

        Raises:
            StepUnavailable: If a step was not saved, and never will be.
            NoMoreData: If the training ended before a step.
        """
        for step in required_steps:
            try:
                self._trial.wait_for_steps([step], mode)
            except errors.NoMoreData as error:
                last = max(self.steps(mode, show_incomplete_steps=True), default=-1)
                raise NoMoreData(step, mode, last) from error
            except errors.StepUnavailable as error:
                raise StepUnavailable(step, mode) from error
            if self.has_passed_step(step, mode) is StepState.UNAVAILABLE:
                raise StepUnavailable(step, mode)

    # --- Tensors ------------------------------------------------------------

    def tensor_names(
        self,
        show_prefixed_tensors: bool = False,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: Any = None,
        collection: str | base.Collection | None = None,
    ) -> list[str]:
        """Return the names of tensors and scalars that meet all conditions, sorted.

        Args:
            show_prefixed_tensors: Ignored: no name is hidden.
            step: They were saved at this step, which *mode* counts.
            mode: They were saved in this mode.
            regex: This expression, or one of a list, is found in the name.
            collection: They belong to this collection of the run, or of the caller. Of
                a caller's own they are those that it selects, and those of a
                collection of the run of that name.

        Raises:
            SMDebugTypeError: If *collection* is neither a name nor a Collection.
            SMDebugValueError: If *regex* is not a regular expression, or there is no
                collection of that name.
        """
        del show_prefixed_tensors
        with translated():
            names = self._trial.tensor_names(
                step=step, mode=mode, regex=None if regex is None else _flat(regex)
            )
        if collection is None:
            return names
        requested = self._names_in(collection)
        found = [name for name in names if name in requested]
        if not found:
            name = collection if isinstance(collection, str) else collection.name
            self.logger.warning("nothing of the collection %r was saved", name)
        return found

    def _names_in(self, collection: object) -> set[str]:
        """Return the names of the tensors of a collection, or of its name."""
        known = self.collections()
        if isinstance(collection, str):
            if collection not in known:
                msg = f"no collection {collection!r}; {nearest(collection, known)}"
                raise SMDebugValueError(msg)
            return known[collection].tensor_names
        if not isinstance(collection, base.Collection):
            msg = f"collection must be a name or a Collection, not {collection!r}"
            raise SMDebugTypeError(msg)
        of_run = known.get(collection.name)
        found = {name for name, role in self._roles() if collection.has(name, role)}
        return found | (set() if of_run is None else of_run.tensor_names)

    def tensor(self, tname: str) -> Tensor:
        """Return the tensor of that name.

        Raises:
            TensorUnavailable: If there is no such tensor so far.
        """
        try:
            return Tensor(self._trial.tensor(tname))
        except errors.TensorUnavailable as error:
            raise TensorUnavailable(tname) from error

    def has_tensor(self, tname: str) -> bool:
        """Return whether there is a tensor of that name."""
        return self._trial.has_tensor(tname)

    def inputs(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[NDArray[Any]]:
        """Return the values of the collection ``inputs`` at a step, by their index."""
        try:
            names = self.tensor_names(
                step=step, mode=mode, collection=CollectionKeys.INPUTS
            )
        except SMDebugValueError:
            names = []
        return self._values(names, step, mode)

    def labels(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[NDArray[Any]]:
        """Return the values of tensors named ``labels``, in order of their index."""
        names = self.tensor_names(step=step, mode=mode, regex="labels")
        return self._values(names, step, mode)

    def predictions(
        self, step: int, mode: ModeKeys = ModeKeys.GLOBAL
    ) -> list[NDArray[Any]]:
        """Return the values of tensors named ``predictions``, by their index."""
        names = self.tensor_names(step=step, mode=mode, regex="predictions")
        return self._values(names, step, mode)

    def collections(self) -> dict[str, Collection]:
        """Return the collections, each with the names of its tensors.

        They are those of the run, and those made by ``collection``. What is included
        in one of them holds for this trial from then on.
        """
        with self._lock, self._trial.no_refresh():
            described: dict[str, Any] = {}
            for event in self._trial.events("collections"):
                content = event.data.get("collections")
                described |= content if isinstance(content, dict) else {}
            kept = self._collections
            for name in (*DEFAULT_PYTORCH_COLLECTIONS, *described):
                with contextlib.suppress(errors.ConfigurationError):
                    kept.setdefault(name, Collection(name))
            for name, entry in described.items():
                if not isinstance(entry, dict) or name not in kept:
                    continue
                with contextlib.suppress(errors.ConfigurationError):
                    known = set(kept[name].include_regex)
                    given = texts_of(entry.get("include_regex"))
                    kept[name].include([each for each in given if each not in known])
                    kept[name].tensor_names.update(texts_of(entry.get("tensor_names")))
            roles = self._roles()
            for item in kept.values():
                item.tensor_names.update(n for n, role in roles if item.has(n, role))
            return dict(kept)

    def collection(self, coll_name: str) -> Collection:
        """Return the collection of that name; an empty one is made if there is none.

        Example::

            trial.collection("relus").include("relu_output")
            trial.tensor_names(collection="relus")
        """
        found = self.collections()
        if coll_name not in found:
            with self._lock, translated():
                made = Collection(coll_name)
                return self._collections.setdefault(coll_name, made)
        return found[coll_name]

    def _roles(self) -> list[tuple[str, Role]]:
        """Return the tensors that were saved so far, with their roles."""
        names = self._trial.tensor_names()
        roles = ((each, self._trial.tensor(each).role.upper()) for each in names)
        return [(each, Role.__members__.get(r, Role.OTHER)) for each, r in roles]

    def _has_tensors(
        self, step: int | None = None, mode: ModeKeys = ModeKeys.GLOBAL
    ) -> bool:
        """Return whether anything but scalars was saved, at the step or at all."""
        names = self._trial.tensor_names(step=step, mode=mode)
        return any(not name.startswith(SCALAR_PREFIX) for name in names)

    def _values(
        self, names: list[str], step: int, mode: ModeKeys
    ) -> list[NDArray[Any]]:
        ordered = sorted(names, key=_index)
        return [self.tensor(name).value(step, mode) for name in ordered]


class LocalTrial(Trial):
    """Reads a run in a local directory; see ``create_trial`` for the arguments.

    Raises:
        MissingCollectionFiles: If there is no run.
        StorageError: If the run cannot be read.
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
        wait: float | None = None,
    ) -> None:
        # tdbg always verifies checksums, and reads a value only when it is used.
        del parallel, check, index_mode, cache
        steps = None
        if range_steps is not None:
            first, end = range_steps
            steps = (first or 0, end)
        try:
            seconds = _waits[0] if wait is None else wait
            with native.waiting_for_steps(_wait_window()):
                found = _opened(dirname, name, steps, seconds)
        except errors.NotARun as error:
            raise MissingCollectionFiles(str(error)) from error
        super().__init__(found, range_steps)


# How often somebody who waits for a run is told so.
TELL_SECONDS = 20.0
# Older programs leave the prefix out.
_WINDOWS = (
    INCOMPLETE_STEP_WAIT_WINDOW_KEY,
    INCOMPLETE_STEP_WAIT_WINDOW_KEY.removeprefix("SMDEBUG_"),
)


def _wait_window() -> int:
    """How many steps of the others a rank that lacks them is waited for."""
    for variable in _WINDOWS:
        text = os.environ.get(variable, "").strip()
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if text:
            msg = f"{variable} must be a number of steps above 0, not {text!r}"
            raise SMDebugValueError(msg)
    return INCOMPLETE_STEP_WAIT_WINDOW_DEFAULT


def _opened(
    path: str | os.PathLike[str],
    name: str | None,
    steps: tuple[int, int | None] | None,
    wait: float,
) -> native.Trial:
    """Open a run, as soon as there is one."""
    deadline = time.monotonic() + wait
    while True:
        part = min(TELL_SECONDS, max(0.0, deadline - time.monotonic()))
        try:
            return native.create_trial(path, name=name, range_steps=steps, wait=part)
        except errors.NotARun as error:
            if error.kind == "damage" or time.monotonic() >= deadline:
                raise
            get_logger().warning("waiting for the run %s to begin", os.fspath(path))


def _flat(regex: Any) -> list[str]:
    """Flatten a list of expressions and lists."""
    if isinstance(regex, list | tuple | set):
        return [each for item in regex for each in _flat(item)]
    return [regex]


def _index(name: str) -> tuple[int, str]:
    _, _, last = name.rpartition("_")
    return (int(last) if last.isdigit() else 0, name)


class S3Trial(LocalTrial):
    """Reads a run in S3; see ``create_trial`` for the arguments.

    Raises:
        MissingCollectionFiles: If there is no run.
        StorageError: If the store does not answer, or refuses.
        ConfigurationError: If an argument can never work.
    """

    def __init__(
        self, name: str | None, bucket_name: str, prefix_name: str, **kwargs: Any
    ) -> None:
        super().__init__(name, f"s3://{bucket_name}/{prefix_name}", **kwargs)
