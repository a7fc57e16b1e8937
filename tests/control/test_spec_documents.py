"""Every spec in examples/ and docs/ is one: it fits the schema, and whole ones resolve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.control.spec_plugins import needs_official_plugins

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.spec.nodes import Node, read_text
from dare_core.spec.resolve import resolve_spec
from dare_core.spec.schema import spec_schema

needs_official_plugins()

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
#: stands in for files that a document names and that are not part of the project
_MODEL = """\
model:
  kind: llada
  path: null
  init: random
  tokenizer: examples/quickstart/tokenizer
  config: {d_model: 64, n_layers: 2, n_heads: 4, mlp_hidden_size: 96, vocab_size: 262, weight_tying: false,
           max_sequence_length: 8192, block_type: llama, layer_norm_type: rms, activation_type: silu, rope: true,
           mask_token_id: 258, eos_token_id: 257, eot_token_id: 261, pad_token_id: 257}
"""
_ROWS = "examples/data/sudoku4x4_test_disjoint.jsonl"


def documents() -> list[Any]:
    """(text, name) of every spec, whole or in part."""
    found = [(path.read_text(), str(path.relative_to(ROOT))) for path in sorted((ROOT / "examples").rglob("*.y*ml"))]
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text() if path.exists() else ""
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((match[2], f"{path.relative_to(ROOT)}-{line}"))
    # Tasks of `dare eval` are yaml as well, of another form.
    return [pytest.param(text, name, id=name) for text, name in found if not re.search(r"^task:", text, re.MULTILINE)]


def whole_documents() -> list[Any]:
    return [item for item in documents() if re.search(r"^dare:", item.values[0], re.MULTILINE)]


def root_of(text: str, name: str) -> Node:
    root, problems = read_text(text, name, "spec")
    assert not problems
    assert root is not None
    return root


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.load()


@pytest.fixture(scope="module")
def validator(catalog: Catalog) -> Draft202012Validator:
    return Draft202012Validator(spec_schema(catalog))


@pytest.mark.parametrize(("text", "name"), documents())
def test_document_fits_the_schema(text: str, name: str, validator: Draft202012Validator):
    data = root_of(text, name).plain()
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(data)] == []


@pytest.mark.parametrize(("text", "name"), whole_documents())
def test_whole_document_resolves(
    text: str, name: str, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    root = root_of(text, name)
    (tmp_path / "spec.yaml").write_text(text)
    model = root.get(["model", "path"])
    (tmp_path / "files.yaml").write_text(_MODEL if model is not None else "{}")
    sets = [f"{path}={_ROWS}" for path in _missing_files(root)]
    resolve_spec([tmp_path / "spec.yaml", tmp_path / "files.yaml"], sets, catalog)


def _missing_files(root: Node) -> Iterator[str]:
    places = [("data",), ("eval", "data"), *(("eval", str(i), "data") for i in range(9))]
    for place in places:
        node = root.get([*place, "path"])
        if node is not None and not (ROOT / str(node.value)).exists():
            yield ".".join([*place, "path"])


def settings_of_installed_algorithms() -> list[Any]:
    """(kind, preset, needs) of every installed algorithm, alone and with each preset."""
    found = []
    for registered in Catalog.load().components(Slot.ALGORITHM):
        component = registered.component
        for preset in (None, *component.presets):
            name = f"{component.kind}-{preset}" if preset else component.kind
            found.append(pytest.param(component.kind, preset, component.needs, id=name))
    return found


@pytest.mark.parametrize(("kind", "preset", "needs"), settings_of_installed_algorithms())
def test_kind_alone_and_with_each_preset_is_a_whole_setting(
    kind: str,
    preset: str | None,
    needs: frozenset[str],
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(ROOT)
    algorithm = f"{{kind: {kind}, preset: {preset}}}" if preset else kind
    templates, reward = 'reference: "{answer}"', "reward: match\n"
    if needs & {"demonstrations", "pairs"}:
        templates, reward = 'completion: "{answer}"', ""
        if "pairs" in needs:
            templates = 'chosen: "{answer}", rejected: "no"'
    (tmp_path / "spec.yaml").write_text(
        f"dare: 1\nrun: {{name: t, steps: 1}}\ndata: {{path: {_ROWS}, prompt: '{{prompt}}', {templates}}}\n"
        f"{reward}algorithm: {algorithm}\n{_MODEL}"
    )
    resolve_spec([tmp_path / "spec.yaml"], [], catalog)
