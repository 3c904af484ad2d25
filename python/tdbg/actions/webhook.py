"""Action ``webhook``: posts findings to a server."""

from __future__ import annotations

import email.utils
import time
from typing import Any

from tdbg.actions.action import message_of, seconds_of, texts_of
from tdbg.actions.bounded_http import bounded_pool, host_of
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
    what Slack, Mattermost and Discord's Slack face show, with ``&``, ``<`` and ``>``
    escaped, so that no name in it becomes a link or calls everybody.

    Args:
        run_directory: The run.
        url: The address; only its host is ever printed, as the rest may be secret.
        timeout: Seconds for each try, from the first byte sent to the end of the
            answer's headers; the body of the answer is not read.
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
        self._host = host_of(self.name, "url", url)
        self._timeout = seconds_of(self.name, "timeout", timeout)
        if retries not in range(MAX_RETRIES + 1):
            msg = f"action webhook: retries is {retries!r}; give 0 to {MAX_RETRIES}"
            raise ConfigurationError(msg)
        self._run_directory = run_directory
        self._url = url
        self._headers = texts_of(self.name, "headers", headers)
        self._retries = int(retries)
        self._pool: Any = bounded_pool(self._timeout)

    def __call__(self, finding: Finding) -> None:
        """Post the finding, and wait for the answer.

        Raises:
            TdbgError: If the server cannot be reached, or refuses.
        """
        document = {
            "event": "finding",
            "run": self._run_directory,
            "text": _escaped(message_of(finding, self._run_directory)),
            "finding": finding.to_json(),
        }
        for number in range(self._retries + 1):
            trouble, may_retry, pause = self._post(document)
            if not trouble:
                return
            if not may_retry or number == self._retries:
                break
            time.sleep(pause or BACKOFF_SECONDS * 2**number)
        msg = f"{self._host} {trouble}"
        raise TdbgError(msg)

    def _post(self, document: dict[str, Any]) -> tuple[str, bool, float]:
        """Try once.

        Returns:
            What went wrong, or "" if nothing; whether to try again; and after how many
            seconds, or 0 if the server does not say.
        """
        import urllib3

        try:
            response = self._pool.request(
                "POST",
                self._url,
                json=document,
                headers={"User-Agent": "tdbg", **self._headers},
                timeout=self._timeout,
                retries=False,  # urllib3 would read bodies, and wait without bounds.
                redirect=False,  # Whoever redirects may lead anywhere.
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            # The text of the error has the URL, which may be secret.
            cause = getattr(error, "reason", None) or error
            return f"could not be reached: {_name_of(cause)}", True, 0.0
        # Not given back to its pool: what it still sends is nobody's.
        response.close()
        if 200 <= response.status < 300:
            return "", False, 0.0
        trouble = f"answered {response.status}"
        pause = _seconds_after(response.headers.get("Retry-After", ""))
        return trouble, response.status in RETRY_STATUS, pause

    def close(self, _: float) -> list[str]:
        """Close the connections."""
        self._pool.clear()
        return []


def _escaped(text: str) -> str:
    """Return a text in which Slack finds no command.

    Example:
        >>> _escaped("<!channel> a & b")
        '&lt;!channel&gt; a &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _name_of(error: Any) -> str:
    """Return the kind of an error, and the reason if a certificate was refused."""
    reason = getattr(error.args[0] if error.args else error, "verify_message", "")
    name = type(error).__name__
    return f"{name} ({reason})" if reason else name


def _seconds_after(text: str) -> float:
    """The seconds that ``Retry-After`` asks for, in bounds; 0 where it makes no sense.

    Example:
        >>> _seconds_after("2"), _seconds_after("86400"), _seconds_after("soon")
        (2.0, 30.0, 0.0)
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), MAX_RETRY_AFTER))
    try:
        seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), float(MAX_RETRY_AFTER))
