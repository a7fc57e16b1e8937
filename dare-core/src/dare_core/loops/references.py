"""Estimates of the reference policy, kept on disk.

Where a row's views are the same whenever it is met, so is what the reference says of them: it is worked out once,
before the first optimizer step, when the live policy still is the reference. One file holds the values, a digest of
each row's views, and the key: everything that the values follow from. A file with another key is refused, not
overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dare_core.api import SectionConfig
from dare_core.errors import Problem, UserError
from dare_core.run.atomic import sync_file, sync_folder
from dare_core.spec.sections import EngineSection
from dare_core.types import Estimate, Rows, Views

_RECORD = "reference-estimates"
_OPTION = "algorithm.reference_cache"
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_CHUNK = 1 << 22
_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReferenceEstimates:
    """Reference estimates per row, by sample id.

    Args:
        path: of the file; made when something is kept.
        key: name -> what the values follow from, as text.

    Raises:
        UserError: the file is damaged, or was made with another key; names what differs.
    """

    def __init__(self, path: Path, key: Mapping[str, str]) -> None:
        self.path = path
        self._key = dict(key)
        self._kept: dict[int, tuple[float, int]] = {}
        if path.is_dir():
            raise UserError(Problem("is a folder, not a file", path=_OPTION, where=str(path), hint="name a file in it"))
        if path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._kept)

    def misses(self, rows: Rows) -> bool:
        """Whether a row has no estimate yet."""
        return any(sample not in self._kept for sample in rows.sample_id.tolist())

    def keep(self, rows: Rows, views: Views, estimate: Estimate) -> None:
        """Take over the estimates of these rows.

        Raises:
            UserError: they are not one per row.
        """
        if estimate.per != "row":
            message = f"reference estimates are kept per row, and this estimator gives one per {estimate.per}"
            raise UserError(Problem(message, path=_OPTION))
        digests = view_digests(rows, views)
        for sample, value, digest in zip(rows.sample_id.tolist(), estimate.value.tolist(), digests, strict=True):
            self._kept[sample] = (value, digest)

    def estimate(self, rows: Rows, views: Views, dtype: torch.dtype = torch.float64) -> Estimate:
        """The reference's estimate of these rows on these views.

        Raises:
            UserError: the views of a row are not those that its estimate belongs to; names the row.
        """
        found = [self._kept[sample] for sample in rows.sample_id.tolist()]
        for name, (_, kept), digest in zip(rows.example_id, found, view_digests(rows, views), strict=True):
            if kept != digest:
                problem = Problem(
                    f"row '{name}' is met with other views than those its reference estimate was made on",
                    path=_OPTION,
                    where=str(self.path),
                    hint="draws that depend on the rest of the batch cannot be kept: switch the cache off",
                )
                raise UserError(problem)
        value = torch.tensor([value for value, _ in found], dtype=dtype, device=views.inputs.device)
        return Estimate(value=value, per="row", bound="surrogate", mask=torch.ones_like(value, dtype=torch.bool))

    def write(self) -> None:
        """Write the file anew, whole or not at all.

        Raises:
            UserError: it cannot be written.
        """
        order = sorted(self._kept)
        tensors = {
            "sample": torch.tensor(order, dtype=torch.int64),
            "value": torch.tensor([self._kept[sample][0] for sample in order], dtype=torch.float64),
            "views": torch.tensor([self._kept[sample][1] for sample in order], dtype=torch.int64),
        }
        # One entry: the library writes several in any order, and the same estimates shall give the same file.
        metadata = {_RECORD: json.dumps({"key": self._key, "sha256": _checksum(tensors)}, sort_keys=True)}
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(save(tensors, metadata=metadata))
            sync_file(temporary)
            os.replace(temporary, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            message = f"the file cannot be written ({error})"
            raise UserError(Problem(message, path=_OPTION, where=str(self.path), hint="name another file")) from error

    def _read(self) -> None:
        try:
            with safe_open(self.path, framework="pt") as file:
                record = json.loads((file.metadata() or {})[_RECORD])
                tensors = {name: file.get_tensor(name) for name in ("sample", "value", "views")}
            key: dict[str, str] = record["key"]
            whole = record["sha256"] == _checksum(tensors)
        except Exception as error:  # safetensors raises its own, OS and key errors for broken files
            raise self._damaged(f"cannot be read ({error})") from error
        if not whole:
            raise self._damaged("does not match its checksum")
        differing = [name for name in sorted(key.keys() | self._key.keys()) if key.get(name) != self._key.get(name)]
        if differing:
            shown = "; ".join(
                f"{name} {_short(key.get(name))}, here {_short(self._key.get(name))}" for name in differing
            )
            problem = Problem(
                f"these reference estimates belong to another run: {shown}",
                path=_OPTION,
                where=str(self.path),
                hint="name another file, or delete this one",
            )
            raise UserError(problem)
        values = zip(tensors["value"].tolist(), tensors["views"].tolist(), strict=True)
        self._kept = dict(zip(tensors["sample"].tolist(), values, strict=True))

    def _damaged(self, how: str) -> UserError:
        hint = "name another file, or delete this one"
        return UserError(Problem(f"the file {how}", path=_OPTION, where=str(self.path), hint=hint))


def check_reference_stays(engine: SectionConfig, cache: str | None) -> None:
    """Whether a reference policy whose estimates are kept in ``cache`` is the same at every step.

    Raises:
        UserError: the engine's section lets it move.
    """
    if cache is not None and isinstance(engine, EngineSection) and engine.reference_every is not None:
        message = "a reference policy that moves has no estimates to keep"
        raise UserError(Problem(message, path="engine.reference_every", hint="leave it out, or the reference cache"))


def view_digests(rows: Rows, views: Views) -> list[int]:
    """[B] a 64-bit digest of each row's views: what is seen, scored and weighed, wherever padding stands."""
    digests = [hashlib.blake2b(repr(views.layout).encode(), digest_size=8) for _ in range(len(rows))]
    fields = [t.cpu() for t in (views.inputs, views.targets, views.scored.long(), views.weight.double())]
    valid = views.valid.cpu()
    for view, row in enumerate(views.row.tolist()):
        for field in fields:
            digests[row].update(field[view][valid[view]].numpy().tobytes())
    return [int.from_bytes(digest.digest(), "little", signed=True) for digest in digests]


@torch.no_grad()
def weights_checksum(module: nn.Module) -> str:
    """A checksum of all parameters and buffers as they stand in memory, by name, dtype and value.

    Integer arithmetic on the tensors' own device, so that the same weights give the same checksum anywhere.
    """
    digest = hashlib.sha256()
    for name, tensor in _named_tensors(module):
        data = tensor.detach().contiguous().view(-1).view(_WHOLE_NUMBERS[tensor.element_size()])
        total = 0
        for start in range(0, len(data), _CHUNK):
            part = data[start : start + _CHUNK].long()
            place = torch.arange(start, start + len(part), device=part.device)
            total += int(((part + 1) * (place * _GAMMA | 1)).sum())
        digest.update(f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f{total}\x1f".encode())
    return digest.hexdigest()


def _named_tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _short(value: str | None) -> str:
    if value is None:
        return "is missing"
    return repr(value if len(value) <= 24 else f"{value[:12]}...")
