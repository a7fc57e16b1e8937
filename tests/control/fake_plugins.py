"""Pretend plugins: good ones, and one for every way in which a plugin can be broken."""

from __future__ import annotations

from dataclasses import dataclass

from dare_core.catalog import PluginReport
from dare_core.plugins import PluginStatus
from dare_core.testing.fake_distributions import FakeDistribution

HEADER = """
from dare_core.api import Component, Problem, hookimpl

def component(kind, **more):
    return Component(kind=kind, target="pkg.module:Class", config="pkg.config:Section", summary="for tests", **more)
"""


def plugin(name: str, body: str, **more: object) -> FakeDistribution:
    """A distribution whose module has the header above and ``body``."""
    return FakeDistribution(name=name, source=HEADER + body, **more)  # type: ignore[arg-type]


def declares(name: str, *kinds: str, hook: str = "dare_algorithms", **more: object) -> FakeDistribution:
    """A good distribution that offers ``kinds``."""
    listed = ", ".join(f"component({kind!r})" for kind in kinds)
    return plugin(name, f"@hookimpl\ndef {hook}():\n    return [{listed}]\n", **more)


@dataclass(frozen=True)
class Broken:
    """A broken distribution, and what its report must say."""

    distribution: FakeDistribution
    status: PluginStatus
    reason: str

    def matches(self, report: PluginReport) -> bool:
        return report.status is self.status and self.reason in report.reason


BROKEN = [
    Broken(
        plugin("dare-missing-module", "import no_such_package_at_all\n"),
        PluginStatus.IMPORT_ERROR,
        "cannot import dare_missing_module.plugin: ModuleNotFoundError: No module named 'no_such_package_at_all'",
    ),
    Broken(plugin("dare-exits", "raise SystemExit(3)\n"), PluginStatus.IMPORT_ERROR, "SystemExit: 3"),
    Broken(
        plugin("dare-raises-oddly", "class Odd(BaseException): pass\nraise Odd('two\\nlines')\n"),
        PluginStatus.IMPORT_ERROR,
        "Odd: two lines",
    ),
    Broken(FakeDistribution(name="dare-syntax", source="def (:\n"), PluginStatus.IMPORT_ERROR, "SyntaxError"),
    Broken(
        declares("dare-no-attribute", "x", entry_points={"main": "dare_no_attribute.plugin:absent"}),
        PluginStatus.IMPORT_ERROR,
        "has no attribute 'absent'",
    ),
    Broken(
        FakeDistribution(name="dare-stale", source=None),
        PluginStatus.IMPORT_ERROR,
        "stale metadata: its module dare_stale.plugin does not exist",
    ),
    Broken(
        plugin("dare-unknown-hook", "@hookimpl\ndef dare_algoritms():\n    return []\n"),
        PluginStatus.INCOMPATIBLE,
        "hook dare_algoritms does not exist in plugin API dare.v1; did you mean dare_algorithms?",
    ),
    Broken(
        plugin("dare-unmarked-unknown-hook", "def dare_optimizers():\n    return []\n"),
        PluginStatus.INCOMPATIBLE,
        "hook dare_optimizers does not exist",
    ),
    Broken(
        plugin("dare-unmarked-hook", "def dare_algorithms():\n    return []\n"),
        PluginStatus.INVALID,
        "hook dare_algorithms lacks the @hookimpl marker",
    ),
    Broken(
        plugin("dare-extra-argument", "@hookimpl\ndef dare_check_run(plan, budget):\n    return []\n"),
        PluginStatus.INCOMPATIBLE,
        "hook dare_check_run asks for budget; plugin API dare.v1 passes plan",
    ),
    Broken(
        plugin("dare-wrapper", "@hookimpl(wrapper=True)\ndef dare_algorithms():\n    return (yield)\n"),
        PluginStatus.INVALID,
        "hook dare_algorithms is a wrapper",
    ),
    Broken(
        plugin(
            "dare-half-way",
            "@hookimpl\ndef dare_algorithms():\n    yield component('half')\n    raise RuntimeError('half way')\n",
        ),
        PluginStatus.INVALID,
        "hook dare_algorithms raised RuntimeError: half way",
    ),
    Broken(
        plugin(
            "dare-second-hook-raises",
            "@hookimpl\ndef dare_model_adapters():\n    return [component('first')]\n"
            "@hookimpl\ndef dare_algorithms():\n    raise SystemExit\n",
        ),
        PluginStatus.INVALID,
        "hook dare_algorithms raised SystemExit",
    ),
    Broken(
        declares("dare-newer-api", "x", group="dare.v2"),
        PluginStatus.INCOMPATIBLE,
        "needs plugin API dare.v2, but dare-core",
    ),
    Broken(
        declares("dare-newer-core", "x", requires=["dare-core>=99,<100"]),
        PluginStatus.INCOMPATIBLE,
        "needs dare-core<100,>=99, but dare-core",
    ),
    Broken(
        declares("dare-bad-requirement", "x", requires=["dare-core >>= what"]),
        PluginStatus.INVALID,
        "unreadable requirement 'dare-core >>= what'",
    ),
    Broken(declares("dare-twice", "same", "same"), PluginStatus.INVALID, "declares algorithm 'same' twice"),
    Broken(declares("dare-bad-kind", "Not_A_Kind"), PluginStatus.INVALID, "kind 'Not_A_Kind' must be lower case words"),
    Broken(
        plugin("dare-not-components", "@hookimpl\ndef dare_algorithms():\n    return ['spg']\n"),
        PluginStatus.INVALID,
        "returned a str, not a Component",
    ),
    Broken(
        plugin("dare-forgot-return", "@hookimpl\ndef dare_algorithms():\n    [component('x')]\n"),
        PluginStatus.INVALID,
        "returned None",
    ),
    Broken(
        plugin(
            "dare-unknown-word",
            "@hookimpl\ndef dare_algorithms():\n    return [component('x', needs={'commit-steps'})]\n",
        ),
        PluginStatus.INVALID,
        "unknown capability 'commit-steps'; did you mean 'commit-step'?",
    ),
    Broken(
        plugin(
            "dare-foreign-word",
            "@hookimpl\ndef dare_algorithms():\n    return [component('x', provides={'masked'})]\n",
        ),
        PluginStatus.INVALID,
        "'masked' can be provided by a model only",
    ),
    Broken(
        declares("dare-takes-run", "run", hook="dare_commands"),
        PluginStatus.INVALID,
        "command 'run' is one of dare's own",
    ),
    Broken(
        plugin("dare-class", "class Plugin: pass\n", entry_points={"main": "dare_class.plugin:Plugin"}),
        PluginStatus.INVALID,
        "names the class Plugin",
    ),
    Broken(
        declares("dare-odd-entry-point", "x", entry_points={"main": "not a module!"}),
        PluginStatus.IMPORT_ERROR,
        "not a module!",
    ),
    Broken(
        plugin(
            "dare-lazy-exit",
            "def __getattr__(name):\n    raise SystemExit(f'no {name}')\n",
            entry_points={"main": "dare_lazy_exit.plugin:absent"},
        ),
        PluginStatus.IMPORT_ERROR,
        "SystemExit: no absent",
    ),
    Broken(
        plugin("dare-odd-listing", "def __dir__():\n    raise RuntimeError('not listed')\n"),
        PluginStatus.INVALID,
        "RuntimeError: not listed",
    ),
]
