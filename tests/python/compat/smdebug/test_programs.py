"""Programs written for smdebug, unedited, on tdbg.

``tables`` holds what smdebug 1.0.34 itself recorded of the same programs:
names, steps by mode, shapes, and the members of collections.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PROGRAMS = HERE.parents[1] / "helpers" / "programs"

# Both in one process: importing torch takes longer than all the rest.
TRAIN_AND_READ = """
import runpy, sys
from tdbg.compat.smdebug import install
install()
program, table, run = sys.argv[1:]
sys.argv = [program, run]
runpy.run_path(program, run_name="__main__")
sys.argv = [table, run]
runpy.run_path(table, run_name="__main__")
"""


def record(program: str, run: Path, **environment: str) -> dict[str, Any]:
    """What a program recorded, as smdebug's way of reading tells it."""
    arguments = [str(PROGRAMS / program), str(PROGRAMS / "smdebug_table.py"), str(run)]
    result = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_READ, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**_environment(), **environment},
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _environment() -> dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if "SMDEBUG" not in key}


def expected(name: str) -> dict[str, Any]:
    table = HERE / "tables" / f"{name}.json"
    found: dict[str, Any] = json.loads(table.read_text())
    return found


def compare(found: dict[str, Any], name: str) -> None:
    requested = expected(name)
    assert found["workers"] == requested["workers"]
    assert sorted(found["tensors"]) == sorted(requested["tensors"])
    scalars = {key for key in requested["tensors"] if key.startswith("scalar/")}
    for tensor in requested["tensors"].keys() - scalars:
        assert found["tensors"][tensor] == requested["tensors"][tensor], tensor
    for mode, steps in requested["steps"].items():
        # smdebug lost scalars of steps at which it saved nothing else.
        for tensor in scalars:
            of_scalar = set(found["tensors"][tensor][mode])
            assert of_scalar >= set(requested["tensors"][tensor][mode])
        assert found["steps"][mode] == steps
    for collection, members in requested["collections"].items():
        assert found["collections"][collection] == members, collection


def test_a_custom_loop_records_what_smdebug_recorded(tmp_path: Path) -> None:
    found = record("smdebug_custom.py", tmp_path / "run")
    compare(found, "custom")
    # And the scalar at every step.
    assert found["tensors"]["scalar/learning_rate"]["TRAIN"] == list(range(10))


def test_a_hook_from_a_json_file_records_what_smdebug_recorded(tmp_path: Path) -> None:
    file, run = tmp_path / "hook.json", tmp_path / "run"
    settings = {
        "LocalPath": str(run),
        "HookParameters": {
            "save_interval": "4",
            "eval.save_interval": "1",
            "include_workers": "one",
            "include_regex": "relu_input,fc2",
        },
        "CollectionConfigurations": [
            {"CollectionName": "weights"},
            {
                "CollectionName": "gradients",
                "CollectionParameters": {"save_interval": "6"},
            },
            {
                "CollectionName": "relus",
                "CollectionParameters": {
                    "include_regex": "relu_output_(0|2)",
                    "save_interval": "8",
                },
            },
        ],
    }
    file.write_text(json.dumps(settings))
    found = record("smdebug_digits.py", run, SMDEBUG_CONFIG_FILE_PATH=str(file))
    compare(found, "digits")


