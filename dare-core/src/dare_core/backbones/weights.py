"""Published weight folders: read one tensor at a time, checked before anything is allocated, saved alike.

A family states its *weight layout*: published key -> the parts of module parameters that hold it. Most
keys are one whole parameter; fused matrices are several parts, and one expert of a stacked parameter is
an indexed part. The same layout reads and writes. A buffer is a part like a parameter, but keeps the dtype
it was stored in: it is not trained, and routing biases are finer than half precision.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dare_core.errors import Problem, UserError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5 * 10**9
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Part:
    """Where a published tensor (or its next rows, if it has several parts) lives.

    Attributes:
        parameter: dotted name of a parameter or buffer in the module.
        index: index into the parameter; empty = all of it. Buffers are never indexed.
    """

    parameter: str
    index: tuple[int | slice, ...] = ()


#: published key -> its parts, in the order of the published rows
WeightLayout = Mapping[str, Sequence[Part]]


@dataclass(frozen=True)
class PublishedWeights:
    """What a folder's weight files hold, from their headers.

    Attributes:
        folder: where they lie.
        files: key -> file name.
        shapes: key -> shape.
        dtypes: key -> dtype as stored.
    """

    folder: Path
    files: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor on the CPU in its stored dtype, file by file, one at a time."""
        for name in dict.fromkeys(self.files.values()):
            with safe_open(self.folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    yield key, file.get_tensor(key)

    def under(self, stored: WeightLayout, layout: WeightLayout) -> PublishedWeights:
        """The same files and dtypes under the keys of another layout of the same module.

        Args:
            stored: layout of the folder's own keys.
            layout: layout to save in; a key follows the folder's key that holds the start of its first part.
        """
        homes: dict[str, str] = {}
        for key, parts in stored.items():
            for part in parts:
                homes.setdefault(part.parameter, key)
        origin = {key: homes[parts[0].parameter] for key, parts in layout.items()}
        order = {name: place for place, name in enumerate(dict.fromkeys(self.files.values()))}
        keys = sorted(origin, key=lambda key: order[self.files[origin[key]]])
        return PublishedWeights(
            self.folder,
            {key: self.files[origin[key]] for key in keys},
            {},
            {key: self.dtypes[origin[key]] for key in keys},
        )


def inspect_weights(folder: Path) -> PublishedWeights:
    """Read the headers of a folder's safetensors files.

    Raises:
        UserError: no safetensors weights (pickled ones are refused), missing or broken shards, an index that
            does not match them, or a dtype that is not floating point.
    """
    names = _weight_files(folder)
    files: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, torch.dtype] = {}
    problems = []
    for name in names:
        if not (folder / name).is_file():
            problems.append(Problem("the index names this shard, but it is missing", where=str(folder / name)))
            continue
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    entry = file.get_slice(key)
                    if entry.get_dtype() not in _DTYPES:
                        problems.append(Problem(f"{key} has dtype {entry.get_dtype()}; allowed: {', '.join(_DTYPES)}"))
                        continue
                    files[key], shapes[key] = name, tuple(entry.get_shape())
                    dtypes[key] = _DTYPES[entry.get_dtype()]
        except Exception as error:  # safetensors raises its own and OS errors for broken files
            problems.append(Problem(f"not a readable safetensors file ({error})", where=str(folder / name)))
    if problems:
        raise UserError(problems)
    return PublishedWeights(folder, files, shapes, dtypes)


