"""Group `model`: the model and the shape of its load."""

from __future__ import annotations

from dataclasses import dataclass

from trio_server.config.declaration import TEXT, Group, declare
from trio_server.config.kinds import BOOL, CHOICE, COUNT, KV_FORMAT, NAME, PATH_FILE, PATH_THERE, PERCENT, TOKENS
from trio_server.config.rules import MultipleOf, OneOf, Range


@dataclass(frozen=True, slots=True, repr=False)
class Model(Group):
    id: str | None = declare(
        kind=NAME,
        default=None,
        visible=True,
        description="The id the model is served under.",
        detail="Unset: the artifact's file name without its extension.",
    )
    artifact: str | None = declare(
        kind=PATH_THERE,
        default=None,
        visible=True,
        description="The model to load: the first part of a split GGUF, or a folder with `model_index.json`.",
        detail="Unset: the starter model, where the `starter` extra is installed.",
    )
    chat_template: str | None = declare(
        kind=PATH_FILE,
        default=None,
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="A Jinja chat template used in place of the GGUF's own.",
    )
    max_context: int = declare(
        kind=TOKENS,
        default=40960,
        rule=Range(1),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="The most prompt and generation tokens one request may hold.",
        detail="It is the `n_ctx` of one sequence. Past the trained context: refused when it was named, cut to it"
        " when it is the default.",
    )
    default_max_tokens: int = declare(
        kind=TOKENS,
        default=38912,
        rule=Range(0),
        families=TEXT,
        visible=True,
        patchable=True,
        scoped=True,
        description="The generation cap of a request that names none, reasoning included, never past what the prompt"
        " leaves of the context.",
        detail="0: no default cap, up to the context.",
    )
    kv_format: str = declare(
        kind=KV_FORMAT,
        default="f16",
        rule=OneOf("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="How K and V are stored (llama.cpp `type_k` and `type_v`).",
        detail="A quantised format needs flash attention.",
    )
    flash_attention: str = declare(
        kind=CHOICE,
        default="auto",
        rule=OneOf("auto", "on", "off"),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Flash attention.",
        detail="`auto`: where the build and the device have it.",
    )
    prefill_chunk: int = declare(
        kind=TOKENS,
        default=1024,
        rule=MultipleOf(128),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Prompt tokens fed to one decode call.",
        detail="It is `n_batch` and `n_ubatch`, and also the grain at which prefill gives way to decoding lanes.",
    )
    decode_share: int | None = declare(
        kind=PERCENT,
        default=None,
        rule=Range(0, 99),
        families=TEXT,
        visible=True,
        patchable=True,
        scoped=True,
        description="The part of the engine's time decoding lanes keep while a prompt prefills.",
        detail="Unset: 25. 0: one decode round per chunk; 50: even.",
    )
    threads: int | None = declare(
        kind=COUNT,
        default=None,
        rule=Range(1, 512),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="CPU threads while decoding.",
        detail="Unset: the physical cores this process may run on less one, at least 1 (ggml spins; a descheduled"
        " thread stalls all, and the server needs a core).",
    )
    threads_batch: int | None = declare(
        kind=COUNT,
        default=None,
        rule=Range(1, 512),
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="CPU threads while prefilling.",
        detail="Unset: as `threads`.",
    )
    mmap: bool = declare(
        kind=BOOL,
        default=True,
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Map the weights rather than read them in.",
    )
    mlock: bool = declare(
        kind=BOOL,
        default=False,
        families=TEXT,
        visible=True,
        patchable=True,
        reloads="model",
        scoped=True,
        description="Lock the weights in RAM.",
    )
