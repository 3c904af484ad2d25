"""What the hook of every framework takes from the layers above capture.

Capture knows neither rules nor the export of runs; hooks stand above both.  Both are
loaded only where a configuration asks for them: a training needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.capture.policy import Policy
from tdbg.config import HookConfig
from tdbg.config.options import SessionOptions

if TYPE_CHECKING:
    from tdbg.export import ExportAtEnd

__all__ = ["make_export", "make_policy"]


def make_policy(config: HookConfig) -> Policy:
    """The policy of a hook: what its configuration says, and what its rules need.

    Raises:
        ConfigurationError: If a rule is unknown, or one of its parameters is bad.
    """
    if not config.rules:
        return Policy.of_config(config)
    from tdbg.rules import describe, needs_of, resolve

    rules = resolve(config.rules)
    return Policy.of_config(config, needs_of(rules), describe(rules))


def make_export(config: HookConfig, options: SessionOptions) -> ExportAtEnd | None:
    """The export to TensorBoard that a configuration asks for, when the run has ended.

    Returns:
        None where it asks for none, or another process writes the run.
    """
    if not config.exports_tensorboard:
        return None
    from tdbg.export import export_at_end

    return export_at_end(config.out_dir, config.tensorboard_dir, options)
