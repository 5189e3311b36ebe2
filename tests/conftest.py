"""What several rooms' tests share: where the small test model lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

Q4_0_FILE = "smollm2-135m-instruct-q4_0.gguf"


def model_cache() -> Path:
    """The folder that `scripts/fetch_models.py` fills."""
    if named := os.environ.get("TRIO_SERVER_MODEL_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trio-server" / "models"


@pytest.fixture(scope="session")
def q4_0_model() -> Path:
    """The Q4_0 test model. Without it a developer's run skips; CI fails."""
    path = model_cache() / Q4_0_FILE
    if not path.is_file():
        message = f"no test model at {path}; run `python scripts/fetch_models.py` first"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
