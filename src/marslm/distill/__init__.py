"""Training data that the model writes itself.

Knows nothing about training.
"""
