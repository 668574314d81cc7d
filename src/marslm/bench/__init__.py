"""Measurements that a command can repeat.

Knows nothing about how results are shown.
"""
