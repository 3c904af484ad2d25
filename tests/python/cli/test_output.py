"""Tables of the verbs."""

from __future__ import annotations

import pytest

from tdbg.cli import output

ROWS = [
    ("layer.weight", "weight", "12"),
    ("\N{CJK UNIFIED IDEOGRAPH-5C64}.bias", "bias", "3"),
    ("bad\x1b[2J", "", "1234567"),
    ("", "output_gradient", ""),
]


def printed(capsys: pytest.CaptureFixture[str], width: int) -> list[str]:
    out = output.console()
    out.width = width
    output.print_table(("tensor", "role", "steps"), ROWS, out, right=("steps",))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_table_of_very_many_rows_looks_like_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = printed(capsys, 10_000)
    assert len(usual) == 5
    monkeypatch.setattr(output, "MANY_ROWS", 3)
    assert printed(capsys, 10_000) == usual


def test_the_first_column_of_very_many_rows_gives_way_to_a_narrow_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "MANY_ROWS", 3)
    lines = printed(capsys, 38)
    assert lines[1] == "layer.wei\N{HORIZONTAL ELLIPSIS}  weight" + " " * 16 + "12"
    assert lines[4].split() == ["output_gradient"]
