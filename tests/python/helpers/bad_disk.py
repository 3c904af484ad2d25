"""A file system that is slow, sick or dead while a test says so.

``tests/shim/bad_disk.c`` is loaded into programs; a ``BadDisk`` says what becomes of
their calls, from the test or from within the program.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

__all__ = ["BadDisk", "build_bad_disk"]

_CONTROL = struct.Struct("<4i4Q")
_SETTINGS = struct.Struct("<4i")
READS, WRITES = 1, 2
FOR_EVER = -1
SOURCE = Path(__file__).parents[2] / "shim" / "bad_disk.c"


class BadDisk:
    """The state of the disk below a folder, in a file that programs share.

    Args:
        control: The file; made if it is not there.
    """

    def __init__(self, control: Path) -> None:
        self.path = control
        if not control.exists():
            control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _CONTROL.size)

    def set(
        self,
        *,
        error: int = 0,
        delay: int = 0,
        which: int = READS | WRITES,
        every: int = 1,
    ) -> None:
        """What becomes of calls: an errno, and ms that each takes (or FOR_EVER)."""
        self._memory[: _SETTINGS.size] = _SETTINGS.pack(error, delay, which, every)

    def heal(self) -> None:
        self.set(which=0)

    def _number(self, index: int) -> int:
        return int(_CONTROL.unpack(self._memory[:])[index])

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return self._number(4)

    @property
    def of_first_thread(self) -> int:
        """How many of them the first thread of a process made."""
        return self._number(5)

    @property
    def failed(self) -> int:
        return self._number(6)

    @property
    def kept(self) -> int:
        """How many wait now."""
        return self._number(7)

    def environment(self, library: Path, folder: Path) -> dict[str, str]:
        """The variables of a program whose files below *folder* are on this disk."""
        return {
            **os.environ,
            "LD_PRELOAD": str(library),
            "BAD_DISK_PREFIX": str(folder),
            "BAD_DISK_CONTROL": str(self.path),
        }


def build_bad_disk(folder: Path) -> Path | None:
    """The library, compiled into *folder*; None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "bad_disk.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True, timeout=60)
    return library
