"""The trainings that every framework makes: a healthy one, and one of each fault."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from common import OUT, finish

from benchmarks.frameworks.programs.keras_fit import main
from benchmarks.frameworks.trainings import TRAININGS

for training in TRAININGS:
    main(training.name, str(OUT / training.name))
finish()
