"""The mechanics of decoding: requests, cache, forward pass, sampling, stopping, text.

Makes no choice about what to draft or accept; that is what strategies are for.
"""
