"""Reads a run by every verb while its disk is sick in many ways.

Usage: read_on_bad_disk.py RUN CONTROL, under tests/shim/bad_disk.c.  Prints as JSON
what became of each: verb, errno, which calls failed and how many, exit code, output.
"""

from __future__ import annotations

import errno
import json
import sys
import threading
from pathlib import Path

from click.testing import CliRunner

from bad_disk import READS, WRITES, BadDisk
from tdbg.cli import _tdbg

VERBS = {
    "ls": ["ls"],
    "show": ["show"],
    "value": ["show", "fc.weight", "--step", "3"],
    "check": ["check"],
    "fsck": ["fsck"],
    # Follows a run until somebody can read that it has ended.
    "watch": ["watch", "--wait", "0"],
}
HEALS_SECONDS = 1.0
EVERY = (1, 2, 3, 7, 19, 47)


def main() -> None:
    run, disk = sys.argv[1], BadDisk(Path(sys.argv[2]))
    found = []
    for verb, (name, *rest) in VERBS.items():
        words = [name, run, *rest]
        disk.heal()
        healthy = CliRunner().invoke(_tdbg, words).output
        for number in (errno.EIO, errno.ESTALE):
            for every in EVERY:
                before = disk.failed
                disk.set(error=number, every=every, which=READS | WRITES)
                healing = threading.Timer(HEALS_SECONDS, disk.heal)
                if verb == "watch":
                    healing.start()
                done = CliRunner().invoke(_tdbg, words)
                healing.cancel()
                disk.heal()
                found.append(
                    {
                        "verb": verb,
                        "errno": number,
                        "every": every,
                        "failed": disk.failed - before,
                        "code": done.exit_code,
                        "output": done.output,
                        "healthy": healthy,
                    }
                )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
