"""Gluon's DataLoader: waits are in the step rows and in the loader's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mxnet import autograd, gluon, nd

from tdbg.trial import create_trial


class Images(gluon.data.Dataset):  # type: ignore[misc] # MXNet has no types
    """Images and labels."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return np.full((2, 8, 8), i, np.float32), np.float32(i % 3)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_waits_of_gluons_loader_are_told(
    make_hook: Callable[..., Any],
    make_training: Callable[..., Any],
    tmp_path: Path,
    n_workers: int,
) -> None:
    training, data = make_training(), Images()
    before = gluon.data.DataLoader.__iter__
    hook = training.watched_by(make_hook())
    assert gluon.data.DataLoader.__iter__ is not before
    loader = gluon.data.DataLoader(data, batch_size=4, num_workers=n_workers)
    for _ in range(2):
        for images, labels in loader:
            with autograd.record():
                loss = training.loss(training.net(nd.array(images)), labels)
            loss.backward()
            training.trainer.step(4)
    hook.close()
    assert gluon.data.DataLoader.__iter__ is before
    assert len(list(loader)) == 4
    profile = create_trial(tmp_path / "run0").profile
    rows, steps = profile.workers(), profile.steps()
    assert rows["epoch"].tolist() == [0] * 4 + [1] * 4
    assert len(set(rows["loader"])) == 1
    assert set(rows["samples"]) == {4}
    assert set(rows["workers"]) == {n_workers}
    assert set(rows["capacity"]) == {2 * n_workers}
    assert (rows["wait_ns"] > 0).all()
    assert steps["data_wait_ns"].sum() >= 0.9 * rows["wait_ns"].sum()
