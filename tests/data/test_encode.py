"""Which tokens are targets, and that prompts are the same ids in training and at inference."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from marslm.data import (
    Dialogue,
    Example,
    Message,
    encode_all,
    encode_dialogue,
    encode_prompt,
    example_from_answer,
    mark_supervised,
)
from marslm.errors import InputError
from marslm.models.tiny import build_tokenizer

SYSTEM, ASKED = Message("system", "Be brief."), Message("user", "Name a cat.")
ANSWERED = Message("assistant", "Tom.\n")
AGAIN, ANSWERED_AGAIN = Message("user", "Another."), Message("assistant", "Felix")

CHAT_ML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def dialogue(*messages: Message) -> Dialogue:
    return Dialogue(messages, "a.jsonl:3")


def supervised_text(tokenizer: PreTrainedTokenizerFast, example: Example) -> list[str]:
    return [text for text, flag in mark_supervised(tokenizer, example) if flag]


def rendered(tokenizer: PreTrainedTokenizerFast, *messages: Message) -> str:
    text = tokenizer.apply_chat_template([asdict(m) for m in messages], tokenize=False)
    assert isinstance(text, str)
    return text


def test_prompt_is_what_the_chat_template_tokenizes_to(tokenizer: PreTrainedTokenizerFast) -> None:
    theirs = tokenizer.apply_chat_template(
        [asdict(SYSTEM), asdict(ASKED)], add_generation_prompt=True, return_dict=False
    )
    assert encode_prompt(tokenizer, (SYSTEM, ASKED)) == theirs


def test_no_second_start_token_is_put_before_the_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert isinstance(start, int)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    assert tokenizer.encode("")[0] == start  # the trap is set
    assert encode_prompt(tokenizer, [ASKED]).count(start) == 2


def test_answer_and_end_token_are_supervised_but_not_the_newline(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    example = encode_dialogue(tokenizer, dialogue(SYSTEM, ASKED, ANSWERED))
    assert mark_supervised(tokenizer, example) == [
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a cat.<|im_end|>\n"
            "<|im_start|>assistant\n",
            False,
        ),
        ("Tom.\n<|im_end|>", True),
        ("\n", False),
    ]
    assert example.source == "a.jsonl:3"


def test_ids_are_the_inference_prompt_and_then_the_answer(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    example = encode_dialogue(tokenizer, dialogue(SYSTEM, ASKED, ANSWERED))
    prompt = encode_prompt(tokenizer, (SYSTEM, ASKED))
    answer = tokenizer.encode("Tom.\n", add_special_tokens=False)
    end = tokenizer.encode("<|im_end|>\n", add_special_tokens=False)
    assert list(example.ids) == [*prompt, *answer, *end]
    assert list(example.supervised) == [False] * len(prompt) + [True] * len(answer) + [True, False]


def test_every_assistant_turn_is_supervised(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = (SYSTEM, ASKED, ANSWERED, AGAIN, ANSWERED_AGAIN)
    example = encode_dialogue(tokenizer, dialogue(*messages))
    assert supervised_text(tokenizer, example) == ["Tom.\n<|im_end|>", "Felix<|im_end|>"]
    assert tokenizer.decode(list(example.ids)) == rendered(tokenizer, *messages)
    for place in (2, 4):
        prompt = encode_prompt(tokenizer, messages[:place])
        assert list(example.ids[: len(prompt)]) == prompt
        assert (example.supervised[len(prompt) - 1], example.supervised[len(prompt)]) == (
            False,
            True,
        )


def test_an_answer_that_was_cut_off_is_not_taught_to_end(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    messages = (ASKED, ANSWERED, AGAIN, ANSWERED_AGAIN)
    whole = encode_dialogue(tokenizer, dialogue(*messages))
    cut = encode_dialogue(tokenizer, Dialogue(messages, "a.jsonl:3", cut=True))
    assert cut.ids == whole.ids
    assert supervised_text(tokenizer, cut) == ["Tom.\n<|im_end|>", "Felix"]


def test_tool_turns_are_not_supervised(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = (ASKED, Message("assistant", "look()"), Message("tool", "Tom"), ANSWERED_AGAIN)
    example = encode_dialogue(tokenizer, dialogue(*messages))
    assert supervised_text(tokenizer, example) == ["look()<|im_end|>", "Felix<|im_end|>"]


def test_end_tokens_of_other_roles_are_not_supervised(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    example = encode_dialogue(tokenizer, dialogue(SYSTEM, ASKED, ANSWERED))
    flags = [
        flag
        for token_id, flag in zip(example.ids, example.supervised, strict=True)
        if token_id == tokenizer.eos_token_id
    ]
    assert flags == [False, False, True]


def test_an_end_token_quoted_in_an_answer_does_not_end_it(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    quoting = Message("assistant", "It is <|im_end|> in ChatML.")
    example = encode_dialogue(tokenizer, dialogue(ASKED, quoting))
    assert supervised_text(tokenizer, example) == ["It is <|im_end|> in ChatML.<|im_end|>"]


def test_an_answer_that_repeats_the_prompt_or_the_probe(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = Message("user", "a probe for a cat")
    for text in (asked.content, "probe", "user\nprobe\nassistant"):
        example = encode_dialogue(tokenizer, dialogue(asked, Message("assistant", text)))
        assert supervised_text(tokenizer, example) == [f"{text}<|im_end|>"]


def test_messages_after_the_last_answer_are_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    short = encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED))
    assert encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED, AGAIN)) == short


def test_a_dialogue_without_answers_is_its_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    example = encode_dialogue(tokenizer, dialogue(SYSTEM, ASKED))
    assert list(example.ids) == encode_prompt(tokenizer, (SYSTEM, ASKED))
    assert not any(example.supervised)


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one merge: two newlines in a row are one token."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ"]
    backend = Tokenizer(
        models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[("Ċ", "Ċ")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHAT_ML
    )


def test_an_answer_does_not_merge_with_its_header() -> None:
    tokenizer = merging_tokenizer()
    messages = (ASKED, Message("assistant", "\nTom"))
    together = tokenizer.encode(rendered(tokenizer, *messages), add_special_tokens=False)
    example = encode_dialogue(tokenizer, dialogue(*messages))
    prompt = encode_prompt(tokenizer, [ASKED])
    assert together[: len(prompt)] != prompt  # the trap is set
    assert list(example.ids[: len(prompt)]) == prompt
    assert supervised_text(tokenizer, example) == ["\nTom<|im_end|>"]


def test_a_template_that_strips_answers(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHAT_ML.replace("m.content", "m.content | trim")
    example = encode_dialogue(tokenizer, dialogue(ASKED, Message("assistant", "  Tom.\n ")))
    assert supervised_text(tokenizer, example) == ["Tom.<|im_end|>"]


def test_a_template_with_text_before_the_end_token(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHAT_ML.replace("{{ m.content }}", "{{ m.content }} .")
    example = encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED, AGAIN, ANSWERED_AGAIN))
    assert supervised_text(tokenizer, example) == ["Tom.\n .<|im_end|>", "Felix .<|im_end|>"]


def test_a_template_without_a_last_newline(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHAT_ML.replace(
        "<|im_end|>\n", "<|im_end|>{% if not loop.last or add_generation_prompt %}\n\n{% endif %}"
    )
    example = encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED, AGAIN, ANSWERED_AGAIN))
    assert supervised_text(tokenizer, example) == ["Tom.\n<|im_end|>", "Felix<|im_end|>"]
    assert example.supervised[-1]


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_what_a_template_adds_before_an_only_answer_is_supervised(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = THINKING
    example = encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED_AGAIN))
    assert supervised_text(tokenizer, example) == ["<think>\n\n</think>\n\nFelix<|im_end|>"]


def test_a_template_that_rewrites_earlier_turns_is_refused(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = THINKING
    with pytest.raises(InputError, match=r"^a\.jsonl:3: .*rewrites.*one assistant turn a row"):
        encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED, AGAIN, ANSWERED_AGAIN))


def test_a_header_that_the_answered_text_lacks_is_refused(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = CHAT_ML.replace(
        "assistant\n{% endif %}", "assistant\n<think>{% endif %}"
    )
    with pytest.raises(InputError, match="rewrites"):
        encode_dialogue(tokenizer, dialogue(ASKED, Message("assistant", "Tom, Felix, Kitty")))


def test_an_ending_that_depends_on_the_answer_is_refused(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = CHAT_ML.replace("m.content }}", "m.content }}{{ m.content[0] }}")
    with pytest.raises(InputError, match="rewrites"):
        encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED))


def test_a_tag_before_the_end_token_is_not_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_tokens(["</note>"])
    tokenizer.chat_template = CHAT_ML.replace("{{ m.content }}", "{{ m.content }}</note>")
    example = encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED))
    assert supervised_text(tokenizer, example) == ["Tom.\n</note><|im_end|>"]


def test_an_end_token_that_is_special_by_its_part_alone(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.add_tokens(["</turn>"])
    tokenizer.eos_token = "</turn>"
    tokenizer.chat_template = CHAT_ML.replace("<|im_end|>", "</turn>")
    example = encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED))
    assert supervised_text(tokenizer, example) == ["Tom.\n</turn>"]


def test_a_template_without_an_end_token_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHAT_ML.replace("<|im_end|>", "[end]")
    with pytest.raises(InputError, match="without a special token"):
        encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED))


def test_a_template_without_the_answer_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}"
    with pytest.raises(InputError, match="leaves the assistant's text out"):
        encode_dialogue(tokenizer, dialogue(ASKED, ANSWERED))


def test_what_the_template_refuses_is_told(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(InputError, match="refuses the messages: System role not supported"):
        encode_prompt(tokenizer, (SYSTEM, ASKED))


def test_a_tokenizer_without_a_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="has no chat template; use an instruction-tuned"):
        encode_prompt(tokenizer, [ASKED])


def test_nothing_to_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="no message to answer"):
        encode_prompt(tokenizer, [])
    with pytest.raises(InputError, match=r"^a\.jsonl:3: no message to answer"):
        encode_dialogue(tokenizer, dialogue(ANSWERED, ASKED))


def test_an_answer_given_as_ids() -> None:
    example = example_from_answer([5, 6, 2], [7, 2], "made:1")
    assert example == Example((5, 6, 2, 7, 2), (False, False, False, True, True), "made:1")


def test_encode_all_drops_and_counts(tokenizer: PreTrainedTokenizerFast) -> None:
    fits, silent = dialogue(ASKED, ANSWERED), dialogue(ASKED)
    long = dialogue(ASKED, Message("assistant", "x" * 500))
    expected = encode_dialogue(tokenizer, fits)
    length = len(expected.ids)
    kept, report = encode_all(tokenizer, [fits, long, silent, fits], max_length=length)
    assert kept == [expected, expected]
    assert (report.kept, report.too_long, report.unsupervised) == (2, 1, 1)
    assert report.tokens == 2 * length
    assert report.supervised_tokens == 2 * len("Tom.\n") + 2
    with pytest.raises(InputError, match=f"3 are longer than {length - 1} tokens and 1 have"):
        encode_all(tokenizer, [fits, long, silent, fits], max_length=length - 1)


def test_encode_all_refuses_rows_without_a_target(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"0 % of the tokens are supervised \(1 rows"):
        encode_all(tokenizer, [dialogue(ASKED)], max_length=100)
    with pytest.raises(InputError, match="0 % of the tokens"):
        encode_all(tokenizer, [], max_length=100)


def test_encode_all_refuses_rows_that_are_all_targets(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = (
        "{% for m in messages if m.role == 'assistant' %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(InputError, match="100 % of the tokens"):
        encode_all(tokenizer, [dialogue(ASKED, ANSWERED)], max_length=100)


def test_half_a_character_goes_to_the_later_span(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("aé€b", add_special_tokens=False)
    assert len(ids) == 1 + 2 + 3 + 1
    flags = (True, True, False, False, True, True, False)
    spans = mark_supervised(tokenizer, Example(tuple(ids), flags, "x:1"))
    assert spans == [("a", True), ("é", False), ("€", True), ("b", False)]


def test_spans_of_the_same_kind_are_merged(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("a€", add_special_tokens=False)
    spans = mark_supervised(tokenizer, Example(tuple(ids), (True, False, True, True), "x:1"))
    assert spans == [("a€", True)]


BYTE_TOKENIZER = build_tokenizer()


@given(st.lists(st.tuples(st.integers(0, 255), st.booleans())))
def test_spans_join_to_the_whole_text(pairs: list[tuple[int, bool]]) -> None:
    example = Example(tuple(i for i, _ in pairs), tuple(flag for _, flag in pairs), "x:1")
    spans = mark_supervised(BYTE_TOKENIZER, example)
    assert "".join(text for text, _ in spans) == BYTE_TOKENIZER.decode(list(example.ids))
    assert all(text for text, _ in spans)
    assert all(a[1] != b[1] for a, b in itertools.pairwise(spans))


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InputError, match="half of a surrogate pair"):
        encode_prompt(build_tokenizer(), [Message("user", "a\ud800b")])
