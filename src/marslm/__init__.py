"""MARS (Mask AutoRegreSsion): several tokens per forward pass from one language model."""

from marslm._version import __version__

__all__ = ["__version__"]
