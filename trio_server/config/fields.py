"""The settings object and the table of every field, both made from the declarations in `groups`.

`Settings` is what the rest of the server gets: frozen groups of typed values, read as `settings.model.max_context`. A
request reads one snapshot when it is admitted. `GROUPS` and `FIELDS` are the same declarations for whoever walks them:
the layers, help, the documentation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trio_server.config.declaration import Declaration, Group, declaration_of
from trio_server.config.groups.logs import Log
from trio_server.config.groups.memory import Reuse, Spec, Vram
from trio_server.config.groups.model import Model
from trio_server.config.groups.server import Server

LayerName = Literal["env", "flag"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from: its layer, and the spelling it came under there."""

    layer: LayerName
    spelling: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Every value in force. `Settings()` has the defaults.

    `explicit` has the dotted names that an operator named, with another value than the default. `sources` says where
    each value came from; a field not in it has its default.
    """

    server: Server = field(
        default_factory=Server, metadata={"about": "The listener, who may come in, and the bounds of a request."}
    )
    model: Model = field(default_factory=Model, metadata={"about": "The model and the shape of its load."})
    vram: Vram = field(default_factory=Vram, metadata={"about": "What a load takes of the device's memory."})
    reuse: Reuse = field(default_factory=Reuse, metadata={"about": "What is kept of finished prompts."})
    spec: Spec = field(default_factory=Spec, metadata={"about": "Lanes and speculation."})
    log: Log = field(default_factory=Log, metadata={"about": "What is written about the server's life."})
    explicit: frozenset[str] = frozenset()
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def spelling(self, dotted: str) -> str:
        """How the operator spelled a field, for a message about it; its flag when it has its default."""
        source = self.sources.get(dotted)
        return source.spelling if source is not None else BY_NAME[dotted].flag


@dataclass(frozen=True, slots=True)
class GroupTable:
    """A group as a table: what to build, and its fields in declaration order."""

    name: str
    description: str
    type: type[Group]
    fields: tuple[Declaration, ...]


def _table_of(item: dataclasses.Field[Any]) -> GroupTable:
    made: Any = item.default_factory  # the group's own class: a group has a default for every field
    fields = tuple(
        dataclasses.replace(declaration_of(inner), group=item.name, name=inner.name)
        for inner in dataclasses.fields(made)
    )
    return GroupTable(item.name, item.metadata["about"], made, fields)


GROUPS: Final = tuple(_table_of(item) for item in dataclasses.fields(Settings) if "about" in item.metadata)
FIELDS: Final = tuple(declaration for group in GROUPS for declaration in group.fields)
BY_NAME: Final[Mapping[str, Declaration]] = {declaration.dotted: declaration for declaration in FIELDS}
BY_FLAG: Final[Mapping[str, Declaration]] = {declaration.flag: declaration for declaration in FIELDS}
BY_ENV: Final[Mapping[str, Declaration]] = {declaration.env: declaration for declaration in FIELDS}
