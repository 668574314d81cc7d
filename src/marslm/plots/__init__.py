"""Figures, drawn with matplotlib from plain numbers (extra `bench`).

Knows nothing about where the numbers come from.
"""
