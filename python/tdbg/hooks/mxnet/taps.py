"""Hooks on the blocks inside a model, for the length of one forward that is captured.

At all other steps the blocks have none: they run as without tdbg, and ``hybridize`` has
nothing to warn of.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from mxnet.symbol import Symbol

from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.hooks.mxnet.activations import BlockPlans, HeldCalls
from tdbg.hooks.mxnet.hybrid import HybridTaps, is_hybridized
from tdbg.hooks.mxnet.names import BlockNames

__all__ = ["BlockTaps", "ForwardTaps", "is_symbolic"]


def is_symbolic(args: tuple[Any, ...]) -> bool:
    """Whether a call computes nothing, but makes a graph or infers shapes."""
    return any(isinstance(each, Symbol) for each in args)


class BlockTaps:
    """What may be captured of the blocks of one model.

    Args:
        session: Receives the tensors.
        names: Names the blocks.
    """

    def __init__(self, session: Session, names: BlockNames) -> None:
        self.session = session
        self._names = names
        self._plans: WeakKeyDictionary[Any, BlockPlans] = WeakKeyDictionary()
        self.hybrid = HybridTaps(session)

    def refresh(self) -> None:
        """Forget what is captured, because collections have changed."""
        self._plans.clear()
        self.hybrid.refresh()

    def begin(
        self, root: Any, args: tuple[Any, ...], context: StepContext
    ) -> ForwardTaps:
        """A model is about to be called: set the taps of this forward."""
        taps = ForwardTaps(self, HeldCalls(self.session, context))
        self.plans_of(root, self._names.of(root), is_root=True)
        taps.begin(root, args)
        return taps

    def inside(self, root: Any) -> list[tuple[Any, BlockPlans]]:
        """Return the captured blocks inside a block."""
        found = []
        for name, block in self._names.walk(root):
            plans = None if block is root else self.plans_of(block, name)
            if plans:
                found.append((block, plans))
        return found

    def children(self, block: Any) -> list[tuple[Any, BlockPlans]]:
        """Return the blocks directly inside a block."""
        above = self._names.of(block)
        return [
            (child, self.plans_of(child, self._names.of(child, f"{above}_{key}")))
            for key, child in block._children.items()
        ]

    def plans_of(self, block: Any, name: str, *, is_root: bool = False) -> BlockPlans:
        """Return what is captured of the calls of a block."""
        plans = self._plans.get(block)
        if plans is None:
            plans = self._plans[block] = BlockPlans.of(
                self.session, block, name, is_root=is_root
            )
        return plans


class ForwardTaps:
    """The taps of one forward.

    Args:
        taps: What may be captured.
        held: Holds what is seen.
    """

    def __init__(self, taps: BlockTaps, held: HeldCalls) -> None:
        self._taps = taps
        self._run = taps.session.run
        self._held = held
        self._handles: list[Any] = []
        self._seen: set[int] = set()
        self._root_is_tapped = False

    def begin(self, root: Any, args: tuple[Any, ...]) -> None:
        """Begin a forward: the model is about to be called."""
        self._seen.add(id(root))
        if is_hybridized(root):
            inside = self._taps.inside(root)
            self._root_is_tapped = bool(inside)
            if inside:
                self._taps.hybrid.begin(root, args, inside)
        else:
            self._hook_children(root)

    def end(self, root: Any, args: tuple[Any, ...], result: Any) -> HeldCalls:
        """End the forward; return the arrays it has shown."""
        if self._root_is_tapped:
            self._taps.hybrid.end(root, self._held)
        self._hold(self._taps.plans_of(root, ""), args, result)
        return self._held

    def remove(self, root: Any) -> None:
        """Take everything off; the model is *root*."""
        for handle in self._handles:
            handle.detach()
        self._handles.clear()
        if self._root_is_tapped and root is not None:
            self._taps.hybrid.end(root, None)

    def _hook_children(self, block: Any) -> None:
        """Hook what is called one by one: all blocks down to those with a graph."""
        for child, plans in self._taps.children(block):
            if id(child) in self._seen:
                continue
            self._seen.add(id(child))
            inside = self._taps.inside(child) if is_hybridized(child) else []
            if inside:
                before = self._beginning(inside)
                self._handles.append(child.register_forward_pre_hook(before))
            if plans or inside:
                after = self._ending(plans, has_graph=bool(inside))
                self._handles.append(child.register_forward_hook(after))
            if not is_hybridized(child):
                self._hook_children(child)

    def _beginning(self, inside: list[tuple[Any, BlockPlans]]) -> Callable[..., None]:
        def before(block: Any, args: tuple[Any, ...]) -> None:
            if not is_symbolic(args):
                self._run(self._taps.hybrid.begin, block, args, inside)

        return before

    def _ending(self, plans: BlockPlans, *, has_graph: bool) -> Callable[..., None]:
        def after(block: Any, args: tuple[Any, ...], result: Any) -> None:
            if is_symbolic(args):
                return
            if has_graph:
                self._run(self._taps.hybrid.end, block, self._held)
            self._run(self._hold, plans, args, result)

        return after

    def _hold(self, plans: BlockPlans, args: tuple[Any, ...], result: Any) -> None:
        self._held.hold(plans.inputs, args)
        self._held.hold(plans.outputs, result)
