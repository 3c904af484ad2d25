"""Find the trainings in JAX in a program that does not use tdbg.

A function trains if ``jax.jit``, ``flax.nnx.jit`` or ``equinox.filter_jit`` compiles it
and it computes gradients of its arguments, which the trace of its first call shows.
From then on it is a step of a hook (``hook.jit``), and the differentiated part of its
arguments is what it trains.  The search sees gradients when the program passes them to
optax, or else when ``jax.grad`` or a similar function returns them.  It leaves alone
functions of the libraries and functions that are called within another one.

Each function that trains has its own run, and each training that it makes
(``lineage.py``).  A program with its own hook keeps it.

Thread safety: the notes of a trace belong to the thread that traces.

Errors: none reach the script except ``TrainingStopped``.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.capture.process import at_exit
from tdbg.launch import LAUNCH_VARIABLE, summary
from tdbg.launch.differentiation import (
    Differentiation,
    Watch,
    Watching,
    is_outside,
    present_watch,
)
from tdbg.launch.family import Place, family_of
from tdbg.launch.settings import open_hook
from tdbg.launch.taken import is_taken

if TYPE_CHECKING:
    from tdbg.launch.lineage import Lineage

__all__ = ["LIBRARIES", "MOST_TRAININGS", "StepSearch", "begin", "library_imported"]

LIBRARIES = ("flax.nnx", "equinox", "optax")
"""What is searched in as soon as it is imported, beside JAX."""
MOST_TRAININGS = 32
"""Of one process: it may train many little models."""

# What compiles steps, by module; the modules that have it by another name are theirs.
_COMPILERS = (("jax", "jit"), ("flax.nnx", "jit"), ("equinox", "filter_jit"))
# Functions of these packages are no steps.
_NO_STEPS = {
    "chex",
    "equinox",
    "flax",
    "jax",
    "jaxlib",
    "keras",
    "numpy",
    "optax",
    "orbax",
    "scipy",
    "tdbg",
}
# Frameworks with a search of their own.
_SEARCHED = ("catboost", "keras", "lightgbm", "torch", "xgboost")
# So many functions are remembered, so that one that is compiled anew in each step by
# `jax.jit(step)(...)` is known again.
_MOST_KNOWN = 256

_log = logging.getLogger("tdbg")
_search: StepSearch | None = None


def begin(*, is_first: bool) -> None:
    """Capture the trainings in JAX, which has just been imported.

    Args:
        is_first: Whether this is the program that was launched, and not a process that
            the program has started.
    """
    global _search  # noqa: PLW0603 - there is one of a process.
    summary.end_quietly()
    settings = json.loads(os.environ[LAUNCH_VARIABLE])
    _search = StepSearch(settings, is_first=is_first)
    _search.start()
    at_exit(_search.print_summary)


def library_imported(name: str) -> None:
    """Search in one of ``LIBRARIES``, too, which has just been imported."""
    if _search is not None:
        _search.add_library(name)


class StepSearch:
    """Make each function that trains a step of a hook.

    Args:
        settings: ``out_dir``, ``existing`` (of ``family``), ``rules``,
            ``include_collections``, ``save_interval``, ``statistics_interval``,
            ``budget``, ``profiler``; all but the first may be missing.
        is_first: As of ``begin``.

    Attributes:
        runs: The runs of the trainings so far.
    """

    def __init__(self, settings: dict[str, Any], *, is_first: bool = True) -> None:
        self._settings = settings
        self._is_first = is_first
        # Before functions are replaced: `hook.jit` compiles by `jax.jit` itself.
        self._face = import_module("tdbg.jax")
        self._facts = summary.Facts()
        self._differentiation = Differentiation()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._known: dict[Any, _Compiled] = {}
        # All trainings, and the latest one of each function.
        self._trainings: list[_Training] = []
        self._latest: dict[Any, _Training] = {}
        self._has_failed = False

    @property
    def runs(self) -> list[summary.CapturedRun]:
        """Return the runs of the trainings so far."""
        return [
            summary.CapturedRun(each.path, each.hook.n_steps)
            for each in self._trainings
        ]

    def start(self) -> None:
        """Watch functions that are compiled from now on."""
        self.add_library("jax")
        for name in LIBRARIES:
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            # Of one that has just imported JAX itself we are told when it is complete.
            if module is not None and not getattr(spec, "_initializing", False):
                self.add_library(name)

    def add_library(self, name: str) -> None:
        """Watch the functions that an imported library compiles."""
        module = sys.modules[name]
        for owner, entry in _COMPILERS:
            if owner == name:
                self._replace(module, entry, self._compiling(getattr(module, entry)))
        for owner, entry, made in self._differentiation.replacements(name, module):
            self._replace(owner, entry, made)

    def stop(self) -> None:
        """Put the functions of the libraries back, and end the runs."""
        while self._replaced:
            owner, entry, original = self._replaced.pop()
            setattr(owner, entry, original)
        self._close()

    def print_summary(self) -> None:
        """Print what was captured, or why nothing was."""
        self._close()
        lines: list[str] = []
        if self.runs:
            lines = summary.captured(self.runs, self._facts)
        elif self._is_first and not self._has_failed and not self._appeared():
            lines = self._why()
        sys.stderr.write("".join(f"tdbg: {line}\n" for line in lines))

    def _why(self) -> list[str]:
        self._facts.n_gradients += self._differentiation.n_alone
        if not self._facts.n_gradients and any(map(sys.modules.get, _SEARCHED)):
            return []  # JAX was imported by the way; another search says why.
        return summary.why_of_jax(self._facts)

    def _appeared(self) -> list[Place]:
        return family_of(self._settings).appeared()

    def _close(self) -> None:
        for each in self._trainings:
            each.hook.close()

    def _replace(self, owner: Any, entry: str, made: Any) -> None:
        self._replaced.append((owner, entry, getattr(owner, entry)))
        setattr(owner, entry, made)

    # ---- functions that are compiled ---------------------------------------------

    def _compiling(self, compiler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that replaces ``jax.jit``."""

        @functools.wraps(compiler)
        def jit(*args: Any, **options: Any) -> Any:
            if not args:
                named = options.get("fun")
                if named is None:
                    return functools.partial(jit, **options)
                return jit(options.pop("fun"), **options)
            compiled = compiler(*args, **options)
            if len(args) > 1 or not _may_train(args[0]):
                return compiled
            return self._compiled(args[0], compiler, compiled, options)

        return jit

    def _compiled(
        self,
        function: Callable[..., Any],
        compiler: Callable[..., Any],
        compiled: Any,
        options: dict[str, Any],
    ) -> _Compiled:
        key = (function, compiler, tuple(sorted(options.items())))
        try:
            known = self._known.get(key)
        except TypeError:  # Options with a list, or shardings in a dictionary.
            return _Compiled(self, function, compiler, compiled, options)
        if known is None:
            known = _Compiled(self, function, compiler, compiled, options)
            while len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    def step_of(
        self,
        compiled: _Compiled,
        watch: Watch,
        outputs: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _Step | None:
        """Return the step of a hook for a function; None if it does not train.

        Args:
            compiled: The function.
            watch: What was seen when it was traced.
            outputs: What it returns, or the shapes and dtypes of that.
            args: What it is called with.
            kwargs: The same, by name.
        """
        if not watch.has_gradients or self._has_failed:
            return None
        from tdbg.hooks.jax.hook import find_loss

        try:
            if self._has_own():
                self._has_failed = True
                _log.warning("tdbg captures nothing: %s", summary.HAS_A_HOOK)
                return None
            params = self._params(watch, args)
            if params is None and not self._knows(watch, args, kwargs):
                self._facts.n_gradients += 1
                return None
            training = self.training_of(compiled.function, args, kwargs)
            if training is None:
                return None
            # A number that the step trains may be the first that it returns.
            trains_number = any(form.shapes == ((),) for form in watch.forms)
            has_loss = not trains_number and _has_loss(outputs)
            step = training.hook.jit(
                self._differentiation.showing(
                    compiled.function,
                    at_update=bool(watch.n_updates),
                    loss=not has_loss,
                ),
                jit=compiled.compiler,
                loss=find_loss if has_loss else _no_loss,
                params=params,
                **compiled.options,
            )
            step.plain = compiled.plain
        except Exception:
            self._has_failed = True
            _log.warning("tdbg run captures nothing from this training", exc_info=True)
            return None
        return _Step(step, training.lineage)

    def left_out(
        self,
        plain: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _Step:
        """Return a step of a training that is not captured."""
        from tdbg.launch.lineage import Lineage

        step = _Step(plain, Lineage())
        step.lineage.goes_on(args, kwargs)
        return step

    def _has_own(self) -> bool:
        """Return whether the program has made a hook itself."""
        current = self._face.get_hook()
        ours = (each.hook for each in self._trainings)
        return current is not None and all(current is not each for each in ours)

    def _params(self, watch: Watch, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Return the selector of differentiated arguments; None if there are none."""
        from tdbg.hooks.jax.returned import find_subtree, subtree_at

        for form in watch.forms:
            # A single array may be anything, but where an optimizer is given its
            # gradient.
            if form.is_container or watch.n_updates:
                way = find_subtree(args, form)
                if way is not None:
                    return lambda *given, _way=way, **_: subtree_at(given, _way)
        return None

    def _knows(
        self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Return whether gradients belong to parameters that are known otherwise."""
        from tdbg.hooks.jax.arguments import ArgumentReader

        found = ArgumentReader().read(args, kwargs, with_states=False)
        names = {each.name for each in found.parameters if not each.is_buffer}
        return not names.isdisjoint(watch.names)

    def training_of(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _Training | None:
        """Return the training that a call goes on with, or begins; None: too many."""
        from tdbg.hooks.jax.jit import code_of
        from tdbg.launch.lineage import Lineage

        key = code_of(function)
        latest = self._latest.get(key)
        if latest is not None and latest.lineage.goes_on(args, kwargs):
            return latest
        if len(self._trainings) >= MOST_TRAININGS:
            self._facts.n_left_out += 1
            return None
        if latest is not None:
            latest.hook.close()
        hook, path = open_hook(
            self._face.Hook, self._settings, (), is_first=self._is_first
        )
        hook.watch_imported()
        training = _Training(hook, path, Lineage())
        training.lineage.goes_on(args, kwargs)
        self._trainings.append(training)
        self._latest[key] = training
        return training


class _Training(NamedTuple):
    """A training: its hook, the directory of its run, and what it goes on from."""

    hook: Any
    path: Place
    lineage: Lineage


class _Step(NamedTuple):
    """A step of a training."""

    call: Callable[..., Any]
    lineage: Lineage


class _Compiled:
    """A compiled function of the program; a step of a hook if it trains.

    Attributes:
        function: As the program has written it.
        compiler: What has compiled it.
        plain: What that has made.
        options: Given to it.
    """

    def __init__(
        self,
        search: StepSearch,
        function: Callable[..., Any],
        compiler: Callable[..., Any],
        plain: Any,
        options: dict[str, Any],
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.compiler = compiler
        self.plain = plain
        self.options = options
        self._watch = Watch()
        self._step: _Step | None = None
        # What the trace has shown that the function returns.
        self._outputs: Any = None
        self._search = search
        self._call: Callable[..., Any] = self._first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        # Keras compiles the steps of a program's own, and its search captures these.
        call = self.plain if is_taken() else self._call
        return call(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled function, such as ``lower``."""
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        """Call it for the first time: its trace shows whether it trains."""
        if not is_outside():
            return self._inside(*args, **kwargs)
        trace = getattr(self.plain, "trace", None)
        with Watching() as watch:
            if trace is None:
                outputs = self.plain(*args, **kwargs)
            else:
                try:
                    outputs = trace(*args, **kwargs).out_info
                except Exception:
                    # It says what is wrong; otherwise the next call tries again.
                    return self.plain(*args, **kwargs)
        self._watch.add(watch)
        step = self._search.step_of(self, self._watch, outputs, args, kwargs)
        if step is None:
            self._call = self.plain
            return outputs if trace is None else self.plain(*args, **kwargs)
        self._step, self._call = step, self._train
        if trace is None:
            return outputs
        self._outputs = outputs
        return self._run(step, args, kwargs)

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """Call a function that trains."""
        step = self._step
        if step is None or not is_outside():
            return self._inside(*args, **kwargs)
        if not step.lineage.goes_on(args, kwargs):
            step = self._search.step_of(self, self._watch, self._outputs, args, kwargs)
            if step is None:  # Too many: those that follow are counted.
                step = self._search.left_out(self.plain, args, kwargs)
            self._step = step
        return self._run(step, args, kwargs)

    def _run(self, step: _Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = step.call(*args, **kwargs)
        step.lineage.has_run(args, kwargs, outputs)
        return outputs

    def _inside(self, *args: Any, **kwargs: Any) -> Any:
        """Call it within the trace of another function, which may be the step."""
        with Watching() as watch:
            outputs = self.plain(*args, **kwargs)
        # What JAX has kept of an earlier trace shows nothing in this one.
        self._watch.add(watch)
        outer = present_watch()
        if outer is not None:
            outer.add(self._watch)
        return outputs


def _may_train(function: Any) -> bool:
    """Return whether a function is part of the program, not of a library."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, _Compiled) or not callable(function):
        return False
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] not in _NO_STEPS


def _no_loss(outputs: Any) -> None:
    """Find no loss in what a function returns: the gradients show it."""
    del outputs


def _has_loss(outputs: Any) -> bool:
    """Return whether a function returns a loss, by arrays or their shapes."""
    import jax
    import numpy as np

    from tdbg.hooks.jax.hook import find_loss

    def stand_in(leaf: Any) -> Any:
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None:
            return leaf
        if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
            return None
        return np.broadcast_to(np.zeros((), dtype), shape)

    return find_loss(jax.tree_util.tree_map(stand_in, outputs)) is not None
