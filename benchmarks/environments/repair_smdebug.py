"""Makes smdebug 1.0.34 run with NumPy 2 and integer inputs; run in its environment.

Two replacements, without which it raises as soon as a tensor is saved:

- ``ndarray.tostring()``, which NumPy 2 removed, is ``tobytes()``;
- integer tensors are cast to float before reductions that torch refuses for them.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

REPLACEMENTS = {
    "core/tfevent/util.py": (
        "tensor_content=nparray_data.tostring()",
        "tensor_content=nparray_data.tobytes()",
    ),
    "pytorch/utils.py": (
        "    if abs:\n        tensor_data = torch.abs(tensor_data)\n",
        """\
    if abs:
        tensor_data = torch.abs(tensor_data)
    if reduction_name not in ("min", "max") and not tensor_data.is_floating_point():
        tensor_data = tensor_data.float()
""",
    ),
}


def main() -> None:
    specification = importlib.util.find_spec("smdebug")  # Without importing it.
    if specification is None or specification.origin is None:
        sys.exit("no smdebug in this environment")
    package = Path(specification.origin).parent
    for name, (old, new) in REPLACEMENTS.items():
        path = package / name
        text = path.read_text(encoding="utf-8")
        if new in text:
            continue
        if text.count(old) != 1:
            sys.exit(f"{path} is not the file that this repair is for")
        path.write_text(text.replace(old, new), encoding="utf-8")


if __name__ == "__main__":
    main()
