"""`marslm demo`: placeholder until the demo's model and task are in."""

EXAMPLES = ""


def demo() -> None:
    """Show it."""
