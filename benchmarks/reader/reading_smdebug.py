"""Reading back the tensors of many steps: what smdebug wrote, by its trial and tdbg's.

    python -m benchmarks.reader.reading_smdebug [small] [large] [--quick]

What ``reading.py`` measures, with the same arrays and the same verification, beside
safetensors in the environment that smdebug needs.
"""

from __future__ import annotations

from benchmarks._harness import options
from benchmarks.reader.reading import run

ENVIRONMENT = "smdebug"
NAMES = ("safetensors", "smdebug", "tdbg, smdebug's files")


def main() -> None:
    run(options(__doc__), NAMES, "reading_smdebug")


if __name__ == "__main__":
    main()
