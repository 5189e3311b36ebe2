"""Configuration: one declaration per field, and settings resolved from defaults, environment and flags.

The rest of the server takes a `Settings` and never asks where a value came from. Nothing here reads the process's
environment, prints or exits; `trio_server.cli` does. No other room is imported.
"""

from trio_server.config.checks import is_loopback
from trio_server.config.commands import Health, Outcome, Print, Serve, resolve
from trio_server.config.declaration import FAMILIES, Declaration, Family
from trio_server.config.fields import FIELDS, GROUPS, Settings, Source
from trio_server.config.groups.logs import Log
from trio_server.config.groups.memory import Reuse, Spec, Vram
from trio_server.config.groups.model import Model
from trio_server.config.groups.server import Server
from trio_server.config.kinds import BadValue, FileSystem, comma_list, split_address
from trio_server.config.layers import Refusal

__all__ = [
    "FAMILIES",
    "FIELDS",
    "GROUPS",
    "BadValue",
    "Declaration",
    "Family",
    "FileSystem",
    "Health",
    "Log",
    "Model",
    "Outcome",
    "Print",
    "Refusal",
    "Reuse",
    "Serve",
    "Server",
    "Settings",
    "Source",
    "Spec",
    "Vram",
    "comma_list",
    "is_loopback",
    "resolve",
    "split_address",
]
