"""Peak memory and time of loading a published folder: ``python benchmarks/loading.py [--gigabytes 2] [--shards 8]``.

A LLaDA checkpoint is generated in a temporary folder, and each measurement runs in a process of its own:

* reading: every byte of the shards, as plain files (the bound that a disk sets);
* loading: the adapter, weights in their stored dtype or converted while reading.

Memory is what the process holds beyond its imports. ``anonymous`` is memory of its own (RssAnon, sampled every
millisecond); ``peak`` is the high-water mark of everything resident (VmHWM), in which the mapped pages of the
shard being read count too, although the system takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

_CHUNK = 1 << 24


def status(field: str) -> int:
    """Bytes of one line of this process's memory status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


class Peak:
    """Largest RssAnon while open."""

    def __enter__(self) -> Peak:
        self.bytes, self._done = status("RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self.bytes = max(self.bytes, status("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def generate(folder: Path, gigabytes: float, shards: int, width: int = 2048) -> None:
    """A LLaDA checkpoint of about this size in bfloat16. Values do not matter, so they are cheap ones."""
    import torch
    from safetensors.torch import save_file

    from dare_llada.adapter import LladaAdapter
    from dare_llada.testing import tiny_config, write_llada_tokenizer

    inner, vocabulary = 3 * width, 16 * width
    layer = 2 * (4 * width * width + 3 * width * inner)
    layers = max(1, round((gigabytes * 1e9 - 4 * width * vocabulary) / layer))
    config = tiny_config(
        vocab_size=vocabulary, d_model=width, n_layers=layers, n_heads=16, mlp_hidden_size=inner, torch_dtype="bfloat16"
    )
    write_llada_tokenizer(folder, vocab_size=vocabulary)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.device("meta"):
        parameters = dict(LladaAdapter.build_module(config).named_parameters())
    layout = LladaAdapter.weight_layout(config)
    sizes = {key: parameters[parts[0].parameter].shape for key, parts in layout.items()}
    limit, names, filled = sum(2 * size.numel() for size in sizes.values()) / shards, {}, 0
    for key, size in sizes.items():
        names[key] = f"model-{min(shards, int(filled / limit) + 1):05d}-of-{shards:05d}.safetensors"
        filled += 2 * size.numel()
    for name in dict.fromkeys(names.values()):
        held = {key: torch.full(sizes[key], 0.01, dtype=torch.bfloat16) for key in names if names[key] == name}
        save_file(held, folder / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": filled}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def read_plainly(folder: Path) -> dict[str, Any]:
    """Read every byte of the shards."""
    start, total = time.perf_counter(), 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while block := file.read(_CHUNK):
                total += len(block)
    return {"seconds": time.perf_counter() - start, "bytes": total}


def load(folder: Path, dtype: str) -> dict[str, Any]:
    """Load through the adapter."""
    import torch

    from dare_llada.adapter import LladaAdapter
    from dare_llada.config import LladaSection

    section = LladaSection(path=str(folder))
    LladaAdapter.load_text(section)  # imports what loading imports
    before, resident = status("RssAnon"), status("VmRSS")
    start = time.perf_counter()
    with Peak() as peak:
        adapter = LladaAdapter.load(section, device=torch.device("cpu"), dtype=getattr(torch, dtype))
    seconds = time.perf_counter() - start
    held = sum(parameter.nbytes for parameter in adapter.module.parameters())
    anonymous, everything = peak.bytes - before, status("VmHWM") - resident
    return {
        "seconds": seconds,
        "bytes": held,
        "anonymous": round(anonymous / held, 3),
        "peak": round(everything / held, 3),
    }


def measured(folder: Path, *arguments: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(folder), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report(gigabytes: float, shards: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, gigabytes, shards)
        measured(folder, "read")  # all runs find the files in the same, warm page cache
        plain = min((measured(folder, "read") for _ in range(3)), key=lambda run: run["seconds"])
        print(f"{plain['bytes'] / 1e9:.2f} GB in {shards} shards; plain reading {plain['seconds']:.2f} s")
        for dtype in ("bfloat16", "float32"):
            run = min((measured(folder, dtype) for _ in range(3)), key=lambda run: run["seconds"])
            print(
                f"as {dtype:8}  {run['bytes'] / 1e9:.2f} GB of weights in {run['seconds']:.2f} s "
                f"({run['seconds'] / plain['seconds']:.1f} x plain reading); memory over weights: "
                f"anonymous {run['anonymous']:.3f}, peak with mapped pages {run['peak']:.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "WHAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is None:
        report(options.gigabytes, options.shards)
        return
    folder, what = Path(options.measure[0]), options.measure[1]
    print(json.dumps(read_plainly(folder) if what == "read" else load(folder, what)))


if __name__ == "__main__":
    main()
