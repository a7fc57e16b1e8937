"""Reading OpenCompass's result files. It gives shares in percent; ours are 0 to 1."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_core.api import DareError
from dare_core.interfaces import Measure

Z95 = 1.959963984540054


def measures(
    datasets: Sequence[str], folder: Path, items: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, Measure]:
    """Headline and all numbers of a benchmark.

    ``accuracy`` is the mean over the benchmark's datasets of their headline, as OpenCompass's tables have it; each
    dataset's own stands beside where there are several. Wilson's 95 % interval where one dataset tells of each row
    whether it is right.

    Args:
        datasets: names of the result files.
        folder: where they lie.
        items: what was answered.
        metric: the headline's name in a file; with several responses OpenCompass adds words behind it.

    Raises:
        DareError: a file is missing, holds an error or no such number, or is about other rows.
    """
    counts = Counter(item["key"].rpartition("/")[0] for item in items)
    results = {name: _result(folder / f"{name}.json", name) for name in datasets}
    shares = {name: _headline(result, metric, name) for name, result in results.items()}
    found = {"accuracy": Measure(value=sum(shares.values()) / len(shares), count=len(items))}
    if len(shares) == 1:
        (name,) = shares
        found["accuracy"] = _with_interval(shares[name], _hits(results[name]), counts[name])
        found |= _others(results[name], metric, counts[name])
    else:
        found |= {f"accuracy/{name}": Measure(value=value, count=counts[name]) for name, value in shares.items()}
    tokens = [float(item["tokens"]) for item in items]
    found["mean_tokens"] = Measure(value=sum(tokens) / len(tokens), count=len(tokens))
    ended = [item["finish"] == "length" for item in items]
    found["limit_rate"] = Measure(value=sum(ended) / len(ended), count=len(ended))
    return found


def _result(path: Path, name: str) -> dict[str, Any]:
    if not path.is_file():
        raise DareError(f"OpenCompass left no result of '{name}' ({path.name} is missing)")
    result = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(result, dict) or "error" in result:
        raise DareError(f"OpenCompass's result of '{name}' is an error: {str(result)[:300]}")
    return result


def _headline(result: Mapping[str, Any], metric: str, name: str) -> float:
    # With repetitions the number is called "accuracy (8 runs average)".
    keys = [key for key in result if key == metric or key.startswith(f"{metric} (")]
    value = result[keys[0]] if keys else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        numbers = ", ".join(key for key, one in result.items() if isinstance(one, (int, float)))
        raise DareError(f"OpenCompass's result of '{name}' has no share '{metric}'; it has {numbers or 'no numbers'}")
    return float(value) / 100


def _hits(result: Mapping[str, Any]) -> list[bool] | None:
    """Of each row whether it is right, where the file says so for one response per row."""
    details = result.get("details")
    rows = list(details.values()) if isinstance(details, dict) else details
    if not isinstance(rows, list):
        return None
    said = [_hit(row) for row in rows if isinstance(row, dict)]
    hits = [one for one in said if one is not None]
    return hits if hits and len(hits) == len(rows) else None


def _hit(row: Mapping[str, Any]) -> bool | None:
    """OpenCompass gathers what it says of a row's responses in lists below ``predictions``."""
    gathered = row.get("predictions")
    said = gathered.get("correct") if isinstance(gathered, dict) else row.get("correct")
    if isinstance(said, list):
        said = said[0] if len(said) == 1 else None
    return said if isinstance(said, bool) else None


def _with_interval(value: float, hits: list[bool] | None, count: int) -> Measure:
    if hits is None or len(hits) != count or not math.isclose(sum(hits) / count, value, abs_tol=1e-4):
        return Measure(value=value, count=count)
    share, spread = sum(hits) / count, Z95 * Z95 / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return Measure(value=share, count=count, low=max(0.0, middle - half), high=min(1.0, middle + half), method="wilson")


def _others(result: Mapping[str, Any], metric: str, count: int) -> dict[str, Measure]:
    """Further numbers of a file, as they stand there."""
    return {
        f"opencompass/{key}": Measure(value=float(value), count=count)
        for key, value in result.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != metric
    }
