"""Kinds, fields and defaults change knowingly only."""

from __future__ import annotations

import json

from tests.architecture.project import plugin_packages
from tests.architecture.public_surface import surface, written

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.official import official_kinds
from dare_core.plugins import PluginStatus


def test_public_surface_equals_its_snapshot():
    present, committed = json.loads(json.dumps(surface())), written()
    for part, remembered in committed.items():
        changed = sorted(key for key in {*remembered, *present[part]} if remembered.get(key) != present[part].get(key))
        assert not changed, "if meant: python -m tests.architecture.public_surface --write"


def test_own_plugins_are_in_order():
    reports = {report.distribution: report for report in Catalog.load().reports}
    for package in plugin_packages():
        report = reports[package.name.replace("_", "-")]
        # Degraded: an extra of the package, such as lm-eval, is not installed.
        assert report.status in (PluginStatus.OK, PluginStatus.DEGRADED), report
        assert report.official


def test_packages_suggested_for_kinds_are_those_that_offer_them():
    catalog = Catalog.load()
    for slot in Slot:
        suggested = official_kinds(slot)
        for item in catalog.components(slot):
            assert suggested.get(item.component.kind, item.distribution) == item.distribution


def test_every_option_has_a_description():
    catalog = Catalog.load()
    missing = [
        f"{item.qualified}.{name}"
        for slot in Slot
        for item in catalog.components(slot)
        if item.component.config
        for name, field in catalog.config_class(item).model_fields.items()
        if not field.description
    ]
    assert not missing
