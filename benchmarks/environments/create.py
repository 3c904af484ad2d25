"""Makes the environments that contenders run in; run it again after a change.

    python -m benchmarks.environments.create              all of them
    python -m benchmarks.environments.create tdbg peers   some

An environment is a virtual environment ``env-NAME`` in build/benchmarks, or in the
folder ``TDBG_BENCH_ENVS``, with what ``NAME.txt`` beside this file pins.  Where that
file has the line ``# with tdbg``, a wheel of this checkout is built as a user's would
be (Release, isolated) and installed too; it is built again only when its sources
have changed.  ``repair_NAME.py`` runs in the environment once it is made.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks._harness.environments import environment, python_of
from benchmarks._harness.machine import ROOT

FOLDER = Path(__file__).parent
WITH_TDBG = "# with tdbg"
SOURCES = ("cpp", "python", "cmake", "CMakeLists.txt", "pyproject.toml")


def main() -> None:
    names = sorted(path.stem for path in FOLDER.glob("*.txt"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(names))
    parser.add_argument(
        "--without-tdbg", action="store_true", help="what is downloaded only"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no environments: {sorted(unknown)}; there are {names}")
    for name in given.names or names:
        create(name, with_tdbg=not given.without_tdbg)


def create(name: str, *, with_tdbg: bool = True) -> None:
    """Make or bring up to date one environment."""
    requirements = FOLDER / f"{name}.txt"
    text = requirements.read_text(encoding="utf-8")
    home = environment(name)
    repair = FOLDER / f"repair_{name}.py"
    made_of = digest([requirements, *([repair] if repair.exists() else [])])
    if stale(home / "requirements.hash", made_of):
        print(f"== {home}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        pip(name, "--requirement", str(requirements))
        if repair.exists():
            command = [str(python_of(name)), "-m", f"{__package__}.{repair.stem}"]
            subprocess.run(command, cwd=ROOT, check=True)
        done(home / "requirements.hash", made_of)
    if with_tdbg and WITH_TDBG in text.splitlines():
        sources = digest(source_files())
        if stale(home / "tdbg.hash", sources):
            print(f"== tdbg of this checkout into {home}", flush=True)
            pip(name, "--force-reinstall", "--no-deps", str(wheel(name, sources)))
            pinned = ROOT / "requirements" / "pinned.txt"
            # What it needs, at the versions that are tested.
            needed = "click", "google-re2", "ml_dtypes", "rich"
            pip(name, "--constraint", str(pinned), *needed)
            done(home / "tdbg.hash", sources)


def wheel(name: str, sources: str) -> Path:
    """A wheel of this checkout, built with the interpreter of an environment."""
    folder = home_of_wheels() / sources
    if not list(folder.glob("*.whl")):
        command = [str(python_of(name)), "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command += ["--wheel-dir", str(folder), str(ROOT)]
        pinned = str(ROOT / "requirements" / "pinned.txt")
        # pip 25.3 and later read the second name.
        settings = {"PIP_CONSTRAINT": pinned, "PIP_BUILD_CONSTRAINT": pinned}
        subprocess.run(command, env={**os.environ, **settings}, check=True)
    (built,) = folder.glob("*.whl")
    return built


def home_of_wheels() -> Path:
    return environment("any").parent / "wheels"


def pip(name: str, *arguments: str) -> None:
    command = [str(python_of(name)), "-m", "pip", "install", "--quiet", *arguments]
    subprocess.run(command, check=True, env={**os.environ, "PIP_CONSTRAINT": ""})


def source_files() -> list[Path]:
    """All that a wheel is made of, as it is in the checkout."""
    files: list[Path] = []
    for path in (ROOT / source for source in SOURCES):
        files += [path] if path.is_file() else path.rglob("*")
    ignored = {".so", ".pyc"}
    return sorted(f for f in files if f.is_file() and f.suffix not in ignored)


def digest(files: list[Path]) -> str:
    """Of names and contents."""
    hashed = hashlib.sha256(sys.version.encode())
    for path in files:
        hashed.update(f"{path.relative_to(ROOT)}\0".encode())
        hashed.update(hashlib.sha256(path.read_bytes()).digest())
    return hashed.hexdigest()[:16]


def stale(mark: Path, expected: str) -> bool:
    return not mark.exists() or mark.read_text(encoding="utf-8") != expected


def done(mark: Path, made_of: str) -> None:
    mark.write_text(made_of, encoding="utf-8")


if __name__ == "__main__":
    main()
