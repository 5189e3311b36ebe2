"""From words and variables to settings: the layers `flag > env > default`, and the one value that wins for each field.

Pure: it reads the argv, the mapping and the filesystem object it is given, and returns or raises `Refusal`. Only the
winner is parsed, so a flag can override a broken variable. `commands` calls this; which command runs is its business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from trio_server.config.fields import BY_ENV, BY_FLAG, FIELDS, GROUPS, LayerName, Settings, Source
from trio_server.config.kinds import BadValue, Bool, FileSystem, quoted

ENV_PREFIX: Final = "TRIO_SERVER_"


class Refusal(Exception):
    """The start is refused. `message` is one line, for standard error behind `trio-server: `; the exit status is 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Given:
    """A text as a layer gave it, and the spelling it came under. Its repr has no value, since that may be a secret."""

    spelling: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer names, by dotted name."""

    name: LayerName
    values: Mapping[str, Given]


def flag_layer(words: Sequence[str]) -> Layer:
    """Read a command line of field flags. Given twice, the last counts."""
    values: dict[str, Given] = {}
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        flag, equals, text = word.partition("=")
        declaration = BY_FLAG.get(flag)
        if declaration is None:
            raise Refusal(_no_flag(flag) if word.startswith("-") else _stray(word))
        if not equals:
            if isinstance(declaration.kind, Bool):
                text = rest.pop() if rest and not rest[-1].startswith("-") else "true"
            elif rest and not rest[-1].startswith("--"):
                text = rest.pop()
            else:
                raise Refusal(f"`{flag}` needs a value")
        values[declaration.dotted] = Given(flag, text)
    return Layer("flag", values)


def _stray(word: str) -> str:
    return f"{quoted(word)} is no flag and no flag's value; a command stands first"


def _no_flag(flag: str) -> str:
    import difflib

    ending = "-" + flag.lstrip("-")
    near = [known for known in BY_FLAG if known.endswith(ending)] if len(ending) > 1 else []
    near = near or difflib.get_close_matches(flag, BY_FLAG, n=1, cutoff=0.8)
    if near:
        return f"{quoted(flag)} is no flag; perhaps {' or '.join(f'`{known}`' for known in near)}?"
    return f"{quoted(flag)} is no flag (`trio-server help --fields` lists them)"


def env_layer(env: Mapping[str, str]) -> Layer:
    return Layer("env", {d.dotted: Given(d.env, env[d.env]) for d in FIELDS if d.env in env})


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """A warning for each variable of ours that names no field. An empty one is an unset one."""
    import difflib

    unknown = sorted(name for name in env if name.startswith(ENV_PREFIX) and name not in BY_ENV and env[name].strip())
    warnings = []
    for name in unknown:
        [nearest] = difflib.get_close_matches(name, BY_ENV, n=1, cutoff=0.0)
        warnings.append(f"{quoted(name)} names no field and is ignored; the nearest is `{nearest}`")
    return warnings


def settle(layers: Iterable[Layer], filesystem: FileSystem) -> Settings:
    """The settings of some layers, the highest first, over the defaults. `Refusal` names the winner's spelling."""
    order = tuple(layers)
    groups: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    explicit: set[str] = set()
    for group in GROUPS:
        values: dict[str, Any] = {}
        for declaration in group.fields:
            winner = _winner(order, declaration.dotted)
            if winner is None:
                continue
            layer, given = winner
            try:
                value = declaration.read(given.text.strip(), filesystem)
            except BadValue as bad:
                raise Refusal(f"`{given.spelling}`: {bad}") from None
            values[declaration.name] = value
            sources[declaration.dotted] = Source(layer.name, given.spelling)
            if value != declaration.default:
                explicit.add(declaration.dotted)
        groups[group.name] = group.type(**values)
    return Settings(**groups, explicit=frozenset(explicit), sources=MappingProxyType(sources))


def _winner(order: Sequence[Layer], dotted: str) -> tuple[Layer, Given] | None:
    for layer in order:
        given = layer.values.get(dotted)
        if given is not None and given.text.strip():
            return layer, given
    return None
