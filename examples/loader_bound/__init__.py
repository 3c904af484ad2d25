"""A training that waits for its data: found, changed as told, and cheaper afterwards.

`train.py` is an ordinary script of PyTorch. `python -m examples.loader_bound` runs it
under `tdbg run` with the workers that its author chose, takes the advice of the rule
`DataLoaderBound`, runs it again with the workers that the advice names, and prints the
gain that was promised beside the one that was measured, and the cost of both.
"""