def _weight_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise UserError(Problem("no such model folder", where=str(folder), path="model.path"))
    if (folder / INDEX).is_file():
        try:
            return list(dict.fromkeys(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(Problem(f"not a weight index ({error!r})", where=str(folder / INDEX))) from error
    if (folder / SINGLE).is_file():
        return [SINGLE]
    pickled = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickled:
        raise UserError(
            Problem(
                f"weights are only there as {', '.join(pickled[:3])}: pickled files can run code and are not read",
                where=str(folder),
                hint="convert them to safetensors, for example with the library that published them",
            )
        )
    raise UserError(Problem(f"no weights: neither {SINGLE} nor {INDEX} is there", where=str(folder), path="model.path"))


def check_layout(weights: PublishedWeights, layout: WeightLayout, module: nn.Module) -> None:
    """Compare published tensors with what the module needs.

    Raises:
        UserError: names every missing, extra and misshapen tensor.
    """
    parameters = _named_tensors(module)
    where = str(weights.folder)
    problems = [Problem(f"missing tensor {key}", where=where) for key in layout if key not in weights.shapes]
    problems += [Problem(f"extra tensor {key}", where=where) for key in weights.shapes if key not in layout]
    for key, parts in layout.items():
        wanted = _published_shape(parts, parameters)
        if key in weights.shapes and weights.shapes[key] != wanted:
            problems.append(
                Problem(f"tensor {key} has shape {weights.shapes[key]}; config.json asks for {wanted}", where=where)
            )
    if problems:
        raise UserError(problems)


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


def _published_shape(parts: Sequence[Part], parameters: Mapping[str, Tensor]) -> tuple[int, ...]:
    shapes = [tuple(_view(parameters[part.parameter], part).shape) for part in parts]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]


def _view(parameter: Tensor, part: Part) -> Tensor:
    return parameter[part.index] if part.index else parameter


def read_weights(weights: PublishedWeights, layout: WeightLayout, module: nn.Module) -> None:
    """Copy all published tensors into the module: parameters are converted to its dtype and device while reading,
    buffers to its device only."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for key, tensor in weights.tensors():
            if layout[key][0].parameter not in parameters:
                _replace_buffer(module, layout[key][0].parameter, tensor)
                continue
            row = 0
            for part in layout[key]:
                place = _view(parameters[part.parameter], part)
                taken = tensor[row : row + place.shape[0]] if len(layout[key]) > 1 else tensor
                place.copy_(taken)
                row += place.shape[0] if place.dim() else 0


def _replace_buffer(module: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    part = module.get_submodule(owner)
    # Cloned: the tensor that was read lies in the mapped file.
    setattr(part, leaf, tensor.clone().to(getattr(part, leaf).device))


def published_tensor(parts: Sequence[Part], parameter: Callable[[str], Tensor]) -> Tensor:
    """The published form of one key, from a lookup of parameters by name."""
    pieces = [_view(parameter(part.parameter), part).detach() for part in parts]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def stored_form(tensor: Tensor, published: torch.dtype | None) -> Tensor:
    """On the CPU, in the published dtype where that loses nothing, else as it is: a tensor that did not change
    since reading gets its published bits back, and one that did keeps every bit of its training."""
    tensor = tensor.detach().cpu()
    if published is not None and published != tensor.dtype:
        narrowed = tensor.to(published)
        if torch.equal(narrowed.to(tensor.dtype), tensor):
            tensor = narrowed
    return tensor.contiguous()


def write_weights(
    folder: Path,
    tensors: Iterable[tuple[str, Tensor]],
    sizes: Mapping[str, int],
    *,
    files: Mapping[str, str] | None,
    max_shard_bytes: int | None = None,
) -> None:
    """Write safetensors shards and their index, holding one shard in memory at a time.

    Args:
        folder: existing folder.
        tensors: (published key, stored form), ordered so that the keys of one file follow each other.
        sizes: key -> upper bound of its bytes, in the order of ``tensors``.
        files: key -> file, to keep the published shards; None, or a shard over the limit = new shards.
        max_shard_bytes: limit of one shard; None = published shards as they are, new ones of
            :data:`MAX_SHARD_BYTES`.
    """
    plan = _shard_plan(sizes, files, max_shard_bytes)
    waiting: dict[str, Tensor] = {}
    total, current = 0, None
    for key, tensor in tensors:
        if current is not None and plan[key] != current:
            save_file(waiting, folder / current, metadata={"format": "pt"})
            waiting = {}
        current = plan[key]
        waiting[key] = tensor
        total += tensor.numel() * tensor.element_size()
    if current is not None:
        save_file(waiting, folder / current, metadata={"format": "pt"})
    if set(plan.values()) != {SINGLE}:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(plan.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shard_plan(sizes: Mapping[str, int], files: Mapping[str, str] | None, limit: int | None) -> dict[str, str]:
    if files is not None and limit is None:
        return {key: files[key] for key in sizes}
    limit = limit or MAX_SHARD_BYTES
    if files is not None:
        per_file: dict[str, int] = {}
        for key, size in sizes.items():
            per_file[files[key]] = per_file.get(files[key], 0) + size
        if max(per_file.values()) <= limit:
            return {key: files[key] for key in sizes}
    shard, filled, numbers = 0, 0, {}
    for key, size in sizes.items():
        if filled and filled + size > limit:
            shard, filled = shard + 1, 0
        filled += size
        numbers[key] = shard
    if shard == 0:
        return dict.fromkeys(sizes, SINGLE)
    return {key: f"model-{n + 1:05d}-of-{shard + 1:05d}.safetensors" for key, n in numbers.items()}
