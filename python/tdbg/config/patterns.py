r"""Regular expressions that search names in a time that is linear in the name.

Python's ``re`` backtracks: ``(a+)+$`` takes 2^n steps on a name of n letters, and a
training would stand still.  So RE2, whose time is linear, runs expressions that may
backtrack.  What RE2 reads otherwise than ``re`` (``\w`` as ASCII, ``\Z``, ``{,3}``)
is rewritten.  Expressions with what RE2 lacks (look-around, back references, Unicode
word boundaries, possessive repetitions, ``(?x)``) are searched by ``re``, in a bounded
part of the name, if that is quick; otherwise they are refused.

Thread safety: a pattern may be used from several threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Self

from tdbg.config.messages import short
from tdbg.errors import ConfigurationError

__all__ = ["NamePattern"]

# Steps of `re`, where it is used: a few milliseconds.
MAX_STEPS = 1_000_000
# `re` is the faster one for an expression that has no repetition and few alternatives.
MAX_ALTERNATIVES = 64

_ESCAPE = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\."
_TOKEN = re.compile(
    _ESCAPE + r"|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)|\{\d+,?\d*\}|\{,\d*\}|\(\??|.",
    re.DOTALL,
)
_MEMBER = re.compile(_ESCAPE + r"|\[", re.DOTALL)
# What stands for Python's Unicode classes, within a class of RE2.
_WORD, _SPACE = r"\pL\pN_", r"\t-\r\x1c-\x20\x{85}\pZ"
_MEMBERS = {r"\w": _WORD, r"\s": _SPACE, r"\d": r"\p{Nd}", r"\D": r"\P{Nd}"}
_CLASSES = {
    **{name: f"[{members}]" for name, members in _MEMBERS.items()},
    r"\W": f"[^{_WORD}]",
    r"\S": f"[^{_SPACE}]",
    r"\Z": r"\z",
}


class NamePattern:
    r"""An expression that is searched for in names.

    Args:
        pattern: The expression, in the syntax of ``re``; ``$`` is the end of the name.
            If ``re`` searches and the expression has repetitions, it sees only the
            beginning of a long name: 1,000 characters for one repetition.

    Attributes:
        pattern: The argument.

    Raises:
        re.error: If it is not a regular expression, or could take too long.
        TypeError: If it is not text.

    Example:
        >>> NamePattern(r"layer\d+").search("model.layer12.weight")
        True
    """

    __slots__ = ("_search", "pattern")

    def __init__(self, pattern: str) -> None:
        compiled = re.compile(pattern)
        given: object = pattern
        if not isinstance(given, str):
            msg = f"{given!r} is not text"
            raise TypeError(msg)
        self.pattern = pattern
        self._search: Callable[[str], bool]
        scan = _Scan(pattern)
        if not scan.n_repeats and scan.alternatives <= MAX_ALTERNATIVES:
            self._search = lambda name: compiled.search(name) is not None
            return
        try:
            linear = _compile_re2(scan)
        except _UnsupportedError as error:
            longest = scan.longest_name(str(error))
            self._search = lambda name: compiled.search(name[:longest]) is not None
        else:
            # A lone surrogate, which has no UTF-8, becomes a question mark.
            self._search = lambda name: (
                linear.search(name.encode(errors="replace")) is not None
            )

    @classmethod
    def of_setting(cls, setting: str, value: Any) -> Self:
        """Return the expression that a setting holds.

        Raises:
            ConfigurationError: If it is not a regular expression, or could take too
                long; the message names the setting.
        """
        try:
            return cls(value)
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            msg = f"{setting}: {short(value)} is not a regular expression: {error}"
            raise ConfigurationError(msg) from error

    def __repr__(self) -> str:
        return f"NamePattern({self.pattern!r})"

    def search(self, name: str) -> bool:
        """Return whether the expression is found somewhere in *name*."""
        return self._search(name)


class _UnsupportedError(Exception):
    """The expression uses something that RE2 lacks."""


def _compile_re2(scan: _Scan) -> Any:
    """Compile the expression with RE2.

    Raises:
        _UnsupportedError: If RE2 lacks something that it uses.
        re.error: If it is too large.
    """
    import re2  # Only here: most expressions are plain words.

    if scan.unsupported:
        raise _UnsupportedError(scan.unsupported)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(scan.translated.encode(errors="surrogatepass"), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        if "repetition size" in reason or "too large" in reason:
            msg = f"it is too large: {reason}"
            raise re.error(msg) from error
        raise _UnsupportedError(reason) from error


class _Scan:
    """Scans an expression that ``re`` accepts for what can cost time.

    Attributes:
        translated: The expression for RE2.
        unsupported: Something in the expression that RE2 lacks or reads otherwise; else
            empty.
        n_repeats: Number of repetitions.
        alternatives: Number of ways through the branches.
    """

    def __init__(self, pattern: str) -> None:
        self.unsupported = ""
        self.n_repeats = 0
        self.alternatives = 1
        self._is_compound = False
        parts = [each for each in _TOKEN.findall(pattern) if each[:3] != "(?#"]
        branches = [1]  # Their numbers in the whole, and in each open group.
        before = ""
        for part in parts:
            kind = part
            if part in ("(", "(?"):
                branches.append(1)
            elif part == ")":
                self.alternatives *= branches.pop()
            elif part == "|":
                branches[-1] += 1
            elif part in ("*", "+", "?") or part[:1] == "{" != part:
                kind = "repeat"
                if before != "repeat":
                    self.n_repeats += 1
                    self._is_compound |= before == ")" or before[1:].isdigit()
                elif part == "+":  # `a++`, whereas `a+?` is merely lazy.
                    self.unsupported = "a possessive repetition"
            before = kind
        self.alternatives *= branches[0]
        starts = pattern.startswith(("^", r"\A"))
        self._is_anchored = starts and branches[0] == 1
        if re.search(r"\(\?\w*x", pattern):  # Its comments may hide anything.
            self._is_compound = re.search(r"(?<!\()[*+?{|]", pattern) is not None
            self.n_repeats = int(self._is_compound)
        self.translated = "".join(map(self._translate, parts))

    def longest_name(self, why: str) -> int:
        """Return the length of name that ``re`` can search in ``MAX_STEPS`` steps.

        The time of repetitions of single characters is a power of the length; that of
        other repetitions may be exponential, so they are refused.
        """
        if self._is_compound:
            msg = f"{why} and a repetition of more than one character can take forever"
            raise re.error(msg)
        power = self.n_repeats + (not self._is_anchored)
        longest = (MAX_STEPS / self.alternatives) ** (1.0 / max(power, 1))
        if longest < 1.0:
            msg = f"{why} and {self.alternatives} alternatives can take forever"
            raise re.error(msg)
        return int(longest)

    def _translate(self, token: str) -> str:
        if token.startswith("{,"):
            return "{0" + token[1:]
        if token in (r"\b", r"\B"):
            self.unsupported = "a word boundary"
        elif token[:1] == "[" != token:
            return "[" + _MEMBER.sub(self._translate_member, token[1:])
        return _CLASSES.get(token) or _character(token)

    def _translate_member(self, match: re.Match[str]) -> str:
        """Translate an escape or a bracket within a class."""
        member = match[0]
        if member in (r"\W", r"\S"):
            self.unsupported = f"{member} within brackets"
        if member == "[":  # `[[:alpha:]]` is RE2's alone.
            return r"\["
        return _MEMBERS.get(member) or _character(member)


def _character(token: str) -> str:
    r"""Translate ``\u00fc``, and a backslash before a letter like ü."""
    if token[:2] in (r"\u", r"\U"):
        return rf"\x{{{token[2:]}}}"
    return token if token.isascii() else token[-1]
