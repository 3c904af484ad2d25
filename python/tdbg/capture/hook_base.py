"""``HookBase``: what the hook of any framework is, before it knows the framework.

A framework's ``Hook`` derives from it and adds what it registers and how it learns of
forwards and of steps; docs/adding-a-framework.md shows how.

Thread safety: the training's thread, as ``Session``.

Errors: making a hook raises ConfigurationError and StorageError. Afterwards nothing
raises into the training but ``TrainingStopped`` at the beginning of a forward, and
ConfigurationError for arguments that can never work.
"""

from __future__ import annotations

import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.dry_run import DryRunSummary, MeasuringWriter, summarize
from tdbg.capture.invariants import WithInvariants
from tdbg.capture.modes import CurrentMode
from tdbg.capture.opening import SessionSpec, open_session
from tdbg.capture.overhead import Overhead
from tdbg.capture.policy import Policy
from tdbg.capture.ranks import AttemptId, launch_name, process_rank
from tdbg.capture.recorder import StepContext
from tdbg.capture.run_export import RunExport
from tdbg.capture.session import Session
from tdbg.capture.steps import counters_as_json, parse_counters
from tdbg.capture.writer import NullWriter
from tdbg.config import (
    CollectionConfig,
    HookConfig,
    read_config,
    resolve,
)
from tdbg.config.collections import Collection, CollectionRegistry, Role
from tdbg.config.options import SessionOptions, is_disabled
from tdbg.config.profiler import ProfilerConfig
from tdbg.config.retention import Retention
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAIN, TRAINING, ModeKeys

if TYPE_CHECKING:
    from tdbg._core import StepCounter

__all__ = ["HookBase"]

_log = logging.getLogger("tdbg")
# Reducing with more threads than this gains nothing.
_MOST_THREADS = 4


