"""OpenTelemetry: metrics over OTLP."""

from __future__ import annotations

import logging
from typing import Any

from tdbg.actions.checks import url_of
from tdbg.actions.tally import Tally
from tdbg.findings import Finding

__all__ = ["OpenTelemetry"]

EXPORT_MILLISECONDS = 10_000


class OpenTelemetry:
    """Sends counts of findings to a collector, over OTLP and HTTP.

    ``tdbg.findings`` counts episodes and ``tdbg.findings.active`` those that go on,
    both with the attributes ``run``, ``rule`` and ``severity``.

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

        self._host = url_of(self.name, "endpoint", endpoint).hostname
        self._run_directory = run_directory
        self._tally = Tally()
        # It prints each try that failed, with the address; close() tells of the last.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._is_told = True

        class Exporter(OTLPMetricExporter):
            """Remembers whether the collector took what it was sent last."""

            def export(this, *args: Any, **kwargs: Any) -> MetricExportResult:  # noqa: N805
                result = super().export(*args, **kwargs)
                self._is_told = result is MetricExportResult.SUCCESS
                return result

        self._provider = MeterProvider(
            [
                PeriodicExportingMetricReader(
                    Exporter(endpoint=endpoint),
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
        """Count it; it is sent with the next export."""
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
        """Send what was counted since the last export."""
        # The last export: what it sends is all that there ever was.
        self._is_told = not self._tally.last_step
        self._provider.shutdown(max(1.0, 1000.0 * seconds))
        if self._is_told:
            return []
        return [f"action opentelemetry: {self._host} was not told"]
