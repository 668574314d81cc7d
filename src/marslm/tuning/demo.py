"""The quick demo: teach a tiny model sums from scratch, then decode held-out ones in every way.

The paper's objective on the repository's own task, small enough for two CPU cores and two minutes.
Knows nothing about terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from marslm import files
from marslm.bench.decode import DecodeBench, EncodedPrompt
from marslm.data import arithmetic
from marslm.data.dialogues import Message
from marslm.data.encode import encode_all, encode_prompt
from marslm.engine.api import Answer
from marslm.models.loading import MarsModel, load
from marslm.report import Row
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.params import SamplingParams
from marslm.train.config import TuneConfig
from marslm.train.events import Listener
from marslm.train.run import train

STRATEGIES = ("ar", "mars", "lossless")

TINY_CONFIG = TuneConfig(
    mode="full",
    block_size=8,
    # Sampled blocks: an answer of one fixed form, cut at fixed places, would leave most pairs of
    # place and distance untrained, and a sliding window meets them all.
    anchors=6,
    learning_rate=3e-3,
    warmup=0.05,
    batch_size=16,
    steps=1000,
    max_length=128,
    checkpoint_minutes=60,
)
TINY_TAU = 0.95
_TRAINING_PROBLEMS = 4000
_HELD_OUT_PROBLEMS = 100

CHAT_PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a robot who learns to paint.",
    "Natalia has 48 clips. She gives half of them to May and a third of the rest to Tom. "
    "How many clips does she have left?",
    "Write a Python function that returns the factorial of a number, and explain it.",
    "List five tips for a good night's sleep.",
    "Summarise why leaves change their colour in autumn.",
)


@dataclass(frozen=True)
class DemoResult:
    """rows: one per strategy. answers: by strategy, in the prompts' order."""

    tokenizer: PreTrainedTokenizerBase
    rows: Sequence[Row]
    prompts: Sequence[str]
    answers: dict[str, list[Answer]]


def train_tiny(folder: Path, listener: Listener) -> MarsModel:
    """Train `tiny` on sums into `folder`, replacing an earlier demo's; return it loaded."""
    problems, _ = arithmetic.split(_TRAINING_PROBLEMS, _HELD_OUT_PROBLEMS, seed=0)
    model = load("tiny")
    examples, _ = encode_all(
        model.tokenizer,
        [problem.dialogue for problem in problems],
        max_length=TINY_CONFIG.max_length,
    )
    with files.new_folder(folder) as draft:
        train(model, examples, TINY_CONFIG, draft, listener=listener)
    return load(str(folder))


def decode_tiny(model: MarsModel, on_prompt: Callable[[int], None]) -> DemoResult:
    """Decode held-out sums with every strategy; accuracy is part of the rows."""
    _, problems = arithmetic.split(_TRAINING_PROBLEMS, _HELD_OUT_PROBLEMS, seed=0)
    params = SamplingParams(max_new_tokens=80, tau=TINY_TAU)
    result = _decode(model, [problem.question for problem in problems], params, on_prompt)
    rows = []
    for row in result.rows:
        answers = result.answers[str(row["strategy"])]
        correct = [
            arithmetic.is_correct(problem, answer.text)
            for problem, answer in zip(problems, answers, strict=True)
        ]
        rows.append({**row, "model": "tiny", "accuracy": sum(correct) / len(correct)})
    return replace(result, rows=rows)


def decode_chat(model: MarsModel, on_prompt: Callable[[int], None]) -> DemoResult:
    """Decode a few chat prompts with every strategy."""
    params = SamplingParams(max_new_tokens=96, tau=0.8)
    result = _decode(model, CHAT_PROMPTS, params, on_prompt)
    rows = [{**row, "model": model.name} for row in result.rows]
    return replace(result, rows=rows)


def _decode(
    model: MarsModel,
    prompts: Sequence[str],
    params: SamplingParams,
    on_prompt: Callable[[int], None],
) -> DemoResult:
    encoded = [
        EncodedPrompt(encode_prompt(model.tokenizer, [Message("user", text)]), "demo")
        for text in prompts
    ]
    longest = max(len(prompt.ids) for prompt in encoded)
    # What the models can do is to be seen, also where their steps do not pay on this machine.
    costs = AssumedCosts()
    bench = DecodeBench(model, STRATEGIES, params, longest_prompt=longest, costs=costs)
    bench.run(encoded, on_prompt)
    answers = {name: bench.answers(name) for name in STRATEGIES}
    return DemoResult(model.tokenizer, bench.rows(), prompts, answers)
