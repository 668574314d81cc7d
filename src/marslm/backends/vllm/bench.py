"""Speed inside vLLM: plain, n-gram, lossless and tau side by side, in turns, in one run.

Each engine is a process of its own that stays up throughout, so that all feel the same machine.
Knows nothing about how figures are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from marslm.backends.vllm import check_version
from marslm.backends.vllm.command import speculation
from marslm.report import Row

Listener: TypeAlias = Callable[[str], None]

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}

_WARM_TOKENS = 4
"""What each variant writes before the clock runs: n-gram search, for one, is compiled when first
used, which takes longer than all of its answers."""


@dataclass
class Variant:
    """One way to decode, and what it took so far."""

    name: str
    engine: Any
    extra_args: dict[str, Any]
    requests: int
    seconds: float = 0.0
    tokens: int = 0
    forwards: int = 0
    answers: list[list[int]] = field(default_factory=list)

    def run(self, prompts: Sequence[list[int]], max_new_tokens: int) -> None:
        """Answer one batch of prompts, greedily, and take the time."""
        from vllm import SamplingParams  # noqa: PLC0415

        params = SamplingParams(
            temperature=0.0, max_tokens=max_new_tokens, extra_args=self.extra_args or None
        )
        before = self._forwards()
        start = time.perf_counter()
        done = self.engine.generate(
            [{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False
        )
        self.seconds += time.perf_counter() - start
        self.forwards += self._forwards() - before
        answers = [list(each.outputs[0].token_ids) for each in done]
        self.tokens += sum(map(len, answers))
        self.answers += answers

    def _forwards(self) -> int:
        """Return the steps of single requests so far; only MARS counts them."""
        if not self.extra_args:
            return 0
        return int(self.engine.collective_rpc("mars_counters")[0]["forwards"])

    def row(self, plain: Variant) -> Row:
        """Return the figures, compared with plain decoding's."""
        pairs = zip(self.answers, plain.answers, strict=True)
        return {
            "variant": self.name,
            "requests": self.requests,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens / self.seconds, 2),
            "speed": round(self.tokens / self.seconds * plain.seconds / plain.tokens, 3),
            "tokens_per_forward": self.tokens / self.forwards if self.forwards else None,
            "identical_to_plain": sum(mine == other for mine, other in pairs),
            "answers": len(self.answers),
        }


def run_bench(
    model: str,
    adapter: str | None,
    prompts: Sequence[list[int]],
    *,
    requests: Sequence[int],
    tau: float,
    max_new_tokens: int,
    engine: dict[str, Any],
    listener: Listener,
) -> list[Row]:
    """Return one row for each number of requests at once and each way to decode.

    prompts: token ids; every variant answers all of them. tau: of the last variant. engine: more
    of vLLM's options, for each engine.
    """
    engines = _engines(model, adapter, engine, listener)
    rows: list[Row] = []
    for count in requests:
        for each in _variants(engines, tau):
            Variant(*each, requests=count).run(prompts[:count], _WARM_TOKENS)
        variants = [Variant(*each, requests=count) for each in _variants(engines, tau)]
        for start in range(0, len(prompts), count):
            listener(f"{count} at once, from prompt {start}")
            for variant in variants:
                variant.run(prompts[start : start + count], max_new_tokens)
        rows += [variant.row(variants[0]) for variant in variants]
    return rows


def _engines(
    model: str, adapter: str | None, engine: dict[str, Any], listener: Listener
) -> dict[str, Any]:
    check_version()
    from vllm import LLM  # noqa: PLC0415

    mars = {"mars": {"adapter": adapter}} if adapter else {}
    configs: dict[str, dict[str, Any]] = {
        "plain": {},
        "n-gram": {"speculative_config": NGRAM},
        "mars": {
            "speculative_config": dict(speculation(adapter or model)),
            "additional_config": mars,
            "worker_extension_cls": "marslm.backends.vllm.control.MarsControl",
        },
    }
    engines = {}
    for name, config in configs.items():
        listener(f"starting {name}")
        engines[name] = LLM(model=model, enable_prefix_caching=False, **engine, **config)
    return engines


def _variants(engines: dict[str, Any], tau: float) -> list[tuple[str, Any, dict[str, Any]]]:
    tau_args = {"mars_mode": "tau", "mars_tau": tau}
    return [
        ("plain", engines["plain"], {}),
        ("n-gram", engines["n-gram"], {}),
        ("off", engines["mars"], {"mars_mode": "off"}),
        ("lossless", engines["mars"], {"mars_mode": "lossless"}),
        (f"tau {tau:g}", engines["mars"], tau_args),
    ]
