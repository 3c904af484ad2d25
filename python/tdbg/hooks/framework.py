"""``FrameworkHook``: the base class of every framework's hook.

Capture knows neither rules nor the export of runs, because both are layers above it.
Hooks stand above all three and join them here.  Rules and exports are imported only if
a configuration asks for them.

docs/adding-a-framework.md shows a complete framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from tdbg.capture.hook_base import HookBase
from tdbg.capture.policy import Policy
from tdbg.capture.process_hook import ProcessHook
from tdbg.capture.run_export import RunExport
from tdbg.capture.session import Session
from tdbg.config import HookConfig, ProfilerConfig
from tdbg.profiler import NamedSpan, Profiler, Spans, measured

if TYPE_CHECKING:
    from tdbg.config.options import SessionOptions

__all__ = ["FrameworkHook", "make_policy"]

_Batch = TypeVar("_Batch")


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
