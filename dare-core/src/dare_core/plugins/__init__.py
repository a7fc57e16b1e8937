"""Discovery and loading of plugins. Everyone but the catalogue goes through :mod:`dare_core.catalog`."""

from dare_core.plugins.discovery import Switches, candidates_of, installed_candidates
from dare_core.plugins.loading import LoadedPlugins, load_plugins
from dare_core.plugins.report import MissingImport, PluginReport, PluginStatus, Registered

__all__ = [
    "LoadedPlugins",
    "MissingImport",
    "PluginReport",
    "PluginStatus",
    "Registered",
    "Switches",
    "candidates_of",
    "installed_candidates",
    "load_plugins",
]
