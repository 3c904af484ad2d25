"""Prometheus: a text file for the node exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

from tdbg.actions.checks import text_of
from tdbg.actions.tally import Tally
from tdbg.errors import ConfigurationError
from tdbg.findings import Finding

__all__ = ["Prometheus"]


class Prometheus:
    """Keeps a file of metrics up to date, replacing it as a whole.

    ``tdbg_findings_total`` and ``tdbg_findings_active`` by run, rule and severity, and
    ``tdbg_last_finding_step`` by run and rule.

    Args:
        run_directory: The run, which is the label ``run``.
        path: The file, which must end in ``.prom``.

    Raises:
        ConfigurationError: If the path does not, or its folder does not exist.
    """

    name = "prometheus"

    def __init__(self, run_directory: str, path: str) -> None:
        import prometheus_client as client

        file = Path(text_of(self.name, "path", path, "a file that ends in .prom"))
        if file.suffix != ".prom":
            msg = f"action prometheus: {path} must end in .prom, to be collected"
            raise ConfigurationError(msg)
        if not file.parent.is_dir():
            msg = f"action prometheus: there is no folder {file.parent}"
            raise ConfigurationError(msg)
        self._write = client.write_to_textfile
        self._path = str(file)
        self._run_directory = run_directory
        self._tally = Tally()
        self._registry = client.CollectorRegistry()
        by_severity = ("run", "rule", "severity")
        self._total = client.Gauge(
            "tdbg_findings_total",
            "Findings so far",
            by_severity,
            registry=self._registry,
        )
        self._active = client.Gauge(
            "tdbg_findings_active",
            "Findings that go on",
            by_severity,
            registry=self._registry,
        )
        self._last = client.Gauge(
            "tdbg_last_finding_step",
            "Step of the last finding",
            ("run", "rule"),
            registry=self._registry,
        )

    def begin(self) -> None:
        """Write the file without findings: what is there may be of another run.

        Raises:
            OSError: If the file cannot be written.
        """
        self._write(self._path, self._registry)

    def __call__(self, finding: Finding) -> None:
        """Count it, and write.

        Raises:
            OSError: If the file cannot be written.
        """
        self._tally.add(finding)
        run = self._run_directory
        for gauge, counts in (
            (self._total, self._tally.total),
            (self._active, self._tally.active),
        ):
            for (rule, severity), n in counts.items():
                gauge.labels(run, rule, severity).set(n)
        for rule, step in self._tally.last_step.items():
            self._last.labels(run, rule).set(step)
        self._write(self._path, self._registry)
