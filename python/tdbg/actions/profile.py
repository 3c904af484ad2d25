"""Action ``profile``: opens a window of the profiler when something is found.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import os

from tdbg.config.messages import check_known
from tdbg.config.profiler import FUNCTION_PROFILERS, WindowConfig
from tdbg.errors import ConfigurationError
from tdbg.run.findings import Finding
from tdbg.run.profile_requests import request_profile

__all__ = ["OpenWindow"]


class OpenWindow:
    """Asks the training for a window at each finding, within the budget for windows.

    Args:
        run_directory: The run.
        steps: Number of training steps.
        functions: "cprofile" or "pyinstrument", to time functions of Python as well.

    Raises:
        ConfigurationError: If a parameter can never work.
    """

    name = "profile"

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        steps: int = 5,
        functions: str | None = None,
    ) -> None:
        self._run_directory = run_directory
        try:
            if functions is not None:
                check_known([functions], FUNCTION_PROFILERS, "functions: unknown")
            self._window = WindowConfig(num_steps=steps, functions=functions)
        except ConfigurationError as error:
            msg = f"action {self.name}: {error}"
            raise ConfigurationError(msg) from error

    def __call__(self, finding: Finding) -> None:
        """Write the request, unless the finding is over.

        Raises:
            TdbgError: If the request cannot be written.
        """
        if finding.is_over:
            return
        request_profile(
            self._run_directory,
            window=self._window,
            reason=f"{finding.rule} at step {finding.step}: {finding.tensor}: "
            f"{finding.message}",
        )
