"""Does tdbg find what is wrong with a training, and is it quiet when nothing is?

    python -m benchmarks.detection verify     the corpus by itself, without any rule
    python -m benchmarks.detection            record, judge, and print the tables

``cases/`` holds the trainings by the kind of problem: sick ones, each a mistake that
people make, with a predicate in plain PyTorch that says from which step on the fault
can be seen, and healthy ones; ``kit/`` is what they are written with.  ``record`` runs
them under tdbg; ``judge`` asks the rules; ``table`` compares.  README.md says how to
read the result and how to add a case.
"""

from __future__ import annotations
