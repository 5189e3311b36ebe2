"""The checks of this repository: `nox` runs lint, types and tests; `nox -l` lists all. Words after `--` go to the tool.

llama.cpp is compiled once per machine, by `.ci/llama_wheel.py`, and not once per session.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests"]

DEVELOPMENT = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["dev"]


def install_project(session: nox.Session) -> None:
    said = session.run("python", ".ci/llama_wheel.py", silent=True)
    session.install(str(said).strip().splitlines()[-1])
    session.install("-e", ".[starter,dev]")


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: the linter and the formatter."""
    session.install(*(requirement for requirement in DEVELOPMENT if requirement.startswith("ruff")))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, on the package."""
    install_project(session)
    session.run("mypy", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test that starts no server process."""
    install_project(session)
    session.run("python", "scripts/fetch_models.py")
    session.run("pytest", "--ignore=tests/live", *session.posargs)


@nox.session
def live(session: nox.Session) -> None:
    """Real servers with real clients."""
    install_project(session)
    session.run("python", "scripts/fetch_models.py")
    session.run("pytest", "tests/live", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """`nox -s bench -- --spawn MODEL.gguf …`: see docs/benchmarks.md. On an idle machine only."""
    install_project(session)
    session.run("python", "scripts/bench.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The tables in docs/ that are made from the code are up to date."""
    install_project(session)
    session.run("python", "scripts/make_docs.py", "--check", *session.posargs)


@nox.session
def serve(session: nox.Session) -> None:
    """trio-server with the starter model, or with the flags after `--`."""
    install_project(session)
    session.run("trio-server", *session.posargs)
