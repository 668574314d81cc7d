"""Dialogues from rows, whichever of the usual forms they have.

A bad row stops the reading, and the error names its file and line: a row that is skipped in
silence is a row that somebody later believes was trained on. Knows nothing about file formats,
tokens, chat templates or what the dialogues are for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from marslm.data.rows import Row, read_rows
from marslm.errors import InputError

ROLES = ("system", "user", "assistant", "tool")
ANSWERED_FORMS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("instruction", "output"),
)
ANSWERLESS_FORMS = ("turns", "prompt")
# GSM8K writes `48/2 = <<48/2=24>>24`: the marks are for a calculator, not part of the answer.
CALCULATOR_MARK = re.compile(r"<<[^<>]*=[^<>]*>>")


@dataclass(frozen=True)
class Message:
    """One turn; `role` is one of `ROLES`.

    content: blank only where the turn calls tools. tool_calls: the calls as JSON text, or "".
    """

    role: str
    content: str
    tool_calls: str = ""


@dataclass(frozen=True)
class Dialogue:
    """A conversation and where it came from, such as "train.jsonl.gz:17".

    cut: whether its last answer was cut off at a length limit, so that its end is not one to learn.
    tools: the tools that the model may call, as JSON text for the chat template, or "".
    """

    messages: tuple[Message, ...]
    source: str
    cut: bool = False
    tools: str = ""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What comes before the last assistant message; all messages when there is none."""
        return self.messages if self._last is None else self.messages[: self._last]

    @property
    def answer(self) -> str | None:
        """The content of the last assistant message, or None."""
        return None if self._last is None else self.messages[self._last].content

    @property
    def _last(self) -> int | None:
        turns = [i for i, message in enumerate(self.messages) if message.role == "assistant"]
        return turns[-1] if turns else None


def read_dialogues(
    source: str, *, rows: int | None = None, need_answers: bool = True
) -> list[Dialogue]:
    """Return the first `rows` (None: all) dialogues of `source`; see `iterate_dialogues`.

    Raises InputError for whatever cannot be read, and if there is nothing.
    """
    dialogues = list(iterate_dialogues(source, rows=rows, need_answers=need_answers))
    if not dialogues:
        raise InputError(f"{source}: no rows; one JSON object with a dialogue a line is expected")
    return dialogues


def iterate_dialogues(
    source: str, *, rows: int | None = None, need_answers: bool = True
) -> Iterator[Dialogue]:
    """Yield the first `rows` (None: all) dialogues of `source` as they are read.

    `source` is a .jsonl, .jsonl.gz, .json or .parquet file, "arithmetic", or a Hub data set
    "owner/name" or "owner/name:split" (the split is "train" unless named), which is streamed. With
    `need_answers` every row must hold an assistant message. Raises InputError for whatever cannot
    be read.
    """
    if rows is not None and rows < 1:
        raise InputError(f"rows is {rows}: ask for at least one row, or leave it out to read all")
    for where, row in islice(read_rows(source), rows):
        yield dialogue_of_row(row, where, need_answers=need_answers)


def dialogue_of_row(row: Row, where: str, *, need_answers: bool) -> Dialogue:
    """Return the dialogue that `row` holds; `where` names the row in errors and in the result."""
    row = {key: value for key, value in row.items() if value is not None}
    messages = _messages(row, where)
    keys = ", ".join(row) or "none"
    if messages is None:
        raise InputError(
            f"{where}: row form not recognised: keys found {keys}; accepted are messages, "
            f"{', '.join('+'.join(form) for form in ANSWERED_FORMS)}, or without answers "
            f"{', '.join(ANSWERLESS_FORMS)}"
        )
    tools = _as_json(row["tools"], "tools", where) if row.get("tools") else ""
    dialogue = Dialogue(messages, where, row.get("cut") is True, tools)
    if need_answers and dialogue.answer is None:
        raise InputError(
            f"{where}: no assistant message though answers are needed (keys found {keys}); "
            "add a response to each row, or have the model write the answers first"
        )
    return dialogue


def _messages(row: Row, where: str) -> tuple[Message, ...] | None:
    if "messages" in row:
        return tuple(_message(part, where) for part in _parts(row["messages"], "messages", where))
    for asked, answered in ANSWERED_FORMS:
        if asked in row and answered in row:
            question = _text(row[asked], asked, where)
            if asked == "instruction" and row.get("input"):
                question += "\n\n" + _text(row["input"], "input", where)
            answer = _text(row[answered], answered, where)
            if asked == "question":
                answer = CALCULATOR_MARK.sub("", answer)
            return Message("user", question), Message("assistant", answer)
    if "turns" in row:
        return (Message("user", _text(_parts(row["turns"], "turns", where)[0], "turns", where)),)
    if "prompt" in row:
        return (Message("user", _text(row["prompt"], "prompt", where)),)
    return None


def _parts(value: object, key: str, where: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: {key} is not a list with something in it")
    return value


def _message(part: object, where: str) -> Message:
    if not isinstance(part, Mapping) or "role" not in part:
        raise InputError(f"{where}: each of the messages needs a role and a content")
    role, calls = part["role"], part.get("tool_calls")
    if role not in ROLES:
        raise InputError(f"{where}: role {role!r} is not one of {', '.join(ROLES)}")
    if role == "assistant" and calls:
        # Whoever calls a tool need not say anything.
        content = part.get("content") or ""
        return Message("assistant", str(content), _as_json(calls, "tool_calls", where))
    if "content" not in part:
        raise InputError(f"{where}: each of the messages needs a role and a content")
    return Message(str(role), _text(part["content"], f"the {role} message", where))


def _as_json(value: object, name: str, where: str) -> str:
    """Return a list as JSON text, whether it came as one or as the text already."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        if not isinstance(found, list):
            raise TypeError(f"a {type(found).__name__}, not a list")
        return json.dumps(found)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {name} cannot be read ({error}); give a JSON list") from error


def _text(value: object, name: str, where: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{where}: {name} is empty; fill it in or delete the row")
    if not isinstance(value, str):
        raise InputError(f"{where}: {name} is a {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {name} holds half a surrogate pair, not valid text") from error
    return value
