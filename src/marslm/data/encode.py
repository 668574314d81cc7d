"""Dialogues as token ids, with a flag on each token that is a training target.

The targets are what the model itself has to write: each assistant turn and the token that ends
it. They are told apart by where they stand in the rendered chat template, never by their ids,
because padding and end of turn are often the same id. Knows nothing about batches, padding, masks
or losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from marslm.data.dialogues import Dialogue, Message
from marslm.data.template import PROBE, render, split_at_answers
from marslm.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns: TypeAlias = Literal["all", "last"]


@dataclass(frozen=True)
class Example:
    """One training sequence; `supervised[p]` says that token p is a target. Both have length L."""

    ids: tuple[int, ...]
    supervised: tuple[bool, ...]
    source: str


@dataclass
class EncodeReport:
    """Rows kept and dropped (too long, or without a target), and tokens in the rows kept."""

    kept: int = 0
    too_long: int = 0
    unsupervised: int = 0
    tokens: int = 0
    supervised_tokens: int = 0


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, tools: str = ""
) -> list[int]:
    """Return the ids of `messages` and the header of the answer that is to follow.

    tools: what the model may call, as JSON text for the chat template, or "". Raises InputError
    without messages, without a chat template, or when the template refuses them.
    """
    return _ids(tokenizer, render(tokenizer, messages, tools, answering=True))


def user_header(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids after which a user's text begins, in a dialogue that begins with it.

    Raises InputError without a chat template, or when it leaves the user's text out.
    """
    probed = render(tokenizer, [Message("user", PROBE)], "", answering=False)
    before, found, _ = probed.partition(PROBE)
    if not found:
        raise InputError("the chat template leaves the user's text out; mend the template")
    return _ids(tokenizer, before)


def render_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, continuing: bool = False
) -> str:
    """Return the text that an answer to `messages` follows; it holds every special token.

    continuing: the last message is the assistant's and the answer goes on where it ends. Raises
    InputError when the chat template is missing or refuses the messages.
    """
    return render(tokenizer, messages, "", answering=not continuing, continuing=continuing)


def encode_dialogue(
    tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, *, turns: Turns = "all"
) -> Example:
    """Return `dialogue` as ids; the assistant's turns and their end tokens are supervised.

    turns: "all" of them, or the "last" alone. A turn that calls tools is one like any other. The
    end token after a last answer that was cut off is not. The ids before the first answer are
    those of `encode_prompt`. Messages after the last answer are left out; a dialogue without
    answers is its prompt, with nothing supervised. Raises InputError, naming the dialogue's source,
    when the chat template cannot be followed.
    """
    ids: list[int] = []
    supervised: list[bool] = []
    try:
        segments = split_at_answers(tokenizer, dialogue.messages, dialogue.tools)
        for place, text in enumerate(segments):
            piece = _ids(tokenizer, text)
            ends_cut_answer = dialogue.cut and place == len(segments) - 1
            wanted = turns == "all" or place >= len(segments) - 2
            targets = _count_targets(tokenizer, place, piece)
            targets = targets if wanted and not ends_cut_answer else 0
            ids += piece
            supervised += [True] * targets + [False] * (len(piece) - targets)
    except InputError as error:
        raise InputError(f"{dialogue.source}: {error}") from error
    return Example(tuple(ids), tuple(supervised), dialogue.source)


def example_from_answer(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], source: str
) -> Example:
    """Return prompt and answer as one example, for an answer that is ids from the start.

    `answer_ids` are all supervised; they include the end token if the answer ended.
    """
    supervised = (False,) * len(prompt_ids) + (True,) * len(answer_ids)
    return Example((*prompt_ids, *answer_ids), supervised, source)


def encode_all(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Iterable[Dialogue],
    *,
    max_length: int,
    turns: Turns = "all",
) -> tuple[list[Example], EncodeReport]:
    """Encode `dialogues`, dropping and counting those over `max_length` tokens or without a target.

    Raises InputError when no row is left, or when every token or none would be a target.
    """
    report = EncodeReport()
    kept = list(
        encode_each(tokenizer, dialogues, report=report, max_length=max_length, turns=turns)
    )
    return kept, report


def encode_each(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Iterable[Dialogue],
    *,
    report: EncodeReport,
    max_length: int,
    turns: Turns = "all",
) -> Iterator[Example]:
    """Yield what `encode_all` returns, one by one, counting in `report`; it raises at the end."""
    for dialogue in dialogues:
        example = encode_dialogue(tokenizer, dialogue, turns=turns)
        if not any(example.supervised):
            report.unsupervised += 1
        elif len(example.ids) > max_length:
            report.too_long += 1
        else:
            report.kept += 1
            report.tokens += len(example.ids)
            report.supervised_tokens += sum(example.supervised)
            yield example
    _refuse_useless(report, max_length)


def mark_supervised(tokenizer: PreTrainedTokenizerBase, example: Example) -> list[tuple[str, bool]]:
    """Return the decoded text as (span, supervised) pairs; the spans joined are the whole text.

    A character whose bytes lie on both sides of a boundary goes to the later span.
    """
    whole = _text(tokenizer, example.ids)
    marks: list[bool] = []
    end = 0
    for flag, run in groupby(example.supervised):
        end += len(list(run))
        # Half a character decodes to a replacement mark, which the whole text does not share.
        shared = _shared_length(whole, _text(tokenizer, example.ids[:end]))
        marks += [flag] * (shared - len(marks))
    pairs = groupby(zip(whole, marks, strict=True), key=itemgetter(1))
    return [("".join(character for character, _ in run), flag) for flag, run in pairs]


def _count_targets(tokenizer: PreTrainedTokenizerBase, place: int, piece: Sequence[int]) -> int:
    """Return how many leading ids of segment number `place` are targets."""
    if place == 0:
        return 0
    return len(piece) if place % 2 else _turn_end(tokenizer, piece)


def _turn_end(tokenizer: PreTrainedTokenizerBase, piece: Sequence[int]) -> int:
    """Return how many ids of `piece`, the text after an answer, end that answer's turn."""
    added = tokenizer.added_tokens_decoder
    special = {token_id for token_id in piece if token_id in added and added[token_id].special}
    special.update(tokenizer.all_special_ids)
    for place, token_id in enumerate(piece):
        if token_id in special:
            return place + 1
    raise InputError(
        "the chat template ends an assistant's turn without a special token, so the model could "
        "not learn to stop; have the template write the end token after each answer"
    )


def _refuse_useless(report: EncodeReport, max_length: int) -> None:
    if not report.kept and not report.too_long:
        raise InputError(
            f"0 % of the tokens are supervised ({report.unsupervised} rows, none with an assistant "
            "turn); add answers to the rows"
        )
    if not report.kept:
        raise InputError(
            f"no row is left: {report.too_long} are longer than {max_length} tokens and "
            f"{report.unsupervised} have no assistant turn; raise max_length or shorten the rows"
        )
    if report.supervised_tokens == report.tokens:
        raise InputError(
            "100 % of the tokens are supervised: the chat template shows nothing of the prompts; "
            "mend the template"
        )


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            "the text has half of a surrogate pair, which UTF-8 cannot write; was it read as "
            "another encoding? remove it"
        ) from error
    # The template has written every special token already.
    return cast("list[int]", tokenizer.encode(text, add_special_tokens=False))


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return cast("str", tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _shared_length(a: str, b: str) -> int:
    return sum(takewhile(bool, map(eq, a, b)))
