"""The widget of a live view, and the thread that keeps its picture new.

Thread safety: the thread only reads the trial and sets the trait; a widget is closed
from any thread.

Errors: what fails in the thread ends the updates and is kept in ``error``; nothing is
raised into the notebook.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any

import anywidget
import traitlets

from tdbg.errors import TdbgError
from tdbg.notebook.picture import picture
from tdbg.trial import Trial

__all__ = ["LEAST_SECONDS", "Live"]

#: Between two pictures: at most ten a second.
LEAST_SECONDS = 0.1
# Of the time of a kernel that pictures may take: what takes longer comes less often.
SHARE = 0.2


class Live(anywidget.AnyWidget):  # type: ignore[misc]
    """A run in a cell; made by ``tdbg.notebook.live``.

    Attributes:
        picture: What is drawn: raw arrays, as ``tdbg.ui.packing`` has them.
        n_pictures: How many pictures were made so far.
        error: What ended the updates, if anything but the end of the training did.
    """

    _esm = (
        resources.files("tdbg.ui").joinpath("static", "notebook.js").read_text("utf-8")
    )
    picture = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, trial: Trial, tensors: str | Sequence[str] | None, field: str
    ) -> None:
        self._trial = trial
        self._asked = tensors, field
        self.error: Exception | None = None
        self.n_pictures = 1
        self._viewers = 0
        # Set while pictures are of use to anybody: at first, since no front end has
        # said yet that it shows them, and while one does.
        self._watched = threading.Event()
        self._watched.set()
        self._closed = threading.Event()
        has_ended = trial.loaded_all_steps
        super().__init__(picture=picture(trial, *self._asked))
        self.on_msg(self._told)
        self._thread: threading.Thread | None = None
        if not has_ended:
            self._thread = threading.Thread(
                target=self._follow, name="tdbg live view", daemon=True
            )
            self._thread.start()

    @property
    def is_following(self) -> bool:
        """Whether pictures are still made."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the updates have ended; False if *timeout* seconds passed first.

        Example:
            view = tdbg.notebook.live(trial)
            view.wait()  # the training has ended: the picture is the last one
        """
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_following

    def close(self) -> None:
        """End the updates and take the view out of all cells."""
        self._closed.set()
        self._watched.set()
        super().close()

    def _told(self, _: Any, content: Any, buffers: Any) -> None:  # noqa: ARG002
        """A front end shows the view in a cell more, or in one less."""
        if isinstance(content, dict) and content.get("viewers") in (1, -1):
            self._viewers = max(0, self._viewers + content["viewers"])
            if self._viewers:
                self._watched.set()
            else:
                self._watched.clear()

    def _follow(self) -> None:
        """Make pictures until the training has ended or nobody can see them."""
        shown: tuple[object, ...] = ()
        try:
            while not self._closed.is_set():
                self._watched.wait()
                begun = time.monotonic()
                # Asked first: what comes before the end is then in the last picture.
                has_ended = self._trial.loaded_all_steps
                seconds = 0.0
                seen = self._seen()
                if seen != shown:
                    shown = seen
                    self._show(picture(self._trial, *self._asked))
                    seconds = time.monotonic() - begun
                if has_ended or self.comm is None:
                    return
                self._closed.wait(max(LEAST_SECONDS, seconds / SHARE))
        except (TdbgError, RuntimeError, OSError) as error:
            self.error = error

    def _seen(self) -> tuple[object, ...]:
        """Return what changes whenever the picture would; it takes about 50 us."""
        trial = self._trial
        return trial.n_bytes, trial.last_complete_step, trial.status

    def _show(self, found: bytes) -> None:
        if not self._closed.is_set():
            self.n_pictures += 1
            self.picture = found

    def _repr_mimebundle_(
        self, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return anywidget's bundle, and the run as text and HTML for other viewers."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        shown = {"text/plain": repr(self._trial)}
        return {**data, **shown, "text/html": self._trial._repr_html_()}, metadata
