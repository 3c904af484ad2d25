"""A plain read of memory: what no pass over an array can be faster than.

One thread adds up the words of the array, compiled for this processor by the C
compiler at hand; NumPy's sum where there is none, which is a little slower.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCE = """
long read_words(const long* p, long n) {
  long sum = 0;
  for (long i = 0; i < n; ++i) sum += p[i];
  return sum;
}
"""


def reader() -> tuple[str, Callable[[NDArray[Any]], int]]:
    """What reads, in words, and the function."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "NumPy's sum", lambda x: int(x.view(np.int64).sum())
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "read.c"), Path(folder, "read.so")
        source.write_text(SOURCE)
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, source, "-o", library], check=True)
        function = ctypes.CDLL(str(library)).read_words
    function.argtypes = [ctypes.c_void_p, ctypes.c_long]
    function.restype = ctypes.c_long
    return "a loop in C", lambda x: function(x.ctypes.data, x.nbytes // 8)
