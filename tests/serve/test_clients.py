"""Other people's clients, and a fuzzer that reads the OpenAPI schema."""

from __future__ import annotations

from typing import Any

import pytest

from serve.conftest import NAME, Running, chat

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def wanted(shared: Running) -> str:
    body = chat(temperature=0, max_tokens=20)
    answer = shared.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert answer
    return str(answer)


def test_langchain(server: Running, wanted: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        model=NAME,
        temperature=0,
        max_tokens=20,
        extra_body={"marslm": {"strategy": "lossless"}},
    )
    answer = model.invoke("abcd")
    assert answer.content == wanted
    assert answer.usage_metadata["output_tokens"] == 20
    assert "".join(chunk.content for chunk in model.stream("abcd")) == wanted
    assert [each.content for each in model.batch(["abcd", "abcd"])] == [wanted] * 2


@pytest.mark.filterwarnings("ignore")
def test_litellm(server: Running, wanted: str) -> None:
    litellm = pytest.importorskip("litellm")
    settings: dict[str, Any] = {
        "model": f"openai/{NAME}",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": "abcd"}],
        "temperature": 0,
        "max_tokens": 20,
    }
    assert litellm.completion(**settings).choices[0].message.content == wanted
    stream = litellm.completion(**settings, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted
    with pytest.raises(litellm.BadRequestError, match="unknown strategy"):
        litellm.completion(**settings, extra_body={"marslm": {"strategy": "warp"}})


@pytest.mark.filterwarnings("ignore")
def test_no_body_that_the_schema_allows_or_forbids_breaks_the_server(server: Running) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings  # noqa: PLC0415

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for operation in schema.get_all_operations():

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.ok().as_strategy())
        def fuzz(case: Any) -> None:
            response = case.call(timeout=60)
            assert response.status_code < 500, response.text

        fuzz()
    server.wait_until_idle()
