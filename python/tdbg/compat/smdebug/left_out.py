"""Names of smdebug that tdbg does not have, and what to use instead.

These are modules and names of smdebug's own files, of SageMaker, and of frameworks
without a hook.  Whoever imports one is told what to use;
docs/migrating-from-smdebug.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

__all__ = ["METHODS", "MODULES", "NAMES", "PAGE", "instead_of", "refuse"]

PAGE = "docs/migrating-from-smdebug.md"
_FRAMEWORK = (
    "tdbg has no hook for it; docs/adding-a-framework.md shows how to write one"
)
_WRITES = (
    "tdbg's own profiler records; `tdbg profile RUN` asks for a window, and "
    "smdebug.profiler reads it"
)
_FILES = "the files of a run are tdbg's; read them with create_trial"
_S3 = "tdbg reads and writes directories; use boto3 or fsspec, and `aws s3 sync`"
_JOBS = "tdbg has actions of its own: `tdbg watch --on-finding`, docs/actions.md"
_RANK = "the hook asks torch.distributed"
_TESTS = "it serves the tests of smdebug; set the variables of the environment"
_HOOKS = "use register_module, and save_tensor for what the program computes itself"
_SESSIONS = "sessions and Estimators are gone from TensorFlow 2.16 on; use KerasHook"
_LAYERS = "layers are captured by collections, without a forked TensorFlow"

MODULES = {
    "core.access_layer.base": "use open()",
    "core.access_layer.file": "use open()",
    "core.access_layer.s3": _S3,
    "core.access_layer.s3handler": _S3,
    "core.error_handling_agent": (
        "a hook raises nothing into a training; hook.counters() counts its errors"
    ),
    "core.index_reader": _FILES,
    "core.locations": _FILES,
    "core.reader": _FILES,
    "core.s3_utils": _S3,
    "core.state_store": "a resumed training is a new attempt of its run",
    "core.tfevent": _FILES,
    "core.tfrecord": _FILES,
    "core.writer": "use hook.save_tensor and hook.save_scalar",
    "profiler.hvd_trace_file_rotation": _WRITES,
    "rules.action.message_action": _JOBS,
    "rules.action.stop_training_action": "use rules.action.Actions, or `tdbg stop`",
    "tensorflow.callable_cache": _LAYERS,
    "tensorflow.session": _SESSIONS,
    "tensorflow.tensor_ref": _LAYERS,
}
"""Modules by their paths in smdebug; a package stands for all that is inside."""

_VERSION = "compare torch.__version__"
_STOP = "SageMaker's signal to rules; `tdbg stop` and `tdbg watch` have their own"

NAMES: dict[str, dict[str, str]] = {
    "core.access_layer": {
        **dict.fromkeys(("TSAccessFile", "TSAccessBase"), "use open()"),
        **dict.fromkeys(("TSAccessS3", "delete_s3_prefixes"), _S3),
        "END_OF_JOB_FILENAME": "ask has_training_ended, or trial.loaded_all_steps",
        "training_has_ended": "hook.close() tells readers that the training has ended",
        **dict.fromkeys(
            (
                "DEFAULT_GRACETIME_FOR_RULE_STOP_SEC",
                "ENV_RULE_STOP_SIGNAL_FILENAME",
                "RULESTOP_GRACETIME_SECONDS",
                "RULE_JOB_STOP_SIGNAL_FILENAME",
                "is_rule_signalled_gracetime_passed",
            ),
            _STOP,
        ),
    },
    "core.base": {
        "ScalarCache": "use hook.save_scalar, which records at once",
        "DuplicateLogFilter": "tdbg says each thing once",
        "MaxLevelFilter": 'configure logging.getLogger("tdbg")',
        **dict.fromkeys(("MODE_PLUGIN_NAME", "MODE_STEP_PLUGIN_NAME"), _FILES),
    },
    "core.collection": {"ALLOWED_PARAMS": "use to_json_dict()"},
    "core.config_constants": dict.fromkeys(
        ("PROFILER_REPORT_VERSION", "PROFILER_TELEMETRY_URL"), "tdbg sends no telemetry"
    ),
    "core.json_config": dict.fromkeys(
        ("add_collections_to_manager", "collect_hook_config_params"),
        "use create_hook_from_json_config, or get_json_config_as_dict",
    ),
    "core.reduction_config": dict.fromkeys(
        ("ALLOWED_PARAMS", "REDUCTION_CONFIG_VERSION_NUM"), "use to_json_dict()"
    ),
    "core.save_config": {"ALLOWED_PARAMS": "use to_json_dict()"},
    "core.tensor": dict.fromkeys(("ModeSteps", "Step"), "use Tensor's methods"),
    "core.utils": {
        "SageMakerUtils": "use boto3",
        **dict.fromkeys(("SagemakerSimulator", "ScriptSimulator"), _TESTS),
        **dict.fromkeys(
            ("check_smdataparallel_env", "check_smmodelparallel_training"), _RANK
        ),
        "error_handling_agent": MODULES["core.error_handling_agent"],
        **dict.fromkeys(
            ("get_aws_region_from_processing_job_arn", "setup_profiler_report"),
            "tdbg sends no telemetry",
        ),
        **dict.fromkeys(("get_node_id", "get_tb_worker"), "use socket.gethostname()"),
        **dict.fromkeys(
            (
                "deserialize_tf_device",
                "get_path_to_events_directory",
                "get_relative_event_file_path",
                "get_worker_name_from_collection_file",
                "parse_worker_name_from_file",
                "serialize_tf_device",
            ),
            "the files of a run are tdbg's; trial.workers() has the names",
        ),
        **dict.fromkeys(
            ("is_first_process", "remove_claim_file"),
            "several processes may write into one run; none has to claim it",
        ),
    },
    "tensorflow": dict.fromkeys(("EstimatorHook", "SessionHook"), _SESSIONS),
    "pytorch.hook": {"smdataparallel": _RANK, "profiler_config_parser": _WRITES},
    "profiler": {"S3NumpySystemMetricsReader": _S3},
    "profiler.analysis.python_stats": {
        **dict.fromkeys(
            (
                "PyinstrumentPythonProfiler",
                "PythonProfiler",
                "cProfileDefaultPythonProfiler",
                "cProfilePythonProfiler",
                "cpu_time",
                "off_cpu_time",
                "total_time",
            ),
            _WRITES,
        ),
        "S3PythonStatsReader": _S3,
    },
    "profiler.readers": {"S3NumpySystemMetricsReader": _S3},
    "profiler.config": {"LastProfilingStatus": "the log says what changed"},
    "profiler.utils": dict.fromkeys(
        (
            "TF_DATALOADER_END_FLAG_FILENAME",
            "TF_DATALOADER_START_FLAG_FILENAME",
            "start_smdataparallel_profiler",
            "stop_smdataparallel_profiler",
            "stop_tf_profiler",
            "write_tf_profiler_metadata_file",
        ),
        _WRITES,
    ),
    "pytorch.utils": dict.fromkeys(
        (
            "PT_VERSION",
            "SUPPORTED_PT_VERSION_THRESHOLD",
            *(f"is_pt_1_{minor}" for minor in range(5, 10)),
        ),
        _VERSION,
    ),
}
"""Names by the modules of this package that would have them."""

METHODS = {
    **dict.fromkeys(
        ("backward_hook", "bhook", "fhook", "forward_hook", "forward_pre_hook"), _HOOKS
    ),
    "writer": "use save_tensor and save_scalar",
    "metrics_writer": "there is no SageMaker to send metrics to; use save_scalar",
    "scalar_cache": NAMES["core.base"]["ScalarCache"],
    "state_store": MODULES["core.state_store"],
    "timeline_writer": _WRITES,
    **dict.fromkeys(
        (
            "log_outstanding_backward_stats_and_reset",
            "log_outstanding_forward_stats_and_reset",
            "log_outstanding_timeline_metrics",
            "log_trace_event",
            "reset_backward_module_profile_stats",
            "reset_forward_module_profile_stats",
        ),
        _WRITES,
    ),
}
"""Methods and attributes of smdebug's hook."""


def instead_of(path: str) -> str | None:
    """Return what to use instead of a module of smdebug, or None."""
    parts = path.split(".")
    packages = (".".join(parts[: n + 1]) for n in range(len(parts)))
    return next((MODULES[each] for each in packages if each in MODULES), None)


def refuse(module: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module of this package."""
    inner = module.partition(".smdebug.")[2]

    def __getattr__(name: str) -> Never:  # noqa: N807
        instead = NAMES[inner].get(name)
        if instead is None:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        # An AttributeError would lose its message in `from ... import ...`.
        msg = f"tdbg has no {name}, as smdebug has: {instead} ({PAGE})"
        raise ImportError(msg, name=module)

    return __getattr__
