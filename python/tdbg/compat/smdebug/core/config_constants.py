"""``smdebug.core.config_constants``: those that mean something here."""

from __future__ import annotations

__all__ = [
    "CONFIG_FILE_PATH_ENV_STR",
    "DEFAULT_CONFIG_FILE_PATH",
    "DEFAULT_SAGEMAKER_TENSORBOARD_PATH",
    "DEFAULT_SAVED_COLLECTIONS",
    "DEFAULT_WORKER_NAME",
    "TENSORBOARD_CONFIG_FILE_PATH_ENV_STR",
]

CONFIG_FILE_PATH_ENV_STR = "SMDEBUG_CONFIG_FILE_PATH"
DEFAULT_CONFIG_FILE_PATH = "/opt/ml/input/config/debughookconfig.json"
DEFAULT_SAGEMAKER_TENSORBOARD_PATH = "/opt/ml/input/config/tensorboardoutputconfig.json"
DEFAULT_SAVED_COLLECTIONS = ["losses"]
DEFAULT_WORKER_NAME = "worker_0"
TENSORBOARD_CONFIG_FILE_PATH_ENV_STR = "TENSORBOARD_CONFIG_FILE_PATH"
