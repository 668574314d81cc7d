"""Small exact models, naive references and random material that several tests share.

Knows nothing about what is tested with them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from marslm.core.losses import LossCounts
from marslm.data.encode import example_from_answer
from marslm.engine.api import Answer, answer_of
from marslm.engine.engine import Engine
from marslm.models.adapter import Adapter, LowRank
from marslm.models.loading import MarsModel
from marslm.models.medusa import MedusaHeads
from marslm.models.record import MarsRecord, marks_of
from marslm.models.tiny import ARCHITECTURES, build_tokenizer
from marslm.runtime.cache import SlotCache
from marslm.runtime.costs import AssumedCosts
from marslm.runtime.decoder import Decoder
from marslm.runtime.params import SamplingParams
from marslm.runtime.runner import Runner
from marslm.runtime.sampling import choose
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import Transcript
from marslm.runtime.window import Window
from marslm.runtime.work import Work
from marslm.strategies.base import DraftSide, EngineFacts
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig
from marslm.train.medusa import Medusa
from marslm.train.objectives import Objective, TwoStream

VOCABULARY = 288
"""Rows of the embedding: more than the tokenizer has, as in real checkpoints."""

TOKENIZER = build_tokenizer()


def build_network(
    architecture: str,
    *,
    seed: int = 0,
    hidden_size: int = 32,
    layers: int = 2,
    context: int = 256,
    dtype: torch.dtype = torch.float64,
) -> PreTrainedModel:
    """Return a network whose every weight is random, norms and biases too, with exact norms.

    Initial weights of transformers would hide faults: their biases are 0, their norms 1 and their
    logits nearly uniform.
    """
    config_class, network_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=architecture == "qwen2",
        **({"head_dim": hidden_size // 2} if architecture == "qwen3" else {}),
    )
    network = network_class(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if "norm" in name else 0.3 * noise)
    return exact_norms(network.to(dtype).eval())


class _ExactNorm(nn.Module):
    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.variance_epsilon)


def exact_norms(network: PreTrainedModel) -> PreTrainedModel:
    """Replace transformers' norms, which round to float32, by ones in the input's dtype."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, _ExactNorm(child.weight, child.variance_epsilon))
    return network


def build_model(
    architecture: str,
    *,
    seed: int = 0,
    end_token_ids: ListOf[int] = (),
    network: PreTrainedModel | None = None,
    **options: object,
) -> MarsModel:
    """Return a random model, or `network` as one, that ends at `end_token_ids`, in float64."""
    network = network or build_network(architecture, seed=seed, **options)
    tokenizer = build_tokenizer()
    ends = [tokenizer.eos_token_id, *end_token_ids]
    network.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
    )
    return MarsModel(architecture, network, tokenizer, tokenizer.mask_token_id)


def with_random_adapter(
    model: MarsModel, *, seed: int = 0, rank: int = 3, block_size: int = 4
) -> MarsModel:
    """Return the same model with a mask-only adapter that matters: no update is small or zero."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)

    updates = {
        name: LowRank(noise(rank, module.in_features), noise(module.out_features, rank))
        for name, module in model.network.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    }
    marks = marks_of(model.network, model.tokenizer)
    record = MarsRecord("mask-only", model.mask_token_id, block_size=block_size, base=marks)
    embedding = noise(model.network.config.hidden_size)
    return replace(model, record=record, adapter=Adapter(record, updates, embedding))


def build_runner(
    model: MarsModel, *, slots: int = 1, max_length: int = 128, pack: bool = False
) -> tuple[Runner, SlotCache]:
    """Return a runner over a new cache."""
    decoder = Decoder(model, max_length=max_length, pack=pack)
    cache = decoder.new_cache(slots)
    return Runner(decoder, cache, model.mask_token_id), cache


def facts_for(mask_token_id: int) -> EngineFacts:
    """Return what an engine tells a strategy that asks for [MASK] alone."""
    model: Any = SimpleNamespace(name="made", mask_token_id=mask_token_id, record=None)
    return EngineFacts(model, slots=1, max_length=64)


def full_logits(model: MarsModel, tokens: ListOf[int]) -> Tensor:
    """Return transformers' own logits [L, V] for a text, [MASK] excluded; nothing is cached."""
    with torch.no_grad():
        logits: Tensor = model.network(torch.tensor([tokens]), use_cache=False).logits[0]
    logits[:, model.mask_token_id] = -torch.inf
    return logits


def make_sequence(
    tokens: ListOf[int],
    *,
    prompt_length: int | None = None,
    ends: Iterable[int] = (),
    params: SamplingParams | None = None,
    **fields: object,
) -> Sequence:
    """Return a request without an engine: a text, of which the first tokens are the prompt."""
    params = params or SamplingParams(**fields)
    prompt = tokens[: len(tokens) if prompt_length is None else prompt_length]
    sequence = Sequence(0, prompt, params, Transcript(TOKENIZER, params, frozenset(ends)))
    sequence.tokens = list(tokens)
    return sequence


