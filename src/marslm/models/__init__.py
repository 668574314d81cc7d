"""The edge to Hugging Face: models, tokenizers and adapters, loaded and checked.

Knows nothing about how they are run.
"""
