"""Colours of data that most eyes can tell apart, on light paper and on dark.

Thread safety: constants and pure functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOT_FINITE", "PHASES", "SERIES", "TONES", "viridis"]

#: Of series, in their order: Okabe and Ito (2008), "Color Universal Design", with a
#: yellow dark enough for lines on white, and purple and grey.  Those that findings have
#: come last: the flag of a warning is not to look like the second series.
SERIES = (
    "#0072b2",
    "#009e73",
    "#9467bd",
    "#56b4e9",
    "#cc79a7",
    "#d55e00",
    "#808080",
    "#b07d00",
)
#: Of NaN and infinities.
NOT_FINITE = "#ff2654"
#: Of findings by their severity; shapes go with them.
TONES = {"error": "#d62839", "warning": "#b86e00", "info": "#6b7a90", "ok": "#1d8a57"}

#: Of the phases of a step, by their numbers (``Phase``): what computes is blue or
#: green, waiting is orange, and what nobody can name is grey.
PHASES = (
    "#b4bac4",
    "#d2571a",
    "#c79a1e",
    "#5aa9e6",
    "#1f5fbf",
    "#8e5bc7",
    "#1f8f63",
    "#c2559d",
    "#8b8000",
    "#8c5a3c",
    "#79b8a4",
    "#3a4254",
    "#2f83cf",
)

# Viridis (van der Walt and Smith, 2015: even steps for the eye, also without colour
# vision) as the polynomial of degree 6 by Zucker, within 1 % of the table.
_VIRIDIS = np.array(
    [
        (0.2777273272234177, 0.005407344544966578, 0.3340998053353061),
        (0.1050930431085774, 1.404613529898575, 1.384590162594685),
        (-0.3308618287255563, 0.214847559468213, 0.09509516302823659),
        (-4.634230498983486, -5.799100973351585, -19.33244095627987),
        (6.228269936347081, 14.17993336680509, 56.69055260068105),
        (4.776384997670288, -13.74514537774601, -65.35303263337234),
        (-5.435455855934631, 4.645852612178535, 26.3124352490832),
    ]
)


def viridis(n: int) -> NDArray[np.uint8]:
    """*n* colours from the lowest to the highest magnitude.  Shape (n, 3)."""
    at = np.linspace(0.0, 1.0, n)[:, np.newaxis]
    values = sum(c * at**i for i, c in enumerate(_VIRIDIS))
    return np.clip(np.round(np.asarray(values) * 255), 0, 255).astype(np.uint8)
