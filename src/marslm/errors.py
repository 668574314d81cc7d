"""The one error type for input that a person can mend.

Knows nothing about where the input came from or how the error is shown.
"""


class InputError(ValueError):
    """Something the caller gave cannot be used; the message is one line and names the fix."""
