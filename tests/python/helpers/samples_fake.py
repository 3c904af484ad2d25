"""Fingerprints of a training whose samples are known by numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tdbg.modes import EVAL, TRAIN, ModeKeys
from tdbg.rules.engine.sample_ledger import SampleLedger
from tdbg.rules.samples import SampleFacts
from tdbg.run.profile_tables import FINGERPRINT, TABLES

__all__ = ["Given", "Samples"]

SECOND = 10**9
ROWS = np.dtype(
    [
        *((name, FINGERPRINT[name]) for name in FINGERPRINT.names or ()),
        ("instance", "U64"),
        ("worker", "<i4"),
    ]
)
BATCHES = np.dtype(
    [
        *(
            ({"worker": "loader_worker"}.get(name, name), TABLES["loader"][name])
            for name in TABLES["loader"].names or ()
        ),
        ("worker", "<i4"),
    ]
)
Given = Iterable[int] | np.ndarray


class Samples:
    """The fingerprints of a training whose samples are known by numbers.

    Args:
        loader: What is known of the loader that each batch is from; None: there is
            none.
        kind: Of the samples' elements.
        n_varied: Of 16 samples, how many have different elements.
    """

    def __init__(
        self,
        loader: Mapping[str, Any] | None = None,
        *,
        kind: str = "f",
        n_varied: int = 16,
    ) -> None:
        self.random = np.random.default_rng(0)
        self._hashes = self.random.integers(0, 2**64, 1 << 16, np.uint64)
        self._classes = self.random.integers(0, 2**64, 1 << 10, np.uint64)
        self.loader = loader
        self._kind, self._n_varied = kind, n_varied
        self._rows: list[tuple[Any, ...]] = []
        self._given: list[tuple[int, int, int]] = []
        self._now = 0
        self.step = -1

    def train(self, samples: Given, labels: Given | None = None, **more: Any) -> None:
        """Train on samples, with labels or without."""
        self.step += more.get("call", 0) == 0 and more.get("worker", 0) == 0
        self._call(np.asarray(samples), labels, TRAIN, **more)

    def evaluate(self, samples: Given, n: int = 50) -> None:
        """Evaluate samples, batch by batch."""
        samples = np.asarray(samples)
        for at in range(0, len(samples), n):
            self.step += 1
            self._call(samples[at : at + n], None, EVAL)

    def epoch(self, samples: Given, labels: Mapping[int, int] | None = None) -> None:
        """Train on samples in batches of 20, in a new order."""
        order = self.random.permutation(np.asarray(samples))
        for at in range(0, len(order), 20):
            batch = order[at : at + 20].tolist()
            self.train(batch, labels and [labels[i] for i in batch])

    def facts(self, n_bins: int = 1, *, n_workers: int = 1) -> SampleFacts:
        """Return what is known at the end of the last bin."""
        rows = np.array(self._rows, ROWS)
        given = np.zeros(len(self._given), BATCHES)
        columns = zip(*self._given, strict=True)
        for name, column in zip(("time", "worker", "samples"), columns, strict=False):
            given[name] = column
        loaders = {} if self.loader is None else {(0, 0): self.loader}
        ledger = SampleLedger()
        found: Mapping[str, SampleFacts] = {}
        ends = np.linspace(0, self._now + 2 * SECOND, n_bins + 1).astype(int)
        for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            own, batches = (
                each[(each["time"] >= begin) & (each["time"] < end)]
                for each in (rows, given)
            )
            found = ledger.add(
                own,
                batches,
                end,
                loaders,
                n_workers=n_workers,
                averages=n_workers > 1,
            )
        return found["Net"]

    def _call(
        self,
        samples: np.ndarray,
        labels: Given | None,
        mode: ModeKeys,
        *,
        call: int = 0,
        worker: int = 0,
        views: Iterable[Given] = (),
    ) -> None:
        self._now += SECOND // 100
        if self.loader is not None and mode is TRAIN:
            self._given.append((self._now, worker, len(samples)))
        tensors = {"input/Net_input_0": self._hashes[samples]}
        for i, view in enumerate(views):
            tensors[f"input/Net_input_{i + 1}"] = self._hashes[np.asarray(view)]
        if labels is not None:
            of_labels = self._classes[np.asarray(list(labels))]
            tensors["label/CrossEntropyLoss_input_1"] = of_labels
        for name, hashes in tensors.items():
            self._now += 1000
            is_label = name.startswith("label")
            for first in range(0, len(hashes), 16):
                own = hashes[first : first + 16]
                row = {
                    "time": self._now,
                    "global_step": self.step,
                    "hashes": np.resize(own, 16),
                    "call": call,
                    "samples": len(hashes),
                    "first": first,
                    "row_bytes": 8 if is_label else 256,
                    "mode": mode.value,
                    "n": len(own),
                    "n_varied": 255 if first else min(len(own), self._n_varied),
                    "kind": ord("i" if is_label else self._kind),
                    "is_whole": 1,
                    "reserved": 0,
                    "instance": name,
                    "worker": worker,
                }
                self._rows.append(tuple(row[column] for column in ROWS.names or ()))