class HookBase(WithInvariants, ABC):
    """Captures a training; by default only its losses.

    A framework's hook says by five methods what the framework is: ``_make_adapter``,
    ``_make_policy``, ``_make_export``, ``_attach`` and ``_detach``.

    With ``TDBG_DISABLED=1`` nothing is captured and the hook does nothing at all.

    A copy of a hook, by ``copy`` or ``pickle``, alone or inside a model, is one that
    does nothing: a run has one writer.
    """

    # The start of the training that a copy in another process takes part in.
    _joins: AttemptId | None = None

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        *,
        include_collections: Iterable[str] | None = None,
        include_regex: str | Iterable[str] | None = None,
        save_config: SaveConfig
        | SaveConfigMode
        | Mapping[ModeKeys, SaveConfigMode]
        | None = None,
        reduction_config: ReductionConfig | None = None,
        save_all: bool | None = None,
        collections: Iterable[Collection | CollectionConfig] | None = None,
        rules: Iterable[Any] | str | None = None,
        include_workers: str | Iterable[int] | None = None,
        export_tensorboard: bool | None = None,
        tensorboard_dir: str | os.PathLike[str] | None = None,
        dry_run: bool | None = None,
        on_stop: str | None = None,
        overflow: str | None = None,
        queue_bytes: int | None = None,
        min_free_bytes: int | None = None,
        spool_bytes: int | None = None,
        codec: str | None = None,
        retention: Retention | Mapping[str, Any] | str | None = None,
        save_histogram: bool | None = None,
        precise: bool | None = None,
        threads: int | None = None,
        budget: float | str | None = None,
        probes: bool | None = None,
        profiler: ProfilerConfig | bool | str | None = None,
        **unknown: Never,
    ) -> None:
        """Open a run.

        An argument that is None was not given: the file that ``TDBG_CONFIG`` names has
        the setting, or else the default applies (docs/configuration.md).

        Args:
            out_dir: The run directory or its URL (docs/remote.md); made if it does not
                exist, joined if it does. None: that of the variable ``TDBG_OUT``.
            include_collections: Built-in collections to capture beside the losses.
            include_regex: Further tensors, by expressions that their names match.
            save_config: The schedules.
            reduction_config: Statistics only, or raw values as well (the default).
            save_all: Capture every tensor.
            collections: Custom collections, or built-in ones with a configuration.
            rules: Rules, their names, or mappings of a name and parameters, whose
                needs are captured as well, each with schedules of its own. None:
                those of the variable ``TDBG_RULES``, or none.
            include_workers: Of several ranks, those that write: ``one`` (the
                default), the first; ``all``; or a list. The hooks of the other ranks
                do nothing, except that the training stops on all ranks at the same
                step. docs/distributed.md.
            export_tensorboard: When the run has ended, write its losses, scalars and
                histograms as files of TensorBoard. docs/tensorboard.md.
            tensorboard_dir: Where (this switches it on); None: *out_dir*/tensorboard.
            dry_run: Do everything but write; ``dry_run_summary()`` reports what
                would be written, and how large it is.
            on_stop: When somebody asks for a stop: ``raise`` (the default), so that the
                next root forward raises TrainingStopped, or ``flag``: ``should_stop``.
            overflow: When the disk is too slow: ``block`` (the default) while it
                makes progress, ``drop``, or ``sample``: keep the values of whole
                steps, of as many as the disk takes.
            queue_bytes: Bound of the memory for what is not written yet.
            min_free_bytes: Free disk space that is left to others.
            spool_bytes: Bound of what waits here to be sent to a URL; None: 2 GiB.
            codec: How raw values are stored: "none", "auto" (the default) or "max".
            retention: What the run keeps (docs/retention.md), such as
                ``"last 1000, 50GB"``. None: as ``TDBG_RETENTION`` says, or everything.
            save_histogram: Store histograms of all collections that do not say
                otherwise. None: if TensorBoard is to show them.
            precise: Statistics of narrow floats as exact as those of float64.
            threads: How many reduce one large tensor, at most; None: as many as the
                framework uses, up to 4.
            budget: Share of the training's time that capture may cost, such as
                0.02; what is captured is reduced to stay inside. ``"auto"`` as of
                ``watch``, ``"off"``: any. None: that of the variable
                ``TDBG_BUDGET``, or any.
            probes: Whether a copy of the model may be called: docs/probes.md. None:
                that of the variable ``TDBG_PROBES``, or yes.
            profiler: What the run records about its time: settings, or False for
                nothing (docs/profiler-windows.md). None: as the variable
                ``TDBG_PROFILER`` says, or the defaults.
            unknown: Refused, with the nearest argument that exists.

        Raises:
            ConfigurationError: If something asked for can never work.
            StorageError: If the run cannot be made or written.
        """
        given = dict(locals())  # Every argument by its name.
        del given["self"], given["unknown"]
        self._configure(lambda: resolve({**given, **unknown}))

    @classmethod
    def from_config(cls, config: HookConfig) -> Self:
        """A hook with these settings, and no others.

        Raises:
            ConfigurationError: If something asked for can never work.
            StorageError: If the run cannot be made or written.
        """
        return cls._made(lambda: config)

    @classmethod
    def create_from_file(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """A hook with the settings of a YAML or JSON file (docs/configuration.md).

        Args:
            path: The file, in the format of tdbg or of smdebug; None: that of the
                variable ``TDBG_CONFIG``, or else of ``SMDEBUG_CONFIG_FILE_PATH``.

        Raises:
            ConfigurationError: If there is none, or it says what can never work.
            StorageError: If the run cannot be made or written.
        """
        return cls._made(lambda: read_config(path))

    @classmethod
    def create_from_json_file(
        cls, json_file_path: str | os.PathLike[str] | None = None
    ) -> Self:
        """``create_from_file`` by the name that smdebug has for it."""
        return cls.create_from_file(json_file_path)

    # ---- what a framework's hook provides --------------------------------------

    @abstractmethod
    def _make_adapter(self) -> FrameworkAdapter:
        """Make what capture asks about tensors."""

    @abstractmethod
    def _make_policy(self, config: HookConfig) -> Policy:
        """Decide what is captured: the configuration's collections and rules."""

    @abstractmethod
    def _make_export(
        self, config: HookConfig, options: SessionOptions
    ) -> RunExport | None:
        """Make the export that the configuration asks for; None where it does not.

        Raises:
            ConfigurationError: If the export can never work.
        """

    def _start_profiler(self, session: Session, settings: ProfilerConfig) -> None:
        """Observe where the time of the training goes, if the settings say so."""

    def _attach(self, session: Session) -> CurrentMode:
        """Make the state of the hook for a session, which may never do anything.

        Returns:
            The source of the present mode.
        """
        return CurrentMode(session)

    def _detach(self) -> None:
        """Remove everything from the training; the run is about to end."""

    def _remember(self) -> None:
        """Become the hook that the framework's ``get_hook`` returns."""

    def _before_training_forward(self) -> None:
        """Prepare for a forward in training that is about to begin."""

    def _capture_before_forward(
        self, context: StepContext, *, is_training: bool
    ) -> None:
        """Capture tensors that exist before the module is called, as parameters."""

    # ---- opening ---------------------------------------------------------------

    @classmethod
    def _made(cls, make_config: Callable[[], HookConfig]) -> Self:
        hook = cls.__new__(cls)
        hook._configure(make_config)
        return hook

    @classmethod
    def _inert(cls) -> Self:
        """Make a hook that does nothing."""
        hook = cls.__new__(cls)
        hook._set_up(hook._make_adapter(), _dead_session(), None)
        return hook

    def _configure(self, make_config: Callable[[], HookConfig]) -> None:
        def make(adapter: FrameworkAdapter) -> tuple[SessionSpec, RunExport | None]:
            config = make_config()
            rank, world_size = process_rank(adapter)
            options = config.options(
                threads=max(1, min(_MOST_THREADS, adapter.n_threads())),
                rank=rank,
                world_size=world_size,
                rank_store=(
                    adapter.rank_store(str(config.out_dir)) if world_size > 1 else None
                ),
                launch=launch_name(os.environ),
            )
            export = self._make_export(config, options)
            policy = self._make_policy(config)
            spec = SessionSpec(
                config.out_dir, policy, options, self._joins, config.profiler
            )
            return spec, export

        self._open(make)
        self._remember()
        if isinstance(self._session.writer, MeasuringWriter):
            self._session.listen(close=self._log_dry_run)

    def _open(
        self, make: Callable[[FrameworkAdapter], tuple[SessionSpec, RunExport | None]]
    ) -> None:
        """Open the session that *make* describes; *make* is not called if disabled."""
        adapter = self._make_adapter()
        if is_disabled():
            self._set_up(adapter, _dead_session(), None)
            return
        spec, export = make(adapter)
        self._set_up(adapter, open_session(spec, adapter), export)
        if spec.profiler is not None:
            self._start_profiler(self._session, spec.profiler)

    def _set_up(
        self, adapter: FrameworkAdapter, session: Session, export: RunExport | None
    ) -> None:
        self._adapter = adapter
        self._session = session
        self._export = export
        self._mode = self._attach(session)
        session.listen(close=self._detach)
        if export is not None:
            session.listen(closed=export)

    # ---- recording by hand -----------------------------------------------------

    def record_tensor_value(self, name: str, value: Any) -> None:
        """Record the result of a function as ``<name>_output_0``.

        A loss if its name says so (at every step), otherwise of the collection
        ``default``.
        """
        self._session.run(self._record_value, name, value)

    def save_tensor(
        self,
        name: str,
        value: Any,
        collections_to_write: str | Iterable[str] = "default",
    ) -> None:
        """Record a tensor, or anything NumPy takes for an array, as *name*.

        It follows the schedules of these collections, which are made if they do not
        exist.
        """
        self._session.run(self._save, name, value, collections_to_write)

    def save_scalar(
        self, name: str, value: Any, *, timestamp: float | None = None
    ) -> None:
        """Record a number as ``scalar/<name>``, always.

        Args:
            name: Name of the number.
            value: The number, or a tensor of one element.
            timestamp: When the number was true, in seconds since 1970; None: now.
        """
        self._session.run(self._save_scalar, name, value, timestamp)

    def set_mode(self, mode: ModeKeys | None) -> None:
        """Set the mode; None: follow the mode of the model again.

        Raises:
            ConfigurationError: If *mode* is not a mode.
        """
        given: object = mode
        if given is not None and not isinstance(given, ModeKeys):
            msg = f"set_mode needs one of ModeKeys, or None, not {given!r}"
            raise ConfigurationError(msg)
        self._session.see()
        self._mode.say(given)

    @contextlib.contextmanager
    def forward_pass(self) -> Iterator[None]:
        """What runs inside is one forward of the training.

        For a training that calls parts of its model one by one, and never the module
        that was registered::

            with hook.forward_pass():
                loss = criterion(model.decoder(model.encoder(x)), y)

        Calls of registered modules inside belong to it.

        Raises:
            TrainingStopped: At the beginning, if somebody asked for it.
        """
        session = self._session
        session.run(self._begin_pass, self._mode.now())
        try:
            yield
        except BaseException:
            session.run(session.forward_lost)
            raise
        session.run(session.forward_ends)

    def _begin_pass(self, mode: ModeKeys) -> None:
        is_training = mode in TRAINING
        if is_training:
            self._before_training_forward()
        context = self._session.forward_begins(id(self), mode)
        if context is not None and context.takes:
            self._capture_before_forward(context, is_training=is_training)

    def _record_value(self, name: str, value: Any) -> None:
        full_name = f"{name}_output_0"
        if "loss" in str(name).lower():
            given = value if self._adapter.is_tensor(value) else None
            self._session.record(self._mode.now(), full_name, Role.LOSS, given)
        else:
            self._save(full_name, value, "default")

    def _save(self, name: str, value: Any, collections: str | Iterable[str]) -> None:
        names = [collections] if isinstance(collections, str) else list(collections)
        mode, adapter = self._mode.now(), self._adapter
        value = adapter.import_array(value)
        if adapter.is_tensor(value):
            self._session.record_into(mode, str(name), names, value)
        else:
            self._session.record_array(mode, str(name), names, value)

    def _save_scalar(self, name: str, value: Any, timestamp: float | None) -> None:
        number = self._adapter.read_number(value)
        wall_ns = None if timestamp is None else int(timestamp * 1e9)
        self._session.record_scalar(self._mode.now(), str(name), number, wall_ns)

    # ---- collections -----------------------------------------------------------

    def get_collection(self, name: str) -> Collection:
        """The collection of this name; changes to it apply from the next step on.

        Raises:
            ConfigurationError: If there is no such collection.
        """
        return self._session.collections.get(name)

    def get_collections(self) -> dict[str, Collection]:
        """All collections by name."""
        return {item.name: item for item in self._session.collections}

    def add_collection(self, collection: Collection) -> None:
        """Capture this collection from the next step on.

        Raises:
            ConfigurationError: If *collection* is no collection.
            InvalidCollectionConfiguration: If the collection selects nothing.
        """
        self._session.collections.add(collection)

    # ---- state -----------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked the training to stop."""
        return self._session.should_stop

    @property
    def stop_reason(self) -> str | None:
        """Return who asked the training to stop, and why; None if nobody has."""
        return self._session.stop_reason

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended for this hook."""
        return self._session.is_closed

    @property
    def n_steps(self) -> int:
        """How many training steps have begun."""
        self._session.settle()
        return self._session.n_training_steps

    @property
    def n_forwards(self) -> int:
        """Number that grows with every forward in training."""
        self._session.settle()
        return self._session.n_forwards

    @property
    def step_counter(self) -> StepCounter | None:
        """Says which steps are only counted; None: all are seen."""
        return self._session.step_counter

    def counters(self) -> dict[str, int]:
        """Numbers of records offered, written, dropped and failed, and of errors."""
        failed_exports = 0 if self._export is None else self._export.n_failed
        return {**self._session.counters(), "failed_exports": failed_exports}

    def device_state(self) -> dict[int, dict[str, Any]]:
        """How tensors are captured on each CUDA device that held any.

        ``is_usable`` says whether the kernels are used, ``reason`` why not; the rest
        are counts. docs/gpu.md.
        """
        return self._session.device_state()

    def overhead(self) -> Overhead:
        """Return the cost of capture so far."""
        return self._session.overhead()

    def dry_run_summary(self) -> DryRunSummary:
        """What a hook with ``dry_run=True`` would have captured, and how large it is.

        The summary needs a complete step, and leaves out what is scheduled to begin
        later. ``print(hook.dry_run_summary())`` shows it as a table, which the hook
        also logs when it is closed.

        Raises:
            ConfigurationError: If the hook was not made with ``dry_run=True``.
        """
        writer = self._session.writer
        if isinstance(writer, MeasuringWriter):
            return summarize(writer, self._session.recorder)
        if is_disabled():
            return DryRunSummary({}, ())
        msg = "this hook writes a run; only Hook(dry_run=True) makes a summary"
        raise ConfigurationError(msg)

    def _log_dry_run(self) -> None:
        # A warning, because Python shows nothing below by default, and the summary is
        # the purpose of a dry run.
        _log.warning("%s", self.dry_run_summary())

    # ---- resuming --------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The counters of steps, for a checkpoint: plain numbers, a few bytes.

            torch.save({"model": model.state_dict(), "tdbg": hook.state_dict()}, path)

        A resumed training repeats the step that is under way now.
        """
        session = self._session
        session.see()
        return counters_as_json(session.next_steps())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue to count steps from a checkpoint.

            hook = td.Hook("runs/digits")  # A new attempt in the same run.
            hook.load_state_dict(torch.load(path)["tdbg"])

        Call it before the first step. Steps never go back: if this process has made
        later steps already, the call only logs a warning.

        Raises:
            ConfigurationError: If *state* was not made by ``state_dict``.
        """
        counters = parse_counters(state)
        session = self._session
        if not session.is_live:
            return
        session.see()
        if not session.continue_from(counters):
            _log.warning(
                "tdbg continues counting at step %d, because your program loaded a "
                "checkpoint of step %d after its first step; load it before the first "
                "step",
                session.next_steps().step,
                counters.step,
            )

    def resume_at(self, step: int) -> None:
        """Continue from a checkpoint that only has the number of training steps.

        Other modes count from 0, and global steps count training steps only: use
        ``state_dict`` if evaluation is captured as well.

        Raises:
            ConfigurationError: If *step* is not a number of steps.
        """
        self.load_state_dict({"version": 1, "step": step, "modes": {TRAIN.name: step}})

    # ---- the end ---------------------------------------------------------------

    def flush(self, *, durable: bool = False, timeout: float = 30.0) -> None:
        """Wait until everything recorded so far can be read.

        Args:
            durable: Whether to wait until it survives a power failure.
            timeout: In seconds.

        Raises:
            StorageError: If it cannot be written, or a device does not deliver it.
        """
        self._session.flush(durable=durable, timeout=timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Remove all hooks and end the run; return whether everything was written."""
        return self._session.close("closed", timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._session.close("closed" if kind is None else kind.__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_inert, (type(self),)


_H = TypeVar("_H", bound=HookBase)


def _make_inert(kind: type[_H]) -> _H:
    """Make the copy of a hook, which does nothing."""
    return kind._inert()


def _dead_session() -> Session:
    return Session(NullWriter(), Policy(CollectionRegistry()), is_live=False)
