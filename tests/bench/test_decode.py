"""The decoding benchmark: its figures add up to what was decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from helpers import build_model, random_prompts, solo, with_random_adapter
from marslm.bench.decode import TRANSFORMERS, DecodeBench, EncodedPrompt
from marslm.bench.transformers_baseline import generate_with_transformers, with_stock_layout
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams

STRATEGIES = ["ar", "mars", "lossless-chain"]
PARAMS = SamplingParams(max_new_tokens=10, tau=0.05)
PROMPTS = random_prompts([5, 9, 3, 12, 7, 4])
KINDS = ["qa", "rag", "qa", "rag", "sums", "sums"]


@pytest.fixture(scope="module")
def model() -> MarsModel:
    return with_random_adapter(build_model("llama", seed=1, end_token_ids=range(7, 288, 16)))


def bench(model: MarsModel, strategies: list[str], **options: Any) -> DecodeBench:
    measured = DecodeBench(model, strategies, PARAMS, longest_prompt=12, **options)
    measured.run([EncodedPrompt(p, k) for p, k in zip(PROMPTS, KINDS, strict=True)])
    return measured


@pytest.fixture(scope="module")
def rows(model: MarsModel) -> list[Any]:
    return bench(model, [*STRATEGIES, TRANSFORMERS]).rows()


def test_overall_rows_come_before_rows_by_kind(rows: list[Any]) -> None:
    names = [*STRATEGIES, TRANSFORMERS]
    assert [row["strategy"] for row in rows[:4]] == names
    assert not any("kind" in row for row in rows[:4])
    assert [(row["kind"], row["strategy"]) for row in rows[4:]] == [
        (kind, name) for kind in ("qa", "rag", "sums") for name in names
    ]


@pytest.mark.parametrize("column", ["prompts", "tokens", "forwards", "ties"])
def test_kinds_add_up_to_the_whole(rows: list[Any], column: str) -> None:
    for overall in rows[:4]:
        parts = [row for row in rows[4:] if row["strategy"] == overall["strategy"]]
        assert overall[column] == sum(row[column] for row in parts)


@pytest.mark.parametrize("name", STRATEGIES)
def test_figures_are_those_of_single_runs(model: MarsModel, rows: list[Any], name: str) -> None:
    """Tokens are committed ones; forwards those that brought some, the prompt's counted once."""
    params = SamplingParams(max_new_tokens=10, tau=0.05, strategy=name)
    answers = [solo(model, prompt, params) for prompt in PROMPTS]
    row = rows[[*STRATEGIES, TRANSFORMERS].index(name)]
    tokens, forwards = sum(len(a.ids) for a in answers), sum(len(a.runs) for a in answers)
    assert (row["prompts"], row["tokens"], row["forwards"]) == (6, tokens, forwards)
    assert row["tokens_per_forward"] == tokens / forwards
    after_prompts = sum(len(a.runs) - 1 for a in answers)
    assert row["rows_per_forward"] == sum(a.decode_rows for a in answers) / after_prompts


def test_exact_strategies_are_identical_and_mars_is_not(rows: list[Any]) -> None:
    ar, mars, lossless, outside = rows[:4]
    assert ar["identical_to_ar"] == lossless["identical_to_ar"] == outside["identical_to_ar"] == 1
    assert mars["identical_to_ar"] < 1  # a random adapter, and a threshold that lets all through
    assert mars["agreement"] < 1
    assert ar["agreement"] is None
    assert outside["tokens"] == ar["tokens"] == ar["forwards"]
    assert ar["ties"] == 0


def test_facts_of_the_setting(rows: list[Any]) -> None:
    ar, mars, lossless, outside = rows[:4]
    assert [row["tau"] for row in rows[:4]] == [None, 0.05, None, None]
    assert [row["block"] for row in (ar, mars, lossless, outside)] == [1, 4, 4, 1]
    assert all((row["batch"], row["temperature"]) == (1, 0) for row in rows)


@pytest.mark.parametrize("batch", [2, 4, 9])
def test_a_batch_changes_times_alone(model: MarsModel, rows: list[Any], batch: int) -> None:
    kept = ("strategy", "prompts", "tokens", "forwards", "rows_per_forward", "identical_to_ar")
    batched = bench(model, STRATEGIES, batch=batch).rows()
    for row, single in zip(batched[:3], rows[:3], strict=True):
        assert {key: row[key] for key in kept} == {key: single[key] for key in kept}
        assert row["batch"] == batch


