"""The scripts are no package; their folders are put on the import path, as Python does when one of them is run."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / ".ci")]
