"""Dialogues from a local file or a Hub data set, whichever of the usual row forms it uses.

A bad row stops the reading, and the error names its file and line: a row that is skipped in
silence is a row that somebody later believes was trained on. Knows nothing about tokens, chat
templates or what the dialogues are for.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TypeAlias, cast

from marslm.errors import InputError

Row: TypeAlias = Mapping[str, object]

ROLES = ("system", "user", "assistant", "tool")
FILE_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
ARITHMETIC = "arithmetic"
"""Name of the sums that need no file."""
ANSWERED_FORMS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("instruction", "output"),
)
ANSWERLESS_FORMS = ("turns", "prompt")
HUB_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w.-]+)(?::(?P<split>[\w.-]+))?")
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

    `source` is a .jsonl, .jsonl.gz, .json or .parquet file, `ARITHMETIC`, or a Hub data set
    "owner/name" or "owner/name:split" (the split is "train" unless named), which is streamed. With
    `need_answers` every row must hold an assistant message. Raises InputError for whatever cannot
    be read.
    """
    if rows is not None and rows < 1:
        raise InputError(f"rows is {rows}: ask for at least one row, or leave it out to read all")
    for where, row in islice(read_rows(source), rows):
        yield dialogue_of_row(row, where, need_answers=need_answers)


def read_rows(source: str) -> Iterator[tuple[str, Row]]:
    """Yield (place, row) of a file or Hub data set, which is read no further than it is drawn."""
    path = Path(source).expanduser()
    if path.exists():
        yield from _file_rows(path)
        return
    if source == ARITHMETIC:
        yield from _sums()
        return
    hub = HUB_NAME.fullmatch(source)
    if hub is None or source.endswith((*FILE_SUFFIXES, ".gz")):
        raise InputError(f"{source}: no such file; {_advice(path)}")
    yield from _hub_rows(path, hub["name"], hub["split"] or "train")


def _sums() -> Iterator[tuple[str, Row]]:
    from marslm.data.arithmetic import NUMBERS, problems

    for number, problem in enumerate(problems(len(NUMBERS) ** 2, seed=0), 1):
        yield f"{ARITHMETIC}:{number}", {"question": problem.question, "answer": problem.answer}


def _advice(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    close = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    return "check the path, or name a Hub data set as owner/name"


def _hub_rows(path: Path, name: str, split: str) -> Iterator[tuple[str, Row]]:
    try:
        from datasets import load_dataset

        stream = cast("Iterable[Row]", load_dataset(name, split=split, streaming=True))
        for number, row in enumerate(stream, 1):
            yield f"{name}:{split}:{number}", row
    except Exception as error:  # not installed, offline, gated, misnamed: the reason says which
        here = path.parent.is_dir()
        looks = f"looks like a missing file, {_advice(path)}" if here else "is not a file here"
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: {looks}; as a Hub data set, {name} split {split} cannot be read ({reason}): "
            "check the name and the network"
        ) from error


def _file_rows(path: Path) -> Iterator[tuple[str, Row]]:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name one {', '.join(FILE_SUFFIXES)} file in it")
    if not path.name.endswith(FILE_SUFFIXES):
        raise InputError(f"{path}: not read; convert it to one of {', '.join(FILE_SUFFIXES)}")
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        # utf-8-sig: some editors put a byte order mark first, which JSON does not allow.
        with _open(path) as file:
            yield from _list_rows(path, file) if path.suffix == ".json" else _lines(path, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: not whole gzip data ({error}); copy it anew, or drop .gz if it is plain text"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; convert it to UTF-8") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path.name}:{number}", row
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: not whole Parquet data ({reason}); copy it anew") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def _lines(path: Path, file: IO[str]) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield _placed(_parse(line.rstrip(), path, number), f"{path.name}:{number}")


def _list_rows(path: Path, file: IO[str]) -> Iterator[tuple[str, Row]]:
    text = file.read()
    found = _parse(text, path, 1) if text.strip() else []
    if not isinstance(found, list):
        raise InputError(f"{path}: not a JSON list; put the rows in a list, or name it .jsonl")
    for number, row in enumerate(found, 1):
        yield _placed(row, f"{path.name}:{number}")


def _parse(text: str, path: Path, line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        hint = "; one object a line belongs in a .jsonl file" if "Extra data" in error.msg else ""
        raise InputError(
            f"{path}:{line}: malformed JSON ({error.msg}, column {error.colno}){hint}; mend or "
            "delete it"
        ) from error


def _placed(found: object, where: str) -> tuple[str, Row]:
    if not isinstance(found, dict):
        raise InputError(f"{where}: a JSON {type(found).__name__}, not an object with a dialogue")
    return where, found


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
