"""Faults of time and their healthy twins, as real processes under ``tdbg run``.

    python -m benchmarks.detection.scenarios            run all, print what was named
    python -m benchmarks.detection.scenarios advice     do as told, and measure again
    python -m benchmarks.detection.scenarios corpus     healthy scripts: false alarms

``cases/`` holds the scenarios, which know nothing of tdbg; ``kit`` is what they are
written with; ``play`` performs one; ``stage`` runs it under tdbg and asks the rules.
"""
