"""The chat template's text: what is written around answers, and where answers stand in it.

Knows nothing about token ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from marslm.data.dialogues import Message
from marslm.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = "probe"
"""Stands in for an answer, to see what a template writes after one."""


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: str,
    *,
    answering: bool,
    continuing: bool = False,
) -> str:
    """Return `messages` as text, with the header of an answer after them if `answering`.

    tools: what the model may call, as JSON text, or "". continuing: the last message stays open.
    Raises InputError without messages, without a chat template, or when the template refuses them.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template; use an "
            "instruction-tuned checkpoint, or set tokenizer.chat_template and save it"
        )
    if not messages:
        raise InputError("no message to answer; put a user message before the assistant's")
    try:
        text = tokenizer.apply_chat_template(
            [turn_of(message) for message in messages],
            tools=json.loads(tools) if tools else None,
            tokenize=False,
            add_generation_prompt=answering,
            continue_final_message=continuing,
        )
    except TemplateError as error:
        raise InputError(f"the chat template refuses the messages: {error}") from error
    return cast("str", text)


def turn_of(message: Message) -> dict[str, Any]:
    """Return a message as chat templates, files and OpenAI's protocol write it."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = json.loads(message.tool_calls)
    return turn


def split_at_answers(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: str
) -> list[str]:
    """Split the rendered dialogue into template, answer, template, ..., answer, template.

    Apart, so that an answer's first letters cannot merge with its header into tokens that the
    prompt does not end in at inference. Raises InputError if an answer changes the text before it.
    """
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    if not answers:
        return [render(tokenizer, messages, tools, answering=True)]
    texts: list[str] = []
    whole = closing = ""
    for place in answers:
        opened = render(tokenizer, messages[:place], tools, answering=True)
        before = whole
        whole = render(tokenizer, messages[: place + 1], tools, answering=False)
        written = len(before) - len(closing)
        closing = _closing(tokenizer, messages[:place], tools)
        if not (opened.startswith(before) and _follows(opened, whole, closing)):
            raise InputError(
                "the chat template rewrites earlier text when an answer is added (thinking "
                "blocks?), so the prompt of each answer is not unique; keep one assistant turn a "
                "row, or set a plainer chat template"
            )
        texts += [opened[written:], whole[len(opened) : len(whole) - len(closing)]]
    return [*texts, closing]


def _follows(opened: str, whole: str, closing: str) -> bool:
    """Say whether `whole` is `opened`, some answer, and `closing`."""
    room = len(whole) - len(opened) - len(closing)
    return room >= 0 and whole.startswith(opened) and whole.endswith(closing)


def _closing(tokenizer: PreTrainedTokenizerBase, asked: Sequence[Message], tools: str) -> str:
    """Return what the template writes after an answer to `asked`."""
    probed = render(tokenizer, [*asked, Message("assistant", PROBE)], tools, answering=False)
    _, found, closing = probed.rpartition(PROBE)
    if not found:
        raise InputError("the chat template leaves the assistant's text out; mend the template")
    return closing
