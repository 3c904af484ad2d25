"""Libraries that compute, and those that have effects.

Thread safety: pure functions.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["ALLOWED", "is_allowed", "is_computing", "is_pure"]

# Libraries whose modules and functions compute.
_PURE = frozenset(
    {"einops", "einx", "jaxtyping", "numpy", "scipy", "timm", "torch", "torchvision"}
    | {"transformers", "triton", "typing_extensions"}
)
# What they hold all the same that has effects: a name is refused with what it holds.
_IMPURE = (
    *("numpy.load", "numpy.save", "numpy.savetxt", "numpy.savez", "numpy.seterr"),
    *("numpy.savez_compressed", "numpy.set_printoptions", "torch.distributed"),
    *("torch.hub", "torch.multiprocessing", "torch.onnx", "torch.serialization"),
    *("torch.set_default_device", "torch.set_default_dtype", "torch.set_num_threads"),
    *("torch.set_printoptions", "torch.use_deterministic_algorithms"),
    *("torch.utils.data", "torch.utils.tensorboard", "transformers.utils.logging"),
)
# Modules of the standard library that compute.
_STANDARD = frozenset(
    {"__future__", "abc", "array", "bisect", "builtins", "cmath", "collections"}
    | {"contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"}
    | {"functools", "genericpath", "hashlib", "heapq", "inspect", "itertools", "math"}
    | {"numbers", "operator", "posixpath", "random", "re", "statistics", "string"}
    | {"struct", "textwrap", "time", "types", "typing", "weakref", "ntpath"}
)
ALLOWED = frozenset({"os.environ", "os.getenv", "os.path", "sys.modules"})
_EFFECTS = frozenset({"__import__", "breakpoint", "compile", "eval", "exec", "exit"})
_EFFECTS |= {"globals", "input", "open", "print", "quit", "help"}
# Libraries that log, draw or write.
_LIBRARIES = frozenset(
    {"IPython", "absl", "aim", "boto3", "clearml", "click", "comet_ml", "fsspec"}
    | {"h5py", "httpx", "loguru", "matplotlib", "mlflow", "neptune", "pandas", "ray"}
    | {"requests", "rich", "swanlab", "tdbg", "tensorboard", "tensorboardX", "tqdm"}
    | {"trackio", "visdom", "wandb"}
)


def is_allowed(name: str) -> bool:
    """Return whether a module, function or class is of no library with effects."""
    top, _, rest = name.partition(".")
    if top in _PURE:
        return not any(name == each or name.startswith(f"{each}.") for each in _IMPURE)
    if top in _LIBRARIES or (top == "builtins" and rest in _EFFECTS):
        return False
    if not {top, top.lstrip("_")} & sys.stdlib_module_names or top == "__main__":
        return True
    is_known = bool({top, top.lstrip("_")} & _STANDARD)
    return is_known or not rest or name in ALLOWED


def is_pure(value: Any) -> bool:
    """Return whether a function or a class is of a library that computes."""
    where = getattr(value, "__globals__", {}).get("__name__")
    where = where or getattr(value, "__module__", "") or ""
    top = str(where).partition(".")[0]
    return top in _PURE or (top in sys.stdlib_module_names and top != "__main__")


def is_computing(kind: type) -> bool:
    """Return whether objects of a class are a library's, and have no effects."""
    return is_pure(kind) and is_allowed(f"{kind.__module__}.{kind.__name__}")
