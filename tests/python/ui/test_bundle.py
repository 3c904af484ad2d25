"""What is built of the dashboard's page: the same bytes, small, nothing of others."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tdbg.ui.page_files import page_files

MOST_BYTES = 61_440
# One file that has charts, their libraries and their style.
MOST_BYTES_OF_NOTEBOOK = 46_080


@pytest.fixture(scope="module")
def frontend(repository: Path) -> Path:
    return repository / "python" / "tdbg" / "ui" / "frontend"


def widget() -> bytes:
    return resources.files("tdbg.ui").joinpath("static", "notebook.js").read_bytes()


@pytest.mark.skipif(not shutil.which("npm"), reason="a rebuild needs node")
def test_a_rebuild_gives_the_committed_page_byte_for_byte(
    frontend: Path, tmp_path: Path
) -> None:
    source = tmp_path / "frontend"
    shutil.copytree(frontend, source, ignore=shutil.ignore_patterns("node_modules"))
    for command in (
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
        ["npm", "run", "--silent", "check"],
        ["node", "build.mjs", str(tmp_path / "built")],
    ):
        done = subprocess.run(
            command, cwd=source, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    built = {path.name: path.read_bytes() for path in (tmp_path / "built").iterdir()}
    static = frontend.parent / "static"
    committed = {path.name: path.read_bytes() for path in static.iterdir()}
    assert built.keys() == committed.keys()
    changed = [name for name, content in built.items() if content != committed[name]]
    assert changed == [], "make ui, and commit python/tdbg/ui/static"


def test_what_a_browser_loads_first_is_small() -> None:
    files = page_files()
    packed = {name: len(gzip.compress(files[name].content, 9)) for name in files}
    assert packed["app.js"] + packed["shared.js"] < MOST_BYTES
    assert sum(n for name, n in packed.items() if name) < 110_000


def test_what_few_need_comes_when_it_is_asked_for() -> None:
    files = {name: file.content.decode() for name, file in page_files().items()}
    assert 'import("./rare.js")' in files["app.js"] + files["shared.js"]
    linked = set(re.findall(r'(?:src|href)="([^"]+)"', files["index.html"]))
    assert linked == {"icon.svg", "style.css", "shared.js", "app.js"}
    # Of addresses below the page's own, whatever stands before it.
    for name in ("app.js", "rare.js", "shared.js"):
        assert set(re.findall(r'(?:from|import)\(?"(/[^"]*)"', files[name])) == set()


def test_the_widget_for_notebooks_is_small_and_nothing_that_a_page_asks_for() -> None:
    packed = gzip.compress(widget(), 9)
    assert len(packed) < MOST_BYTES_OF_NOTEBOOK
    assert "notebook.js" not in page_files()


def test_neither_page_nor_widget_names_another_host() -> None:
    # Names of XML and links of libraries in messages are not asked for.
    known = {"www.w3.org"}
    files = {name: file.content for name, file in page_files().items()}
    for name, content in {**files, "notebook.js": widget()}.items():
        if name.endswith((".js", ".css", ".html")):
            hosts = re.findall(r"(?:https?:)?//([a-z0-9.-]+\.[a-z]{2,})", str(content))
            assert set(hosts) <= known, name


@pytest.mark.parametrize(
    "word", ["innerHTML", "dangerouslySetInnerHTML", "insertAdjacentHTML", "eval("]
)
def test_no_text_becomes_markup_or_code(frontend: Path, word: str) -> None:
    sources = [*frontend.glob("src/**/*.ts"), *frontend.glob("src/**/*.tsx")]
    assert len(sources) > 10
    found = [path.name for path in sources if word in path.read_text()]
    assert found == []


def test_licences_of_what_is_bundled_lie_beside_it() -> None:
    text = page_files()["licences.txt"].content.decode()
    assert re.search(r"^preact \d", text, re.MULTILINE)
    assert re.search(r"^uplot \d", text, re.MULTILINE)
