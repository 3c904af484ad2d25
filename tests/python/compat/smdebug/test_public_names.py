"""Everything public in smdebug is there, or says what to use instead.

``tables/names.json`` has all modules of smdebug 1.0.34, but for those inside of its
profiler, its file format, MXNet (tests/mxnet has those) and the packages of frameworks
without a hook, and their public names: those that the face answers, and those that it
leaves out.  null: the module is left out.  And the variables of the environment that
smdebug reads.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug.left_out import METHODS, MODULES, NAMES

pytestmark = pytest.mark.torch
SMDEBUG = json.loads((Path(__file__).parent / "tables" / "names.json").read_text())
TABLE: dict[str, Any] = SMDEBUG["modules"]
HOME = "tdbg.compat.smdebug"
THERE = [path for path, names in TABLE.items() if names is not None]


def module_of(path: str) -> Any:
    return importlib.import_module(f"{HOME}.{path}".rstrip("."))


def is_there(module: Any, name: str) -> bool:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("path", THERE)
def test_the_face_answers_the_names_that_it_promises(path: str) -> None:
    module = module_of(path)
    names = TABLE[path]["here"].split()
    assert [name for name in names if not is_there(module, name)] == []


@pytest.mark.parametrize("path", THERE)
def test_a_name_that_is_left_out_says_what_to_use_instead(path: str) -> None:
    module = module_of(path)
    for name in TABLE[path]["left_out"].split():
        owner, _, method = name.partition(".")
        if method:
            assert not hasattr(getattr(module, owner), method)
            continue
        code = f"from {HOME}.{path} import {name}"
        with pytest.raises(ImportError, match=rf"no {name}, .+: .+ \(docs/migrating"):
            exec(code)  # noqa: S102 - the statement that programs have


@pytest.mark.parametrize("path", [each for each, names in TABLE.items() if not names])
def test_a_module_that_is_left_out_says_what_to_use_instead(path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"in tdbg: .+ \(docs/migrating"):
        module_of(path)


def test_what_is_refused_is_nothing_but_what_is_left_out() -> None:
    inside = [each for each in MODULES if each not in TABLE]
    assert inside == ["core.tfevent", "core.tfrecord"]
    refused = {name for names in NAMES.values() for name in names}
    listed = {
        name
        for names in TABLE.values()
        for name in (names or {"left_out": ""})["left_out"].split()
    }
    # Those of older releases, and what other modules of smdebug import into theirs.
    older = {"SageMakerUtils", "TSAccessBase"}
    assert refused - older == {name for name in listed if "." not in name}


def test_other_names_are_missing_in_the_usual_way() -> None:
    module = module_of("core.utils")
    assert not hasattr(module, "no_such_name")
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec("from tdbg.compat.smdebug.core.utils import no_such_name")  # noqa: S102


def test_a_method_of_smdebugs_hook_that_is_left_out_says_what_to_use(
    run_dir: Path,
) -> None:
    hook: Any = smd.Hook(run_dir, dry_run=True)
    missing = [name for name in METHODS if hasattr(hook, name)]
    assert missing == []
    with pytest.raises(AttributeError, match="use register_module"):
        hook.forward_hook(None, None, None)
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_name'$"):
        _ = hook.no_such_name
    hook.close()
    smd.del_hook()


def test_the_page_on_migrating_lists_all_that_is_left_out(repository: Path) -> None:
    page = (repository / "docs" / "migrating-from-smdebug.md").read_text()
    words = set(re.findall(r"[\w.]+", page))
    names = {name for of_module in NAMES.values() for name in of_module}
    assert sorted((names | MODULES.keys()) - words) == []


def test_the_page_on_migrating_says_which_variables_are_read(repository: Path) -> None:
    page = (repository / "docs" / "migrating-from-smdebug.md").read_text()
    missing = [name for name in SMDEBUG["variables"] if f"`{name}`" not in page]
    assert missing == []
