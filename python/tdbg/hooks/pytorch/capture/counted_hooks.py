"""Put hooks of the core, which count steps, in place of tdbg's own.

Four hooks report the events of a step: before and after the call of a root, and before
and after the step of an optimizer.  In a step of a millisecond their Python code costs
as much as a layer, because it has left the caches when its turn comes.  A
``CountedHook`` takes the place of each, in the same dict under the same key.  It counts
while only the number of steps is requested, and otherwise calls the hook.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from torch._C import _current_graph_task_id
from torch.optim import Optimizer, optimizer

from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.hooks.pytorch.capture.optimizer_hooks import StepBegins, StepEnds
from tdbg.hooks.pytorch.capture.optimizers import OptimizerWatch
from tdbg.hooks.pytorch.capture.registered_modules import Begin, End, ModuleCapture
from tdbg.hooks.pytorch.capture.submodules import QuickHook
from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now

__all__ = ["CountingHooks"]

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# Refers to an object that has a dict of hooks, with the name of that.
_Owner = Callable[[], Any]


def _counted_hook() -> Any:
    """Return the core's class; a hook that is disabled works without the core."""
    return import_module("tdbg._core").CountedHook


class CountingHooks:
    """The hooks of one session that the core replaces once steps are counted.

    Args:
        session: The session; not kept alive.
        mode: The present mode.
        module_captures: Those of the registered modules; grows.
        watch: Knows the optimizers.

    Attributes:
        born: When it was made, for ``hooks_may_go``.
    """

    def __init__(
        self,
        session: Session,
        mode: CurrentMode,
        module_captures: Sequence[ModuleCapture],
        watch: OptimizerWatch,
    ) -> None:
        self.born = now()
        self._session = weakref.ref(session)
        self._counter = session.step_counter
        # None of these is kept alive: the session has this object.
        self._mode = weakref.ref(mode)
        self._watch = weakref.ref(watch)
        self._module_captures = module_captures
        # Where others stand: the owner of the dict, its name, and the key.
        self._places: list[tuple[_Owner, str, int]] = []
        session.count_if(self.may_count)
        # Hooks may have changed places.
        session.listen(counting_failed=self._put_back, rest=self._put_back)

    def may_count(self) -> bool:
        """Return whether steps can be counted: nothing is compiled, no mode is set."""
        mode, session, watch = self._mode(), self._session(), self._watch()
        if mode is None or session is None or watch is None or mode.said is not None:
            return False
        if not self._places:
            if not hooks_may_go(self):
                return False
            self._replace_modules()
            self._replace_optimizers(session, watch)
        return True

    def set_idle(self, is_idle: bool) -> None:
        """Put tdbg's own hooks back: the compiler is about to trace."""
        session = self._session()
        if not is_idle and session is not None:
            session.see()
            self._put_back()

    def _put_back(self) -> None:
        places, self._places = self._places, []
        for owner, name, key in places:
            hooks = getattr(owner(), name, {})
            hook: Any = hooks.get(key)
            if type(hook) is _counted_hook():
                hooks[key] = hook.stands_for

    def _replace_modules(self) -> None:
        living = [
            (capture, weakref.ref(module))
            for capture in self._module_captures
            if (module := capture.module) is not None
        ]
        for capture, root in living:
            for name, key, hook in _hooks_of(root(), _OF_MODULES):
                references = root, living[0][1]
                if isinstance(hook, End):
                    self._put(root, name, key, "forward_ends", capture.ends)
                elif isinstance(hook, Begin):
                    begins = capture.begins
                    self._put(root, name, key, "forward_begins", begins, references)
                elif isinstance(hook, QuickHook):
                    self._put(root, name, key, "in_forward")

    def _replace_optimizers(self, session: Session, watch: OptimizerWatch) -> None:
        known = watch.optimizers()
        references = tuple(weakref.ref(each) for each in known)
        name, key = "_global_optimizer_pre_hooks", watch.meets
        self._put(lambda: optimizer, name, key, "known_optimizer", None, references)
        for each, owner in zip(known, references, strict=True):
            events = watch.events(each)
            for name, key, hook in _hooks_of(each, _OF_OPTIMIZERS):
                if events is None or getattr(hook, "session", None) is not session:
                    continue
                if isinstance(hook, StepBegins):
                    begins, asks = events.begins, watch.has_news
                    self._put(owner, name, key, "optimizer_begins", begins, (), asks)
                elif isinstance(hook, StepEnds):
                    self._put(owner, name, key, "optimizer_ends", events.ends)

    def _put(
        self,
        owner: _Owner,
        name: str,
        key: int,
        kind: str,
        event: object = None,
        references: tuple[weakref.ref[Any], ...] = (),
        asks: Callable[[Optimizer], bool] | None = None,
    ) -> None:
        hooks = getattr(owner(), name, {})
        if key in hooks:
            hooks[key] = _counted_hook()(
                kind,
                self._counter,
                event,
                hooks[key],
                _current_graph_task_id,
                references,
                asks,
            )
            self._places.append((owner, name, key))


def _hooks_of(owner: Any, names: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
    for name in names:
        for key, hook in list(getattr(owner, name, {}).items()):
            yield name, key, hook
