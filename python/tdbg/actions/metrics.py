"""Actions ``prometheus`` and ``opentelemetry``: counts of findings as metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tdbg.actions.action import text_of
from tdbg.actions.bounded_http import bounded_session, host_of
from tdbg.errors import ConfigurationError
from tdbg.run.findings import Finding

__all__ = ["OpenTelemetry", "Prometheus", "Tally"]


Key = tuple[str, str]


class Tally:
    """Counts episodes.

    Attributes:
        total: Episodes so far, by rule and severity; an episode that gets worse
            counts once for each severity.
        active: Open episodes, by rule and current severity.
        last_step: The last step of a finding, by rule.
    """

    def __init__(self) -> None:
        self.total: Counter[Key] = Counter()
        self.active: Counter[Key] = Counter()
        self.last_step: dict[str, int] = {}
        self._open: dict[tuple[str, str, str], Key] = {}

    def add(self, finding: Finding) -> None:
        """Count an episode that began, got worse or ended."""
        episode = finding.rule, finding.tensor, finding.mode.name
        key = finding.rule, finding.severity.label
        self.last_step[finding.rule] = finding.step
        before = self._open.pop(episode, None)
        if before is not None:
            self.active[before] -= 1
        if finding.is_over:
            return
        if before != key:
            self.total[key] += 1
        self.active[key] += 1
        self._open[episode] = key


class Prometheus:
    """Writes metrics to a file for the textfile collector of the node exporter.

    ``tdbg_findings_total`` and ``tdbg_findings_active`` by run, rule and severity, and
    ``tdbg_last_finding_step`` by run and rule.

    Args:
        run_directory: The run, which is the label ``run``.
        path: The file, which must end in ``.prom``.

    Raises:
        ConfigurationError: If the path ends otherwise, or its folder does not exist.
    """

    name = "prometheus"

    def __init__(self, run_directory: str, path: str) -> None:
        import prometheus_client as client

        file = Path(text_of(self.name, "path", path, "a file that ends in .prom"))
        if file.suffix != ".prom":
            msg = f"action prometheus: {path} must end in .prom to be collected"
            raise ConfigurationError(msg)
        if not file.parent.is_dir():
            msg = f"action prometheus: there is no folder {file.parent}"
            raise ConfigurationError(msg)
        self._write = client.write_to_textfile
        self._path = str(file)
        self._run_directory = run_directory
        self._tally = Tally()
        self._registry = client.CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as they are now; prometheus_client calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        run, by_severity = self._run_directory, ("run", "rule", "severity")
        total = CounterMetricFamily(
            "tdbg_findings", "Findings so far", labels=by_severity
        )
        active = GaugeMetricFamily(
            "tdbg_findings_active", "Findings that go on", labels=by_severity
        )
        last = GaugeMetricFamily(
            "tdbg_last_finding_step", "Step of the last finding", labels=("run", "rule")
        )
        for family, counts in (
            (total, self._tally.total),
            (active, self._tally.active),
        ):
            for (rule, severity), n in counts.items():
                family.add_metric((run, rule, severity), n)
        for rule, step in self._tally.last_step.items():
            last.add_metric((run, rule), step)
        yield from (total, active, last)

    def begin(self) -> None:
        """Write the file without findings: an old one may be of another run.

        Raises:
            OSError: If the file cannot be written.
        """
        self._write(self._path, self._registry)

    def __call__(self, finding: Finding) -> None:
        """Count the finding, and write the file.

        Raises:
            OSError: If the file cannot be written.
        """
        self._tally.add(finding)
        self._write(self._path, self._registry)


# How often counts are sent, and how long the collector may take to answer.
EXPORT_MILLISECONDS = 10_000
EXPORT_SECONDS = 10.0


class OpenTelemetry:
    """Sends counts of findings to a collector, over OTLP and HTTP.

    ``tdbg.findings`` counts episodes and ``tdbg.findings.active`` open episodes, both
    with the attributes ``run``, ``rule`` and ``severity``.

    Args:
        run_directory: The run.
        endpoint: As ``http://localhost:4318/v1/metrics``; headers and the like come
            from the variables ``OTEL_EXPORTER_OTLP_*``.

    Raises:
        ConfigurationError: If the endpoint is no URL.
    """

    name = "opentelemetry"

    def __init__(self, run_directory: str, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
            OTLPMetricExporter,
        )
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import (
            MetricExportResult,
            PeriodicExportingMetricReader,
        )
        from opentelemetry.sdk.resources import Resource

        self._host = host_of(self.name, "endpoint", endpoint)
        self._run_directory = run_directory
        self._tally = Tally()
        # The exporter logs failures with the address; close() reports the last one.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._is_sent = True

        class Exporter(OTLPMetricExporter):
            """Remembers whether the last export succeeded."""

            def export(this, *args: Any, **kwargs: Any) -> MetricExportResult:  # noqa: N805
                result = super().export(*args, **kwargs)
                self._is_sent = result is MetricExportResult.SUCCESS
                return result

        self._provider = MeterProvider(
            [
                PeriodicExportingMetricReader(
                    Exporter(
                        endpoint=endpoint, session=bounded_session(EXPORT_SECONDS)
                    ),
                    export_interval_millis=EXPORT_MILLISECONDS,
                )
            ],
            resource=Resource.create({"service.name": "tdbg"}),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("tdbg")
        self._total = meter.create_counter("tdbg.findings", "1", "Findings")
        self._active = meter.create_up_down_counter(
            "tdbg.findings.active", "1", "Findings that go on"
        )

    def __call__(self, finding: Finding) -> None:
        """Count the finding; the next export sends it."""
        total, active = self._tally.total.copy(), self._tally.active.copy()
        self._tally.add(finding)
        for instrument, before, now in (
            (self._total, total, self._tally.total),
            (self._active, active, self._tally.active),
        ):
            for key in now:
                change = now[key] - before[key]
                if change:
                    rule, severity = key
                    instrument.add(
                        change,
                        {
                            "run": self._run_directory,
                            "rule": rule,
                            "severity": severity,
                        },
                    )

    def close(self, seconds: float) -> list[str]:
        """Send the final counts; return an error if the collector did not take them."""
        # The last export sends the totals: without findings there is nothing to lose.
        self._is_sent = not self._tally.last_step
        self._provider.shutdown(max(1.0, 1000.0 * seconds))
        if self._is_sent:
            return []
        return [f"action opentelemetry: {self._host} did not take the metrics"]
