"""llama.cpp's C interface, as much of it as the text engine uses, with Python types.

All ctypes of the text engine live in this file. `Vocabulary` is read-only and may be used from any thread while its model
lives; `Context` belongs to the engine thread alone. Nothing here decides anything: bounds that a `GGML_ASSERT` would check
(which ends the process) are checked here first and raise `LlamaError`.

Callers: `loader.py` (load), `loop.py` (decode, sequences), `sampling.py` (logits), the routes through `engine.py` (tokenize).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

# ggml forks a debugger to print a backtrace when it aborts; in a server that only delays the end of the process.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# numpy brings a BLAS whose idle worker threads spin; nothing here multiplies matrices in numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import llama_cpp
import numpy as np
import numpy.typing as npt

KV_FORMATS: Final = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16; the binding has no name for it
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q5_1": llama_cpp.GGML_TYPE_Q5_1,
    "q5_0": llama_cpp.GGML_TYPE_Q5_0,
    "q4_1": llama_cpp.GGML_TYPE_Q4_1,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}

_FLASH_ATTENTION: Final = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}

_LOAD_MODES: Final = {
    (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
    (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
    (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
    (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
}

_GGML_LEVELS: Final = {2: "debug", 3: "warn", 4: "error"}


class LlamaError(Exception):
    """llama.cpp refused, or a call would have tripped one of its assertions."""


class MemoryFull(LlamaError):
    """No room in the KV memory for the batch; nothing of it was kept."""


class Aborted(LlamaError):
    """The abort flag stopped the decode; finished parts of the batch were kept."""


def build() -> str:
    """The llama.cpp build behind the binding, for fingerprints and logs."""
    return f"{llama_cpp.__version__}-{llama_cpp.llama_version().decode()}"


_log_callback: Any = None  # llama.cpp keeps the raw pointer, so the callback object must outlive every call


def route_native_log(sink: Callable[[str, str], None]) -> None:
    """Send llama.cpp's own log lines to `sink(level, text)` instead of standard error. Called from native threads."""
    global _log_callback
    last_level = "trace"

    def receive(level: int, text: bytes | None, _user_data: object) -> None:
        nonlocal last_level
        if not text:
            return
        if level != 5:  # 5 continues the line before
            last_level = _GGML_LEVELS.get(level, "trace")
        line = text.decode("utf-8", "replace").strip()
        if line and line != ".":
            sink(last_level, line)

    _log_callback = llama_cpp.llama_log_callback(receive)
    llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How the weights are brought in. `simulated`: check everything, allocate nothing; nothing can be decoded then."""

    path: str
    gpu_layers: int = 0
    mmap: bool = True
    mlock: bool = False
    simulated: bool = False


class Vocabulary:
    """Token ids and their texts. Read-only after construction, so any thread may call it while the model lives."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.size: int = llama_cpp.llama_vocab_n_tokens(handle)
        self.bos: int = llama_cpp.llama_vocab_bos(handle)
        self.eos: int = llama_cpp.llama_vocab_eos(handle)
        self.adds_bos: bool = bool(llama_cpp.llama_vocab_get_add_bos(handle))
        self.end_of_generation: frozenset[int] = frozenset(
            token for token in range(self.size) if llama_cpp.llama_vocab_is_eog(handle, token)
        )
        self._pieces: list[bytes | None] = [None] * self.size

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        """Token ids of `text`; `add_special` lets the vocabulary put its BOS and EOS around it."""
        if not text and not add_special:
            return []
        raw = text.encode("utf-8")
        capacity = len(raw) + 8  # no tokenizer makes more tokens than bytes, specials aside
        while True:
            tokens = (llama_cpp.llama_token * capacity)()
            count = llama_cpp.llama_tokenize(self._handle, raw, len(raw), tokens, capacity, add_special, parse_special)
            if count >= 0:
                return tokens[:count]
            if count == -(2**31):
                raise LlamaError("the text is too long to tokenize")
            capacity = -count

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens`, control tokens spelled out, without the blank some vocabularies put in front."""
        if not tokens:
            return b""
        if min(tokens) < 0 or max(tokens) >= self.size:  # llama.cpp ends the process
            raise LlamaError("a token id outside the vocabulary")
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        capacity = len(tokens) * 8 + 16
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            count = llama_cpp.llama_detokenize(self._handle, array, len(tokens), buffer, capacity, False, True)
            if count >= 0:
                return buffer.raw[:count]
            capacity = -count

    def piece(self, token: int) -> bytes:
        """The bytes one generated token adds to the text; empty for a control token. Remembered per token."""
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = self.spell(token, special=False)
        return piece

    def spell(self, token: int, *, special: bool = True) -> bytes:
        """The bytes of one token; a control token gives its text when `special`, else nothing."""
        if not 0 <= token < self.size:  # llama.cpp ends the process
            raise LlamaError("a token id outside the vocabulary")
        capacity = 64
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            count = llama_cpp.llama_token_to_piece(self._handle, token, buffer, capacity, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            capacity = -count


class Model:
    """The weights of one GGUF file. `close()` frees them; no vocabulary or context of it may be used afterwards."""

    def __init__(self, options: ModelOptions) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        params.load_mode = _LOAD_MODES[options.mmap, options.mlock]
        params.no_alloc = options.simulated
        handle = llama_cpp.llama_model_load_from_file(os.fsencode(options.path), params)
        if not handle:
            raise LlamaError("llama.cpp cannot load the file")
        self.handle: Any = handle
        self.vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(handle))
        self.trained_context: int = llama_cpp.llama_model_n_ctx_train(handle)
        self.size_bytes: int = llama_cpp.llama_model_size(handle)
        self.parameters: int = llama_cpp.llama_model_n_params(handle)
        # Recurrent and hybrid memories cannot be cut at an arbitrary token.
        self.memory_can_be_cut: bool = not (
            llama_cpp.llama_model_is_recurrent(handle) or llama_cpp.llama_model_is_hybrid(handle)
        )
        self.generates_text: bool = bool(
            llama_cpp.llama_model_has_decoder(handle)
            and not llama_cpp.llama_model_has_encoder(handle)
            and not llama_cpp.llama_model_is_diffusion(handle)
        )

    def metadata(self) -> dict[str, str]:
        """Every key of the GGUF header that is not an array, as text."""
        result: dict[str, str] = {}
        for index in range(llama_cpp.llama_model_meta_count(self.handle)):
            key = self._text(llama_cpp.llama_model_meta_key_by_index, index)
            if key != "tokenizer.chat_template":
                result[key] = self._text(llama_cpp.llama_model_meta_val_str_by_index, index)
        return result

    def _text(self, function: Callable[..., int], index: int) -> str:
        capacity = 256
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            length = function(self.handle, index, buffer, capacity)
            if length < capacity:
                return buffer.value.decode("utf-8", "replace")
            capacity = length + 1

    def chat_template(self) -> str | None:
        """The Jinja source in the GGUF, or `None`."""
        source = llama_cpp.llama_model_chat_template(self.handle, None)
        return source.decode("utf-8", "replace") if source else None

    def close(self) -> None:
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The shape of a context: how many sequences, how long each, and how much one decode call may take."""

    sequences: int
    tokens_per_sequence: int
    batch_tokens: int
    threads: int
    threads_batch: int
    kv_format: str = "f16"
    flash_attention: str = "auto"
    # One pool of cells for all sequences instead of a stream of cells for each: see docs/adr/0003-kv-streams.md.
    pool_tokens: int | None = None


class Context:
    """One llama.cpp context: KV memory for `sequences` sequences and one reusable batch. Engine thread only."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        params = llama_cpp.llama_context_default_params()
        unified = options.pool_tokens is not None
        per_sequence = -(-options.tokens_per_sequence // 256) * 256
        params.n_ctx = options.pool_tokens if options.pool_tokens is not None else per_sequence * options.sequences
        params.kv_unified = unified
        params.n_seq_max = options.sequences
        params.n_batch = options.batch_tokens
        params.n_ubatch = min(options.batch_tokens, 512)
        # A step asks for the logits of one token a sequence; without this the work space is sized for every token.
        params.n_outputs_max = options.sequences
        params.n_threads = options.threads
        params.n_threads_batch = options.threads_batch
        params.type_k = params.type_v = KV_FORMATS[options.kv_format]
        params.flash_attn_type = _FLASH_ATTENTION[options.flash_attention]
        params.no_perf = True
        # llama.cpp calls back ~500 times per decode: a native function that reads one byte costs nothing, a Python one
        # costs milliseconds. `strlen(cell)` is 0 or 1 as the cell's first byte is 0 or not.
        self._abort_cell = ctypes.create_string_buffer(2)
        libc = ctypes.CDLL(None)
        params.abort_callback = ctypes.cast(libc.strlen, llama_cpp.ggml_abort_callback)
        params.abort_callback_data = ctypes.cast(self._abort_cell, ctypes.c_void_p)
        handle = llama_cpp.llama_init_from_model(model.handle, params)
        if not handle:
            raise LlamaError("llama.cpp cannot make a context of this shape (not enough memory, or an unsupported mix)")
        self.handle: Any = handle
        self.sequences = options.sequences
        self.batch_tokens = min(options.batch_tokens, llama_cpp.llama_n_batch(handle))
        self.tokens_per_sequence: int = (
            min(options.tokens_per_sequence, options.pool_tokens)
            if options.pool_tokens
            else options.tokens_per_sequence
        )
        self._vocabulary_size = model.vocabulary.size
        self._memory = llama_cpp.llama_get_memory(handle)
        self._logits_type = ctypes.c_float * self._vocabulary_size
        self.batch = Batch(self.batch_tokens)

    def decode(self) -> None:
        """Evaluate the batch. Raises `MemoryFull` (nothing kept), `Aborted`, or `LlamaError` for anything else."""
        batch = self.batch
        if batch.count == 0:
            return
        result = llama_cpp.llama_decode(self.handle, batch.struct())
        if result == 0:
            return
        if result == 1:
            raise MemoryFull(f"no room in the KV memory for {batch.count} more tokens")
        if result == 2:
            raise Aborted("aborted")
        raise LlamaError(f"llama_decode answered {result}")

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """The logits of the batch's token `index`: a view, float32 of vocabulary size, valid until the next decode."""
        pointer = llama_cpp.llama_get_logits_ith(self.handle, index)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if not address:
            raise LlamaError(f"no logits were computed for batch index {index}")
        view: npt.NDArray[np.float32] = np.frombuffer(memoryview(self._logits_type.from_address(address)), np.float32)
        return view

    def cut(self, sequence: int, keep: int) -> bool:
        """Drop everything of `sequence` after its first `keep` tokens. False: this memory cannot be cut there."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, sequence, keep, -1))

    def copy(self, source: int, target: int) -> None:
        """Make `target` hold what `source` holds. The whole sequence: separate streams allow nothing less."""
        self.cut(target, 0)
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def end_position(self, sequence: int) -> int:
        """How many tokens `sequence` holds."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def abort(self) -> None:
        """Make a running decode return early, and every later one. The only method that another thread may call."""
        self._abort_cell[0] = b"\x01"

    def close(self) -> None:
        if self.handle:
            llama_cpp.llama_free(self.handle)
            self.handle = None


class Batch:
    """The tokens of one decode call, in arrays that numpy fills a slice at a time and llama.cpp reads in place."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._sequence = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._sequence_counts = np.ones(capacity, np.int32)
        # llama.cpp wants a list of sequences per token: here a pointer to the one entry of `_sequence` that is its own.
        self._sequence_pointers = (self._sequence.ctypes.data + 4 * np.arange(capacity)).astype(np.uintp)
        pointer = llama_cpp.llama_batch()
        fields: dict[str, Any] = {name: kind for name, kind, *_ in llama_cpp.llama_batch._fields_}
        pointer.token = self._address(self._token, fields["token"])
        pointer.pos = self._address(self._position, fields["pos"])
        pointer.n_seq_id = self._address(self._sequence_counts, fields["n_seq_id"])
        pointer.seq_id = self._address(self._sequence_pointers, fields["seq_id"])
        pointer.logits = self._address(self._wanted, fields["logits"])
        self._struct = pointer

    @staticmethod
    def _address(array: npt.NDArray[Any], pointer_type: Any) -> Any:
        return ctypes.cast(array.ctypes.data, pointer_type)

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return self.capacity - self.count

    def clear(self) -> None:
        self.count = 0

    def add(self, token: int, position: int, sequence: int) -> int:
        """One token whose logits are wanted. Returns its index in the batch."""
        index = self.count
        if index >= self.capacity:
            raise LlamaError("the batch is full")
        self._token[index] = token
        self._position[index] = position
        self._sequence[index] = sequence
        self._wanted[index] = 1
        self.count = index + 1
        return index

    def extend(self, tokens: Iterable[int], position: int, sequence: int, *, want_last: bool) -> int:
        """A run of tokens from `position` on; the last one's logits if `want_last`. Returns the last one's index."""
        run = np.fromiter(tokens, np.int32)
        start, end = self.count, self.count + len(run)
        if end > self.capacity:
            raise LlamaError("the batch is full")
        self._token[start:end] = run
        self._position[start:end] = np.arange(position, position + len(run))
        self._sequence[start:end] = sequence
        self._wanted[start:end] = 0
        if want_last and len(run):
            self._wanted[end - 1] = 1
        self.count = end
        return end - 1

    def struct(self) -> Any:
        self._struct.n_tokens = self.count
        return self._struct
