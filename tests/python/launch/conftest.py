"""What the tests of the search for trainings share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdbg.capture import process

if TYPE_CHECKING:
    from tdbg.launch.discovery import Discovery


@pytest.fixture
def discovery(run_dir: Path) -> Iterator[Discovery]:
    """A search under way, with the hooks that it has made closed in the end."""
    from tdbg.launch.discovery import Discovery  # It imports torch.

    found = Discovery({"out_dir": str(run_dir), "statistics_interval": 1})
    found.start()
    yield found
    found.stop()
    process._callbacks.remove(found.print_summary)
    for hook in found.hooks:
        hook.close()
