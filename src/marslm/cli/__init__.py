"""The `marslm` command. Heavy imports happen inside commands, so that `--help` costs nothing.

Knows nothing that the library does not.
"""
