"""Tiny random models written as GGUF files, so that the real llama.cpp can be driven through thousands of steps a second.

`write_llama` makes a transformer whose memory can be cut, `write_mamba` a recurrent model whose memory cannot. Both have a
byte-level vocabulary of 320 tokens: 0 is the end of generation, 1 begins a text, 2 to 257 are bytes, the rest are words.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 320
END_OF_TEXT = 0
BEGIN_OF_TEXT = 1
_WIDTH, _LAYERS, _HEADS, _ALIGNMENT = 64, 2, 2, 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def write_llama(path: Path, *, context: int = 4096, changes: Mapping[str, Any] | None = None) -> Path:
    """A llama model of 2 layers. `changes` replaces or adds header values."""
    random = np.random.default_rng(7)

    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    tensors = {"token_embd.weight": weights(VOCABULARY, _WIDTH), "output_norm.weight": np.ones(_WIDTH, np.float32)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.attn_norm.weight": np.ones(_WIDTH, np.float32),
            f"{block}.attn_q.weight": weights(_WIDTH, _WIDTH),
            f"{block}.attn_k.weight": weights(_WIDTH // 2, _WIDTH),
            f"{block}.attn_v.weight": weights(_WIDTH // 2, _WIDTH),
            f"{block}.attn_output.weight": weights(_WIDTH, _WIDTH),
            f"{block}.ffn_norm.weight": np.ones(_WIDTH, np.float32),
            f"{block}.ffn_gate.weight": weights(_WIDTH, _WIDTH),
            f"{block}.ffn_up.weight": weights(_WIDTH, _WIDTH),
            f"{block}.ffn_down.weight": weights(_WIDTH, _WIDTH),
        }
    header = {
        "general.architecture": "llama",
        "llama.context_length": context,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": _LAYERS,
        "llama.feed_forward_length": _WIDTH,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    return _write(path, header | _tokenizer() | dict(changes or {}), tensors)


def write_mamba(path: Path) -> Path:
    """A mamba model of 2 layers: its state cannot be cut at a token."""
    random = np.random.default_rng(7)
    inner, state, convolution, rank = 2 * _WIDTH, 16, 4, 4

    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, 0.2, shape).astype(np.float32)

    tensors = {"token_embd.weight": weights(VOCABULARY, _WIDTH), "output_norm.weight": np.ones(_WIDTH, np.float32)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.attn_norm.weight": np.ones(_WIDTH, np.float32),
            f"{block}.ssm_in.weight": weights(2 * inner, _WIDTH),
            f"{block}.ssm_conv1d.weight": weights(inner, convolution),
            f"{block}.ssm_conv1d.bias": weights(inner),
            f"{block}.ssm_x.weight": weights(rank + 2 * state, inner),
            f"{block}.ssm_dt.weight": weights(inner, rank),
            f"{block}.ssm_dt.bias": weights(inner),
            f"{block}.ssm_a": -np.abs(weights(inner, state)),
            f"{block}.ssm_d": weights(inner),
            f"{block}.ssm_out.weight": weights(_WIDTH, inner),
        }
    header = {
        "general.architecture": "mamba",
        "mamba.context_length": 4096,
        "mamba.embedding_length": _WIDTH,
        "mamba.block_count": _LAYERS,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": convolution,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
    }
    return _write(path, header | _tokenizer(), tensors)


def _tokenizer() -> dict[str, Any]:
    words = [f"word{number}" for number in range(VOCABULARY - 258)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": ["<|end|>", "<|begin|>", *_byte_texts(), *words],
        "tokenizer.ggml.token_type": [3, 3, *[1] * (VOCABULARY - 2)],  # 3: control, 1: normal
        "tokenizer.ggml.merges": ["w o"],
        "tokenizer.ggml.eos_token_id": END_OF_TEXT,
        "tokenizer.ggml.bos_token_id": BEGIN_OF_TEXT,
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_texts() -> list[str]:
    """How byte-level BPE writes the 256 bytes as printable characters (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _write(path: Path, header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(header)))
    for key, value in header.items():
        out += _string(key) + _value(value)
    offset, data = 0, bytearray()
    for name, tensor in tensors.items():
        # GGUF names the fastest dimension first; 0 is the type F32.
        out += _string(name) + struct.pack("<I", tensor.ndim)
        out += struct.pack(f"<{tensor.ndim}Q", *reversed(tensor.shape)) + struct.pack("<IQ", 0, offset)
        data += tensor.tobytes()
        data += b"\0" * (-len(data) % _ALIGNMENT)
        offset = len(data)
    out += b"\0" * (-len(out) % _ALIGNMENT)
    path.write_bytes(out + data)
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case _:
            return _array(value)


def _array(values: Sequence[Any]) -> bytes:
    if isinstance(values[0], str):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(map(_string, values))
    return struct.pack(f"<IIQ{len(values)}i", _ARRAY, _INT32, len(values), *values)
