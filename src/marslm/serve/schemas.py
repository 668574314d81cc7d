"""What requests and responses look like: OpenAI's shapes, and `marslm` where they have no field.

A field that is not here is refused, and null counts as not given. Knows nothing about what the
fields do.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator


class Strict(BaseModel):
    """Refuses unknown fields and reads null as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


Tau = Annotated[float, Field(gt=0, le=1)]
AutoTau = Annotated[str, Field(pattern=r"^auto:[0-9.]+$", max_length=16)]


class Decoding(Strict):
    """How this request decodes; what it leaves open follows the server's speed knob.

    strategy: ar, mars, lossless or another registered name. tau: acceptance threshold of mars, one
    for each mask, or "auto:RATE" as calibrated. block: candidates of one step, or "full" (jacobi).
    """

    strategy: str | None = None
    tau: Tau | Annotated[list[Tau], Field(min_length=1, max_length=64)] | AutoTau | None = None
    block: Annotated[int, Field(ge=1, le=64)] | Literal["full"] | None = None


class StreamOptions(Strict):
    """include_usage: end the stream with a chunk that carries the usage."""

    include_usage: bool = False


class JsonSchema(Strict):
    """A schema that the answer must satisfy."""

    name: str
    description: str | None = None
    schema_: dict[str, JsonValue] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What an answer may look like: any text, any JSON value, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _encodable(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("text holds half a surrogate pair") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
StopText = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_encodable)]


class Sampling(Strict):
    """What chats and completions have in common."""

    model: Text
    n: int = Field(1, ge=1, le=16)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    # Beyond OpenAI's: the names that other servers give them.
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64)] | None = None
    marslm: Decoding = Decoding()


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1)]

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(Sampling):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


class CompletionRequest(Sampling):
    """Body of POST /v1/completions: texts, or token ids taken as they are."""

    prompt: Text | list[Text] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] = False


class SpeedChange(Strict):
    """Body of PUT /v1/speed; what is left out stays."""

    strategy: str | None = None
    tau: Tau | None = None
    block: int | None = Field(None, ge=1, le=64)


class Speed(BaseModel):
    """The knob: what requests that set nothing of their own follow.

    block: the largest B of strategies that read masks. policy: the target that moves it under load,
    if there is one.
    """

    strategy: str
    tau: float
    block: int
    policy: str | None


class Usage(BaseModel):
    """Tokens, and the forwards that brought them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    forwards: int
    tokens_per_forward: float


class Model(BaseModel):
    """A model that is served. max_model_len: tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "marslm"
    max_model_len: int


class Models(BaseModel):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Status(BaseModel):
    """Answer of /health and /ready."""

    status: str


class ErrorDetail(BaseModel):
    """What is wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Any answer other than the wanted one."""

    error: ErrorDetail