ALIAS = """
import json, sys
import smdebug
import smdebug.rules, smdebug.trials
reading_needs_torch = "torch" in sys.modules
import smdebug.pytorch as smd
from smdebug.core.json_config import CONFIG_FILE_PATH_ENV_STR
from smdebug.pytorch.hook import *
from smdebug.pytorch.collection import *
from smdebug.core.access_layer.utils import has_training_ended
from smdebug.exceptions import StepUnavailable
import tdbg.compat.smdebug.exceptions
import tdbg.compat.smdebug.pytorch as ours
try:
    import smdebug.tensorflow.session
    message = ""
except ModuleNotFoundError as error:
    message = str(error)
print(json.dumps({
    "argv": sys.argv[1:],
    "path": sys.path[0],
    "same": smd is ours and sys.modules["smdebug.pytorch"] is ours,
    "same_error": StepUnavailable is tdbg.compat.smdebug.exceptions.StepUnavailable,
    "names": [ours.__name__, ours.__spec__.name, smdebug.__spec__.name],
    "message": message,
    "star": [Hook is smd.Hook, CollectionKeys is smdebug.CollectionKeys],
    "variable": CONFIG_FILE_PATH_ENV_STR,
    "reading_needs_torch": reading_needs_torch,
    "gone": [name for name in ("boto3", "distutils", "google.protobuf",
                               "pkg_resources") if name in sys.modules],
}))
sys.exit(3)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_program_that_imports_smdebug_runs_unedited(
    tmp_path: Path, as_module: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALIAS)
    what = ["-m", "script"] if as_module else [str(script)]
    result = subprocess.run(
        [sys.executable, "-m", "tdbg.compat.smdebug", *what, "--epochs", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 3, result.stderr
    found = json.loads(result.stdout)
    home = "tdbg.compat.smdebug"
    assert found["argv"] == ["--epochs", "3"]
    assert found["path"] == str(tmp_path)
    assert found["same"]
    assert found["same_error"]
    assert found["star"] == [True, True]
    assert found["variable"] == "SMDEBUG_CONFIG_FILE_PATH"
    assert found["names"] == [f"{home}.pytorch", f"{home}.pytorch", home]
    assert "migrating-from-smdebug.md" in found["message"]
    assert not found["reading_needs_torch"]
    assert found["gone"] == []


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--help"], ["no_such_file.py"]])
def test_the_runner_says_how_it_is_used(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tdbg.compat.smdebug", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "usage: python -m tdbg.compat.smdebug" in result.stderr


def test_a_real_smdebug_that_is_loaded_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from types import ModuleType

    from tdbg.compat.smdebug import install
    from tdbg.compat.smdebug.alias import _Finder
    from tdbg.errors import TdbgError

    # Another test of this process may have had it replaced.
    before = [each for each in sys.meta_path if type(each) is not _Finder]
    monkeypatch.setattr(sys, "meta_path", list(before))
    monkeypatch.setitem(sys.modules, "smdebug", ModuleType("smdebug"))
    with pytest.raises(TdbgError, match="loaded already"):
        install()
    assert sys.meta_path == before


# Paths of smdebug's modules, and a name that its users import from each.
PATHS = {
    "analysis.utils": "no_refresh",
    "core.access_layer": "check_dir_exists",
    "core.access_layer.utils": "has_training_ended",
    "core.collection": "CollectionKeys",
    "core.collection_manager": "CollectionManager",
    "core.config_constants": "DEFAULT_WORKER_NAME",
    "core.hook": "BaseHook",
    "core.json_config": "CONFIG_FILE_PATH_ENV_STR",
    "core.logger": "get_logger",
    "core.modes": "str_to_mode_keys",
    "core.reduction_config": "ReductionConfig",
    "core.save_config": "SaveConfigMode",
    "core.singleton_utils": "set_hook",
    "core.tensor": "StepState",
    "exceptions": "TensorUnavailable",
    "pytorch": "Hook",
    "pytorch.collection": "Collection",
    "pytorch.hook": "Hook",
    "pytorch.singleton_utils": "get_hook",
    "rules": "invoke_rule",
    "rules.req_tensors": "RequiredTensors",
    "rules.rule": "Rule",
    "rules.rule_invoker": "invoke_rule",
    "trials": "create_trial",
    "trials.local_trial": "LocalTrial",
    "trials.s3_trial": "S3Trial",
    "trials.trial": "Trial",
    "trials.utils": "create_trial",
}
IMPORT_ALL = """
import importlib, json, sys
from tdbg.compat.smdebug import install
install()
for path, name in json.loads(sys.argv[1]).items():
    same = [
        getattr(importlib.import_module(f"{root}.{path}"), name)
        for root in ("tdbg.compat.smdebug", "smdebug")
    ]
    assert same[0] is same[1], path
    parent, _, last = f"smdebug.{path}".rpartition(".")
    assert hasattr(importlib.import_module(parent), last), path
"""


@pytest.mark.slow
def test_every_path_of_smdebug_works_under_both_names() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(PATHS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
