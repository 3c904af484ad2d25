"""Closes the hooks that tests make, those of tests that fail, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tdbg.hooks.lightgbm.hook import Hook


@pytest.fixture(autouse=True)
def hooks_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all hooks of LightGBM when the test is over."""
    made: list[Hook] = []
    remember = Hook._remember

    def noted(hook: Hook) -> None:
        made.append(hook)
        remember(hook)

    monkeypatch.setattr(Hook, "_remember", noted)
    yield
    for hook in made:
        hook.close()
