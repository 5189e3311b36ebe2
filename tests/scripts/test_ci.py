""".ci/: the wheel cache, and that `.ci/run` does what README.md tells a reader to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import llama_wheel
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip is replaced: each build is noted and leaves a wheel. The cache is an empty folder."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> None:
        commands.append(command)
        folder = Path(command[command.index("--wheel-dir") + 1])
        (folder / "llama_cpp_python-0-py3-none-any.whl").write_bytes(b"wheel")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return commands


def said(capsys: pytest.CaptureFixture[str]) -> Path:
    llama_wheel.main()
    (line,) = capsys.readouterr().out.splitlines()
    return Path(line)


def test_the_wheel_is_built_once(builds: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = said(capsys)
    assert first.read_bytes() == b"wheel"
    assert first.parent.parent == tmp_path / "trio-server" / "wheels"
    assert said(capsys) == first
    assert len(builds) == 1
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert builds[0][-1] == f"llama-cpp-python=={llama_wheel.lowest_version(ROOT / 'pyproject.toml')}"


def test_another_processor_or_other_build_flags_get_a_wheel_of_their_own(
    builds: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = said(capsys)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON")
    flagged = said(capsys)
    monkeypatch.setattr(llama_wheel, "processor_flags", lambda: "avx2 of another machine")
    elsewhere = said(capsys)
    assert len({here, flagged, elsewhere}) == len(builds) == 3


def test_a_build_that_fails_leaves_no_wheel(
    builds: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        llama_wheel.main()
    assert not list(tmp_path.rglob("*.whl"))


def test_the_processor_flags_do_not_depend_on_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(text: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "is_file", lambda self: True)
            patch.setattr(Path, "read_text", lambda self, **options: text)
            return llama_wheel.processor_flags()

    assert reading("processor\t: 0\nflags\t\t: sse2 avx2 fma\n") == reading("flags\t: fma sse2 avx2\nbugs: none\n")
    assert reading("Features\t: fp asimd\n") == "asimd fp"


def test_ci_runs_the_commands_of_the_readme() -> None:
    """README.md's test command, taken apart at `&&`: each part stands in `.ci/run`, in the same order."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m venv .*pytest$", readme, re.MULTILINE)
    parts = [re.sub(r"^\S*\.venv/bin/", "", part.strip()) for part in command.split("&&")]
    assert parts[0].startswith("python -m venv")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    position = script.index("python3 -m venv")
    for part in parts[1:]:
        if part.startswith(". "):
            continue  # activation
        words = part.replace("pip install", "pip install --quiet")
        position = script.index(words, position)


def test_ci_is_a_script_that_bash_can_read() -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
