"""JSON that comes from a file: what is parsed, and what is too deep for it."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.run.directory import create_run
from tdbg.run.json_values import MAX_NESTING, load_json
from tdbg.run.requests import RequestListener

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)


@given(DOCUMENTS, st.booleans())
def test_what_was_written_is_read(document: Any, is_ascii: bool) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii)
    assert load_json(text.encode()) == document


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_deepest_document_that_is_parsed_has_a_stated_number_of_levels(
    opening: str, closing: str
) -> None:
    def nested(levels: int) -> bytes:
        return (opening * levels + "1" + closing * levels).encode()

    assert json.dumps(load_json(nested(MAX_NESTING))).count(opening[0]) == MAX_NESTING
    with pytest.raises(ValueError, match=f"more than {MAX_NESTING} levels"):
        load_json(nested(MAX_NESTING + 1))


def test_long_documents_and_brackets_in_texts_are_not_deep() -> None:
    document = [[["[" * 1000, '"]"', "\\", '{\n"']]] * 1000
    assert load_json(json.dumps(document).encode()) == document


@pytest.mark.parametrize("text", [b"", b"{", b"[1,", b'"\\', b"\xff\xfe", b"]" * 9000])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever module
        load_json(text)


def test_a_deep_file_beside_a_training_leaves_its_finalizers_their_frames(
    run_dir: Path,
) -> None:
    """Sabotage that it caught: parsing it, until Python ends the recursion.

    Python collects garbage in whatever thread and at whatever depth it is due.
    """
    run = create_run(run_dir)
    (run.path / "ctl").mkdir(exist_ok=True)
    (run.path / "ctl" / "deep.json").write_bytes(b"[" * 60_000)
    had_frames = []

    def finalize(*_: object) -> None:
        try:
            _descend(50)
        except RecursionError:
            had_frames.append(False)
        else:
            had_frames.append(True)

    listener = RequestListener(run.path, run.uuid, 1)
    thresholds = gc.get_threshold()
    gc.callbacks.append(finalize)
    gc.set_threshold(1)
    try:
        assert listener.poll() == []
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(finalize)
        listener.close()
    assert had_frames
    assert all(had_frames)


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)
