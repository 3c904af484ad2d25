"""``tdbg ui``: the dashboard in the browser."""

from __future__ import annotations

import os
import sys

import click

from tdbg.cli.output import console, plain

__all__ = ["command"]


@click.command("ui")
@click.argument("runs", nargs=-1, metavar="[RUNS...]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The port.  Default: 8321, or the next free one.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen at."
)
@click.option(
    "--allowed-host",
    multiple=True,
    metavar="NAME",
    help="Another name of this server, such as a proxy's; repeatable.",
)
@click.option(
    "--allow-control",
    is_flag=True,
    help="With --host: also let the page stop trainings.",
)
@click.option(
    "--share", is_flag=True, help="Print an address with which others can only look."
)
@click.option(
    "--browser/--no-browser",
    default=None,
    help="Open a browser.  Default: on a desktop.",
)
@click.option(
    "--judge/--no-judge",
    default=True,
    show_default=True,
    help="Judge runs on the screen that nobody has judged, and write the findings "
    "into them.",
)
def command(
    runs: tuple[str, ...],
    port: int | None,
    host: str,
    allowed_host: tuple[str, ...],
    allow_control: bool,
    share: bool,
    browser: bool | None,
    judge: bool,
) -> None:
    """Show RUNS (runs, folders of runs, or patterns; default: runs) in a browser.

    The printed address holds a token: whoever has it can look, and stop trainings.
    Nothing leaves this machine.  Ctrl-C ends the server, but no training.
    """
    try:
        from tdbg.ui import Access, Settings, serve
    except ImportError as error:
        msg = f"the dashboard needs {error.name}: pip install 'tdbg[ui]'"
        raise click.UsageError(msg) from error

    settings = Settings(
        host=host,
        port=port,
        allowed_hosts=allowed_host,
        allow_control=allow_control,
        share=share,
        browser=_has_desktop() if browser is None else browser,
        judge=judge,
    )

    def announce(address: str, access: Access) -> None:
        out = console()
        out.print(plain(f"The dashboard is at {address}"), soft_wrap=True)
        if not settings.is_local:
            may = "look" if access.control is None else "look, and stop trainings"
            out.print(plain(f"Whoever has this address may {may}."))
        if "SSH_CONNECTION" in os.environ and settings.is_local:
            number = address.rpartition("/")[0].rpartition(":")[2]
            tunnel = f"ssh -L {number}:127.0.0.1:{number} {os.uname().nodename}"
            first = f"From your own machine, first run: {tunnel}"
            out.print(plain(first), soft_wrap=True)
        out.print(plain("Ctrl-C ends the server; trainings continue."))
        sys.stdout.flush()

    serve(runs or ("runs",), settings, announce)


def _has_desktop() -> bool:
    """Whether a browser that opens here is in front of the user."""
    if "SSH_CONNECTION" in os.environ:
        return False
    variables = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return any(each in os.environ for each in variables)
