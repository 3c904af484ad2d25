"""``python -m tdbg`` is the same as the command ``tdbg``."""

from __future__ import annotations

from tdbg.cli import main

if __name__ == "__main__":
    main()
