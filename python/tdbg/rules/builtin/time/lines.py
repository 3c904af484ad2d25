"""The lines of Python in which a bin's time goes, as the sampler saw them.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tdbg.rules.profile import Bin
from tdbg.run.profile_tables import Phase
from tdbg.run.program_lines import innermost_of_program

__all__ = ["TopLine", "in_words", "top_line"]

# Fewer samples than this name no line.
ENOUGH_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class TopLine:
    """The line that most samples of some phases have in common.

    Attributes:
        where: ``file:line function``.
        share: Its share of the time in these phases.
        n_samples: How many samples these phases have.
    """

    where: str
    share: float
    n_samples: int


def top_line(bins: Sequence[Bin], phases: Collection[Phase]) -> TopLine | None:
    """Return the line of the program that the samples of some phases show most.

    None if there are too few samples.  Of each stack the innermost line counts that
    is the program's own: not Python's, a package's, or tdbg's.
    """
    times: Counter[str] = Counter()
    n_samples = 0
    for each in bins:
        for event in each.events.get("python_lines", ()):
            period = event.get("period_ns") or 1  # Windows sample more often.
            for sample in event.get("samples") or ():
                if sample.get("phase") in phases and sample.get("stack"):
                    stack, count = sample["stack"], int(sample.get("count", 1))
                    line = innermost_of_program(stack) or stack[-1]
                    times[line] += count * period
                    n_samples += count
    if n_samples < ENOUGH_SAMPLES:
        return None
    where, time = times.most_common(1)[0]
    return TopLine(where, time / times.total(), n_samples)


def in_words(line: TopLine | None) -> str:
    """Return a sentence that names a line, or "": begins with a space."""
    if line is None:
        return ""
    return f" Most of it is in {line.where} ({100 * line.share:.0f}% of the samples)."
