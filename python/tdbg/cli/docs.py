"""``tdbg docs``: the pages of the manual, in the terminal.

A wheel has the pages beside its modules; a checkout has them in ``docs/``.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.markdown import Markdown

from tdbg.cli import options, output
from tdbg.config.messages import nearest
from tdbg.errors import ConfigurationError, NotARun

__all__ = ["command", "folder", "pages"]

PACKAGE = Path(__file__).resolve().parents[1]
# No line is wider, so that eyes find the next one.
WIDEST = 100


@click.command("docs")
@click.argument("page", required=False)
@options.as_json
def command(page: str | None, as_json: bool) -> None:
    """List the pages of the manual, or show PAGE: 'rules', or a rule's name.

    On a terminal, the page opens in $PAGER.  In a pipe, you get its Markdown.
    """
    found = pages()
    if page is None:
        titles = {name: _title(file) for name, file in found.items()}
        if as_json:
            listed = [{"page": name, "title": title} for name, title in titles.items()]
            output.emit_json({"folder": str(folder()), "pages": listed})
        else:
            out = output.console()
            out.print(output.table(("page", "title"), list(titles.items())))
        return
    name = _name(page, found)
    text = found[name].read_text("utf-8")
    if as_json:
        output.emit_json({"page": name, "file": str(found[name]), "text": text})
        return
    out = output.console()
    if not out.is_terminal:
        click.echo(text, nl=False)
        return
    out.width = min(out.width, WIDEST)
    with out.capture() as rendered:
        out.print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(rendered.get())


def folder() -> Path:
    """The folder of the pages.

    Raises:
        NotARun: If this installation has none.
    """
    for path in (PACKAGE.parents[1] / "docs", PACKAGE / "docs"):
        if (path / "cli.md").is_file():
            return path
    msg = f"this installation of tdbg has no manual: {PACKAGE / 'docs'} is missing"
    raise NotARun(msg, file=str(PACKAGE / "docs"), kind="missing")


def pages() -> dict[str, Path]:
    """The file of each page, by its name: "cli", "rules/DeadRelu"."""
    root = folder()
    files = sorted(root.glob("*.md")) + sorted(root.glob("rules/*.md"))
    return {str(file.relative_to(root).with_suffix("")): file for file in files}


def _name(given: str, known: dict[str, Path]) -> str:
    """The page that is meant, in any case and without its folder.

    Raises:
        ConfigurationError: If there is none.
    """
    meant = given.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    for name in known:
        if meant.lower() in (name.lower(), Path(name).name.lower()):
            return name
    every = {*known, *(Path(name).name for name in known)}
    msg = f"there is no page {given!r}; {nearest(meant, every, command='tdbg docs')}"
    raise ConfigurationError(msg)


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next(lines, "").strip("# \n")
