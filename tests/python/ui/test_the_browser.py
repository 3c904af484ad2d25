"""The tests' browser: which one is taken, and what happens where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from browser_program import NAMES, cache_folder, find_browser


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without browsers: the folder that is its whole PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TDBG_TEST_BROWSER", "TDBG_NO_BROWSER"):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_one_that_is_asked_for_is_taken_whatever_else_there_is(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare, NAMES[0])
    monkeypatch.setenv("TDBG_TEST_BROWSER", "/somewhere/else")
    assert find_browser().path == "/somewhere/else"


def test_the_first_name_on_the_path_is_taken_and_nothing_is_fetched(
    bare: Path,
) -> None:
    for name in reversed(NAMES):
        program(bare, name)
        program(bare, "npm", "exit 1")
        assert find_browser().path == str(bare / name)


def test_where_none_can_be_had_the_tests_fail_and_say_what_to_do(bare: Path) -> None:
    program(bare, "npm", "echo no network >&2; exit 1")
    with pytest.raises(pytest.fail.Exception, match="no network") as failed:
        find_browser()
    for word in ("chromium-headless-shell", "TDBG_TEST_BROWSER", "TDBG_NO_BROWSER=1"):
        assert word in str(failed.value)


def test_where_it_is_known_that_there_is_none_they_are_skipped(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare, "npm", f"touch {bare}/asked; exit 1")
    monkeypatch.setenv("TDBG_NO_BROWSER", "1")
    with pytest.raises(pytest.skip.Exception, match="TDBG_NO_BROWSER=1"):
        find_browser()
    assert not (bare / "asked").exists()


@pytest.mark.usefixtures("bare")
def test_what_was_fetched_once_is_taken_again_with_its_libraries_and_fonts() -> None:
    folder = cache_folder()
    folder.mkdir(parents=True)
    (folder / "program").write_text("/unpacked/chromium")
    found = find_browser()
    assert found.path == "/unpacked/chromium"
    assert found.environment["LD_LIBRARY_PATH"].startswith(str(folder))
    assert found.environment["FONTCONFIG_FILE"].startswith(str(folder))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("has_npm", [True, False])
def test_the_one_of_the_npm_package_draws_a_page(bare: Path, has_npm: bool) -> None:
    """Fetches 70 MB, and where there is no npm another 60."""
    for name in ("tar", "sh", *(("node", "npm") if has_npm else ())):
        for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
            if (found := Path(folder, name)).exists():
                (bare / name).symlink_to(found)
                break
    found = find_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.path,
            args=["--no-sandbox"],
            env=os.environ | found.environment,
        )
        page = browser.new_context(locale="en-US").new_page()
        page.set_content("<h1>drawn \u221e</h1>")
        assert page.locator("h1").bounding_box()["height"] > 10  # type: ignore[index]
        assert page.evaluate("() => navigator.language") == "en-US"
        browser.close()
