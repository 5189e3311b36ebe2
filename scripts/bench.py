"""Benchmarks of an OpenAI-compatible server: aggregate tokens/s, time to first token, gaps between tokens.

Drives one server, or two in turn in one run (A B A B …) and prints the ratio; `--ceiling` adds the bare llama.cpp loop in
this process on the same batch. Either give URLs, or let the script start the servers itself. Compare only within one run:
machines are noisy. Only plain HTTP/1.1 is spoken. docs/benchmarks.md has the commands behind the figures.

    python scripts/bench.py --url http://127.0.0.1:8000/v1 --streams 1,4,8
    python scripts/bench.py --url http://127.0.0.1:8000/v1 --against http://127.0.0.1:8001/v1
    python scripts/bench.py --spawn MODEL.gguf --llama-server PATH --ceiling --threads 1 --lanes 8
    python scripts/bench.py --ceiling MODEL.gguf --threads 1 --lanes 8

Per number of streams and target: `tokens_per_s`, all completion tokens (as the server counts them) over the time from the
first request being sent to the last piece of text, the median of the rounds; `ttft`, from a request being sent to its
first piece of text, and `gap`, between two pieces of text of one stream, over all streams of all rounds. Each round's prompts
are new, so no prompt cache helps beyond the chat template's own opening (--no-reuse: not even there); all targets get the same
ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from bench_ceiling import Ceiling
from bench_client import Round, body_for, percentile, prompts, run_round
from bench_servers import llama_server, ours


@dataclass(slots=True)
class Target:
    """One thing that is measured."""

    name: str
    run: Callable[[list[str]], Round | float]
    rounds: list[Round] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def measure(self, texts: list[str]) -> None:
        result = self.run(texts)
        if isinstance(result, Round):
            self.rounds.append(result)
            self.rates.append(result.tokens_per_s)
        else:
            self.rates.append(result)

    def figures(self) -> dict[str, Any]:
        ttft = [value for one in self.rounds for value in one.ttft_s]
        gaps = [value for one in self.rounds for value in one.gaps_s]
        figures: dict[str, Any] = {"tokens_per_s": statistics.median(self.rates), "rounds_tokens_per_s": self.rates}
        if self.rounds:
            figures |= {
                "ttft_p50_ms": percentile(ttft, 50) * 1000,
                "ttft_p95_ms": percentile(ttft, 95) * 1000,
                "gap_p50_ms": percentile(gaps, 50) * 1000,
                "gap_p95_ms": percentile(gaps, 95) * 1000,
                "prompt_tokens": statistics.median(s.prompt_tokens for one in self.rounds for s in one.streams),
                "cached_tokens": statistics.median(s.cached_tokens for one in self.rounds for s in one.streams),
            }
        return figures


def lengths(texts: list[str], options: argparse.Namespace) -> list[int]:
    """The tokens that each stream of a round makes: all the same, or with `--vary` from a quarter to all of them."""
    most, count = options.max_tokens, len(texts)
    if not options.vary or count == 1:
        return [most] * count
    spread = [round(most * (0.25 + 0.75 * place / (count - 1))) for place in range(count)]
    random.Random(texts[0]).shuffle(spread)
    return spread


def http_target(name: str, url: str, options: argparse.Namespace, extra: dict[str, Any]) -> Target:
    def run(texts: list[str]) -> Round:
        bodies = [
            body_for(
                text,
                max_tokens=tokens,
                temperature=options.temperature,
                model=options.model,
                extra=extra,
            )
            for text, tokens in zip(texts, lengths(texts, options), strict=True)
        ]
        return trio.run(partial(run_round, url, bodies, options.key))

    return Target(name, run)


def measure(targets: list[Target], streams: int, options: argparse.Namespace) -> None:
    """Warm-up rounds, then measured ones; each round's prompts are new, and the same for every target."""
    for number in range(options.warmup + options.rounds):
        texts = prompts(
            streams, options.prompt_words, options.seed + 1000 * streams + number, shared_prefix=options.shared_prefix
        )
        order = targets if number % 2 == 0 else targets[::-1]
        for target in order:
            target.measure(texts)
        if number < options.warmup:
            for target in targets:
                target.rounds.clear()
                target.rates.clear()


def report(targets: list[Target], streams: int) -> list[dict[str, Any]]:
    rows = []
    for target in targets:
        row = {"target": target.name, "streams": streams, **target.figures()}
        rows.append(row)
        shown = "  ".join(f"{name} {value:.1f}" for name, value in row.items() if isinstance(value, float))
        print(f"{streams:3d} streams  {target.name:14s} {shown}", flush=True)
    first, *others = rows
    for other in others:
        ratios = [f"{name} x{first[name] / other[name]:.3f}" for name in RATIOS if other.get(name) and first.get(name)]
        pairs = [a / b for a, b in zip(targets[0].rates, by_name(targets, other["target"]).rates, strict=True)]
        print(
            f"             {first['target']} / {other['target']}:  {'  '.join(ratios)}"
            f"  (tokens/s by pairs: median x{statistics.median(pairs):.3f}, {min(pairs):.3f}..{max(pairs):.3f})",
            flush=True,
        )
    return rows


RATIOS = ("tokens_per_s", "ttft_p50_ms", "gap_p50_ms", "gap_p95_ms")


