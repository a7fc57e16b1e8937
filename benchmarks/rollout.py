"""Decoders against the plain loop: ``python benchmarks/rollout.py [--models ...] [--batch 8 1] [--steps 32] ...``.

Prompt 96, 128 new tokens, blocks of 32, one token per step, float32, fresh weights. Every forward of a decoder is
timed; by default a block gets few forwards with more tokens each, and the whole run of one token per forward is
reckoned from them: a block costs its first forward and 31 times the mean of its further ones, whose numbers of masked
positions have the mean of the whole run. ``--steps 32`` runs everything. Of ``--repeat`` runs, which alternate with
steps of the plain loop, each forward counts by its fastest time, since the machine may be shared.

Beside each ratio stands the counted one: multiplications of the matrix products and of attention. ``matmul`` is the
rate of a decoder's multiplications as a share of the rate of the same matrix products alone.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from plain_loop import PlainLoop
from torch import Tensor

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.diffusion.denoise import denoise
from dare_core.types import Address, DecodingSettings, DenoisingStep
from dare_fastdllm.windows import WindowPolicy, window_rows
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_tokenizer
from dare_sdar.adapter import SdarAdapter
from dare_sdar.config import SdarSection
from dare_sdar.testing import write_sdar_tokenizer

#: seconds, by the clock on the wall or by the processor time of this process
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]
PROMPT, NEW, BLOCK = 96, 128, 32
#: name -> width, layers, vocabulary
SHAPES = {"head-heavy": (512, 8, 126464), "backbone-heavy": (1024, 12, 8192)}
HEAD_WIDTH, MLP_FACTOR = 64, 3


@cache
def tokenizer(write: Callable[[Path], Any]) -> str:
    folder = tempfile.mkdtemp(prefix="dare-benchmark-")
    atexit.register(shutil.rmtree, folder)
    write(Path(folder))
    return folder


def llada(shape: str, dtype: torch.dtype) -> TransformerAdapter:
    width, layers, vocabulary = SHAPES[shape]
    config = {
        "d_model": width,
        "n_layers": layers,
        "n_heads": width // HEAD_WIDTH,
        "mlp_hidden_size": MLP_FACTOR * width,
        "vocab_size": vocabulary,
        "embedding_size": vocabulary,
        "max_sequence_length": 512,
        "mask_token_id": vocabulary - 128,
        "eos_token_id": vocabulary - 300,
        "eot_token_id": vocabulary - 299,
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "rope": True,
    }
    section = LladaSection(config=config, init="random", tokenizer=tokenizer(write_llada_tokenizer))
    return LladaAdapter.load(section, device=torch.device("cpu"), dtype=dtype)


def sdar(shape: str, dtype: torch.dtype, block: int) -> TransformerAdapter:
    width, layers, vocabulary = SHAPES[shape]
    config = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": MLP_FACTOR * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD_WIDTH,
        "num_key_value_heads": width // HEAD_WIDTH,
        "head_dim": HEAD_WIDTH,
        "rope_theta": 1e4,
        "max_position_embeddings": 512,
    }
    ids = {"mask_id": vocabulary - 1, "eos_ids": (vocabulary - 2,), "pad_id": vocabulary - 2}
    section = SdarSection(
        config=config, init="random", block_length=block, tokenizer=tokenizer(write_sdar_tokenizer), **ids
    )
    return SdarAdapter.load(section, device=torch.device("cpu"), dtype=dtype)


@dataclass
class Forwards:
    """Seconds of each forward, by number; the smallest over runs."""

    block: int
    per_block: int
    seconds: list[float]

    @classmethod
    def measure(cls, run: Callable[[Callable[[DenoisingStep], None]], Any], block: int, per_block: int) -> Forwards:
        marks = [clock()]
        run(lambda _: marks.append(clock()))
        return cls(block, per_block, [end - start for start, end in itertools.pairwise(marks)])

    def best(self, other: Forwards) -> Forwards:
        both = zip(self.seconds, other.seconds, strict=True)
        return Forwards(self.block, self.per_block, [min(pair) for pair in both])

    def whole_run(self) -> float:
        """Seconds of a run with one token per forward."""
        total = 0.0
        for start in range(0, len(self.seconds), self.per_block):
            first, *further = self.seconds[start : start + self.per_block]
            rest = sum(further) / len(further) * (self.block - 1) if further else 0.0
            total += first + rest
        return total


@dataclass(frozen=True)
class Column:
    """One decoder: its forwards, and the columns that a forward of a block computes (None = those not cached)."""

    name: str
    forwards: Any
    block: int = BLOCK


def run_column(
    adapter: TransformerAdapter, column: Column, batch: int, temperature: float, steps: int, new: int, seed: int = 0
) -> Forwards:
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, 1000, (batch, PROMPT), generator=generator)
    per_block = min(steps, column.block)
    settings = DecodingSettings(
        new_tokens=new, block_length=column.block, steps_per_block=per_block, temperature=temperature
    )

    def run(watch: Callable[[DenoisingStep], None]) -> None:
        address = Address(0, "benchmark")
        denoise(adapter, list(prompts), settings, address, range(batch), forwards=column.forwards, watch=watch)

    return Forwards.measure(run, column.block, per_block)


def plain_seconds(adapter: TransformerAdapter, batch: int, temperature: float, new: int) -> float:
    canvas = torch.randint(0, 1000, (batch, PROMPT + new), generator=torch.Generator().manual_seed(0))
    canvas[:, PROMPT:] = adapter.facts.mask_id
    loop = PlainLoop(adapter.module, int(adapter.facts.mask_id or 0), temperature, BLOCK)
    start = clock()
    loop.step(canvas, PROMPT)
    return clock() - start


def computed(name: str, block: int, new: int) -> Iterator[tuple[int, int, int]]:
    """(tokens computed, tokens seen, tokens scored) per row and forward of the whole run."""
    length = PROMPT + new
    for number in range(new // block):
        start = PROMPT + number * block
        for step in range(block):
            scored = block - step
            if name == "plain":
                yield length, length, length
            elif name == "exact" or (step == 0 and name in ("prefix", "dual")):
                yield length, length, scored
            elif name == "prefix":
                yield length - start, length, scored
            elif name == "dual":
                yield block, length, scored
            else:
                fresh = block if step or not number else 2 * block
                yield fresh, start + block, scored


def products(shape: str, name: str, block: int, new: int) -> float:
    """Multiplications per row of the whole run."""
    width, layers, vocabulary = SHAPES[shape]
    mlp = 3 * width * MLP_FACTOR * width
    per_token = layers * (4 * width * width + mlp)
    total = 0.0
    for tokens, seen, scored in computed(name, block, new):
        total += tokens * per_token + 2 * layers * tokens * seen * width + scored * width * vocabulary
        # The plain loop runs the last layer to its end everywhere.
        total -= 0 if name == "plain" else (tokens - scored) * mlp
    return total


def matmul_rate(shape: str, tokens: int, scored: int, repeat: int) -> float:
    """Multiplications per second of the matrix products of one forward, alone."""
    width, layers, vocabulary = SHAPES[shape]
    count = tokens * layers * (4 + 3 * MLP_FACTOR) * width * width + scored * width * vocabulary
    x, wide = torch.randn(tokens, width), torch.randn(tokens, MLP_FACTOR * width)
    square, up = torch.randn(width, width), torch.randn(MLP_FACTOR * width, width)
    head, read = torch.randn(vocabulary, width), torch.randn(scored, width)
    best = float("inf")
    for _ in range(repeat):
        start = clock()
        for _ in range(layers):
            for _ in range(4):
                torch.nn.functional.linear(x, square)
            torch.nn.functional.linear(x, up)
            torch.nn.functional.linear(x, up)
            torch.nn.functional.linear(wide, up.t())
        torch.nn.functional.linear(read, head)
        best = min(best, clock() - start)
    return count / best


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    adapter: TransformerAdapter, columns: list[Column], batch: int, temperature: float, options: argparse.Namespace
) -> tuple[float, dict[str, Forwards]]:
    """Seconds of a plain step, and forwards by column; alternating."""
    plain, found = float("inf"), {}
    # Not measured: what a process does for the first time.
    plain_seconds(adapter, batch, temperature, options.new)
    run_column(adapter, columns[0], batch, temperature, 1, BLOCK)
    for _ in range(options.repeat):
        plain = min(plain, plain_seconds(adapter, batch, temperature, options.new))
        for column in columns:
            run = run_column(adapter, column, batch, temperature, options.steps, options.new)
            found[column.name] = run.best(found[column.name]) if column.name in found else run
    return plain, found


def report(shape: str, batch: int, temperature: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    adapter = llada(shape, torch.float32)
    windows = {name: partial(window_rows, adapter, WindowPolicy(name)) for name in ("prefix", "dual")}
    columns = [Column("exact", None), *(Column(name, forwards) for name, forwards in windows.items())]
    columns = [column for column in columns if column.name in options.decoders]
    plain, found = measure(adapter, columns, batch, temperature, options)
    for name, forwards in found.items():
        row = line(shape, name, batch, temperature, plain, forwards, options)
        if name == "exact":
            tokens = batch * (PROMPT + options.new)
            rate = matmul_rate(shape, tokens, batch * BLOCK // 2, options.repeat)
            row["matmul"] = batch * products(shape, name, BLOCK, options.new) / forwards.whole_run() / rate
        yield row


def report_blocks(shape: str, block: int, batch: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    adapter = sdar(shape, torch.float32, block)
    plain, found = measure(adapter, [Column("sdar", None, block)], batch, 0.0, options)
    yield line(shape, f"sdar-{block}", batch, 0.0, plain, found["sdar"], options)


def line(
    shape: str,
    name: str,
    batch: int,
    temperature: float,
    plain: float,
    forwards: Forwards,
    options: argparse.Namespace,
) -> dict[str, Any]:
    counted = [products(shape, kind, forwards.block, options.new) for kind in ("plain", name)]
    whole = plain * options.new
    return {
        "model": shape,
        "batch": batch,
        "temperature": temperature,
        "decoder": name,
        "plain_s": whole,
        "s": forwards.whole_run(),
        "ratio": whole / forwards.whole_run(),
        "counted": counted[0] / counted[1],
    }


def cost(shape: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seconds of a whole run by samples, at :data:`BLOCK` new tokens, and by new tokens, for one sample."""
    adapter = llada(shape, torch.float32)
    windows = {name: partial(window_rows, adapter, WindowPolicy(name)) for name in ("prefix", "dual")}
    columns = [Column("exact", None), *(Column(name, forwards) for name, forwards in windows.items())]
    sizes = [*((batch, BLOCK) for batch in (1, 2, 4, 8)), *((1, new) for new in (64, 128, 256))]
    for column in columns:
        for batch, new in sizes:
            runs = [run_column(adapter, column, batch, 0.0, 2, new) for _ in range(options.repeat)]
            seconds = min(run.whole_run() for run in runs)
            yield {"model": shape, "decoder": column.name, "batch": batch, "new": new, "s": seconds}


