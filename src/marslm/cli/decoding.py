"""How to decode, as options: the group that generate, chat and bench decode share.

Knows nothing about any one command.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from marslm.cli import options
from marslm.cli.groups import panel_option

if TYPE_CHECKING:
    from marslm.core.accept import Tau
    from marslm.models.quantize import Quantize
    from marslm.runtime.params import SamplingParams
    from marslm.strategies.base import DraftSide

_DECODING, _SAMPLING, _ENDING = "Decoding", "Sampling", "Ending and form"


@dataclass(frozen=True)
class Decoding:
    """Everything about decoding but the strategy."""

    tau: Annotated[
        str,
        panel_option(
            _DECODING,
            "--tau",
            "-t",
            metavar="TAU|auto:RATE",
            help="Acceptance threshold of mars, above 0 and at most 1; lower is faster. auto:0.02: "
            "as calibrated to differ from ar in at most 2 % of the tokens.",
        ),
    ] = "0.9"
    block: Annotated[
        str | None,
        panel_option(
            _DECODING,
            "--block",
            "-B",
            metavar="N|full",
            help="Candidates per step, as trained by default; full (jacobi): the whole answer.",
        ),
    ] = None
    confidence: Annotated[
        str,
        panel_option(_DECODING, help="What tau is compared with: probability, margin or entropy."),
    ] = "probability"
    draft_model: Annotated[
        str | None,
        panel_option(
            _DECODING, metavar="MODEL", help="Small model of draft_model, named as --model."
        ),
    ] = None
    draft_adapter: Annotated[
        str | None,
        panel_option(
            _DECODING, metavar="DIR|none", help="The small model's adapter, as --adapter."
        ),
    ] = None
    draft_tau: Annotated[
        float,
        panel_option(
            _DECODING, help="The small model's own threshold; 1 drafts one token a forward."
        ),
    ] = 1.0
    temperature: Annotated[float, panel_option(_SAMPLING, help="0 is greedy.")] = 0.0
    top_k: Annotated[
        int, panel_option(_SAMPLING, help="Draw from the k likeliest tokens; 0: all.")
    ] = 0
    top_p: Annotated[
        float, panel_option(_SAMPLING, help="Draw from the likeliest tokens that reach this share.")
    ] = 1.0
    min_p: Annotated[
        float,
        panel_option(
            _SAMPLING, help="Draw from tokens at least this fraction as likely as the best."
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        panel_option(_SAMPLING, help="Above 1 makes tokens of prompt and answer less likely."),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        panel_option(_SAMPLING, help="Taken off a logit for each time the answer has the token."),
    ] = 0.0
    presence_penalty: Annotated[
        float, panel_option(_SAMPLING, help="Taken off the logit of a token that the answer has.")
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        panel_option(_SAMPLING, metavar="ID=BIAS", help="Added to a token's logit; -inf bans it."),
    ] = None
    seed: options.Seed = 0
    max_new_tokens: options.MaxNewTokens = 256
    min_tokens: Annotated[
        int, panel_option(_ENDING, help="Nothing ends an answer before so many tokens.")
    ] = 0
    stop: Annotated[
        list[str] | None, panel_option(_ENDING, metavar="TEXT", help="Text that ends an answer.")
    ] = None
    stop_token_id: Annotated[
        list[int] | None, panel_option(_ENDING, metavar="ID", help="Token that ends an answer.")
    ] = None
    ignore_eos: Annotated[
        bool, panel_option(_ENDING, "--ignore-eos", help="Write on past the model's end token.")
    ] = False
    regex: Annotated[
        str | None, panel_option(_ENDING, help="The answer matches this regular expression.")
    ] = None
    json_schema: Annotated[
        Path | None,
        panel_option(_ENDING, metavar="FILE", help="The answer is JSON that this schema admits."),
    ] = None

    def params(self, **others: Any) -> SamplingParams:
        """Return the request; `others` are fields that the command sets itself."""
        from marslm.runtime.params import SamplingParams

        same = (
            *("confidence", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
            *("frequency_penalty", "presence_penalty", "seed", "max_new_tokens", "min_tokens"),
            *("ignore_eos", "regex"),
        )
        fields: dict[str, Any] = {name: getattr(self, name) for name in same}
        fields |= {
            "tau": read_tau(self.tau),
            "block": _read_block(self.block),
            "logit_bias": dict(_read_bias(text) for text in self.logit_bias or []),
            "stop": tuple(self.stop or ()),
            "stop_token_ids": tuple(self.stop_token_id or ()),
            "json_schema": _read_schema(self.json_schema),
        }
        return SamplingParams(**fields | others)

    def load_draft(self, quantize: Quantize) -> DraftSide | None:
        """Load the second model, if one is named, its weights as narrow as the first one's."""
        from marslm.models.loading import load
        from marslm.strategies.base import DraftSide

        if self.draft_model is None:
            return None
        adapter = options.find_adapter(self.draft_model, self.draft_adapter)
        loaded = load(self.draft_model, adapter=adapter, quantize=quantize)
        return DraftSide(loaded, self.draft_tau)


def read_tau(text: str) -> Tau | str:
    """Return a threshold, or auto:RATE as it stands; SamplingParams refuses other words."""
    try:
        return float(text)
    except ValueError:
        return text


def _read_block(text: str | None) -> int | Literal["full"] | None:
    from marslm.errors import InputError

    if text is None or text == "full":
        return text  # type: ignore[return-value]
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"block is {text!r}: give a whole number or full") from error


def _read_bias(text: str) -> tuple[int, float]:
    from marslm.errors import InputError

    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError as error:
        raise InputError(f"--logit-bias {text}: give ID=BIAS, as 198=-5") from error


def _read_schema(path: Path | None) -> str | None:
    from marslm.errors import InputError

    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--json-schema {path}: cannot be read ({error})") from error