COLUMNS = {
    "tokens_per_s": "tok/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p95_ms": "p95",
    "gap_p50_ms": "gap p50, ms",
    "gap_p95_ms": "p95",
}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The figures as a table for docs/benchmarks.md."""
    lines = ["| streams | target | " + " | ".join(COLUMNS.values()) + " |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for row in rows:
        figures = [f"{row[name]:.1f}" if name in row else "" for name in COLUMNS]
        lines.append(f"| {row['streams']} | {row['target']} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def by_name(targets: list[Target], name: str) -> Target:
    return next(target for target in targets if target.name == name)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_argument_group("what is measured")
    where.add_argument("--url", help="base URL of the server, ending in /v1")
    where.add_argument("--against", help="base URL of a second server to compare with")
    where.add_argument("--spawn", metavar="MODEL", help="start trio-server on this GGUF file")
    where.add_argument(
        "--llama-server", metavar="PATH", help="with --spawn: start llama.cpp's server too, to compare with"
    )
    where.add_argument(
        "--ceiling",
        nargs="?",
        const="",
        metavar="MODEL",
        help="the bare loop in this process too; with --spawn on the same model",
    )
    where.add_argument("--unified", action="store_true", help="the ceiling's lanes share one pool of KV cells")
    where.add_argument("--threads", type=int, default=1)
    where.add_argument("--lanes", type=int, default=8)
    where.add_argument("--context", type=int, default=1024, help="tokens per lane")
    where.add_argument("--flags", default="", help="more flags for trio-server")
    where.add_argument("--llama-flags", default="", help="more flags for llama-server")
    where.add_argument(
        "--no-reuse",
        action="store_true",
        help="what the script starts evaluates every prompt whole, template opening included",
    )
    where.add_argument("--key", help="API key")
    load = parser.add_argument_group("the load")
    load.add_argument("--streams", default="1,4,8", help="numbers of concurrent streams, by commas")
    load.add_argument("--prompt-words", type=int, default=16)
    load.add_argument("--shared-prefix", action="store_true", help="prompts differ in their last words only")
    load.add_argument("--max-tokens", type=int, default=64)
    load.add_argument(
        "--vary", action="store_true", help="streams of different lengths, a quarter to all of --max-tokens"
    )
    load.add_argument("--temperature", type=float, default=0.0)
    load.add_argument("--model", help="the request's model field")
    load.add_argument(
        "--extra",
        type=json.loads,
        default={},
        help='more body fields, as JSON; requests have "ignore_eos": true unless it says otherwise',
    )
    load.add_argument("--extra-against", type=json.loads, default={}, help="the same for the second server")
    load.add_argument("--rounds", type=int, default=7)
    load.add_argument("--warmup", type=int, default=2)
    load.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the settings and all figures there")
    parser.add_argument("--markdown", action="store_true", help="print the figures as a table at the end")
    return parser


def heading(options: argparse.Namespace) -> str:
    """What every figure of this run depends on."""
    parts = [
        f"threads {options.threads}",
        f"lanes {options.lanes}",
        f"context {options.context}",
        f"prompt words {options.prompt_words}{' (shared prefix)' if options.shared_prefix else ''}",
        f"max_tokens {options.max_tokens}",
        f"temperature {options.temperature}",
        *(["no prompt reuse"] if options.no_reuse else []),
        f"{options.rounds} rounds after {options.warmup}",
        f"load average before the start {os.getloadavg()[0]:.2f}",
    ]
    return ", ".join(parts)


def main() -> int:
    options = arguments().parse_args()
    ceiling_model = options.ceiling or (options.spawn if options.ceiling is not None else None)
    if options.ceiling == "" and not options.spawn:
        arguments().error("--ceiling needs a model, its own or that of --spawn")
    if not (options.url or options.spawn or ceiling_model):
        arguments().error("give --url, --spawn or --ceiling")
    if options.against and not options.url:
        arguments().error("--against goes with --url")
    rows = []
    counts = [int(part) for part in options.streams.split(",")]
    shape = {
        "threads": options.threads,
        "lanes": options.lanes,
        "context": options.context,
        "reuse": not options.no_reuse,
    }
    print(heading(options), flush=True)
    with ExitStack() as stack:
        url = options.url
        against = options.against
        if options.spawn:
            url = stack.enter_context(ours(options.spawn, **shape, flags=options.flags.split()))
            if options.llama_server:
                flags = options.llama_flags.split()
                against = stack.enter_context(llama_server(options.llama_server, options.spawn, **shape, flags=flags))
        ceiling = Ceiling(ceiling_model, **shape, unified=options.unified) if ceiling_model else None
        if ceiling is not None:
            stack.callback(ceiling.close)
        for streams in counts:
            targets = []
            if url:
                targets.append(http_target("ours", url, options, options.extra))
            if against:
                targets.append(http_target("against", against, options, options.extra_against))
            if ceiling is not None:
                bound = ceiling

                def run_ceiling(texts: list[str], bound: Ceiling = bound) -> float:
                    return bound.run(texts, options.max_tokens).tokens_per_s

                targets.append(Target("ceiling", run_ceiling))
            measure(targets, streams, options)
            rows += report(targets, streams)
    if options.markdown:
        print(f"\n{markdown(rows)}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"settings": {**vars(options), "key": None}, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
