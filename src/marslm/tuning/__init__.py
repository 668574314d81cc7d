"""From a model and a file of chats to weights that write several tokens per forward.

The place where reading, answering, training and decoding meet; knows nothing about terminals.
"""
