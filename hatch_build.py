"""Puts the adapter that ships with smollm2 into wheels.

Into real ones alone: an editable install finds it in the checkout, and a forced file would make a
second folder `marslm` in site-packages there, which hides the package.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ADAPTER = "smollm2-135m/mask-only"


class ShippedAdapter(BuildHookInterface[Any]):
    """Adds `models/` to a wheel as `marslm/shipped/`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folder unless the install is editable."""
        if self.target_name == "wheel" and version != "editable":
            build_data["force_include"][f"models/{ADAPTER}"] = f"marslm/shipped/{ADAPTER}"
