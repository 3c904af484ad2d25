"""Actions do what they say, and harm nobody when they fail."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actions_helpers import Server, finding, served, servers
from tdbg import actions
from tdbg.actions import ActionSpec
from tdbg.findings import Severity

__all__ = ["servers"]

# A module that apprise imports has a successor from Python 3.13 on.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


# ---- the actions -----------------------------------------------------------------


def test_a_command_has_the_finding_in_variables_and_as_json(tmp_path: Path):
    command = f'cat > {tmp_path}/in; echo "$TDBG_RULE $TDBG_STEP" > {tmp_path}/env'
    action = actions.make(f"command:{command}", "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    document = json.loads((tmp_path / "in").read_text())
    assert (document["run"], document["rule"]) == ("runs/a", "DeadRelu")
    assert (tmp_path / "env").read_text() == "DeadRelu 7\n"


def test_a_command_that_fails_is_told_with_what_it_said():
    action = actions.make("command:echo broken; exit 3", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "ended with 3: broken" in line


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path):
    spec = ActionSpec(
        name="command",
        parameters={
            "command": f"(sleep 30; touch {tmp_path}/late) & sleep 30",
            "timeout": 0.2,
        },
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "more than 0.2 s and was killed" in line


def test_a_webhook_posts_json(servers: list[Server]):
    server = served(servers)
    spec = ActionSpec(
        name="webhook",
        parameters={"url": server.url, "headers": {"Authorization": "Bearer x"}},
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    ((path, headers, body),) = server.requests
    assert path == "/hook?token=secret"
    assert headers["Authorization"] == "Bearer x"
    assert headers["Content-Type"] == "application/json"
    document = json.loads(body)
    assert document["event"] == "finding"
    assert document["finding"]["tensor"] == "fc.weight"
    assert "error in runs/a: DeadRelu at step 7" in document["text"]


def test_a_webhook_tries_again_and_then_says_so_without_the_secret(
    servers: list[Server],
):
    patient = served(servers, 503, 500)
    action = actions.make(f"webhook:{patient.url}", "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    assert len(patient.requests) == 3
    refusing = served(servers, *[404] * 9)
    action = actions.make(f"webhook:{refusing.url}", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "127.0.0.1 answered 404" in line
    assert len(refusing.requests) == 1
    broken = served(servers, *[503] * 9)
    action = actions.make(f"webhook:{broken.url}", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert line == "action webhook: 127.0.0.1 answered 503"
    assert "secret" not in line


def test_a_webhook_nobody_hears_is_told():
    spec = ActionSpec(
        name="webhook",
        parameters={"url": "http://127.0.0.1:9/x?token=secret", "retries": 0},
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "127.0.0.1 cannot be told" in line
    assert "secret" not in line


def test_a_webhook_that_hangs_times_out(servers: list[Server]):
    server = served(servers, delay=1.0)
    spec = ActionSpec(
        name="webhook",
        parameters={"url": server.url, "timeout": 0.1, "retries": 1},
    )
    action = actions.make(spec, "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "Timeout" in line


def test_a_notification_is_sent_through_apprise(servers: list[Server]):
    server = served(servers)
    url = server.url.replace("http://", "json://").partition("?")[0]
    action = actions.make(f"notify:{url}", "runs/a")
    action(finding())
    assert actions.close_all([action]) == []
    document = json.loads(server.requests[0][2])
    assert document["title"] == "tdbg: DeadRelu"
    assert document["type"] == "failure"
    assert "lower the learning rate" in document["message"]


def test_a_notification_that_is_refused_is_told(servers: list[Server]):
    server = served(servers, *[500] * 9)
    url = server.url.replace("http://", "json://").partition("?")[0]
    action = actions.make(f"notify:{url}", "runs/a")
    action(finding())
    (line,) = actions.close_all([action])
    assert "did not take the message" in line


def test_prometheus_reads_what_is_and_what_was(tmp_path: Path):
    file = tmp_path / "tdbg.prom"
    action = actions.make(f"prometheus:{file}", "runs/a")
    assert file.exists()
    action(finding(severity=Severity.WARNING))
    action(finding(severity=Severity.ERROR, phase="worse", step=9))
    action(finding("other"))
    action(finding("other", phase="end", step=20))
    found = {
        (sample.name, sample.labels.get("severity")): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    assert found == {
        ("tdbg_findings_total", "warning"): 1,
        ("tdbg_findings_total", "error"): 2,
        ("tdbg_findings_active", "warning"): 0,
        ("tdbg_findings_active", "error"): 1,
        ("tdbg_last_finding_step", None): 20,
    }


def test_a_collector_gets_metrics_over_otlp(servers: list[Server]):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    server = served(servers)
    endpoint = server.url.partition("/hook")[0] + "/v1/metrics"
    action = actions.make(f"opentelemetry:{endpoint}", "runs/a")
    action(finding())
    action(finding("other"))
    action(finding("other", phase="end"))
    assert actions.close_all([action]) == []
    request = ExportMetricsServiceRequest.FromString(_unzipped(server.requests[-1]))
    points = {
        metric.name: metric.sum.data_points[0].as_int
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert points == {"tdbg.findings": 2, "tdbg.findings.active": 1}


def test_a_collector_that_is_not_there_is_told_once_and_without_its_address(
    capfd: pytest.CaptureFixture[str],
):
    action = actions.make("opentelemetry:http://127.0.0.1:9/v1/secret", "runs/a")
    action(finding())
    assert actions.close_all([action], 0.5) == [
        "action opentelemetry: 127.0.0.1 was not told"
    ]
    assert capfd.readouterr().err == ""


def test_a_collector_that_refuses_is_told(servers: list[Server]):
    server = served(servers, *[400] * 9)
    action = actions.make(f"opentelemetry:{server.url}", "runs/a")
    assert actions.close_all([action]) == []  # Nothing to say, nothing lost.
    action = actions.make(f"opentelemetry:{server.url}", "runs/a")
    action(finding())
    assert "was not told" in str(actions.close_all([action]))


def _unzipped(request: tuple[str, dict[str, str], bytes]) -> bytes:
    _, headers, body = request
    return gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
