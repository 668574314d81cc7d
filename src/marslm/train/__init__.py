"""Training a model for several tokens per forward, on transformers' Trainer.

Never imports the engine: decoding of held-out prompts is injected.
"""
