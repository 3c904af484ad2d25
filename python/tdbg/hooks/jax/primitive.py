"""The primitive that shows a tensor to the core while a compiled step runs.

``show`` is the identity on its first operand. Compiled for a CPU it is a call of the
core's handler (cpp/bindings/bind_ffi.cc) that reads the tensor where it lies, without
Python, a copy or a lock, and hands the same memory on: XLA may not drop it, since
others use its result, and need not order it, since it has no effect. ``show_all`` shows
the arguments of a program, and is the identity on the ticket.

The handler needs a platform whose programs call host functions on their memory, which
only the CPU's do, and a version of XLA that accepts it. Everywhere else
``jax.debug.callback`` copies each tensor to the host: correct, but slower.

It differentiates as the identity does, and shows a batch of ``jax.vmap`` at once. Where
a program is partitioned among devices, each shows its own part, and of parts that are
equal one is shown: no part moves (tests look for collectives in the compiled program).

Thread safety: pure functions.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe
from jax.sharding import NamedSharding, PartitionSpec

from tdbg._core import TAP_ALL_TARGET, TAP_TARGET, show_tensor, tap_handlers
from tdbg.hooks.jax.shards import PartTable, part_table

__all__ = ["PASSES", "ProgramObserver", "show", "show_all", "when_done"]

show_p = Primitive("tdbg_show")
show_all_p = Primitive("tdbg_show_all")
# Words of the second operand: the ticket, and the number of the part, which only
# programs know that are written for each device (jax.shard_map).
_WITH_PART = 3
# The core is told the number of the tap times this, and of the pass that computes it.
PASSES = 4


def show(x: Any, ticket: Any, tap: int) -> Any:
    """Return *x*, which the step of *ticket* is shown as *tap*.

    Args:
        x: An array or a tracer.
        ticket: Of the step, int32[2] (low, high); or int32[3] with the number of the
            part that this device holds, negative where another one holds the same.
        tap: Number of the place.
    """
    return show_p.bind(x, ticket, tap=tap, pass_number=0)


class ProgramObserver(Protocol):
    """Is told of the programs that ``show_all`` becomes a part of."""

    def lowered(self, *, shows: bool) -> None:
        """Note a new program, and whether it shows the arrays."""


def show_all(
    arrays: Sequence[Any], ticket: Any, taps: Sequence[int], observer: ProgramObserver
) -> Any:
    """Return *ticket*, with which the step is shown the arrays, in one call.

    A program of several devices, or of one that is no CPU, shows none of them.

    Args:
        arrays: Arguments of the program, which it does not compute.
        ticket: Of the step, int32[2].
        taps: Numbers of their places.
        observer: Is told whether a program shows them.
    """
    return show_all_p.bind(*arrays, ticket, taps=tuple(taps), observer=observer)


def when_done(ticket: Any) -> Any:
    """Return an array that is there when the program has run; part of each program.

    It also makes JAX tell the lowering of ``show`` on which devices the program runs,
    as it does for programs with a partitioning of their own.
    """
    return _negated(ticket)


def _identity(x: Any, _: Any, **__: Any) -> Any:
    return x


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any
) -> tuple[Any, Any]:
    return show_p.bind(*primals, **parameters), tangents[0]


def _batch(
    operands: Sequence[Any], dimensions: Sequence[Any], **parameters: Any
) -> tuple[Any, Any]:
    x, ticket = operands
    if dimensions[1] is not None:
        ticket = ticket[(slice(None),) * dimensions[1] + (0,)]
    return show_p.bind(x, ticket, **parameters), dimensions[0]


def _transpose(cotangent: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    return cotangent, None


def _partial_eval(
    saveable: Callable[..., Any],
    unknown: Sequence[bool],
    known: Sequence[bool],
    eqn: Any,
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
    """Divide a step under ``jax.checkpoint``, which computes tensors again.

    The first pass need not compute them at all, where only gradients are asked for: so
    both show them, and the second one as what it is.

    Args:
        saveable: Whether the second pass is to have the result without computing it.
        unknown: Of each operand, whether it is computed in the second pass only.
        known: Of each operand, whether the second pass has it already.
        eqn: The equation.
    """
    operands = [
        x
        for x, has_it in zip(eqn.invars, known, strict=True)
        if hasattr(x, "count") and not has_it
    ]
    if any(unknown):
        return None, eqn, [True], [True], operands
    avals = [x.aval for x in eqn.invars]
    if saveable(eqn.primitive, *avals, **eqn.params) is True:
        return eqn, None, [False], [False], []
    number = min(eqn.params["pass_number"] + 1, PASSES - 1)
    again = eqn.replace(params={**eqn.params, "pass_number": number})
    return eqn, again, [False], [True], operands


def _last(*operands: Any, **_: Any) -> Any:
    return operands[-1]


def _jvp_all(
    primals: Sequence[Any], _: Sequence[Any], **parameters: Any
) -> tuple[Any, Any]:
    result = show_all_p.bind(*primals, **parameters)
    return result, ad.Zero(jax.typeof(result).to_tangent_aval())


def _batch_all(
    operands: Sequence[Any], dimensions: Sequence[Any], **parameters: Any
) -> tuple[Any, Any]:
    return show_all_p.bind(*operands, **parameters), dimensions[-1]


# ---- lowering ----------------------------------------------------------------------


def _lower(
    context: Any, x: Any, ticket: Any, *, tap: int, pass_number: int
) -> Sequence[Any]:
    has_part = context.avals_in[1].shape[0] == _WITH_PART
    if context.module_context.platforms != ("cpu",) or not calls_handler():
        function = show_in_callback
    else:
        function = _call if has_part or _is_alone(context) else _partitioned
    lower = mlir.lower_fun(
        functools.partial(function, tap=tap * PASSES + pass_number),
        multiple_results=False,
    )
    lowered: Sequence[Any] = lower(context, x, ticket)
    return lowered


def _is_alone(context: Any) -> bool:
    """Whether the program runs on one device."""
    axis_context = context.module_context.axis_context
    return getattr(axis_context, "num_devices", 1) in {1, None}


def _lower_all(
    context: Any, *operands: Any, taps: tuple[int, ...], observer: ProgramObserver
) -> Sequence[Any]:
    is_cpu = context.module_context.platforms == ("cpu",) and calls_handler()
    shows = is_cpu and _is_alone(context)
    observer.lowered(shows=shows)
    function = functools.partial(_call_all, taps=taps) if shows else _last
    lower = mlir.lower_fun(function, multiple_results=False)
    lowered: Sequence[Any] = lower(context, *operands)
    return lowered


def _call_all(*operands: Any, taps: tuple[int, ...]) -> Any:
    """Call the handler of the core that is given several tensors."""
    ticket = operands[-1]
    call = jax.ffi.ffi_call(
        TAP_ALL_TARGET, jax.ShapeDtypeStruct(ticket.shape, ticket.dtype)
    )
    return call(*operands, tap=np.array([tap * PASSES for tap in taps], np.int64))


def _call(x: Any, ticket: Any, *, tap: int, table: PartTable | None = None) -> Any:
    """Call the handler of the core."""
    attributes = {} if table is None else table.attributes()
    call = jax.ffi.ffi_call(
        TAP_TARGET,
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={0: 0},
    )
    return call(x, ticket, tap=np.int64(tap), **attributes)


def _partitioned(x: Any, ticket: Any, *, tap: int) -> Any:
    shows = functools.partial(_call, tap=tap)

    def call_alone(x: Any, ticket: Any) -> Any:  # JAX asks for its signature.
        return shows(x, ticket)

    call = custom_partitioning(call_alone)
    call.def_partition(
        functools.partial(_partition, shows),
        infer_sharding_from_operands=_same_sharding,
        sharding_rule=_sharding_rule,
    )
    return call(x, ticket)


def _partition(
    shows: Callable[..., Any], mesh: Any, operands: Sequence[Any], _: Any
) -> tuple[Any, Callable[..., Any], Any, tuple[Any, Any]]:
    """Say how each device shows its part, without a change of how *x* is divided."""
    x, ticket = operands
    table = part_table(x.sharding, x.shape)
    replicated = (
        NamedSharding(x.sharding.mesh, PartitionSpec())
        if isinstance(x.sharding, NamedSharding)
        else ticket.sharding
    )
    call = functools.partial(shows, table=table)
    return mesh, call, x.sharding, (x.sharding, replicated)


def _same_sharding(_: Any, operands: Sequence[Any], __: Any) -> Any:
    return operands[0].sharding


def _sharding_rule(_: Any, operands: Sequence[Any], __: Any) -> str:
    dimensions = " ".join(f"d{i}" for i in range(operands[0].rank))
    return f"{dimensions}, ticket -> {dimensions}"


_negated = custom_partitioning(jnp.invert)
_negated.def_partition(
    lambda mesh, operands, result: (
        mesh,
        jnp.invert,
        result.sharding,
        (operands[0].sharding,),
    ),
    infer_sharding_from_operands=_same_sharding,
    sharding_rule="ticket -> ticket",
)

show_p.def_impl(_identity)
show_p.def_abstract_eval(_identity)
ad.primitive_jvps[show_p] = _jvp
ad.primitive_transposes[show_p] = _transpose
batching.primitive_batchers[show_p] = _batch
pe.partial_eval_jaxpr_custom_rules[show_p] = _partial_eval
mlir.register_lowering(show_p, _lower)

show_all_p.def_impl(_last)
show_all_p.def_abstract_eval(_last)
ad.primitive_jvps[show_all_p] = _jvp_all
batching.primitive_batchers[show_all_p] = _batch_all
mlir.register_lowering(show_all_p, _lower_all)


_log = logging.getLogger("tdbg")


@functools.cache
def calls_handler() -> bool:
    """Whether XLA takes the handlers of the core; registers them at the first call."""
    try:
        for name, handler in tap_handlers().items():
            jax.ffi.register_ffi_target(name, handler, platform="cpu", api_version=1)
    except Exception as error:
        _log.warning(
            "XLA rejects tdbg's handler (%s), so tdbg copies tensors to Python, "
            "which is slower",
            error,
        )
        return False
    return True


def show_in_callback(x: Any, ticket: Any, *, tap: int) -> Any:
    """Return *x*, which is shown by ``jax.debug.callback``.

    Of an array that is divided among devices the callback is given the whole, which JAX
    gathers on one: nothing tells a callback which part it has.

    Args:
        x: The tensor; in a program that is written for each device, its part of it.
        ticket: Of the step, with the number of the part in such a program.
        tap: Number of the place.
    """
    jax.debug.callback(functools.partial(_show, tap), x, ticket)
    return x


def _show(tap: int, x: Any, ticket: Any) -> None:
    words = np.asarray(ticket)
    number = int(words[2]) if len(words) == 3 else 0  # Low, high, number of the part.
    if number >= 0:
        low, high = (int(word) for word in words[:2].view(np.uint32))
        array = np.ascontiguousarray(x)
        show_tensor(low | high << 32, tap, array, number)
