"""Budgets and forbidden habits, read from the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.project import CORE, own_files, product_files, shown, tree_of

from dare_core.components import Slot
from dare_core.official import OFFICIAL

FILE_LINES = 400
FUNCTION_LINES = 60
#: calls that draw from torch's global generator unless they are given one
DRAWS = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "multinomial", "bernoulli", "normal"}


def test_files_stay_within_their_budget():
    long = {
        shown(path): lines for path in own_files() if (lines := len(path.read_text("utf-8").splitlines())) > FILE_LINES
    }
    assert not long


def test_functions_stay_within_their_budget():
    long = [
        f"{shown(path, node.lineno)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in own_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert not long


def test_names_of_files_say_what_is_in_them():
    assert not [shown(path) for path in own_files() if path.stem in ("utils", "util", "helpers", "common", "misc")]


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Dotted name of every call, e.g. ``torch.manual_seed``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize(
    ("forbidden", "instead"),
    [
        ("print", "sys.stdout.write in commands, logging elsewhere"),
        ("eval", "ast, or an explicit table"),
        ("exec", "an explicit table"),
        ("torch.manual_seed", "dare_core.diffusion.seeds"),
        ("torch.cuda.manual_seed_all", "dare_core.diffusion.seeds"),
        ("random.seed", "dare_core.diffusion.seeds"),
        ("numpy.random.seed", "dare_core.diffusion.seeds"),
        ("np.random.seed", "dare_core.diffusion.seeds"),
        ("torch.load", "safetensors"),
        ("torch.save", "safetensors"),
    ],
)
def test_product_code_does_not_call(forbidden: str, instead: str):
    found = [shown(path, node.lineno) for path in product_files() for name, node in calls(path) if name == forbidden]
    assert not found, f"use {instead}"


def test_product_code_draws_only_from_given_generators():
    found = [
        f"{shown(path, node.lineno)} {name}"
        for path in product_files()
        for name, node in calls(path)
        if name.startswith("torch.") and name.removeprefix("torch.") in DRAWS
        if not any(keyword.arg == "generator" for keyword in node.keywords)
    ]
    assert not found


def test_product_code_neither_pickles_nor_catches_everything_silently():
    found = []
    for path in product_files():
        for node in ast.walk(tree_of(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {"pickle", "dill", "cloudpickle"} & {name.partition(".")[0] for name in names}:
                found.append(f"{shown(path, node.lineno)} pickle")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{shown(path, node.lineno)} bare except")
            if isinstance(node, ast.ExceptHandler) and _swallows(node):
                found.append(f"{shown(path, node.lineno)} swallowed exception")
    assert not found


def _swallows(handler: ast.ExceptHandler) -> bool:
    broad = handler.type is not None and ast.unparse(handler.type) in ("Exception", "BaseException")
    return broad and all(isinstance(part, (ast.Pass, ast.Continue)) for part in handler.body)


def test_core_never_compares_with_the_name_of_a_model_or_algorithm():
    kinds = {
        kind for slots in OFFICIAL.values() for slot in (Slot.MODEL, Slot.ALGORITHM) for kind in slots.get(slot, ())
    }
    found = [
        f"{shown(path, node.lineno)} {ast.unparse(node)}"
        for path in product_files()
        if path.is_relative_to(CORE)
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Compare, ast.MatchValue))
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in kinds
    ]
    assert not found


def test_comments_leave_no_work_behind():
    words = ("TODO", "FIXME", "XXX", "HACK")
    found = [
        shown(path, number)
        for path in product_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if any(word in line for word in words)
    ]
    assert not found
