"""OpenAI's API, asked by OpenAI's own client: answers are the engine's, streamed or not."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import openai
import pytest

from helpers import solo
from marslm.data.dialogues import Message
from marslm.engine.api import Answer, encode
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from serve.conftest import NAME, Running, chat, events_of

MESSAGES: Any = [{"role": "user", "content": "abcdefgh"}]
PARAMS = SamplingParams(max_new_tokens=24, strategy="lossless-chain")


@pytest.fixture(scope="module")
def offline(fitted_model: MarsModel) -> Answer:
    prompt = encode(fitted_model, [Message("user", "abcdefgh")])
    return solo(fitted_model, prompt, PARAMS)


def test_a_chat_is_the_offline_answer(server: Running, offline: Answer) -> None:
    answer = server.openai().chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, max_completion_tokens=24
    )
    choice = answer.choices[0]
    assert choice.message.content == offline.text
    assert choice.finish_reason == offline.finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(offline.prompt_ids)
    assert answer.usage.completion_tokens == len(offline.ids)
    assert answer.usage.forwards == len(offline.runs)  # type: ignore[attr-defined]
    rate = answer.usage.tokens_per_forward  # type: ignore[attr-defined]
    assert rate == pytest.approx(offline.tokens_per_forward, abs=1e-4)
    assert rate > 1
    assert (answer.object, answer.model) == ("chat.completion", NAME)


def test_a_streamed_chat_says_the_same_run_by_run(server: Running, offline: Answer) -> None:
    chunks = list(
        server.openai().chat.completions.create(
            model=NAME,
            messages=MESSAGES,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    first, *pieces, last = chunks
    assert first.choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == offline.text
    assert [chunk.marslm["tokens"] for chunk in pieces] == offline.runs  # type: ignore[attr-defined]
    assert [chunk.choices[0].finish_reason for chunk in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices[0].finish_reason == offline.finish_reason
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(offline.ids)
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_in_a_stream_comes_when_asked_for_alone(server: Running) -> None:
    response = server.post("/v1/chat/completions", chat(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert not any("usage" in event for event in events_of(response))


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "ar"},
        {"strategy": "lossless-chain", "block": 2},
        {"strategy": "mars", "tau": 0.3},
        {"strategy": "mars", "tau": 0.3, "block": 2},
        {"strategy": "mars", "tau": [0.3, 0.9, 1.0]},
        {"strategy": "jacobi", "block": "full"},
    ],
    ids=str,
)
def test_each_request_may_choose_how_it_decodes(
    server: Running, fitted_model: MarsModel, offline: Answer, settings: dict[str, Any]
) -> None:
    answer = server.openai().chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        temperature=0,
        max_tokens=24,
        extra_body={"marslm": settings},
    )
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    wanted = solo(fitted_model, offline.prompt_ids, replace(PARAMS, **fields))
    assert answer.choices[0].message.content == wanted.text
    assert answer.usage is not None
    assert answer.usage.forwards == len(wanted.runs)  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_are_seeded_one_apart(
    server: Running, fitted_model: MarsModel, offline: Answer, stream: bool
) -> None:
    body = chat(messages=MESSAGES, temperature=0.9, seed=7, n=3, max_tokens=12, stream=stream)
    response = server.post("/v1/chat/completions", body)
    texts = ["", "", ""]
    if stream:
        for event in events_of(response):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"]["content"]
    else:
        for choice in response.json()["choices"]:
            texts[choice["index"]] = choice["message"]["content"]
        assert response.json()["usage"]["prompt_tokens"] == len(offline.prompt_ids)
    params = replace(PARAMS, temperature=0.9, max_new_tokens=12)
    for index, text in enumerate(texts):
        alone = solo(fitted_model, offline.prompt_ids, replace(params, seed=7 + index))
        assert text == alone.text


def test_without_a_seed_answers_differ(server: Running) -> None:
    body = chat(temperature=2, max_tokens=40, n=8)
    choices = server.post("/v1/chat/completions", body).json()["choices"]
    assert len({choice["message"]["content"] for choice in choices}) > 1


@pytest.mark.parametrize("offset", range(1, 9))
def test_a_stop_string_ends_text_usage_and_stream(
    server: Running, offline: Answer, offset: int
) -> None:
    stop = offline.text[offset : offset + 3]
    expected = offline.text[: offline.text.index(stop)]
    whole = server.post("/v1/chat/completions", chat(messages=MESSAGES, stop=stop)).json()
    assert whole["choices"][0]["message"]["content"] == expected
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == len(expected) + len(stop)
    body = chat(messages=MESSAGES, stop=["~", stop], stream=True)
    events = events_of(server.post("/v1/chat/completions", body))
    streamed = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert streamed == expected


def test_completions_take_texts_and_ids(server: Running, fitted_model: MarsModel) -> None:
    params = SamplingParams(max_new_tokens=16, strategy="lossless-chain")
    texts = ["abcd", "efgh"]
    ids = [fitted_model.tokenizer.encode(text) for text in texts]
    wanted = [solo(fitted_model, prompt, params).text for prompt in ids]
    client = server.openai()

    def ask(prompt: Any) -> list[str]:
        answer = client.completions.create(model=NAME, prompt=prompt, temperature=0)
        return [choice.text for choice in answer.choices]

    assert ask(texts) == ask(ids) == wanted
    assert ask(texts[1]) == ask(ids[1]) == wanted[1:]
    stream = client.completions.create(model=NAME, prompt="abcd", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == wanted[0]


def test_choices_of_several_prompts_are_in_order(server: Running) -> None:
    body = {"model": NAME, "prompt": ["abcd", "efgh"], "n": 2, "temperature": 0, "max_tokens": 4}
    choices = server.post("/v1/completions", body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert choices[0]["text"] == choices[1]["text"]
    assert choices[2]["text"] == choices[3]["text"] != choices[0]["text"]


def test_messages_in_parts_and_the_newer_role(server: Running) -> None:
    plain = [{"role": "system", "content": "ab"}, {"role": "user", "content": "cdef"}]
    parts = [{"type": "text", "text": "cd"}, {"type": "text", "text": "ef"}]
    newer = [{"role": "developer", "content": "ab"}, {"role": "user", "content": parts}]
    answers = [
        server.post("/v1/chat/completions", chat(messages=messages)).json()
        for messages in (plain, newer)
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"] == answers[1]["usage"]


def test_null_is_not_given(server: Running) -> None:
    body = chat(stop=None, n=None, seed=None, tools=None, stream_options=None, user=None)
    assert server.post("/v1/chat/completions", body).status_code == 200


def test_models(server: Running) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "marslm"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="ask for 'letters'"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": None}, "messages", "Missing required parameter: 'messages'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "Input should be"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "valid string"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "surrogate"),
        ({"messages": [{"role": "user", "content": "a" * 300}]}, "messages", "beyond the limit"),
        ({"tools": []}, "tools", "Unrecognized request argument supplied: tools"),
        ({"marslm": {"speed": 1}}, "marslm.speed", "Unrecognized"),
        ({"marslm": {"tau": 0}}, "marslm.tau", "greater than 0"),
        ({"marslm": {"strategy": "warp"}}, None, "unknown strategy 'warp': choose from ar"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": "2"}, "n", "valid integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": [""]}, "stop.0", "at least 1 character"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "not a token id"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_openais_shape(
    server: Running, fields: dict[str, Any], param: str | None, message: str
) -> None:
    with server.http as http:
        content = json.dumps(chat(**fields)).encode()
        response = http.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
        )
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]


def test_too_long_a_prompt_has_openais_code(server: Running) -> None:
    messages: Any = [{"role": "user", "content": "a" * 300}]
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model=NAME, messages=messages)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [5000], [-1], ["abcd", ""], [[1, 2], [999999]]], ids=str
)
def test_completion_prompts_that_cannot_be(server: Running, prompt: Any) -> None:
    response = server.post("/v1/completions", {"model": NAME, "prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


def test_a_body_that_is_not_json(server: Running) -> None:
    with server.http as http:
        response = http.post(
            "/v1/chat/completions",
            content=b"{bad",
            headers={"content-type": "application/json"},
        )
    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


def test_other_paths_and_methods_have_openais_shape_too(server: Running) -> None:
    with server.http as http:
        missing, wrong = http.get("/v1/nothing"), http.delete("/v1/speed")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["error"]["message"] == "Not Found: GET /v1/nothing"
    assert wrong.json()["error"]["message"] == "Method Not Allowed: DELETE /v1/speed"


def test_logprobs_of_chats_and_completions(server: Running, offline: Answer) -> None:
    body = chat(messages=MESSAGES, logprobs=True, top_logprobs=3, max_tokens=8)
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    listed = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in listed) == whole["message"]["content"]
    assert [len(entry["top_logprobs"]) for entry in listed] == [3] * 8
    for entry in listed:  # greedy: the token is the likeliest
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
    events = events_of(server.post("/v1/chat/completions", {**body, "stream": True}))
    streamed = [
        entry
        for event in events
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in listed]
    values = [entry["logprob"] for entry in listed]
    assert [entry["logprob"] for entry in streamed] == pytest.approx(values)
    completion = {"model": NAME, "prompt": "abcd", "logprobs": 2, "temperature": 0}
    columns = server.post("/v1/completions", completion).json()["choices"][0]
    assert "".join(columns["logprobs"]["tokens"]) == columns["text"]
    assert [len(top) for top in columns["logprobs"]["top_logprobs"]] == [2] * 16


def test_offsets_of_a_streamed_completion_are_those_of_the_whole(server: Running) -> None:
    body = {"model": NAME, "prompt": ["abcd", "efgh"], "logprobs": 0, "temperature": 0}
    whole = server.post("/v1/completions", body).json()["choices"]
    streamed: list[list[int]] = [[], []]
    for event in events_of(server.post("/v1/completions", {**body, "stream": True})):
        choice = event["choices"][0]
        streamed[choice["index"]] += choice["logprobs"]["text_offset"]
    assert streamed == [choice["logprobs"]["text_offset"] for choice in whole]
    assert streamed == [list(range(len(each))) for each in streamed]  # tokens are letters here


def test_an_answer_by_a_schema(server: Running) -> None:
    schema = {"enum": ["abc", "bcd"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = server.post("/v1/chat/completions", chat(response_format=form)).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) in ("abc", "bcd")


def test_a_schema_where_the_extra_is_missing(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    response = server.post("/v1/chat/completions", chat(response_format={"type": "json_object"}))
    assert response.status_code == 400
    assert "pip install 'marslm[constrained]'" in response.json()["error"]["message"]


def test_a_bias_bans_a_token(server: Running, fitted_model: MarsModel, offline: Answer) -> None:
    banned = {str(token): -100 for token in set(offline.ids)}
    body = chat(messages=MESSAGES, logit_bias=banned, max_tokens=8)
    text = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert not set(text) & set(offline.text)