def recompute(model: MarsModel, prompt: ListOf[int], params: SamplingParams) -> list[int]:
    """Return the answer of the plainest possible decoder: the whole text anew for each token."""
    tokens = list(prompt)
    for written in range(params.max_new_tokens):
        text = make_sequence(
            tokens, prompt_length=len(prompt), ends=model.end_token_ids, params=params
        )
        tokens += choose(full_logits(model, tokens)[-1:], text)
        if tokens[-1] in text.transcript.end_token_ids and written >= params.min_tokens:
            break
    return tokens[len(prompt) :]


def recompute_mars(
    model: MarsModel, prompt: ListOf[int], tokens: int, tau: float = 1.0, masks: int = 0
) -> list[int]:
    """Return the paper's answer when every step reads the whole text anew.

    The step that reads the prompt carries no masks. One token a step without `tau` and `masks`.
    """
    decoder = Decoder(model, max_length=len(prompt) + 2 * tokens + masks)
    runner = Runner(decoder, decoder.new_cache(1), model.mask_token_id)
    text, window = list(prompt), Window()
    while len(text) < len(prompt) + tokens:
        (logits,) = runner.forward([Work(0, 0, text, window, 1 + len(window))])
        logits = logits.clone()  # what inference mode made cannot be changed in place
        logits[:, model.mask_token_id] = -torch.inf
        confidence, candidates = logits.softmax(-1).max(-1)
        count = 1
        while count < len(candidates) and confidence[count] >= tau:
            count += 1
        for token in candidates[:count].tolist():
            text.append(token)
            if token in model.end_token_ids:
                return text[len(prompt) :][:tokens]
        window = Window([model.mask_token_id] * masks)
    return text[len(prompt) :][:tokens]


def solo(
    model: MarsModel, prompt: ListOf[int], params: SamplingParams, draft: DraftSide | None = None
) -> Answer:
    """Answer one prompt with an engine of its own, in the same steps every time."""
    engine = Engine(model, slots=1, pack=False, costs=AssumedCosts(), draft=draft)
    sequence = engine.add(list(prompt), params)
    for _ in engine.run():
        pass
    return answer_of(sequence)


def random_prompts(lengths: Iterable[int], seed: int = 0) -> list[list[int]]:
    """Return prompts of byte tokens, one of each length."""
    generator = random.Random(seed)
    return [[generator.randrange(256) for _ in range(length)] for length in lengths]


LETTERS = [ord(letter) - ord("!") for letter in "abcdefghijkl"]
"""Token ids of twelve letters in the byte tokenizer; the fitted model's language."""


def letters(length: int, generator: random.Random, jump: float = 0.2) -> list[int]:
    """Return a text of the language: usually the next letter, at random one five places on."""
    place, text = generator.randrange(12), []
    for _ in range(length):
        text.append(LETTERS[place])
        place = (place + (5 if generator.random() < jump else 1)) % 12
    return text


def fit_letters(steps: int = 120, hidden_size: int = 32) -> MarsModel:
    """Return a Llama trained on `letters` with the paper's objective, B = 4, in float64."""
    network = build_network("llama", seed=5, hidden_size=hidden_size, dtype=torch.float32)
    tokenizer = build_tokenizer()
    config = TuneConfig(mode="full", block_size=4, steps=steps)
    generator = random.Random(0)
    examples = [
        example_from_answer(text[:4], text[4:], "letters")
        for text in (letters(24, generator) for _ in range(8 * steps))
    ]
    objective = TwoStream(network, tokenizer.mask_token_id, config.block_size, w=1.0)
    _fit(objective, TwoStreamData(examples, config), steps)
    return build_model("llama", network=network.requires_grad_(False).double())


def fit_heads(model: MarsModel, steps: int = 60) -> MedusaHeads:
    """Return Medusa heads for B = 4, trained on `letters` in float64."""
    own = model.network.get_output_embeddings().weight
    heads = MedusaHeads(own.detach(), 3).double()
    config = TuneConfig.for_mode("medusa", block_size=4, steps=steps)
    generator = random.Random(1)
    examples = [
        example_from_answer(text[:4], text[4:], "letters")
        for text in (letters(24, generator) for _ in range(8 * steps))
    ]
    objective = Medusa(model.network, heads, model.mask_token_id)
    _fit(objective, TwoStreamData(examples, config), steps)
    return heads.requires_grad_(False).eval()


def _fit(objective: Objective, data: TwoStreamData, steps: int) -> None:
    """Train what requires gradients, 8 examples a step, each seen once."""
    trained = [weight for weight in objective.parameters() if weight.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=1e-2)
    for step in range(steps):
        batch = collate([data[0, 8 * step + i] for i in range(8)])
        loss, _ = objective(batch, LossCounts(*map(float, objective.count_targets(batch))))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
