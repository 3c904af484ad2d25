"""Find the trainings of a program that does not use tdbg: models, optimizers, losses.

A training has *roots*: modules that the program calls from outside of all others.  A
root owns parameters of an optimizer.  Without an optimizer of PyTorch, a root is a
module whose call is followed by a backward pass, or by a function that returns
gradients of its parameters.  If backward passes follow no call, or if a call happens
inside a ``forward()``, the program calls ``forward()`` itself, and the search makes
these calls visible.

The search makes the hook when the program calls the first root, before the root runs;
for returned gradients afterwards; and always before a function is compiled that may
call the root.  When all optimizers of the training have stepped, it has *settled*: the
search ends and leaves nothing but the hook on modules and optimizers.

The search begins again with an optimizer of other parameters, and with a backward pass
without a forward of a known root.  This is a further training with its own run.  So is
a training by an optimizer that has waited while others made many steps, and one by an
optimizer of another part of the model after the earlier optimizers are gone, like
fine-tuning after pre-training.

Errors: none reach the script except ``TrainingStopped``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tdbg.capture.process import at_exit
from tdbg.errors import TrainingStopped
from tdbg.hooks.pytorch.capture.registered_modules import registered_session
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now
from tdbg.hooks.pytorch.functions.backward_calls import BackwardRoots
from tdbg.hooks.pytorch.functions.direct_calls import (
    DirectCalls,
    direct_caller,
    make_visible,
    name_in_model,
)
from tdbg.hooks.pytorch.functions.gradient_calls import (
    GradientCall,
    GradientCalls,
)
from tdbg.hooks.pytorch.model.call_context import is_in_transform, outside_transforms
from tdbg.hooks.pytorch.model.module_tree import unwrapped
from tdbg.hooks.pytorch.model.process_objects import held_ids
from tdbg.launch import LAUNCH_VARIABLE, summary
from tdbg.launch.family import Place, family_of
from tdbg.launch.settings import is_profiled
from tdbg.launch.taken import is_taken
from tdbg.launch.training import (
    Candidate,
    FoundTraining,
    has_own_parameters,
    make_hook,
    outermost,
    owners,
    parameter_ids,
    rank_and_size,
)
from tdbg.profiler import loaders

__all__ = ["MOST_ROOTS", "MOST_TRAININGS", "Discovery", "begin"]

MOST_TRAININGS = 32
"""Of one process: a program may train a thousand little models within a large one."""
MOST_ROOTS = 16
"""Of one training."""

# So often each optimizer of a further training steps before it has settled: an earlier
# training that goes on beside it has stepped by then, too.
_STEPS_TO_SETTLE = 2
# So many backward passes follow no call of a module before `forward()` is looked at.
_MOST_UNCALLED = 2
# So often one steps of which no root was called: of some the calls are found late, and
# some are made when they step for the first time.
_STEPS_WITHOUT_ROOT = _MOST_UNCALLED + 2
# After so many steps of the optimizers of a training, another one's begin the next.
_STEPS_ALONE = 20
# How often a backward pass without a known root begins the search in vain.
_MOST_SEARCHES = 8

_log = logging.getLogger("tdbg")
_OF_GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


def begin(*, is_first: bool) -> None:
    """Start the search in this process; torch has just been imported.

    Args:
        is_first: Whether this is the program that was launched, or a rank of it, and
            not a process that the program has started.
    """
    summary.end_quietly()
    settings = json.loads(os.environ[LAUNCH_VARIABLE])
    discovery = Discovery(settings, is_first=is_first)
    discovery.start()
    if is_profiled(settings):
        loaders.expect()


class Discovery:
    """Search for the trainings of a script.

    Args:
        settings: ``out_dir``, ``existing`` (of ``family``), ``rules``,
            ``include_collections``, ``save_interval``, ``statistics_interval``; all
            but the first may be missing.
        is_first: As of ``begin``.
    """

    def __init__(self, settings: dict[str, Any], *, is_first: bool = True) -> None:
        self._settings = settings
        self._is_first = is_first
        self._trainings: list[FoundTraining] = []
        # Optimizers of which no root was called yet, and those that are to step before
        # the training has settled.
        self._new: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._waiting: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # How often each optimizer has stepped, and how many backward passes there were,
        # since the search began.
        self._n_steps: weakref.WeakKeyDictionary[Optimizer, int]
        self._n_steps = weakref.WeakKeyDictionary()
        self._n_backwards = 0
        self._n_uncalled = self._n_unfollowed = 0
        self._are_others = False
        self._direct_calls: list[DirectCalls] = []
        self._candidates: list[Candidate] = []
        # Modules that are no roots, by id, until an optimizer is made.
        self._passed: weakref.WeakValueDictionary[int, nn.Module]
        self._passed = weakref.WeakValueDictionary()
        self._n_searches = 0
        self._handles: list[Any] = []
        self._step_handle: Any = None
        self._backward: BackwardRoots | None = None
        self._gradient_calls: GradientCalls | None = None
        self._make: Callable[..., None] | None = None
        self._make_compiled: Any = None
        self._compile: Any = None
        self._filter: Any = None
        self._facts = summary.Facts()
        self.born = now()

    def start(self) -> None:
        """Begin to search."""
        make = self._make = Optimizer.__init__
        me = self

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            me._run(me._made, optimizer)

        functools.update_wrapper(init, make)
        Optimizer.__init__ = init  # type: ignore[method-assign, assignment]
        make_compiled: Any = torch.compile
        self._make_compiled = make_compiled

        @functools.wraps(make_compiled)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            result = make_compiled(*args, **kwargs)
            me._run(me._compiler_is_loaded)
            return result

        torch.compile = self._compile = compiled
        self._backward = BackwardRoots(self._backward_begins)
        self._gradient_calls = GradientCalls(lambda call: me._run(me._returned, call))

        def stepped(optimizer: Optimizer, *_: Any) -> None:
            # First of all: nothing of the rest is traced.
            if not is_dynamo_compiling() and me._handles:
                me._run(me._stepped, optimizer)

        # It stays when a search ends, which it does in this hook: torch goes through a
        # dictionary of them while it calls them.
        self._step_handle = register_optimizer_step_post_hook(stepped)
        self._search()
        os.register_at_fork(after_in_child=self._forked)
        at_exit(self.print_summary)

    def stop(self) -> None:
        """Search no longer; hooks that were made go on.

        Not to be called while an optimizer steps.
        """
        self._end()
        if self._step_handle is not None:
            self._step_handle.remove()
            self._step_handle = None

    def _end(self) -> None:
        self._end_search()
        for calls in self._direct_calls:
            calls.remove()
        if self._make is not None:
            Optimizer.__init__ = self._make  # type: ignore[method-assign]
            self._make = None
            # Somebody else may have wrapped it since, as Lightning does.
            if torch.compile is self._compile:
                torch.compile = self._make_compiled
        if self._backward is not None:
            self._backward.remove()
            self._backward = None
        if self._gradient_calls is not None:
            self._gradient_calls.remove()
            self._gradient_calls = None

    @property
    def hooks(self) -> list[Any]:
        """Return the hooks of the trainings, in the order in which they were found."""
        return [each.hook for each in self._trainings]

    @property
    def is_searching(self) -> bool:
        """Whether calls of modules and steps of optimizers are looked at."""
        return bool(self._handles)

    def print_summary(self) -> None:
        """Print what was captured, or why nothing was."""
        lines: list[str] = []
        if rank_and_size()[0] == 0:
            if self._trainings:
                runs = [
                    summary.CapturedRun(each.path, each.hook.n_steps, each.n_left_out)
                    for each in self._trainings
                ]
                lines = summary.captured(runs, self._facts)
            elif self._is_first and not self._appeared():
                lines = summary.why(self._facts)
        sys.stderr.write("".join(f"tdbg: {line}\n" for line in lines))

    # ---- called by torch -----------------------------------------------------

    def _run(self, function: Callable[..., None], *what: Any) -> None:
        """Call one of the following; nothing escapes but ``TrainingStopped``."""
        if is_compiling() or is_taken():
            return
        try:
            function(*what)
        except TrainingStopped:
            raise
        except Exception as error:
            self._give_up(error)

    def _made(self, optimizer: Optimizer) -> None:
        """Note a new optimizer."""
        self._facts.n_optimizers += 1
        self._n_uncalled = 0
        self._passed.clear()
        current, held = self._current(), held_ids(optimizer)
        if (
            current is not None
            and held <= current.parameters()
            and not current.is_followed_by(held)
        ):
            current.add(optimizer)  # It trains what is known.
            if current.has_settled:
                return
        elif len(self._trainings) >= MOST_TRAININGS and self._is_next_a_training():
            self._facts.n_left_out += 1
            return
        else:
            self._new.add(optimizer)
        self._waiting.add(optimizer)
        self._search()
        self._compiler_is_loaded()

    def _compiler_is_loaded(self) -> None:
        """Ask to hear before anything is traced: the compiler is loaded now."""
        self.born = now()
        hooks_may_go(self)

    def set_idle(self, is_idle: bool) -> None:
        """Find roots before the compiler traces: no call inside a graph is seen."""
        if is_idle or not self._handles or is_taken():
            return
        try:
            # Of a module that is compiled by itself the call was seen before.
            for module in outermost(self._owners()):
                if self._new:
                    self._found_root(module, None)
        except Exception as error:
            self._give_up(error)

    def _called(self, module: nn.Module, args: Any) -> None:
        """Look at a module that is about to be called, during a search."""
        for candidate in self._candidates:
            if candidate.module() is module:
                candidate.called(module)
        if self._passed.get(id(module)) is module or not self._may_be_root(module):
            return
        if isinstance(module, _Loss):
            self._found_loss(module, args)
        elif self._is_root(module):
            model = direct_caller(module)
            if model is not None and self._see_forwards_of(model):
                self._found_root(model, None)
            else:
                self._found_root(module, args)

    def _stepped(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that has stepped, during a search."""
        n_steps = self._n_steps[optimizer] = self._n_steps.get(optimizer, 0) + 1
        current = self._current()
        if current is None:
            return
        if optimizer in current.optimizers:
            current.n_steps = max(current.n_steps, n_steps)
        least = 1 if len(self._trainings) == 1 else _STEPS_TO_SETTLE
        if optimizer in self._new:
            least = _STEPS_WITHOUT_ROOT
        if n_steps >= least:
            self._waiting.discard(optimizer)
        if not self._waiting:
            self._settle()

    def _backward_begins(self, root: torch.Tensor) -> None:
        """Note that a backward pass begins at a single number."""
        # In every step, also after the search: few calls.
        if is_taken():
            return
        self._facts.n_backwards += 1
        self._n_backwards += 1
        for candidate in self._candidates:
            candidate.was_followed = True
        training: FoundTraining | None = None  # That made a forward since the last one.
        for each in self._trainings:
            n_forwards = each.hook.n_forwards
            if n_forwards != each.n_forwards:
                each.n_forwards = n_forwards
                training = each
        if training is None:
            self._facts.n_unseen += self._is_of_another_model(root)
        if self._handles:
            self._search_goes_on(is_uncalled=training is None)
        elif training is None and self._n_searches < _MOST_SEARCHES:
            self._n_searches += 1
            if len(self._trainings) < MOST_TRAININGS:
                self._search()

    def _search_goes_on(self, *, is_uncalled: bool) -> None:
        """Go on with the search as a backward pass begins, perhaps without a call."""
        if is_uncalled and self._new:
            self._n_uncalled += 1
            if self._n_uncalled == _MOST_UNCALLED:
                for owner in self._owners():
                    self._see_forwards_of(owner)
        current = self._current()
        # Without optimizers, passes are counted in their place.
        is_by_hand = current is not None and not current.optimizers
        if is_by_hand and not self._waiting and self._n_backwards > _STEPS_TO_SETTLE:
            self._settle()

    def _is_of_another_model(self, root: torch.Tensor) -> bool:
        """Return whether a backward pass without a forward reaches no known root.

        Of a policy gradient many passes follow many forwards.  Looked at are the first
        one, the second, the fourth and so on: the others count as the latest of these.
        """
        self._n_unfollowed += 1
        if self._n_unfollowed & (self._n_unfollowed - 1) == 0:
            ours = set[int]().union(*(each.parameters() for each in self._trainings))
            leaves = Graph(root).leaves
            self._are_others = ours.isdisjoint(id(leaf) for leaf, _ in leaves)
        return self._are_others

    def _returned(self, call: GradientCall) -> None:
        """Treat returned gradients of a single number like a backward pass.

        The first time its roots are found: outside of their calls they have parameters
        of their own.
        """
        followed = [each for each in self._candidates if each.has_one_of(call.inputs)]
        for candidate in followed:
            module = candidate.module()
            if module is not None:
                with outside_transforms():
                    self._found_root(module, None)
        trained = (
            training
            for training in self._trainings
            if training.hook.n_forwards != training.n_forwards
        )
        if followed or next(trained, None) is not None:
            self._backward_begins(call.root)
        elif is_in_transform():
            self._facts.n_transforms += 1

    def _forked(self) -> None:
        """Search again in a forked child: the trainings belong to the parent."""
        self._trainings.clear()
        self._is_first = False

    # ---- roots and losses ----------------------------------------------------

    def _current(self) -> FoundTraining | None:
        return self._trainings[-1] if self._trainings else None

    def _is_next_a_training(self) -> bool:
        """Return whether a root that is found now begins its own training."""
        current = self._current()
        if current is None or current.has_settled:
            return True
        # Layers that are trained one after the other are several trainings.
        return current.n_steps >= _STEPS_ALONE

    def _may_be_root(self, module: nn.Module) -> bool:
        """Return whether a module is worth a look: inference calls many."""
        current = self._current()
        if self._new or (current is not None and current.optimizers):
            return True
        if not torch.is_grad_enabled():
            return isinstance(module, _Loss)
        return not any(
            each.module() is module and not each.was_followed
            for each in self._candidates
        )

    def _is_root(self, module: nn.Module) -> bool:
        """Return whether a called module is a root; note it if it never will be."""
        own = parameter_ids(module)
        current = self._current()
        if self._new or (current is not None and current.optimizers):
            trained = {number for each in self._new for number in held_ids(each)}
            known = set[int]()
            if current is not None and not current.has_settled:
                known = current.parameters()
                trained.update(n for each in current.optimizers for n in held_ids(each))
            if not (own - known).isdisjoint(trained):
                return True
            if not has_own_parameters(module):
                return self._is_trained_by_hand(module, own)
            if self._new or not self._is_next_a_training():
                self._passed[id(module)] = module
                return False
        return self._is_trained_by_hand(module, own)

    def _is_trained_by_hand(self, module: nn.Module, own: set[int]) -> bool:
        """Return whether a backward pass followed a call from outside other modules."""
        known = {number for each in self._trainings for number in each.parameters()}
        for each in self._candidates:
            candidate = each.module()
            if candidate is module:  # Otherwise nobody would have asked.
                return True
            if candidate is not None:
                known |= parameter_ids(candidate)
        if own <= known:
            self._passed[id(module)] = module
        elif any(parameter.requires_grad for parameter in module.parameters()):
            self._candidates.append(Candidate(module))
        return False

    def _found_root(self, module: nn.Module, args: Any) -> None:
        """Take a new root, while it is called with *args* or afterwards (None)."""
        inside, own = unwrapped(module), parameter_ids(module)
        relatives = [
            each for each in self._trainings if not own.isdisjoint(each.parameters())
        ]
        if registered_session(inside) is not None and not relatives:
            self._passed[id(module)] = module
            if not self._trainings:
                self._give_up(summary.HAS_A_HOOK)
            return
        if self._is_next_a_training():
            for each in self._trainings:
                # Otherwise calls of what they share, modules or losses, would be steps
                # of both.
                if each in relatives or each.is_over:
                    each.hook.close()
            self._begin_training(module)
        elif len(self._trainings[-1].roots) >= MOST_ROOTS:
            self._trainings[-1].n_left_out += 1
            self._passed[id(module)] = module
            return
        else:
            name = name_in_model(module)
            self._trainings[-1].hook.register_module(module, name=name)
        training = self._trainings[-1]
        training.roots.append(weakref.ref(module))
        self._candidates = []  # Perhaps somebody goes through those before.
        for optimizer in list(self._new):
            if not held_ids(optimizer).isdisjoint(own):
                training.add(optimizer)
                self._new.discard(optimizer)
        if inside is module and args is not None:
            # The hook just put on the root only sees its next call; this one has begun.
            training.hook.begin_call(inside, args)

    def _begin_training(self, module: nn.Module) -> None:
        family = family_of(self._settings)
        if rank_and_size()[1] > 1:  # All ranks find the same ones, in the same order.
            path = family.share(len(self._trainings) + 1)
        else:
            path = family.claim(may_join=self._is_first)
        try:
            hook = make_hook(self._settings, module, path, self._new)
            training = FoundTraining(hook, path)
        except BaseException:
            family.release(path)
            raise
        self._trainings.append(training)
        self._n_steps.clear()
        self._n_backwards = self._n_searches = 0

    def _found_loss(self, module: nn.Module, args: Any) -> None:
        current = self._current()
        if current is not None and module not in current.losses:
            current.losses.add(module)
            current.hook.register_loss(module)
            current.hook.begin_call(module, args)

    def _appeared(self) -> list[Place]:
        """Return the runs of all processes of this launch."""
        return family_of(self._settings).appeared()

    def _see_forwards_of(self, module: nn.Module) -> bool:
        """Make direct calls of a module's ``forward()`` visible, if possible."""
        calls = make_visible(module)
        if calls is not None:
            self._direct_calls.append(calls)
        return calls is not None

    def _owners(self) -> list[nn.Module]:
        """Return all modules that have parameters of new optimizers."""
        return owners({number for each in self._new for number in held_ids(each)})

    # ---- the search ----------------------------------------------------------

    def _search(self) -> None:
        """Watch calls of modules and steps of optimizers from now on."""
        if self._handles:
            return
        self._see_backwards_of(None)
        self._handles = [
            register_module_forward_pre_hook(
                lambda module, args: self._run(self._called, module, args)
            )
        ]
        self._n_steps.clear()
        self._n_backwards = 0
        # Compiled modules warn of hooks on all modules, but these ones are harmless.
        warnings.filterwarnings("ignore", message=_OF_GLOBAL_HOOKS)
        self._filter = warnings.filters[0]

    def _settle(self) -> None:
        """End the search: the current training is complete."""
        *earlier, current = self._trainings
        if not current.has_settled:
            current.has_settled = True
            for each in earlier:
                if not any(optimizer in self._n_steps for optimizer in each.optimizers):
                    each.hook.close()
        self._end_search()
        self._see_backwards_of(current)

    def _end_search(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with contextlib.suppress(ValueError):  # The script has reset the filters.
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        for each in (self._new, self._waiting, self._candidates, self._passed):
            each.clear()
        roots = {id(root()) for each in self._trainings for root in each.roots}
        for calls in self._direct_calls:
            if id(calls.module) not in roots:
                calls.remove()

    def _see_backwards_of(self, training: FoundTraining | None) -> None:
        """Hear of all backward passes, or not of those in counted steps."""
        if self._backward is not None:
            counter = None if training is None else training.hook.step_counter
            self._backward.counter = counter

    def _give_up(self, why: object) -> None:
        _log.warning("tdbg captures nothing: %s", why)
        self._facts.has_given_up = True
        self._end()
