"""Benchmarks through lm-evaluation-harness, one path for every decoding mode.

Knows nothing about how results are shown.
"""
