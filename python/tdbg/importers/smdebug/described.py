"""What the collection files say: workers, collections, and the framework.

Every worker writes one at its first step, and again when the training ends.

Thread safety: values and pure functions.

Errors: ``Damage``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tdbg.config.patterns import NamePattern
from tdbg.importers.smdebug.damage import Damage
from tdbg.importers.smdebug.files import Files
from tdbg.importers.smdebug.index import load
from tdbg.run.json_values import is_integer, mapping_of, texts_of

__all__ = ["Collections", "collection_files", "read_collections"]

_NAME = re.compile(r"(.+)_collections\.json")
MAX_WORKERS = 1 << 16
# The expressions by which smdebug's hooks find losses, which tell them apart.
_PYTORCH_LOSSES = r"[Ll]oss_(?!input).*output"


@dataclass(slots=True)
class Collections:
    """The collections of a training.

    Attributes:
        n_workers: How many workers there are to be; 0: not known.
        names: Names of tensors by collection, as smdebug names both.
        patterns: Expressions that find further names, likewise.
        documents: The descriptions, as smdebug wrote them.
    """

    n_workers: int = 0
    names: dict[str, set[str]] = field(default_factory=dict)
    patterns: dict[str, list[NamePattern]] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def framework(self) -> str:
        """Name of the framework, by the collections that its hook makes."""
        if "trees" in self.names:
            return "xgboost"
        if "layers" in self.names or "sm_metrics" in self.names:
            return "tensorflow"
        losses = texts_of(self.documents.get("losses", {}).get("include_regex"))
        if "losses" in self.names:
            return "pytorch" if _PYTORCH_LOSSES in losses else "mxnet"
        return "unknown"

    def lists(self, name: str) -> bool:
        """Whether a collection names this tensor, and does not only match it."""
        return any(name in names for names in self.names.values())

    def of(self, name: str) -> set[str]:
        """Return the collections that a tensor belongs to."""
        found = {each for each, names in self.names.items() if name in names}
        for each, patterns in self.patterns.items():
            if each not in found and any(p.search(name) for p in patterns):
                found.add(each)
        return found

    def add(self, document: Any) -> None:
        """Take in a collection file."""
        content = mapping_of(document)
        described = content.get("collections")
        if not isinstance(described, Mapping):
            msg = "it has no collections"
            raise Damage(msg)
        n_workers = mapping_of(content.get("_meta")).get("num_workers")
        if is_integer(n_workers) and 0 < n_workers <= MAX_WORKERS:
            self.n_workers = max(self.n_workers, n_workers)
        for name, each in described.items():
            of_name = dict(mapping_of(each))
            known = self.names.setdefault(name, set())
            known.update(texts_of(of_name.get("tensor_names")))
            self.documents[name] = of_name
            self.patterns[name] = list(_patterns(of_name.get("include_regex")))


def _patterns(given: Any) -> Iterator[NamePattern]:
    for text in texts_of(given):
        # What cannot be searched for in bounded time finds nothing: the names that
        # the training found by it stand beside it.
        try:
            yield NamePattern(text)
        except (re.error, TypeError):
            continue


def collection_files(files: Files) -> dict[str, str]:
    """Return the collection files by worker."""
    found = {}
    for folder in files.entries("collections"):
        if folder.is_folder and folder.name.isdecimal():
            for entry in files.entries(f"collections/{folder.name}"):
                match = _NAME.fullmatch(entry.name)
                if match and not entry.is_folder:
                    found[match[1]] = f"collections/{folder.name}/{entry.name}"
    return found


def read_collections(files: Files, path: str, into: Collections) -> None:
    """Take in a collection file.

    Raises:
        Damage: If it is none, or cannot be read.
    """
    with files.open(path) as file:
        into.add(load(file))
