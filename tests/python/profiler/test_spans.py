"""``hook.span``: named intervals, in any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import tdbg.pytorch as td
from tdbg.errors import ConfigurationError
from tdbg.trial import create_trial


def spans_of(run_dir: Path) -> NDArray[Any]:
    """The spans of a run, by their start."""
    spans = create_trial(run_dir).profile.spans()
    return spans[spans["start_ns"].argsort(kind="stable")]


def test_spans_nest_and_have_the_step_they_are_in(run_dir: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with td.Hook(run_dir) as hook:
        hook.register_module(model)
        for _ in range(3):
            with hook.span("train"):
                model(torch.ones(2, 4)).sum().backward()
                with hook.span("update"):
                    optimizer.step()
    spans = spans_of(run_dir)
    assert list(spans["depth"]) == [0, 1] * 3
    assert list(spans["global_step"]) == [0, 0, 1, 1, 2, 2]
    assert list(spans["name"]) == ["train", "update"] * 3
    ends = spans["start_ns"] + spans["duration_ns"]
    assert (ends[1::2] <= ends[::2]).all()
    assert (spans["thread"] == threading.get_native_id()).all()


def test_a_decorated_function_is_a_span_whether_it_waits_or_not(run_dir: Path) -> None:
    with td.Hook(run_dir) as hook:

        @hook.span("plain")
        def plain(x: int) -> int:
            return x + 1

        @hook.span("waits")
        async def waits(x: int) -> int:
            await asyncio.sleep(0)
            return x + 1

        async def both() -> list[int]:
            return await asyncio.gather(waits(1), waits(2))

        assert plain(1) == 2
        assert plain.__name__ == "plain"
        assert asyncio.run(both()) == [2, 3]
        with pytest.raises(TypeError):
            plain("a")  # type: ignore[arg-type]
    assert list(spans_of(run_dir)["name"]) == ["plain", "waits", "waits", "plain"]


def test_threads_have_spans_of_their_own(run_dir: Path) -> None:
    with td.Hook(run_dir) as hook:
        span = hook.span("work")

        def work() -> None:
            with span, span:
                pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        with span:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    spans = spans_of(run_dir)
    assert len(spans) == 9
    assert sorted(spans["depth"]) == [0] * 5 + [1] * 4


@pytest.mark.parametrize("name", ["", 3, None, "x" * 301])
def test_a_name_that_cannot_work_is_refused(run_dir: Path, name: Any) -> None:
    with (
        td.Hook(run_dir) as hook,
        pytest.raises(ConfigurationError, match="1 to 300 characters, not"),
    ):
        hook.span(name)


def test_a_generator_is_refused_with_what_to_do(run_dir: Path) -> None:
    def batches() -> Iterator[int]:
        yield 1

    with td.Hook(run_dir) as hook:
        with pytest.raises(ConfigurationError, match=r"batches: use 'with hook.span"):
            hook.span("load")(batches)
        with pytest.raises(ConfigurationError, match="decorates a function, not 3"):
            hook.span("load")(3)  # type: ignore[type-var]


def test_a_span_after_the_end_does_nothing(run_dir: Path) -> None:
    hook = td.Hook(run_dir)
    span = hook.span("late")
    hook.close()
    with span:
        pass
    assert len(spans_of(run_dir)) == 0


def test_a_run_has_spans_without_a_profiler(run_dir: Path) -> None:
    with td.Hook(run_dir, profiler=False) as hook, hook.span("mine"):
        pass
    assert list(spans_of(run_dir)["name"]) == ["mine"]
