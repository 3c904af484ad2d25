"""Action ``notify``: mail, SMS, Slack and other services, through apprise."""

from __future__ import annotations

import logging

from tdbg.actions.action import message_of, text_of
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.run.findings import Finding, Severity

__all__ = ["Notify"]


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
        self._services = apprise.Apprise()
        if not self._services.add(text_of(self.name, "url", url, "a URL of apprise's")):
            scheme = url.partition("://")[0]
            msg = (
                f"action notify: {scheme}:// is no service with what it needs; "
                "https://appriseit.com/services lists them"
            )
            raise ConfigurationError(msg)
        kinds = apprise.NotifyType
        self._kinds = {
            Severity.INFO: kinds.INFO,
            Severity.WARNING: kinds.WARNING,
            Severity.ERROR: kinds.FAILURE,
        }

    def __call__(self, finding: Finding) -> None:
        """Send the finding, and wait for the services.

        Raises:
            TdbgError: If a service does not accept it.
        """
        sent = self._services.notify(
            title=f"tdbg: {finding.rule}",
            body=message_of(finding, self._run_directory),
            notify_type=self._kinds[finding.severity],
        )
        if not sent:
            msg = "a service did not take the message"
            raise TdbgError(msg)
