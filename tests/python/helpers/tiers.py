"""A plugin of pytest: the tests that a newcomer waits for, and the others.

``--tier=first`` runs what needs no more than the extra ``test`` and ends within
minutes (``make test``), ``--tier=second`` the rest (``make test-all``). What belongs to
the second tier stands in `SECOND`, by folder or file; so do tests marked ``slow`` or
``needs``. Files of the second tier are not even read in the first: they import what is
not installed. In the second tier, a package that is missing is a failure.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

#: Folders and files of tests/python, and what they test or need beyond the extra.
SECOND = {
    "notebook/test_jupyterlab.py": "a browser",
    "notebook/test_live.py": "a browser",
    "notebook/test_view.py": "a browser",
    "ui/test_compare_page.py": "a browser",
    "ui/test_axes.py": "a browser",
    "ui/test_little_recorded.py": "a browser",
    "ui/test_live.py": "a browser",
    "ui/test_many_runs_page.py": "a browser",
    "ui/test_page.py": "a browser",
    "ui/test_states.py": "a browser",
    "ui/test_time_page.py": "a browser",
    "ui/test_the_browser.py": "a browser",
    "ui/test_trees.py": "a browser",
    "ui/test_views.py": "a browser",
    "ui/test_bundle.py": "a browser",
    "report/test_page.py": "a browser",
    "bridge/test_trackers.py": "trackers",
    "catboost": "libraries of boosted trees",
    "lightgbm": "libraries of boosted trees",
    "xgboost": "libraries of boosted trees",
    "trees": "libraries of boosted trees",
    "report/trees": "libraries of boosted trees",
    "launch/test_boosting.py": "libraries of boosted trees",
    "compat": "smdebug's classes",
    "jax": "JAX",
    "launch/test_compiled.py": "JAX",
    "keras": "Keras and TensorFlow",
    "launch/test_default_verdicts.py": "whole programs",
    "launch/test_empty_collections.py": "Keras",
    "launch/test_fitting.py": "Keras and TensorFlow",
    "launch/test_loops.py": "Keras and TensorFlow",
    "integrations": "Lightning and transformers",
    "export/test_at_end.py": "whole programs",
    "export/test_files.py": "the libraries of other tools",
    "actions": "services that are told of findings",
    "remote/test_faults.py": "libraries of object stores",
    "remote/test_launched.py": "libraries of object stores",
    "remote/test_large_runs.py": "libraries of object stores",
    "remote/test_outages.py": "libraries of object stores",
    "importers/smdebug/test_questions.py": "DuckDB and stores",
    "importers/smdebug/test_stores.py": "libraries of object stores",
    "importers/smdebug/test_urls.py": "libraries of object stores",
    "remote/test_s3_reading.py": "libraries of object stores",
    "ui/test_far_runs.py": "libraries of object stores",
    "remote/test_shipping.py": "libraries of object stores",
    "remote/test_stores.py": "libraries of object stores",
    "remote/test_uploader.py": "libraries of object stores",
    "remote/test_web_reading.py": "libraries of object stores",
    "notebook/test_plot.py": "Matplotlib",
    "notebook/test_time_plots.py": "Matplotlib",
    "benchmarks": "whole programs",
    "demo": "whole programs",
    "examples": "whole programs",
    "compare/test_diff_of_trainings.py": "Keras, and whole programs",
    "docs/test_examples.py": "whole programs",
    "launch/test_launch.py": "whole programs",
    "launch/test_loaders.py": "whole programs",
    "launch/test_trainers.py": "Lightning and transformers",
    "rules/builtin/test_rules_name_the_fault.py": "whole trainings",
    "trial/tables/test_conversions.py": "libraries of tables",
    "query/test_sql.py": "DuckDB and libraries of tables",
    "query/test_urls.py": "DuckDB and stores",
    "cli/test_sql.py": "DuckDB",
    "pytorch/test_compile.py": "torch.compile",
    "pytorch/test_compile_hooks.py": "torch.compile",
    "pytorch/test_ddp.py": "several processes",
    "pytorch/test_replica_divergence.py": "several processes",
}


#: Of single tests of the second tier.
MARKERS = ("slow", "needs")
MARKED = re.compile(rf"mark\.({'|'.join(MARKERS)})\b")


def need_of(path: Path) -> str | None:
    """Return what a file or folder of the second tier needs, and None of the first."""
    if not path.is_relative_to(TESTS):
        return None
    for each in (path, *path.parents):
        need = SECOND.get(each.relative_to(TESTS).as_posix())
        if need or each == TESTS:
            return need
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=["first", "second"],
        help="tests of `make test`, or those that `make test-all` adds",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.getoption("tier")
    if tier == "first" and need_of(collection_path):
        return True
    if tier == "second" and collection_path.suffix == ".py":
        marked = MARKED.search(collection_path.read_text("utf-8"))
        return None if marked or need_of(collection_path) else True
    return None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    tier = config.getoption("tier")
    if tier is None:
        return
    chosen, left = [], []
    for item in items:
        marked = any(map(item.get_closest_marker, MARKERS))
        is_second = marked or need_of(item.path) is not None
        (chosen if is_second == (tier == "second") else left).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("tier") == "first":
        needs = sorted({*SECOND.values()}, key=str.lower)
        terminalreporter.write_line(
            f"Not run: slow tests, and those of {', '.join(needs)}. "
            "`make test-all` runs them."
        )
