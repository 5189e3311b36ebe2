"""Models for the engine's tests: the small real one, and tiny random ones made on the spot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import tiny_model
from trio_server.engines.text import llama


@pytest.fixture(scope="session", autouse=True)
def quiet_llama() -> None:
    llama.route_native_log(lambda level, text: None)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write_llama(tmp_path_factory.mktemp("tiny") / "llama.gguf")


@pytest.fixture(scope="session")
def tiny_mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write_mamba(tmp_path_factory.mktemp("tiny") / "mamba.gguf")


@pytest.fixture(scope="session")
def real_model(q4_0_model: Path) -> Iterator[llama.Model]:
    model = llama.Model(llama.ModelOptions(str(q4_0_model)))
    yield model
    model.close()
