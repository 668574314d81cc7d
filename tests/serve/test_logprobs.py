"""Log-probabilities of tokens that are parts of characters, in OpenAI's shapes."""

from __future__ import annotations

from helpers import TOKENIZER
from marslm.runtime.detokenize import token_bytes
from marslm.runtime.logprobs import TokenLogprobs
from marslm.serve.logprobs import Offsets, Speller, chat_logprobs, completion_logprobs

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


def test_offsets_count_characters_and_go_on_from_one_run_to_the_next() -> None:
    offsets = Offsets()
    runs = [
        completion_logprobs(run, SPELLER, offsets) for run in (FOUND[:2], FOUND[2:5], FOUND[5:])
    ]
    assert [run["text_offset"] for run in runs] == [[0, 1], [1, 2, 2], [2, 3]]
