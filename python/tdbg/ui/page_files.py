"""The files of the page, by name: a dictionary, so that no path is ever asked for.

Thread safety: read once, never changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["PageFile", "page_files", "respond"]

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


# The widget for notebooks, which no page asks for.
NOTEBOOK = "notebook.js"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page.

    Attributes:
        content: Its bytes.
        media_type: As HTTP says it.
        tag: Changes with the content.
    """

    content: bytes
    media_type: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Every file of the page, by its name; the empty name is that of its document."""
    found = {}
    for entry in resources.files("tdbg.ui").joinpath("static").iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in MEDIA_TYPES and entry.name != NOTEBOOK:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[entry.name] = PageFile(content, MEDIA_TYPES[suffix], tag)
    found[""] = found["index.html"]
    # Asked for where a page is left before the browser knows which icon it has.
    found["favicon.ico"] = found["icon.svg"]
    return found


def respond(request: Request) -> Response:
    """Answer with a file; 304 where the browser has it, 404 where there is none."""
    found = page_files().get(request.url.path[1:])
    if found is None:
        return Response("there is no such file\n", 404, media_type="text/plain")
    headers = {"etag": found.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
