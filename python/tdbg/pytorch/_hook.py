"""``Hook``: what users make."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Never, Self

import torch

from tdbg.capture.dry_run import DryRunSummary, summarize
from tdbg.capture.measuring import MeasuringSink
from tdbg.capture.opening import Opening, SessionOptions, is_disabled
from tdbg.capture.policy import Policy
from tdbg.collections import Collection
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import ConfigurationError
from tdbg.hooks.pytorch.distributed import StoreBoard, launch, place
from tdbg.modes import ModeKeys
from tdbg.pytorch.exporting import ExportingHook
from tdbg.settings import (
    CollectionConfig,
    HookConfig,
    read_config,
    resolve,
)
from tdbg.settings.current import Current

if TYPE_CHECKING:
    from tdbg.rules import Rule

__all__ = ["Hook", "process_hook"]

_log = logging.getLogger("tdbg")
# The hook of this process, for get_hook.
process_hook: Current[Hook] = Current()


class Hook(ExportingHook):
    """Captures a training; losses unless told otherwise.

    An argument that is None is one that was not given: then the file that
    ``TDBG_CONFIG`` names says it, or else the default holds (docs/configuration.md).
    With ``TDBG_DISABLED=1`` nothing is looked at and the hook does nothing at all.

    Args:
        out_dir: The run directory; made if it does not exist, joined if it does.
            None: that of the variable ``TDBG_OUT``.
        include_collections: Built-in collections to capture beside the losses.
        include_regex: Further tensors, by expressions that their names match.
        save_config: The schedules.
        reduction_config: Statistics only, or raw values as well (the default).
        save_all: Capture every tensor.
        collections: Custom collections, or built-in ones with a configuration.
        rules: Rules, their names, or mappings of a name and parameters, whose needs
            are captured as well, each with schedules of its own. None: those of the
            variable ``TDBG_RULES``, or none.
        include_workers: Of several ranks, those that write: ``one`` (the default),
            the first; ``all``; or a list. The hooks of the others do nothing, except
            that the training stops on all ranks at the same step.
            docs/distributed.md.
        export_tensorboard: When the run has ended, write losses, scalars and
            histograms of it as files of TensorBoard. docs/tensorboard.md.
        tensorboard_dir: Where, which switches it on; None: ``tensorboard`` in
            *out_dir*.
        dry_run: Do everything but write; ``dry_run_summary()`` says what would be
            written, and how large it is.
        on_stop: When somebody asks for a stop: ``raise`` (the default)
            TrainingStopped at the next root forward, or ``flag`` it in
            ``should_stop``.
        overflow: When the disk is too slow: ``block`` (the default) while it makes
            progress, ``drop``, or ``sample``: keep the values of whole steps, of as
            many as the disk takes.
        queue_bytes: Bound of the memory for what is not written yet.
        min_free_bytes: Free disk space that is left to others.
        codec: How raw values are stored: "none", "auto" (the default) or "max".
        save_histogram: Store histograms wherever statistics are taken, of all
            collections that do not say otherwise. None: if TensorBoard is to show
            them.
        precise: Statistics of floats of up to 32 bits as exactly as those of
            float64.
        threads: That reduce one large tensor, at most; None: as many as PyTorch
            uses, up to 4.
        budget: Share of the training's time that capture may cost, such as 0.02;
            what is captured is reduced to stay inside. None: that of the variable
            ``TDBG_BUDGET``, or any.
        unknown: There is none; a misspelt argument is told with the nearest one.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """

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
        rules: Iterable[str | Rule | Mapping[str, Any]] | str | None = None,
        include_workers: str | Iterable[int] | None = None,
        export_tensorboard: bool | None = None,
        tensorboard_dir: str | os.PathLike[str] | None = None,
        dry_run: bool | None = None,
        on_stop: str | None = None,
        overflow: str | None = None,
        queue_bytes: int | None = None,
        min_free_bytes: int | None = None,
        codec: str | None = None,
        save_histogram: bool | None = None,
        precise: bool | None = None,
        threads: int | None = None,
        budget: float | None = None,
        **unknown: Never,
    ) -> None:
        given = {
            "out_dir": out_dir,
            "include_collections": include_collections,
            "include_regex": include_regex,
            "save_config": save_config,
            "reduction_config": reduction_config,
            "save_all": save_all,
            "collections": collections,
            "rules": rules,
            "include_workers": include_workers,
            "export_tensorboard": export_tensorboard,
            "tensorboard_dir": tensorboard_dir,
            "dry_run": dry_run,
            "on_stop": on_stop,
            "overflow": overflow,
            "queue_bytes": queue_bytes,
            "min_free_bytes": min_free_bytes,
            "codec": codec,
            "save_histogram": save_histogram,
            "precise": precise,
            "threads": threads,
            "budget": budget,
        }
        self._open(lambda: resolve({**given, **unknown}))

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

    @classmethod
    def _made(cls, make_config: Callable[[], HookConfig]) -> Self:
        hook = cls.__new__(cls)
        hook._open(make_config)
        return hook

    def _open(self, make_config: Callable[[], HookConfig]) -> None:
        def make() -> Opening:
            config = make_config()
            options = _options(config)
            if config.exports_tensorboard:
                self._export_to(config.tensorboard_dir, config.out_dir, options)
            return Opening(config.out_dir, _policy(config), options)

        super().__init__(make)
        process_hook.remember(self)
        if isinstance(self._session.sink, MeasuringSink):
            self._session.on_close.append(self._tell_dry_run)

    def dry_run_summary(self) -> DryRunSummary:
        """What a hook with ``dry_run=True`` would have captured, and how large it is.

        Begins with the first complete step; nothing is known of what is scheduled to
        begin later. ``print(hook.dry_run_summary())`` shows it as a table, which is
        also logged when the hook is closed.

        Raises:
            ConfigurationError: If the hook is not one of a dry run.
        """
        sink = self._session.sink
        if isinstance(sink, MeasuringSink):
            return summarize(sink, self._session.recorder)
        if is_disabled():
            return DryRunSummary({}, ())
        msg = "this hook writes: a summary is made by Hook(dry_run=True)"
        raise ConfigurationError(msg)

    def _tell_dry_run(self) -> None:
        # A warning, as what is less is not shown unless somebody asks for it, and
        # this is all that a dry run is for.
        _log.warning("%s", self.dry_run_summary())


def _policy(config: HookConfig) -> Policy:
    """What is captured: what it says, and what its rules need."""
    if not config.rules:
        return config.policy()
    # Only where rules are asked for: a hook does not need them.
    from tdbg.rules import describe, needs_of
    from tdbg.rules import resolve as resolve_rules

    rules = resolve_rules(config.rules)
    return config.policy(needs_of(rules), describe(rules))


def _options(config: HookConfig) -> SessionOptions:
    """What it says, in this process."""
    rank, world_size = place()
    return config.options(
        # As many as the training's own operations, but no more than gain.
        threads=max(1, min(4, torch.get_num_threads())),
        rank=rank,
        world_size=world_size,
        board=StoreBoard(str(config.out_dir)) if world_size > 1 else None,
        launch=launch(),
    )
