"""Programs in the shape of public ones, which know no tdbg, and everyday mistakes.

``README.md`` has the method and the results; ``python -m benchmarks.wild`` runs it.
"""
