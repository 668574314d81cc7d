"""The engine: requests join and leave at every step, and none waits for another.

Knows nothing about HTTP, files or training.
"""
