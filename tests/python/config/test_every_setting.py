"""Every setting, through every way in: it is obeyed, or refused by its name."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.config import HookConfig
from tdbg.config.documents import Location
from tdbg.config.files import read_own
from tdbg.errors import ConfigurationError
from tdbg.launch.settings import open_hook
from tdbg.launch.training import make_hook
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import Trial

pytestmark = pytest.mark.torch
N_STEPS = 10
STEPS = list(range(N_STEPS))
RELU = "1_output_0"
OF_RELU = {"include_regex": RELU, "save_config": {"save_interval": 4}}


class Ran(NamedTuple):
    """What a training has left.

    Attributes:
        hook: Its hook, which is closed.
        out: Where its run is to be.
        folder: The working directory.
    """

    hook: Any
    out: Path
    folder: Path

    @property
    def trial(self) -> Trial:
        return td.create_trial(self.out)

    def values(self, name: str, mode: Any = TRAIN) -> list[int]:
        tensor = self.trial.tensor(name)
        return [int(step) for step in tensor.steps(mode, what="values")]

    def rows(self, name: str) -> list[int]:
        steps = self.trial.tensor(name).steps(TRAIN, what="statistics")
        return [int(step) for step in steps]

    def configured(self, name: str) -> Any:
        return self.trial.configuration()["hook"][name]


def trained(hook: Any, model: nn.Module) -> None:
    """Train, and evaluate twice at the end; the loss is that of a function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        hook.record_tensor_value("loss", loss)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(4, 8))
    hook.close()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 1100))


Check = Callable[[Ran], bool]


class Row(NamedTuple):
    """One setting, with others that it needs.

    Attributes:
        setting: Its name.
        document: The settings, as in a file.
        check: Whether a training obeyed; None: it is to be refused.
        smdebug: The same as ``HookParameters``, where smdebug has it.
        collections: The same as ``CollectionConfigurations``.
        refused_with: What the error says; empty: the setting's name.
    """

    setting: str
    document: dict[str, Any]
    check: Check | None
    smdebug: dict[str, str] | None = None
    collections: tuple[dict[str, Any], ...] = ()
    refused_with: str = ""


def as_configured(name: str, value: Any) -> Check:
    return lambda ran: ran.configured(name) == value


