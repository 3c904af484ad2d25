"""``FrameworkHook``: the base class of every framework's hook, and that of a process.

Capture knows neither rules nor the export of runs, because both are layers above it.
Hooks stand above all three and join them here.  Rules and exports are imported only if
a configuration asks for them.

docs/adding-a-framework.md shows a complete framework.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from tdbg.capture.hook_base import HookBase
from tdbg.capture.policy import Policy
from tdbg.capture.run_export import RunExport
from tdbg.capture.session import Session
from tdbg.config import HookConfig, ProfilerConfig, names_file, names_run
from tdbg.config.options import is_disabled
from tdbg.errors import ConfigurationError
from tdbg.profiler import NamedSpan, Profiler, Spans, measured

if TYPE_CHECKING:
    from tdbg.config.options import SessionOptions

__all__ = ["FrameworkHook", "ProcessHook", "make_policy"]

_Batch = TypeVar("_Batch")
_H = TypeVar("_H", bound=HookBase)


class ProcessHook(Generic[_H]):
    """The hook of this process; its methods are public functions of a framework.

    Args:
        kind: The framework's class of hooks.

    Thread safety: a reference is replaced at once; the last one wins.
    """

    def __init__(self, kind: type[_H]) -> None:
        self._kind = kind
        self._find: tuple[int, Callable[[], _H | None]] | None = None

    def remember(self, hook: _H) -> None:
        """Make *hook* the hook of this process, without keeping it alive."""
        self._find = os.getpid(), weakref.ref(hook)

    def set_hook(self, custom_hook: _H) -> None:
        """Make this hook the one of this process, and keep it alive.

        Raises:
            ConfigurationError: If it is no hook of the framework.
        """
        given: object = custom_hook
        if not isinstance(given, self._kind):
            msg = f"set_hook needs a Hook, not {given!r}"
            raise ConfigurationError(msg)
        self._find = os.getpid(), lambda: custom_hook

    def del_hook(self) -> None:
        """Forget the hook of this process; it is not closed, if others hold it."""
        self._find = None

    def current(self) -> _H | None:
        """The hook of this process, or None; never that of a parent process."""
        find = self._find
        return find[1]() if find is not None and find[0] == os.getpid() else None

    def get_hook(
        self,
        json_config_path: str | os.PathLike[str] | None = None,
        create_if_not_exists: bool = False,
    ) -> _H | None:
        """The hook of this process: the one that was made or set last.

        Args:
            json_config_path: A file to make it from, as of ``Hook.create_from_file``.
            create_if_not_exists: Make one if there is none, or only a closed one.
                Without a file and without a variable that says anything
                (``TDBG_CONFIG``, ``SMDEBUG_CONFIG_FILE_PATH``, ``TDBG_OUT``) there is
                still none.

        Raises:
            ConfigurationError: If it is made, from what can never work.
            StorageError: If it is made, and the run cannot be.
        """
        found = self.current()
        if not create_if_not_exists or not (found is None or found.is_closed):
            return found
        if json_config_path is not None or names_file():
            found = self._kind.create_from_file(json_config_path)
        elif is_disabled() or names_run():
            found = self._kind()
        else:
            return None
        self.set_hook(found)
        return found


class FrameworkHook(HookBase):
    """Captures the trainings of a framework.

    A subclass overrides ``_make_adapter`` and usually ``_attach`` and ``_detach``.  Its
    constructor takes the arguments of ``HookBase``.

    Example::

        class Hook(FrameworkHook):
            def _make_adapter(self):
                return NumpyAdapter()


        _process_hook = Hook.of_process()
        get_hook = _process_hook.get_hook
        set_hook = _process_hook.set_hook
        del_hook = _process_hook.del_hook
    """

    _process_hook: ClassVar[ProcessHook[Any] | None] = None
    _profiler: Profiler | None = None
    _spans: Spans | None = None

    @classmethod
    def of_process(cls) -> ProcessHook[Self]:
        """Make the functions that get, set and delete the hook of this process.

        Call it once, below the class: from then on the functions know each hook of the
        class, and of its subclasses, as soon as the hook has been made.
        """
        made = ProcessHook(cls)
        cls._process_hook = made
        return made

    def _make_policy(self, config: HookConfig) -> Policy:
        return make_policy(config)

    def _make_export(
        self, config: HookConfig, options: SessionOptions
    ) -> RunExport | None:
        if not config.exports_tensorboard:
            return None
        from tdbg.export import export_at_end

        return export_at_end(config.out_dir, config.tensorboard_dir, options)

    def span(self, name: str) -> NamedSpan:
        """Return a named interval of your program, for the timeline.

        It is a context manager, and a decorator of functions, also of ``async`` ones::

            with hook.span("augment"):
                batch = augment(batch)


            @hook.span("log")
            def log(metrics): ...

        Raises:
            ConfigurationError: If *name* is no text of 1 to 300 characters.
        """
        if self._spans is None:
            self._spans = Spans(self._session)
        return self._spans.span(name)

    def _start_profiler(self, session: Session, settings: ProfilerConfig) -> None:
        self._profiler = Profiler(session, settings)

    def loader(self, batches: Iterable[_Batch]) -> Iterable[_Batch]:
        """Measure how long your training waits for each batch of an iterable.

        tdbg measures PyTorch's ``DataLoader`` by itself. For loaders of others, of
        your own, and for generators::

            for batch in hook.loader(my_loader):
                train(batch)

        Args:
            batches: Any iterable. What you get back has its attributes and its length,
                and can be iterated over as often as it.

        Returns:
            The iterable itself where nothing is to be measured: it is a ``DataLoader``,
            or the hook has no profiler.

        Raises:
            ConfigurationError: If it cannot be iterated over.
        """
        return measured(self._session, batches)

    def _remember(self) -> None:
        if self._process_hook is not None:
            self._process_hook.remember(self)


def make_policy(config: HookConfig) -> Policy:
    """Return the policy that captures what a configuration and its rules ask for.

    Raises:
        ConfigurationError: If a rule is unknown, or one of its parameters is bad.
    """
    if not config.rules:
        return Policy.of_config(config)
    from tdbg.rules import describe, needs_of, resolve

    rules = resolve(config.rules)
    return Policy.of_config(config, needs_of(rules), describe(rules))
