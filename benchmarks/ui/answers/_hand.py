"""The hand of a user, which counts what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


__all__ = ["Hand", "names_of"]

# Where the line with colour lies highest, or lowest among the last points; grey is
# the grid and the text.
INK = """(canvas, isTop) => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext('2d');
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  let best = null;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const i = 4 * (y * width + x), rgb = [...data.subarray(i, i + 3)];
      if (data[i + 3] < 128 || Math.max(...rgb) - Math.min(...rgb) < 30) continue;
      const rank = isTop ? -y : 10 * x + y;
      if (!best || rank > best[0]) best = [rank, x, y];
    }
  const scale = canvas.clientWidth / width;
  return best && [best[1] * scale, best[2] * scale];
}"""


@dataclass
class Hand:
    """A mouse and a keyboard.

    Attributes:
        page: What they act on.
        clicks: Clicks so far.
        keys: Keys pressed so far.
        points: How often the mouse was held over something to read what appears.
    """

    page: Page
    clicks: int = 0
    keys: int = 0
    points: int = 0

    def click(self, what: Locator) -> None:
        """Click on it, once it can be."""
        what.click()
        self.clicks += 1

    def type(self, text: str) -> None:
        """Press the key of each character."""
        self.page.keyboard.type(text)
        self.keys += len(text)

    def press(self, key: str) -> None:
        """Press a key with a name, such as ``Enter``."""
        self.page.keyboard.press(key)
        self.keys += 1

    def point(self, at: tuple[float, float]) -> None:
        """Hold the mouse there, in pixels of the window."""
        self.page.mouse.move(at[0] - 1, at[1])
        self.page.mouse.move(*at)
        self.points += 1

    def point_at_line(self, canvas: Locator, *, top: bool) -> None:
        """Hold it over the highest point of a chart, or the end of its lowest line."""
        canvas.scroll_into_view_if_needed()
        while (at := canvas.evaluate(INK, top)) is None:
            self.page.wait_for_timeout(50)
        box = canvas.bounding_box() or {"x": 0.0, "y": 0.0}
        self.point((box["x"] + at[0], box["y"] + at[1]))


def names_of(rows: Locator) -> str:
    """The names of runs that stand there, from above to below."""
    found = []
    for row in rows.all():
        box = row.bounding_box()
        if box is not None:
            found.append((box["y"], row.inner_text().strip()))
    return " ".join(name for _, name in sorted(found))
