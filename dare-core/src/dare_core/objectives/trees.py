"""Values and advantages of trees: rewards of leaves averaged upwards, siblings compared (d-TreeRPO, Pan et al. 2025,
arXiv:2512.09675)::

    V(leaf) = R      V(node) = mean of the children's V      A(node) = V(node) - mean of the siblings' V
"""

from __future__ import annotations

import torch
from torch import Tensor


def node_values(leaf_value: Tensor, parent: Tensor) -> Tensor:
    """[S] values of all nodes; NaN where no leaf below has one.

    Args:
        leaf_value: [S] values of the nodes without children, NaN where there is none; others are not read.
        parent: [S] int64 each node's parent, -1 for roots.
    """
    inner = torch.zeros_like(parent, dtype=torch.bool).index_fill(0, parent[parent >= 0], True)
    value = torch.where(inner, torch.nan, leaf_value)
    for depth in range(int(depths(parent).max()) if len(parent) else 0, 0, -1):
        child = (depths(parent) == depth) & torch.isfinite(value)
        above = parent[child]
        total = torch.zeros_like(value).index_add(0, above, value[child])
        count = torch.zeros_like(value).index_add(0, above, torch.ones_like(value[child]))
        value = torch.where(count > 0, total / count, value)
    return value


def depths(parent: Tensor) -> Tensor:
    """[S] int64 edges between each node and its root."""
    depth, above = torch.zeros_like(parent), parent
    while bool((above >= 0).any()):
        depth = depth + (above >= 0)
        above = torch.where(above >= 0, parent[above.clamp(min=0)], -1)
    return depth


def sibling_groups(parent: Tensor, root: Tensor) -> Tensor:
    """[S] int64, the same for nodes of one parent; nodes without one are siblings if their ``root`` [S] is the same."""
    roots, index = torch.unique(root, return_inverse=True)
    groups: Tensor = torch.where(parent >= 0, parent + len(roots), index)
    return groups
