"""The built-in rules by name: ``catalog.pyi`` lists them, one line for each.

The list is a stub, so that type checkers see the classes, and no module of a rule is
imported before somebody uses the rule.

Thread safety: constants.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["BUILT_IN"]

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_ENTRY = re.compile(r"^from (\S+) import (?:\(\s*)?(\w+) as", re.MULTILINE)

#: The module of each built-in rule, by the rule's name, in the order of names.
BUILT_IN = dict(sorted((entry[2], entry[1]) for entry in _ENTRY.finditer(_STUB)))