WEIGHTS = {"include_collections": ["weights"]}
OF_WEIGHTS = ({"CollectionName": "weights"},)
TABLE = [
    Row("out_dir", {"out_dir": "own"}, lambda ran: (ran.folder / "own/w").is_dir()),
    Row(
        "include_collections",
        {"include_collections": ["updates"]},
        lambda ran: 0 in ran.rows("update/0.weight"),
    ),
    Row(
        "include_regex",
        {"include_regex": "1_input"},
        lambda ran: 0 in ran.rows("1_input_0"),
        {"include_regex": "1_input"},
    ),
    Row("save_all", {"save_all": True}, lambda ran: bool(ran.rows("update/0.weight"))),
    Row(
        "collections",  # As in the paper.
        {"collections": {"r": OF_RELU}},
        lambda ran: ran.values(RELU) == [0, 4, 8],
        {},
        (
            {
                "CollectionName": "r",
                "CollectionParameters": {"include_regex": RELU, "save_interval": "4"},
            },
        ),
    ),
    Row(
        "save_config",
        {**WEIGHTS, "save_config": {"save_interval": 4, "statistics_interval": 3}},
        lambda ran: (
            ran.values("0.weight") == [0, 4, 8]
            and set(ran.rows("0.weight")) >= {0, 3, 4, 6, 8, 9}
        ),
        {"save_interval": "4", "statistics_interval": "3"},
        OF_WEIGHTS,
    ),
    Row(
        "save_config",
        {**WEIGHTS, "save_config": {"save_steps": [3, 5]}},
        lambda ran: ran.values("0.weight") == [3, 5],
        {"save_steps": "3,5"},
        OF_WEIGHTS,
    ),
    Row(
        "save_config",
        {
            **WEIGHTS,
            "save_config": {"save_interval": 3, "start_step": 2, "end_step": 8},
        },
        lambda ran: ran.values("0.weight") == [3, 6],
        {"save_interval": "3", "start_step": "2", "end_step": "8"},
        OF_WEIGHTS,
    ),
    Row(
        "save_config",
        {**WEIGHTS, "save_config": {"modes": {"eval": {"save_interval": 1}}}},
        lambda ran: len(ran.values("0.weight", EVAL)) == 2,
        {"eval.save_interval": "1"},
        OF_WEIGHTS,
    ),
    Row(
        "reduction_config",
        {
            **WEIGHTS,
            "save_config": {"save_interval": 2},
            "reduction_config": {"save_raw_tensor": False},
        },
        lambda ran: not {2, 4} & set(ran.values("0.weight")),
        {"save_interval": "2", "save_raw_tensor": "false"},
        OF_WEIGHTS,
    ),
    Row(
        "reduction_config",
        {**WEIGHTS, "reduction_config": {"save_raw_tensor": True}},
        lambda ran: ran.values("0.weight") == [0],
        {"save_raw_tensor": "true"},
        OF_WEIGHTS,
    ),
    Row(
        "save_histogram",
        {**WEIGHTS, "save_histogram": True},
        lambda ran: ran.trial.tensor("0.weight").histogram(0) is not None,
    ),
    Row(
        "rules",
        {"rules": ["AllZero"]},
        lambda ran: [each["name"] for each in ran.configured("rules")] == ["AllZero"],
    ),
    Row(
        "save_config",
        {"save_config": {"start_step": 5, "end_step": 3}},
        None,
        {"start_step": "5", "end_step": "3"},
        refused_with="between start_step=5 and end_step=3",
    ),
    Row(
        "collections",
        {"collections": {"biases": {"save_config": {"start_step": 6, "end_step": 6}}}},
        None,
        {},
        (
            {
                "CollectionName": "biases",
                "CollectionParameters": {"start_step": "6", "end_step": "6"},
            },
        ),
        refused_with="between start_step=6 and end_step=6",
    ),
    Row("include_workers", {"include_workers": [3]}, None, {"include_workers": "3"}),
    Row(
        "dry_run",
        {"dry_run": True, **WEIGHTS},
        lambda ran: (
            not (ran.out / "w").exists()
            and "weights" in str(ran.hook.dry_run_summary())
        ),
        {"dry_run": "true"},
        OF_WEIGHTS,
    ),
    Row(
        "export_tensorboard",
        {"export_tensorboard": True},
        lambda ran: any((ran.out / "tensorboard").iterdir()),
        {"export_tensorboard": "true"},
    ),
    Row(
        "tensorboard_dir",
        {"tensorboard_dir": "board"},
        lambda ran: any((ran.folder / "board").iterdir()),
        {"tensorboard_dir": "board"},
    ),
    Row("probes", {"probes": False}, lambda ran: not ran.hook._session.may_probe),
    Row("on_stop", {"on_stop": "flag"}, as_configured("on_stop", "flag")),
    Row("overflow", {"overflow": "sample"}, as_configured("overflow", "sample")),
    Row(
        "queue_bytes",
        {
            **WEIGHTS,
            "save_config": {"save_interval": 1},
            "queue_bytes": 1 << 20,
            "codec": "none",
        },
        lambda ran: ran.hook.counters()["dropped"] >= N_STEPS,
    ),
    Row(
        "min_free_bytes",
        {**WEIGHTS, "min_free_bytes": 1 << 60},
        lambda ran: ran.hook.counters()["dropped"] > 0,
    ),
    Row(
        "spool_bytes",
        {"spool_bytes": 1 << 22},
        None,
        refused_with="is for a run at a URL",
    ),
    Row(
        "retention",
        {
            **WEIGHTS,
            "save_config": {"save_interval": 1},
            "retention": {"max_bytes": "8 MiB"},
        },
        lambda ran: bool(ran.trial.removed()),
    ),
    Row("codec", {"codec": "max"}, as_configured("codec", "max")),
    Row("precise", {"precise": True}, as_configured("precise", True)),
    Row("threads", {"threads": 3}, as_configured("threads", 3)),
    Row("budget", {"budget": 0.25}, as_configured("budget", 0.25)),
    Row("budget", {"budget": "off"}, as_configured("budget", None)),
    Row(
        "profiler",
        {"profiler": "system_interval=0.25,python_interval=none"},
        lambda ran: (
            ran.trial.configuration()["profiler"].items()
            >= {"system_interval": 0.25, "python_interval": None}.items()
        ),
    ),
    Row(
        "profiler",
        {"profiler": "fingerprints=off"},
        lambda ran: "fingerprint" not in ran.trial.profile.tables(),
    ),
    Row(
        "profiler",
        {"profiler": "start_step=1, duration=2"},
        None,
        refused_with="steps or by",
    ),
]


