"""Ways to decode: what a step looks at beyond the pending tokens, and what it keeps.

Each is one small module behind `base.Strategy`. None knows the cache, the batch or the tokenizer.
"""