def bfloat16(shape: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """The exact decoder in bfloat16 against float32, and how often both prefer the same token in one forward."""
    wide = llada(shape, torch.float32)
    narrow = llada(shape, torch.float32)
    narrow.module.to(torch.bfloat16)
    canvas = torch.randint(0, 1000, (batch, PROMPT + options.new), generator=torch.Generator().manual_seed(0))
    canvas[:, PROMPT:] = int(wide.facts.mask_id or 0)
    everywhere = torch.ones_like(canvas, dtype=torch.bool)
    where = everywhere.cumsum(dim=1) > PROMPT
    prompt_length = torch.full((batch,), PROMPT)
    shared = {"layout": wide.facts.layout, "prompt_length": prompt_length}

    def run(adapter: TransformerAdapter) -> tuple[float, Tensor]:
        best = float("inf")
        for _ in range(options.repeat + 1):
            start = clock()
            with torch.no_grad():
                logits = adapter.logits(canvas, everywhere, where, **shared)
            best = min(best, clock() - start)
        return best, logits

    slow, expected = run(wide)
    fast, found = run(narrow)
    return {
        "model": shape,
        "batch": batch,
        "decoder": "one forward in bfloat16",
        "ratio": slow / fast,
        "same_token": float((expected.argmax(dim=1) == found.argmax(dim=1)).float().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batch", nargs="*", type=int, default=[8, 1])
    parser.add_argument("--temperature", nargs="*", type=float, default=[0.0, 1.0])
    parser.add_argument(
        "--decoders", nargs="*", default=["exact", "prefix", "dual"], help="of LLaDA-shaped models; may be none"
    )
    parser.add_argument("--blocks", nargs="*", type=int, default=[4, 32], help="block lengths of SDAR-shaped models")
    parser.add_argument("--new", type=int, default=NEW, help="new tokens")
    parser.add_argument("--steps", type=int, default=4, help="forwards per block")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a busy machine, one thread")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--cost", action="store_true", help="seconds by samples and by new tokens instead")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    with threads(options.threads):
        for row in rows(options):
            print(json.dumps(row) if options.json else text(row), flush=True)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for shape in options.models:
        if options.cost:
            yield from cost(shape, options)
            continue
        for batch in options.batch:
            for temperature in (options.temperature if batch > 1 else [0.0]) if options.decoders else []:
                yield from report(shape, batch, temperature, options)
            for block in options.blocks:
                yield from report_blocks(shape, block, batch, options)
            if options.bfloat16:
                yield bfloat16(shape, batch, options)


def text(row: dict[str, Any]) -> str:
    return "  ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{value}" for key, value in row.items())


if __name__ == "__main__":
    main()
