"""The method as pure functions on tensors: read these five files beside the paper.

`streams` lays out training rows, `masks` says who sees whom, `losses` says which row predicts
which token, `accept` and `verify` say how much of a step is kept. Nothing here knows a model, a
tokenizer or a cache.
"""
