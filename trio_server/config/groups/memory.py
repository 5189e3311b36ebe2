"""Groups `vram`, `reuse` and `spec`: what a load takes of the machine, what is kept between requests, and the lanes."""

from __future__ import annotations

from dataclasses import dataclass

from trio_server.config.declaration import TEXT, Group, declare
from trio_server.config.kinds import BOOL, LANES, LAYERS
from trio_server.config.rules import Range


@dataclass(frozen=True, slots=True, repr=False)
class Vram(Group):
    gpu_layers: int | str = declare(
        kind=LAYERS,
        default="auto",
        rule=Range(0, 1024),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Layers put on the GPU (`n_gpu_layers`).",
        detail="`auto`: as many as the budget holds. 0: CPU only. Without a GPU every value but `auto` and 0 is refused"
        " at load.",
    )


@dataclass(frozen=True, slots=True, repr=False)
class Reuse(Group):
    prompt: bool = declare(
        kind=BOOL,
        default=True,
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Keep finished prompts' state and continue from it when a later prompt starts the same way.",
        detail="Off: nothing is kept, `cached_tokens` is 0.",
    )


@dataclass(frozen=True, slots=True, repr=False)
class Spec(Group):
    decode_lanes: int | None = declare(
        kind=LANES,
        default=None,
        rule=Range(1, 64),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Requests decoded at once.",
        detail="Unset: 8 on `dense`, 3 on `moe`. Lanes share the KV pool.",
    )
