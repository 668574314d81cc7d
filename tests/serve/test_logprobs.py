"""Log-probabilities of tokens that are parts of characters, in OpenAI's shapes."""

from __future__ import annotations

from helpers import TOKENIZER
from marslm.runtime.detokenize import token_bytes
from marslm.runtime.logprobs import TokenLogprobs
from marslm.serve.logprobs import Speller, chat_logprobs

SPELLER = Speller(
    lambda token: str(TOKENIZER.decode([token])), lambda token: token_bytes(TOKENIZER, token)
)
TEXT = "aé€b"
FOUND = [TokenLogprobs(token, -1.0, ((token, -1.0),)) for token in TOKENIZER.encode(TEXT)]


def test_a_part_of_a_character_is_listed_by_its_own_byte() -> None:
    listed = chat_logprobs(FOUND, SPELLER)["content"]
    assert [entry["bytes"] for entry in listed] == [[byte] for byte in TEXT.encode()]
    assert [entry["top_logprobs"][0]["bytes"] for entry in listed] == [
        [byte] for byte in TEXT.encode()
    ]
