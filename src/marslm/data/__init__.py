"""Reading prompts and answers, and turning them into token ids with a flag per training target.

Imports neither torch nor transformers. Knows nothing about models, batches or decoding.
"""

from marslm.data.dialogues import Dialogue, Message, read_dialogues
from marslm.data.encode import (
    EncodeReport,
    Example,
    encode_all,
    encode_dialogue,
    encode_prompt,
    example_from_answer,
    mark_supervised,
)
from marslm.data.spec_bench import BenchPrompt, read_prompts

__all__ = [
    "BenchPrompt",
    "Dialogue",
    "EncodeReport",
    "Example",
    "Message",
    "encode_all",
    "encode_dialogue",
    "encode_prompt",
    "example_from_answer",
    "mark_supervised",
    "read_dialogues",
    "read_prompts",
]