def test_the_table_has_every_setting() -> None:
    names = {item.name for item in dataclasses.fields(HookConfig)}
    assert {row.setting for row in TABLE} == names


Way = Callable[[Row, Path, nn.Module, pytest.MonkeyPatch], Any]


def arguments(row: Row) -> dict[str, Any]:
    """Return the settings as arguments in Python."""
    return read_own(row.document, Location(""))


def by_constructor(row: Row, out: Path, model: nn.Module, _: object) -> Any:
    hook = td.Hook(**{"out_dir": out, **arguments(row)})
    hook.register_module(model)
    return hook


def by_watch(row: Row, out: Path, model: nn.Module, _: object) -> Any:
    given = arguments(row)
    if "out_dir" in given:
        given["out"] = given.pop("out_dir")
    try:
        inspect.signature(td.watch).bind(model, **given)
    except TypeError:
        pytest.skip("Python refuses the argument, by its name")
    return td.watch(model, **{"out": out, **given})


def in_file(row: Row, out: Path, patch: pytest.MonkeyPatch) -> Path:
    """Let ``TDBG_CONFIG`` name a file of the settings; return the path."""
    file = out.parent / "hook.json"
    file.write_text(json.dumps({"out_dir": str(out), **row.document}))
    patch.setenv("TDBG_CONFIG", str(file))
    return file


def by_file(row: Row, out: Path, model: nn.Module, patch: Any) -> Any:
    in_file(row, out, patch)
    hook = td.Hook()
    hook.register_module(model)
    return hook


def by_named_file(row: Row, out: Path, model: nn.Module, patch: Any) -> Any:
    path = in_file(row, out, patch)
    patch.delenv("TDBG_CONFIG")
    hook = td.Hook.create_from_file(path)
    hook.register_module(model)
    return hook


def by_file_of_watch(row: Row, out: Path, model: nn.Module, patch: Any) -> Any:
    in_file(row, out, patch)
    return td.watch(model)


def launch_settings(row: Row, out: Path) -> Mapping[str, Any]:
    # `tdbg run` asks the file first: see test_settings.py of launch.
    return {"out_dir": str(out.parent / row.document.get("out_dir", out.name))}


def by_run(row: Row, out: Path, model: nn.Module, patch: Any) -> Any:
    in_file(row, out, patch)
    settings = launch_settings(row, out)
    return make_hook(settings, model, Path(settings["out_dir"]), [])


def by_run_of_callbacks(row: Row, out: Path, model: nn.Module, patch: Any) -> Any:
    in_file(row, out, patch)
    hook, _ = open_hook(td.Hook, launch_settings(row, out), (), is_first=True)
    hook.register_module(model)
    return hook


def by_variable(row: Row, out: Path, model: nn.Module, patch: Any) -> Any:
    names = {
        "out_dir": "TDBG_OUT",
        "budget": "TDBG_BUDGET",
        "profiler": "TDBG_PROFILER",
        "rules": "TDBG_RULES",
    }
    if row.setting not in names:
        pytest.skip("there is no such variable")
    value = row.document[row.setting]
    patch.setenv("TDBG_OUT", str(out))
    text = ",".join(value) if isinstance(value, list) else str(value)
    patch.setenv(names[row.setting], text)
    return td.watch(model)


def by_smdebug(row: Row, out: Path, model: nn.Module, _: object) -> Any:
    if row.smdebug is None:
        pytest.skip("smdebug has no such setting")
    document = {
        "LocalPath": str(out),
        "HookParameters": row.smdebug,
        "CollectionConfigurations": list(row.collections),
    }
    file = out.parent / "smdebug.json"
    file.write_text(json.dumps(document))
    hook = td.Hook.create_from_file(file)
    hook.register_module(model)
    return hook


WAYS: list[Way] = [
    by_constructor,
    by_watch,
    by_file,
    by_named_file,
    by_file_of_watch,
    by_run,
    by_run_of_callbacks,
    by_variable,
    by_smdebug,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.setting}")
def test_every_setting_is_obeyed_or_refused(
    row: Row, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged: watch saves no values, whatever the schedule of a file says."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "OUT", "BUDGET", "PROFILER", "RULES"):
        monkeypatch.delenv(f"TDBG_{name}", raising=False)
    out, model = tmp_path / "run", network()
    if row.check is None:
        with pytest.raises(ConfigurationError, match=row.refused_with or row.setting):
            way(row, out, model, monkeypatch)
        return
    hook = way(row, out, model, monkeypatch)
    trained(hook, model)
    assert row.check(Ran(hook, out, tmp_path))
