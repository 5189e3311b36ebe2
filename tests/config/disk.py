"""A disk of names for the tests of `trio_server.config`: no real file is looked at."""

from __future__ import annotations

from collections.abc import Mapping

from trio_server.config import Print, Refusal, Serve, Settings, resolve


class Names:
    """A `FileSystem` with these files and folders and nothing else."""

    def __init__(self, files: tuple[str, ...] = (), folders: tuple[str, ...] = (".",)) -> None:
        self._files = files
        self._folders = folders

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._folders

    def is_folder(self, path: str) -> bool:
        return path in self._folders


EMPTY = Names()


def serve(*argv: str, env: Mapping[str, str] | None = None, disk: Names = EMPTY) -> Serve:
    outcome = resolve(argv, env or {}, disk)
    assert isinstance(outcome, Serve)
    return outcome


def settings(*argv: str, env: Mapping[str, str] | None = None, disk: Names = EMPTY) -> Settings:
    return serve(*argv, env=env, disk=disk).settings


def printed(*argv: str, env: Mapping[str, str] | None = None) -> str:
    outcome = resolve(argv, env or {}, EMPTY)
    assert isinstance(outcome, Print)
    assert outcome.exit_code == 0
    return outcome.text


def refused(*argv: str, env: Mapping[str, str] | None = None, disk: Names = EMPTY) -> str:
    """The message of the refusal; it fails when there is none."""
    try:
        outcome = resolve(argv, env or {}, disk)
    except Refusal as refusal:
        return refusal.message
    raise AssertionError(f"not refused: {outcome}")
