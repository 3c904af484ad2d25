"""Hooks on the blocks inside a model, for the length of one forward that is captured.

At all other steps the blocks have none: they run as without tdbg, and ``hybridize`` has
nothing to warn of.

A hybridized block runs a graph of its own and never calls the blocks inside. So for
steps that capture inputs or outputs of these there is a second graph, of the same
operations with the same parameters, that has those tensors as further outputs; no
gradient flows through them (``BlockGrad``). All other steps run the block's own graph,
which is not touched.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import mxnet
from mxnet.gluon import HybridBlock
from mxnet.symbol import Symbol

from tdbg.capture.activations import CallPlans
from tdbg.capture.naming import MAX_TENSORS, tensors_in
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.hooks.compiled.variant import TappedVariant
from tdbg.hooks.mxnet.activations import BlockPlans, HeldCalls
from tdbg.hooks.mxnet.names import BlockNames

__all__ = ["BlockTaps", "ForwardTaps", "is_symbolic"]

# Blocks inside of a block, with what is captured of their calls.
Inside = Sequence[tuple[Any, BlockPlans]]
_OWN = "_cached_op"


def is_hybridized(block: Any) -> bool:
    """Whether a block runs a graph of its own."""
    return isinstance(block, HybridBlock) and bool(block._active)


class HybridTaps:
    """The second graphs of the hybridized blocks of one model.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._graphs: WeakKeyDictionary[Any, TappedVariant[_TappedGraph]]
        self._graphs = WeakKeyDictionary()

    def refresh(self) -> None:
        """Release the graphs, because other tensors are captured from now on."""
        self._graphs.clear()

    def begin(self, block: Any, args: tuple[Any, ...], inside: Inside) -> None:
        """Let the next call of a hybridized block have more outputs.

        Args:
            block: The block.
            args: What it is called with.
            inside: The blocks inside of which something is captured.
        """
        if block._cached_op is None:
            block._build_cache(*args)  # As the call would do it.
        variant = self._graphs.get(block)
        if variant is None:
            variant = self._graphs[block] = TappedVariant(
                self._session,
                f"the graph of {block.name}",
                "tdbg captures no inputs and outputs of the blocks inside",
            )
        graph = variant.of(block._cached_op, lambda: _TappedGraph(block, args, inside))
        if graph is not None:
            graph.extra = []
            vars(block)[_OWN] = graph

    def end(self, block: Any, held: HeldCalls | None) -> None:
        """Hold the inputs and outputs of the blocks inside, after the call.

        Args:
            block: The block.
            held: Holds it; None: the call has failed.
        """
        variant = self._graphs.get(block)
        graph = None if variant is None else variant.made
        if graph is None:
            return
        if vars(block)[_OWN] is graph:
            vars(block)[_OWN] = graph.own
        extra, graph.extra = graph.extra, []
        if held is not None and extra:
            for plans, positions in graph.sites:
                held.hold(plans, [extra[i] for i in positions])


class _Site(NamedTuple):
    """Tensors that a block inside is given, or returns, in one call.

    Attributes:
        plans: Say what is captured of them.
        positions: Where they are among the further outputs.
    """

    plans: CallPlans
    positions: list[int]


class _TappedGraph:
    """A graph with further outputs, which stands in for one call of the block's own.

    Args:
        block: The block, whose own graph there is.
        args: What it is called with.
        inside: The blocks inside, whose calls are captured.

    Attributes:
        own: The block's own graph.
        sites: The calls of the blocks inside.
        extra: The further outputs of the latest call.

    Raises:
        ValueError: If there can be no such graph.
    """

    def __init__(self, block: Any, args: tuple[Any, ...], inside: Inside) -> None:
        if block._backend:
            msg = "another library compiles it"
            raise ValueError(msg)
        if block._callback is not None:
            msg = "it has a hook for its operators"
            raise ValueError(msg)
        self.own = block._cached_op
        self.sites: list[_Site] = []
        self.extra: list[Any] = []
        # The further outputs, by the symbol that was seen and its part.
        self._tapped: dict[tuple[int, int], tuple[int, Any, Any]] = {}
        symbols, before = self._trace(block, args, inside)
        if symbols.list_inputs() != before.list_inputs():
            msg = "its code makes another graph each time"
            raise ValueError(msg)
        self._n_own = len(symbols.list_outputs())
        further = [_without_gradient(part) for _, part, _ in self._tapped.values()]
        del self._tapped
        group = mxnet.sym.Group([symbols, *further], type(symbols))
        are_data = [is_data for is_data, _ in block._cached_op_args]
        flags = [
            ("data_indices", [i for i, is_data in enumerate(are_data) if is_data]),
            ("param_indices", [i for i, is_data in enumerate(are_data) if not is_data]),
        ]
        self._op = mxnet.nd.CachedOp(group, flags + block._flags)

    def __call__(self, *arrays: Any) -> Any:
        """Run the graph; return the outputs of the block's own graph."""
        outputs = self._op(*arrays)
        if not isinstance(outputs, list):
            outputs = [outputs]
        self.extra = outputs[self._n_own :]
        return outputs[0] if self._n_own == 1 else outputs[: self._n_own]

    def _trace(
        self, block: Any, args: tuple[Any, ...], inside: Inside
    ) -> tuple[Any, Any]:
        """Let the block make its graph again; return the outputs, and those before."""
        own, formats = block._cached_graph, (block._in_format, block._out_format)
        handles = [
            each.register_forward_hook(self._recording(plans)) for each, plans in inside
        ]
        try:
            block._cached_graph = ()
            _, symbols = block._get_graph(*args)
        finally:
            block._cached_graph = own
            block._in_format, block._out_format = formats
            for handle in handles:
                handle.detach()
        return symbols, own[1]

    def _recording(self, plans: BlockPlans) -> Any:
        def record(_: Any, given: Any, returned: Any) -> None:
            for each, value in ((plans.inputs, given), (plans.outputs, returned)):
                if each is not None:
                    self.sites.append(_Site(each, self._positions(value)))

        return record

    def _positions(self, value: Any) -> list[int]:
        """Return the places of a structure's tensors among the further outputs."""
        found = []
        for symbol in tensors_in(value, _is_symbol, MAX_TENSORS):
            n_parts = len(symbol.list_outputs())
            for i in range(n_parts):
                key = id(symbol), i
                if key not in self._tapped:
                    part = symbol if n_parts == 1 else symbol[i]
                    # The symbol is kept, so that its id stays its own.
                    self._tapped[key] = len(self._tapped), part, symbol
                found.append(self._tapped[key][0])
        return found


def _is_symbol(value: Any) -> bool:
    return isinstance(value, Symbol)


def _without_gradient(symbol: Any) -> Any:
    """Return the tensor with its gradient blocked."""
    if isinstance(symbol, mxnet.sym.np._Symbol):
        symbol = symbol.as_nd_ndarray()
    return mxnet.sym.BlockGrad(symbol)


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
