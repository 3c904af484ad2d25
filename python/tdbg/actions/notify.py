"""Action ``notify``: mail, SMS, Slack and other services, through apprise."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from tdbg.actions.action import message_of, text_of
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.run.findings import Finding, Severity

__all__ = ["Notify"]

# What a message may take.  apprise, and what it uses, wait and read without bounds
# where a server sends without end: so each is sent by a process of its own.
SECONDS = 60.0
MEMORY_BYTES = 1 << 30
_PROGRAM = """
import json, resource, sys
task = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_AS, (task["memory"], task["memory"]))
sys.path[:] = task["path"]
import apprise
services = apprise.Apprise()
sys.exit(not (services.add(task["url"]) and services.notify(**task["message"])))
"""


# apprise's names of severities.
_KINDS = {
    Severity.INFO: "info",
    Severity.WARNING: "warning",
    Severity.ERROR: "failure",
}


class Notify:
    """Sends each finding to services that apprise knows by their URLs.

    Args:
        run_directory: The run.
        url: As ``mailto://user:password@example.com``, ``slack://token...``,
            ``twilio://...``; several are separated by blanks or commas.

    Raises:
        ConfigurationError: If apprise knows no such service.
    """

    name = "notify"

    def __init__(self, run_directory: str, url: str) -> None:
        import apprise

        # apprise logs URLs with the secrets in them.
        logging.getLogger("apprise").setLevel(logging.CRITICAL)
        self._run_directory = run_directory
        self._url = text_of(self.name, "url", url, "an apprise URL")
        if not apprise.Apprise().add(self._url):
            scheme = url.partition("://")[0]
            msg = (
                f"action notify: {scheme}:// is not a complete address of a service; "
                "https://appriseit.com/services lists them"
            )
            raise ConfigurationError(msg)

    def __call__(self, finding: Finding) -> None:
        """Send the finding, and wait for the services.

        Raises:
            TdbgError: If a service does not accept it.
        """
        task = {
            "url": self._url,
            "memory": MEMORY_BYTES,
            "path": sys.path,
            "message": {
                "title": f"tdbg: {finding.rule}",
                "body": message_of(finding, self._run_directory),
                "body_format": "text",  # No name in it becomes a command.
                "notify_type": _KINDS[finding.severity],
            },
        }
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM],
                input=json.dumps(task).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # Its messages hold URLs with secrets.
                start_new_session=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            msg = f"a service did not take the message within {SECONDS:g} s"
            raise TdbgError(msg) from None
        if done.returncode:
            msg = "a service did not take the message"
            raise TdbgError(msg)
