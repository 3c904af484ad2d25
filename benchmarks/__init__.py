"""Benchmarks of tdbg: each checks the answers whose speed it tells.

Run from the root of the checkout, each by itself or all by ``make bench``:

    python -m benchmarks.reducers.statistics_pass
    make bench ONLY=overhead/resnet

docs/benchmarks.md has the method and how to run them.  A new one is a module that
measures with ``_harness`` and ends with ``Report.save()``.
"""
