"""Pictures of what was captured: confused images, and who is taken for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from examples.case_study.captured import Lookalike, Pair

__all__ = ["draw_confusions", "draw_pairs"]

CELL = 64
GAP = 10
LINE = 20
MARGIN = 16
MAX_SHOWN = 10
INK, PAPER = (32, 32, 32), (255, 255, 255)
MIRRORED, AS_IT_IS = (214, 96, 20), (150, 150, 150)
RIGHT, WRONG = np.array((32, 110, 180)), np.array((200, 40, 40))


def draw_pairs(found: Mapping[Pair, Sequence[Lookalike]], path: Path) -> None:
    """Draw each pair's mistaken images above the nearest ones of the training.

    Mirrored ones have an orange frame.
    """
    block = 2 * (CELL + GAP) + 2 * LINE
    width = 2 * MARGIN + MAX_SHOWN * (CELL + GAP)
    sheet = Image.new("RGB", (width, MARGIN + LINE + len(found) * block), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text(
        (MARGIN, MARGIN // 2),
        "above: test images; below: the nearest captured training image with the wrong "
        "label; orange: mirrored",
        INK,
        _font(14),
    )
    for k, (pair, lookalikes) in enumerate(found.items()):
        top = MARGIN + LINE + k * block
        mirrored = sum(each.is_mirrored for each in lookalikes)
        title = (
            f"{pair.share:.0%} of the {pair.label} are taken for {pair.taken_for}; "
            f"{mirrored} of the {len(lookalikes)} nearest are mirrored"
        )
        pen.text((MARGIN, top), title, INK, _font(15))
        for i, each in enumerate(lookalikes[:MAX_SHOWN]):
            left = MARGIN + i * (CELL + GAP)
            _paste(sheet, each.image, left, top + LINE + 4, AS_IT_IS)
            frame = MIRRORED if each.is_mirrored else AS_IT_IS
            _paste(sheet, each.nearest, left, top + LINE + 4 + CELL + GAP, frame)
    sheet.save(path, optimize=True)


def draw_confusions(
    matrices: Mapping[str, NDArray[np.int64]], path: Path, cell: int = 30
) -> None:
    """Draw matrices of label and answer beside each other, as shares of a label."""
    n = len(next(iter(matrices.values())))
    side = (n + 1) * cell
    width = MARGIN + len(matrices) * (side + MARGIN)
    sheet = Image.new("RGB", (width, side + 2 * LINE + 2 * MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    for k, (title, counts) in enumerate(matrices.items()):
        left, top = MARGIN + k * (side + MARGIN), MARGIN + LINE
        pen.text((left, MARGIN // 2), title, INK, _font(15))
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        for i in range(n):
            middle = (i + 1.5) * cell
            pen.text((left + middle, top + cell / 2), str(i), INK, _font(14), "mm")
            pen.text((left + cell / 2, top + middle), str(i), INK, _font(14), "mm")
        for i, j in np.ndindex(n, n):
            x, y = left + (j + 1) * cell, top + (i + 1) * cell
            _cell(pen, (x, y, x + cell - 1, y + cell - 1), shares[i, j], i == j)
        pen.text(
            (left + cell, top + side + 4),
            "rows: what it is; columns: what it is taken for (%)",
            INK,
            _font(12),
        )
    sheet.save(path, optimize=True)


def _cell(
    pen: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    share: float,
    is_right: bool,
) -> None:
    color = RIGHT if is_right else WRONG
    strength = share if is_right else min(1.0, 2.0 * share)
    fill = 255 - (255 - color) * strength
    pen.rectangle(box, tuple(int(c) for c in fill), (225, 225, 225))
    if share >= 0.005:
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        ink = PAPER if strength > 0.6 else INK
        pen.text(middle, f"{share:.0%}".rstrip("%"), ink, _font(11), "mm")


def _paste(
    sheet: Image.Image,
    image: NDArray[np.float32],
    left: int,
    top: int,
    frame: tuple[int, int, int],
) -> None:
    low, high = float(image.min()), float(image.max())
    grey = 255 - (255 * (image - low) / max(high - low, 1e-9)).astype(np.uint8)
    picture = Image.fromarray(grey).resize((CELL, CELL), Image.Resampling.NEAREST)
    sheet.paste(picture, (left, top))
    box = (left - 2, top - 2, left + CELL + 1, top + CELL + 1)
    ImageDraw.Draw(sheet).rectangle(box, outline=frame, width=3)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
