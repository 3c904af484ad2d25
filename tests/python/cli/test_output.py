"""Tables of the verbs."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from tdbg.cli import output
from tdbg.cli.rule_options import print_findings

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
    lines = capsys.readouterr().out.splitlines()
    # A pipe gets no spaces at the ends of lines.
    assert lines == [line.rstrip() for line in lines]
    return lines


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
    assert lines[1] == "lay\N{HORIZONTAL ELLIPSIS}weight  weight" + " " * 16 + "12"
    assert lines[4].split() == ["output_gradient"]


def test_names_are_shortened_in_the_middle_so_that_their_ends_tell_them_apart() -> None:
    names = [f"encoder.layers.0.norm1.{end}" for end in ("weight", "bias")]
    table = output.table(("tensor", "value"), [(name, "1.25") for name in names])
    for is_terminal in (True, False):
        out = output.console()
        out.file, out.width = io.StringIO(), 22
        out._force_terminal = is_terminal
        out.print(table)
        printed = out.file.getvalue()
        assert "enco\N{HORIZONTAL ELLIPSIS}rm1.weight  1.25" in printed
        assert "enco\N{HORIZONTAL ELLIPSIS}norm1.bias  1.25" in printed
    assert output.shortened("\N{CJK UNIFIED IDEOGRAPH-5C64}" * 9, 8).endswith("\u5c64")
    assert all(cell_len(output.shortened("\u5c64" * 9, n)) <= n for n in range(3, 12))


def test_what_goes_on_is_printed_before_infos_and_what_is_over() -> None:
    def finding(rule: str, severity: str, step: int, phase: str) -> dict[str, object]:
        place = {"tensor": "a", "step": step, "first_step": step, "mode": "TRAIN"}
        said = {"message": "as it is", "advice": ""}
        return {"rule": rule, "severity": severity, "phase": phase, **place, **said}

    found = [
        finding("RepeatedData", "info", 0, "begin"),
        finding("NotNormalizedData", "warning", 3, "end"),
        finding("ExplodingTensor", "error", 4, "end"),
        finding("GradientsNotCleared", "error", 6, "begin"),
    ]

    rules = [str(each["rule"]) for each in found]

    def order(*, live: bool) -> list[str]:
        text = io.StringIO()
        print_findings(found, Console(file=text, width=200), live=live)
        return [
            rule
            for line in text.getvalue().splitlines()
            for rule in rules
            if f"{rule} at step" in line
        ]

    assert order(live=False) == [*rules[2:], rules[1], rules[0]]
    assert order(live=True) == rules, "changes are printed as they come"