@pytest.mark.parametrize("batch", [2, 4])
def test_kinds_keep_their_own_figures_in_a_batch(
    model: MarsModel, rows: list[Any], batch: int
) -> None:
    """A batch may hold prompts of several kinds; each counts for its own."""
    single = {(row["kind"], row["strategy"]): row["tokens"] for row in rows[4:]}
    for row in bench(model, STRATEGIES, batch=batch).rows()[3:]:
        assert row["tokens"] == single[row["kind"], row["strategy"]]


def test_strategies_take_turns(model: MarsModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = DecodeBench._decode

    def decode(self: DecodeBench, name: str, prompts: list[list[int]]) -> Any:
        asked.append(name)
        return real(self, name, prompts)

    monkeypatch.setattr(DecodeBench, "_decode", decode)
    bench(model, STRATEGIES)
    rounds = [asked[i : i + 3] for i in range(3, len(asked), 3)]  # after the warm-up
    assert len(rounds) == 6
    assert all(sorted(names) == sorted(STRATEGIES) for names in rounds)
    assert len({names[0] for names in rounds}) == 3  # nobody is always first


def test_without_ar_the_comparison_still_has_it(model: MarsModel) -> None:
    (row,) = rows_of_one_kind(model, ["lossless"])
    assert (row["strategy"], row["identical_to_ar"]) == ("lossless", 1)


def rows_of_one_kind(model: MarsModel, strategies: list[str]) -> list[Any]:
    measured = DecodeBench(model, strategies, PARAMS, longest_prompt=12)
    measured.run([EncodedPrompt(prompt, "qa") for prompt in PROMPTS[:3]])
    return measured.rows()  # type: ignore[return-value]


def test_progress_and_answers(model: MarsModel) -> None:
    heard: list[int] = []
    measured = DecodeBench(model, ["ar"], PARAMS, batch=4, longest_prompt=12)
    measured.run([EncodedPrompt(prompt, "qa") for prompt in PROMPTS], heard.append)
    assert heard == [4, 6]
    assert [answer.prompt_ids for answer in measured.answers("ar")] == PROMPTS


def test_transformers_own_generate_is_the_same_text(model: MarsModel) -> None:
    for prompt in PROMPTS:
        ours = solo(model, prompt, SamplingParams(max_new_tokens=10, strategy="ar"))
        (theirs,), steps = generate_with_transformers(model, [prompt], PARAMS)
        assert (theirs.ids, theirs.text) == (ours.ids, ours.text)
        assert theirs.finish_reason == ours.finish_reason
        assert len(steps) == len(ours.ids) - 1
        assert theirs.runs == [1] * len(ours.ids)


def test_the_baseline_keeps_its_own_memory_layout(model: MarsModel) -> None:
    Engine(model, slots=1, max_length=32)  # whose decoder transposes the weights it shares
    stock = with_stock_layout(model).network
    theirs, ours = dict(stock.named_parameters()), dict(model.network.named_parameters())
    assert not all(parameter.is_contiguous() for parameter in ours.values())
    assert all(parameter.is_contiguous() for parameter in theirs.values())
    assert all(torch.equal(parameter, ours[name]) for name, parameter in theirs.items())


def test_the_baseline_never_writes_the_mask(model: MarsModel) -> None:
    with torch.no_grad():
        head = model.network.get_output_embeddings().weight
        before = head[model.mask_token_id].clone()
        head[model.mask_token_id] = 50 * head[5]
    (answer,), _ = generate_with_transformers(model, [PROMPTS[0]], PARAMS)
    with torch.no_grad():
        head[model.mask_token_id] = before
    assert model.mask_token_id not in answer.ids


def test_a_checkpoints_own_settings_do_not_change_the_baseline(
    model: MarsModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2.5's has a penalty: what it writes with that is not greedy decoding."""
    plain = [solo(model, prompt, replace(PARAMS, strategy="ar")).ids for prompt in PROMPTS]
    ends = sorted(model.end_token_ids)
    own = GenerationConfig(eos_token_id=ends, pad_token_id=256, repetition_penalty=1.8)
    monkeypatch.setattr(model.network, "generation_config", own)
    found = [generate_with_transformers(model, [prompt], PARAMS)[0][0].ids for prompt in PROMPTS]
    assert found == plain
    endless = replace(PARAMS, ignore_eos=True)
    for prompt in PROMPTS:
        (answer,), _ = generate_with_transformers(model, [prompt], endless)
        assert answer.ids == solo(model, prompt, replace(endless, strategy="ar")).ids
    assert model.network.generation_config is own


def test_what_the_baseline_does_not_compare(model: MarsModel) -> None:
    with pytest.raises(InputError, match="measured greedily, with --batch 1"):
        generate_with_transformers(model, PROMPTS[:2], PARAMS)
    with pytest.raises(InputError, match="measured greedily"):
        generate_with_transformers(model, PROMPTS[:1], SamplingParams(temperature=0.5))
