"""Give a wheel of llama-cpp-python compiled for this processor: from the cache, else built into it.

    python .ci/llama_wheel.py      builds it if need be (3 to 8 minutes on two cores), and prints its path, nothing else

`.ci/run` and `noxfile.py` install the wheel before the project, so that llama.cpp is compiled once per machine and not
once per virtual environment. It is compiled for the very processor, so the cache has a folder per set of processor flags,
version, interpreter and `CMAKE_ARGS`: `${XDG_CACHE_HOME:-~/.cache}/trio-server/wheels/KEY`. The version is the lowest
that `pyproject.toml` allows.
"""

# ruff: noqa: T201 (the path is what this program is run for)

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

NAME = "llama-cpp-python"
ROOT = Path(__file__).resolve().parent.parent


def lowest_version(pyproject: Path) -> str:
    """The version behind the `>=` of our dependency on it."""
    dependencies = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    for dependency in dependencies:
        if found := re.fullmatch(rf"{NAME}\s*>=\s*([0-9.]+).*", dependency):
            return found.group(1)
    raise SystemExit(f"pyproject.toml names no lowest version of {NAME}")


def processor_flags() -> str:
    """What the compiler's `-march=native` depends on, as text that is the same for like processors."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"flags", "Features"}:
                return " ".join(sorted(value.split()))
    return platform.processor()


def key(version: str) -> str:
    """The name of the cache's folder for this machine and version."""
    parts = [
        processor_flags(),
        platform.machine(),
        sysconfig.get_platform(),
        version,
        f"cp{sys.version_info.major}{sys.version_info.minor}",
        os.environ.get("CMAKE_ARGS", ""),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trio-server" / "wheels"


def cached(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


def build(version: str, folder: Path) -> Path:
    """Compile the wheel and move it into `folder`. pip's own cache is left out: it is not kept apart by processor."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as beside:
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", beside]
        subprocess.run([*command, f"{NAME}=={version}"], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        (wheel,) = Path(beside).glob("*.whl")
        return wheel.replace(folder / wheel.name)


def main() -> int:
    version = lowest_version(ROOT / "pyproject.toml")
    folder = cache_folder() / key(version)
    wheel = cached(folder)
    if wheel is None:
        print(f"no {NAME} {version} for this processor in {folder}: compiling it", file=sys.stderr, flush=True)
        wheel = build(version, folder)
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
