"""An OpenAI-compatible server with a live speed knob, over one engine.

Knows nothing about how tokens are decoded; fastapi is imported here and nowhere else.
"""
