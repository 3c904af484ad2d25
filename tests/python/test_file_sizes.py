"""One concept a file: no source file grows past what can be read in one go."""

from __future__ import annotations

from pathlib import Path

LIMIT = 400
SUFFIXES = {".py", ".pyi", ".cc", ".h", ".cu"}
FOLDERS = ("cpp", "python", "tests", "benchmarks", "examples")


def line_counts(repository: Path) -> dict[str, int]:
    """Map every source file to its number of lines."""
    return {
        path.relative_to(repository).as_posix(): len(path.read_text().splitlines())
        for folder in FOLDERS
        for path in (repository / folder).rglob("*")
        if path.suffix in SUFFIXES
    }


def test_no_file_is_longer_than_the_limit(repository: Path) -> None:
    counts = line_counts(repository)
    assert len(counts) > 50, "the sources were not found"
    too_long = {name: count for name, count in counts.items() if count > LIMIT}
    assert too_long == {}
