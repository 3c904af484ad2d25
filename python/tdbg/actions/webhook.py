"""Action ``webhook``: posts findings to a server."""

from __future__ import annotations

from typing import Any

from tdbg.actions.action import message_of, seconds_of, texts_of, url_of
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.run.findings import Finding

__all__ = ["Webhook"]

# Status codes that are worth another try.
RETRY_STATUS = (408, 425, 429, 500, 502, 503, 504)
BACKOFF_SECONDS = 0.5
# A server may ask for a later try (Retry-After), but not for longer than this.
MAX_RETRY_AFTER = 30
MAX_RETRIES = 10


class Webhook:
    """Posts each finding as JSON.

    ``{"event": "finding", "run": ..., "text": ..., "finding": {...}}``: the text is
    what Slack, Mattermost and Discord's Slack face show.

    Args:
        run_directory: The run.
        url: The address; only its host is ever printed, as the rest may be secret.
        timeout: Seconds for each try.
        retries: Further tries, after 0.5, 1, 2, ... seconds, or when the server says
            so, at most 30 s later.
        headers: Headers of the request, as ``{"Authorization": "Bearer ..."}``.

    Raises:
        ConfigurationError: If the URL is not valid, or a number is out of its range.
    """

    name = "webhook"

    def __init__(
        self,
        run_directory: str,
        url: str,
        timeout: float = 10.0,
        retries: int = 3,
        headers: dict[str, str] | None = None,
    ) -> None:
        import urllib3

        parts = url_of(self.name, "url", url)
        self._timeout = seconds_of(self.name, "timeout", timeout)
        if retries not in range(MAX_RETRIES + 1):
            msg = f"action webhook: retries is {retries!r}; give 0 to {MAX_RETRIES}"
            raise ConfigurationError(msg)
        self._run_directory = run_directory
        self._url = url
        self._host = parts.hostname
        self._headers = texts_of(self.name, "headers", headers)
        self._pool: Any = urllib3.PoolManager(
            retries=_bounded(urllib3.Retry)(
                total=retries,
                redirect=False,
                status_forcelist=RETRY_STATUS,
                allowed_methods=None,
                backoff_factor=BACKOFF_SECONDS,
                raise_on_status=False,
            )
        )

    def __call__(self, finding: Finding) -> None:
        """Post the finding, and wait for the answer.

        Raises:
            TdbgError: If the server cannot be reached, or refuses.
        """
        import urllib3

        document = {
            "event": "finding",
            "run": self._run_directory,
            "text": message_of(finding, self._run_directory),
            "finding": finding.to_json(),
        }
        try:
            response = self._pool.request(
                "POST",
                self._url,
                json=document,
                headers={"User-Agent": "tdbg", **self._headers},
                timeout=self._timeout,
            )
        except urllib3.exceptions.HTTPError as error:
            # The text of the error has the URL, which may be secret.
            cause = getattr(error, "reason", None) or error
            msg = f"{self._host} cannot be told: {type(cause).__name__}"
            raise TdbgError(msg) from None
        if not 200 <= response.status < 300:
            msg = f"{self._host} answered {response.status}"
            raise TdbgError(msg)

    def close(self, _: float) -> list[str]:
        """Close the connections."""
        self._pool.clear()
        return []


def _bounded(retry: Any) -> Any:
    """Derive a class from urllib3's Retry that bounds Retry-After."""

    class Bounded(retry):  # type: ignore[misc]
        def get_retry_after(self, response: Any) -> float | None:
            seconds = super().get_retry_after(response)
            return None if seconds is None else min(seconds, MAX_RETRY_AFTER)

    return Bounded
