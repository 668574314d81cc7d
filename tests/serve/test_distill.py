"""`marslm distill --endpoint` with our own server writes what our engine writes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from marslm.data.dialogues import Message
from marslm.data.encode import user_header
from marslm.distill.writers import EndpointWriter, EngineWriter, Request, Sampling, Writer
from marslm.models.loading import MarsModel


def texts(writer: Writer, requests: list[Request]) -> dict[str, tuple[str, int, bool]]:
    written = writer.write(requests, Sampling(12), lambda tokens: None)
    return {request.key: (text.text, text.tokens, text.cut) for request, text in written}


def test_messages_and_ids_are_continued_as_by_the_engine(
    server: Any, fitted_model: MarsModel
) -> None:
    asked = [Request(str(i), (Message("user", "abc" * i),)) for i in range(1, 5)]
    asked.append(Request("header", user_header(fitted_model.tokenizer)))
    with closing(EndpointWriter(f"{server.url}/v1", "letters", concurrency=3)) as endpoint:
        found = texts(endpoint, asked)
    assert found == texts(EngineWriter(fitted_model, slots=2, max_length=200), asked)
    assert len(found) == 5
