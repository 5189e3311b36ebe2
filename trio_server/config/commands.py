"""What a command line asks for: `resolve` turns argv, an environment and a disk into one outcome.

Pure, as the configuration page's section 2 wants it: it never reads the process's environment, prints, writes or exits.
`cli.main` does what the outcome says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trio_server import __version__
from trio_server.config import help as texts
from trio_server.config.checks import clash, warnings
from trio_server.config.fields import Settings
from trio_server.config.kinds import FileSystem, quoted, split_address
from trio_server.config.layers import Refusal, env_layer, flag_layer, settle, unknown_variables

COMMANDS: Final = ("help", "version", "health")

_ANYWHERE_HELP: Final = ("--help", "-h")
_ANYWHERE_VERSION: Final = ("--version", "-V")


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve with these settings. Each warning is a line for standard error."""

    settings: Settings
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Print:
    """Write `text`, which ends its own lines, to standard output and exit."""

    text: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Ask the server at `url` how it is."""

    url: str


Outcome = Serve | Print | Health


def resolve(argv: Sequence[str], env: Mapping[str, str], filesystem: FileSystem) -> Outcome:
    """The outcome of a command line (without the program's name), or `Refusal`."""
    if any(word in _ANYWHERE_HELP for word in argv):
        return Print(texts.usage())
    if any(word in _ANYWHERE_VERSION for word in argv):
        return _version()
    if not argv or argv[0].startswith("-"):
        settings = _settings(argv, env, filesystem)
        return Serve(settings, (*unknown_variables(env), *warnings(settings)))
    command, words = argv[0], argv[1:]
    match command:
        case "help":
            return _help(words)
        case "version":
            if words:
                raise Refusal(f"{quoted(words[0])}: `version` takes nothing behind it")
            return _version()
        case "health":
            return _health(words, env, filesystem)
        case _:
            raise Refusal(f"{quoted(command)} is no command; the commands are {_listed(COMMANDS)}")


def _settings(words: Sequence[str], env: Mapping[str, str], filesystem: FileSystem) -> Settings:
    settings = settle((flag_layer(words), env_layer(env)), filesystem)
    fault = clash(settings)
    if fault is not None:
        raise Refusal(fault)
    return settings


def _version() -> Print:
    return Print(f"trio-server {__version__}\n")


def _help(words: Sequence[str]) -> Print:
    rest, form = _take(words, "--format")
    fields = "--fields" in rest
    strange = [word for word in rest if word != "--fields"]
    if strange:
        raise Refusal(f"{quoted(strange[0])} is nothing `help` takes; it takes --fields and --format")
    if form is not None and not fields:
        raise Refusal("`--format` needs `--fields`")
    if form not in (None, "text", "json"):
        raise Refusal(f"`--format`: {quoted(form)} is none of text, json")
    if not fields:
        return Print(texts.usage())
    return Print(texts.fields_json() if form == "json" else texts.fields_text())


def _health(words: Sequence[str], env: Mapping[str, str], filesystem: FileSystem) -> Health:
    rest, url = _take(words, "--url")
    if url is None:
        return Health(_health_url(_settings(rest, env, filesystem)))
    _settings(rest, {}, filesystem)  # the variables are not needed, but a flag that does not exist is a mistake
    scheme, separator, place = url.partition("://")
    if scheme.lower() not in ("http", "https") or not separator or not place.strip("/"):
        raise Refusal(f"`--url`: {quoted(url)} is not an http(s) URL")
    return Health(url if "/" in place.rstrip("/") else f"{url.rstrip('/')}/readyz")


def _health_url(settings: Settings) -> str:
    host, port = split_address(settings.server.bind)
    if port == 0:
        raise Refusal(f"`{settings.spelling('server.bind')}`: port 0 does not say where to ask; `--url` does")
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}/readyz" if ":" in reached else f"http://{reached}:{port}/readyz"


def _take(words: Sequence[str], option: str) -> tuple[list[str], str | None]:
    """The words without `option` and its value, and the last value it has. An empty value is an unset one."""
    rest: list[str] = []
    value: str | None = None
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        name, equals, text = word.partition("=")
        if name != option:
            rest.append(word)
            continue
        if not equals:
            if not waiting or waiting[-1].startswith("--"):
                raise Refusal(f"`{option}` needs a value")
            text = waiting.pop()
        value = text.strip() or None
    return rest, value


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
