"""``ExportingHook``: a hook whose run is exported to TensorBoard when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tdbg.capture.opening import Opening, SessionOptions
from tdbg.hooks.pytorch.hook import TorchHook

if TYPE_CHECKING:
    from tdbg.export.at_end import ExportAtEnd

__all__ = ["ExportingHook"]


class ExportingHook(TorchHook):
    """What the public faces add to a hook: it never imports the reader itself.

    Args:
        make: As of ``TorchHook``; may call ``_export_to``.
    """

    _export: ExportAtEnd | None = None

    def __init__(self, make: Callable[[], Opening]) -> None:
        super().__init__(make)
        if self._export is not None:
            self._session.on_closed.append(self._export)

    def counters(self) -> dict[str, int]:
        """Records offered, written, dropped, failed and more; errors of tdbg."""
        failed = 0 if self._export is None else self._export.n_failed
        return {**super().counters(), "failed_exports": failed}

    def _export_to(
        self,
        out: str | os.PathLike[str] | None,
        run: str | os.PathLike[str] | None,
        options: SessionOptions,
    ) -> None:
        """Export the run when it has ended, if this process is one that writes it.

        Args:
            out: The folder; None: ``tensorboard`` in that of the run.
            run: The run directory.
            options: Of the session.

        Raises:
            ConfigurationError: If the package ``tensorboard`` is missing.
        """
        # Only where it is asked for: nothing else in a training reads runs.
        from tdbg.export.at_end import export_at_end

        self._export = export_at_end(run, out, options)
