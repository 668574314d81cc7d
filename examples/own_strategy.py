"""A decoding strategy of one's own: draft that the text goes on as it did one line earlier.

Run it with `python examples/own_strategy.py`. It is exact: the model judges every guess.
"""

import marslm
from marslm.runtime.window import Window
from marslm.strategies.registry import register_strategy
from marslm.strategies.verifying import Verifying

NEWLINE = marslm.load("tiny").tokenizer.encode("\n")[0]


class LineAbove(Verifying):
    """Guess the tokens that stand above: the same column, one line earlier."""

    name = "line_above"

    def propose(self, sequences, settings):
        """Return B-1 tokens from the line above for each request, or nothing."""
        return [
            Window(line_above(sequence.tokens, each.block - 1))
            for sequence, each in zip(sequences, settings, strict=True)
        ]


def line_above(tokens, count):
    """Return up to `count` tokens of the line above, from the column after the last token on."""
    breaks = [-1] + [place for place, token in enumerate(tokens) if token == NEWLINE]
    if len(breaks) < 2:
        return []
    place = breaks[-2] + len(tokens) - breaks[-1]
    return tokens[place : min(place + count, breaks[-1])]


register_strategy("line_above", lambda facts: LineAbove())
text = "\n".join(["| 1 | a |"] * 3)
answers = marslm.generate(marslm.load("tiny"), [text], strategy="line_above", max_new_tokens=16)
print(answers[0].text, answers[0].tokens_per_forward)
