"""Serves the paths of smdebug's modules, below ``smdebug`` and below this package.

smdebug has more modules than this package: ``MOVED`` maps the paths of smdebug that
have no file here to the modules that hold their names; ``left_out`` says what to use in
the place of the others.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from tdbg.compat.smdebug.left_out import PAGE, instead_of
from tdbg.errors import TdbgError

__all__ = ["MOVED", "install", "serve_moved_paths"]

ALIAS = "smdebug"
HOME = "tdbg.compat.smdebug"

MOVED = {
    "core.access_layer.utils": "core.access_layer",
    "core.collection_manager": "core.collection",
    "core.config_validator": "core.utils",
    "core.hook": "core.base",
    "core.hook_utils": "core.utils",
    "core.logger": "core.base",
    "core.modes": "core.base",
    "core.sagemaker_utils": "core.utils",
    "core.singleton_utils": "core.base",
    "mxnet.singleton_utils": "mxnet.hook",
    "profiler.algorithm_metrics_reader": "profiler.readers",
    **dict.fromkeys(
        (
            "profiler.analysis.notebook_utils.heatmap",
            "profiler.analysis.notebook_utils.metrics_histogram",
            "profiler.analysis.notebook_utils.step_histogram",
            "profiler.analysis.notebook_utils.step_timeline_chart",
            "profiler.analysis.notebook_utils.timeline_charts",
        ),
        "profiler.analysis.notebook_utils.charts",
    ),
    **dict.fromkeys(
        (
            "profiler.analysis.python_profile_analysis",
            "profiler.analysis.python_stats_reader",
            "profiler.analysis.utils.python_profile_analysis_utils",
            "profiler.python_profile_utils",
            "profiler.python_profiler",
        ),
        "profiler.analysis.python_stats",
    ),
    "profiler.analysis.utils.merge_timelines": "profiler.analysis.timeline",
    "profiler.analysis.utils.pandas_data_analysis": "profiler.analysis.frame_analysis",
    "profiler.analysis.utils.profiler_data_to_pandas": "profiler.analysis.frames",
    "profiler.analysis.utils.pytorch_dataloader_analysis": (
        "profiler.analysis.frame_analysis"
    ),
    "profiler.metrics_reader_base": "profiler.readers",
    "profiler.profiler_config": "profiler.config",
    "profiler.profiler_config_parser": "profiler.config",
    "profiler.profiler_constants": "profiler.utils",
    "profiler.system_metrics_reader": "profiler.readers",
    "profiler.system_profiler_file_parser": "profiler.events",
    "profiler.tf_profiler_parser": "profiler.events",
    "profiler.trace_event_file_parser": "profiler.events",
    "pytorch.singleton_utils": "pytorch.hook",
    "rules.action.action": "rules.action",
    "rules.req_tensors": "rules.rule",
    "rules.rule_invoker": "rules.rule",
    "tensorflow.keras": "tensorflow.hook",
    "tensorflow.singleton_utils": "tensorflow.hook",
    "trials.local_trial": "trials.trial",
    "trials.s3_trial": "trials.trial",
    "trials.utils": "trials.trial",
    "xgboost.collection": "core.collection",
    "xgboost.singleton_utils": "xgboost.hook",
}


class _Loader:
    """Loads a module of this package under a second name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module has been executed, and keeps the specification of its own name.
        module.__spec__ = self._spec


class _Finder:
    """Finds modules by smdebug's paths, below the name *root*."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self.root and not fullname.startswith(f"{self.root}."):
            return None
        inner = fullname[len(self.root) + 1 :]
        home = f"{HOME}.{MOVED.get(inner, inner)}".rstrip(".")
        instead = instead_of(inner)
        if instead is not None:
            msg = f"No module named {fullname!r} in tdbg: {instead} ({PAGE})"
            raise ModuleNotFoundError(msg, name=fullname)
        if home == fullname:
            return None  # The path is not in MOVED: a file has it, or none.
        found = importlib.util.find_spec(home)
        if found is None:
            msg = (
                f"No module named {fullname!r}: tdbg answers for smdebug here and does "
                f"not have it; {PAGE} lists what it has"
            )
            raise ModuleNotFoundError(msg, name=fullname)
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(home), is_package=is_package)  # type: ignore[arg-type]


def serve_moved_paths() -> None:
    """Let smdebug's paths work below ``tdbg.compat.smdebug``."""
    sys.meta_path.append(_Finder(HOME))


def install() -> None:
    """Make ``import smdebug`` in this process import this package.

    Call it before anything imports smdebug.  A second call does nothing.

    Raises:
        TdbgError: If the real smdebug was imported already.
    """
    finders = [item for item in sys.meta_path if isinstance(item, _Finder)]
    if any(item.root == ALIAS for item in finders):
        return
    loaded = sys.modules.get(ALIAS)
    if loaded is not None:
        msg = (
            f"smdebug is loaded already, from {getattr(loaded, '__file__', None)}: "
            "call tdbg.compat.smdebug.install() before it is imported"
        )
        raise TdbgError(msg)
    sys.meta_path.insert(0, _Finder(ALIAS))
