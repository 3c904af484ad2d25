"""Prefixes in the names of tensors, by role: docs/steps.md, "Names".

Thread safety: constants and pure functions.
"""

from __future__ import annotations

from tdbg.config.collections import Role

__all__ = ["GRADIENT", "PREFIXES", "UPDATE", "parameter_in"]

GRADIENT, UPDATE = "gradient/", "update/"

#: What the names of tensors of a role begin with; those of other roles have no prefix.
PREFIXES = {
    Role.GRADIENT: GRADIENT,
    Role.GRADIENT_UNCLIPPED: "gradient_unclipped/",
    Role.GRADIENT_LOCAL: "gradient_local/",
    Role.UPDATE: UPDATE,
    Role.BUFFER: "buffer/",
    Role.OPTIMIZER_STATE: "optimizer/",
    Role.SCALAR: "scalar/",
    Role.UNIT_SUMMARY: "unit/",
}
_OF_PARAMETERS = tuple(
    PREFIXES[role]
    for role in (
        Role.GRADIENT,
        Role.GRADIENT_UNCLIPPED,
        Role.GRADIENT_LOCAL,
        Role.UPDATE,
    )
)


def parameter_in(name: str) -> str:
    """Return the parameter that a gradient or an update belongs to.

    Any other name is returned unchanged.

    Example:
        >>> parameter_in("gradient/fc.weight"), parameter_in("fc.weight")
        ('fc.weight', 'fc.weight')
    """
    for prefix in _OF_PARAMETERS:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
