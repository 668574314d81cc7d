"""The engine under the harness: the same answers, their counts, and exact log-likelihoods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from helpers import build_model
from marslm.data.dialogues import Message
from marslm.data.encode import encode_prompt
from marslm.engine.api import generate
from marslm.errors import InputError
from marslm.evaluation.answer_file import AnswerFile
from marslm.evaluation.harness_model import MarsLM
from marslm.models.loading import MarsModel

PROMPTS = ["One", "A somewhat longer question than the others?", "3 + 4"]


def instances(prompts: list[str], **options: object) -> list[Instance]:
    options = {"until": [], "max_gen_toks": 24, **options}
    return [
        Instance("generate_until", {}, (text, options), 0, ("made", number, 1))
        for number, text in enumerate(prompts)
    ]


@pytest.mark.parametrize("strategy", ["ar", "lossless-chain", "mars"])
def test_answers_and_counts_are_the_engines(fitted_model: MarsModel, strategy: str) -> None:
    lm = MarsLM(fitted_model, strategy=strategy, tau=0.5, batch_size=2)
    texts = lm.generate_until(instances(PROMPTS))
    encoded: list[list[int]] = [lm.tokenizer.encode(text) for text in PROMPTS]
    answers = generate(fitted_model, encoded, strategy=strategy, tau=0.5, max_new_tokens=24)
    assert texts == [answer.text for answer in answers]
    for number, answer in enumerate(answers):
        kept = lm.generations["made", number]
        assert (kept.tokens, kept.forwards) == (len(answer.ids), len(answer.runs))
        assert kept.finish_reason == answer.finish_reason
        assert kept.seconds > 0
    assert strategy == "ar" or any(max(answer.runs) > 1 for answer in answers)


def test_stop_strings_end_answers(fitted_model: MarsModel) -> None:
    whole = MarsLM(fitted_model, strategy="ar").generate_until(instances(["One"]))[0]
    stop = whole[3:6]
    lm = MarsLM(fitted_model, strategy="lossless-chain")
    assert lm.generate_until(instances(["One"], until=[stop, ""])) == [whole[: whole.find(stop)]]
    assert lm.generations["made", 0].finish_reason == "stop"


def test_a_long_prompt_loses_its_left_end_and_is_counted() -> None:
    lm = MarsLM(build_model("llama", context=64), strategy="ar")
    text = "x" * 50 + "y" * 40
    assert lm.generate_until(instances([text])) == lm.generate_until(instances(["y" * 40]))
    lm.generate_until(instances([text]))
    assert lm.generations["made", 0].prompt_cut == 50


def test_what_was_answered_is_not_answered_again(fitted_model: MarsModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = MarsLM(fitted_model, strategy="ar", answers=AnswerFile(path))
    texts = first.generate_until(instances(PROMPTS[:2]))
    with path.open("a") as file:
        file.write('{"key": "cut of')  # as a kill leaves it
    heard: list[object] = []
    second = MarsLM(fitted_model, strategy="ar", answers=AnswerFile(path), on_answer=heard.append)
    assert second.generate_until(instances(PROMPTS))[:2] == texts
    assert len(heard) == 1
    assert second.generations["made", 0] == first.generations["made", 0]


def test_sampled_repeats_differ_and_come_back(fitted_model: MarsModel) -> None:
    lm = MarsLM(fitted_model, strategy="ar")
    options = {"do_sample": True, "temperature": 2.0}
    repeated = lm.generate_until(instances(["One"] * 3, **options))
    assert len(set(repeated)) == 3
    assert (
        MarsLM(fitted_model, strategy="ar").generate_until(instances(["One"] * 3, **options))
        == repeated
    )


def reference(model: MarsModel, ids: list[int], wanted: int) -> tuple[float, bool]:
    with torch.no_grad():
        logits = model.network(torch.tensor([ids])).logits[0, -wanted - 1 : -1]
    logits[:, model.mask_token_id] = -torch.inf  # it is never written
    targets = torch.tensor(ids[-wanted:])
    score = float(logits.log_softmax(-1).gather(1, targets[:, None]).sum())
    return score, bool((logits.argmax(-1) == targets).all())


def test_log_likelihoods_equal_the_plain_models(random_model: MarsModel) -> None:
    lm = MarsLM(random_model, strategy="mars", batch_size=3)
    pairs = [("Say", " yes"), ("", "alone"), ("A longer text before it, ", "no"), ("x", "y")]
    requests = [Instance("loglikelihood", {}, pair, 0, ("made", 0, 1)) for pair in pairs]
    results = lm.loglikelihood(requests, disable_tqdm=True)
    for (context, continuation), (score, greedy) in zip(pairs, results, strict=True):
        before = lm.tok_encode(context) or [lm.eot_token_id]
        after = lm.tok_encode(continuation)
        if context.endswith(" "):
            before, after = before[:-1], [before[-1], *after]
        expected = reference(random_model, [*before, *after], len(after))
        assert (score, greedy) == pytest.approx(expected, abs=1e-9)


def test_a_text_longer_than_the_context_is_scored_in_windows() -> None:
    model = build_model("qwen2", context=16)
    text = "forty characters, more than the context."
    request = Instance("loglikelihood_rolling", {}, (text,), 0, ("made", 0, 1))
    lm = MarsLM(model)
    ids = [lm.eot_token_id, *lm.tok_encode(text)]
    expected = sum(
        reference(model, ids[max(0, end - 16) : end + 1], 1)[0] if end < 16 else 0.0
        for end in range(1, len(ids))
    )
    scores = lm.loglikelihood_rolling([request])
    assert scores[0] < expected < 0
    short = Instance("loglikelihood_rolling", {}, (text[:15],), 0, ("made", 0, 1))
    assert lm.loglikelihood_rolling([short])[0] == pytest.approx(
        reference(model, ids[:16], 15)[0], abs=1e-9
    )


def test_a_chat_prompt_is_encoded_as_everywhere(fitted_model: MarsModel) -> None:
    lm = MarsLM(fitted_model)
    chat = [{"role": "user", "content": "Hi"}]
    text = lm.apply_chat_template(chat)
    assert lm.tok_encode(text) == encode_prompt(fitted_model.tokenizer, [Message("user", "Hi")])
    opened = lm.apply_chat_template(
        [*chat, {"role": "assistant", "content": "Well"}], add_generation_prompt=False
    )
    assert opened == text + "Well"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tau": 0}, "tau is 0: give a value above 0 and at most 1"),
        ({"block": 0}, "block is 0: give at least 1"),
        ({"batch_size": "many"}, "batch_size is 'many': give a whole number or auto"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        MarsLM(build_model("llama"), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_the_harness_command_line_names_a_gpu_that_need_not_be_there() -> None:
    passed = {"device": "cuda:0", "batch_size": "auto:4", "max_batch_size": 16}
    lm = MarsLM.create_from_arg_string("model=tiny,strategy=ar", passed)
    assert lm.model.network.device.type == "cpu"


def test_unknown_generation_settings_are_refused() -> None:
    with pytest.raises(InputError, match="generation_kwargs has num_beams: leave it out"):
        MarsLM(build_model("llama")).generate_until(instances(["Hi"], num_beams=2))


def test_the_harness_knows_the_model_by_name(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": f"{n} + 1", "a": "b"}) + "\n" for n in range(3)))
    (tmp_path / "made.yaml").write_text(f"""
task: made
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}, cache_dir: {tmp_path / "cache"}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 8}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
""")
    results = simple_evaluate(
        "marslm",
        model_args="model=tiny,strategy=lossless-chain,tau=0.9",
        tasks=["made"],
        limit=2,
        apply_chat_template=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=tmp_path, include_defaults=False),
    )
    assert results["results"]["made"]["exact_match,none"] == 0
    counts = results["config"]["counts"]["made"]
    assert counts["tokens"] == 16 or counts["truncated"] < 1
    assert counts["tokens_per_forward"] == counts["tokens"] / counts["forwards"]
    assert results["config"]["decoding"]["strategy"] == "lossless-chain"
    assert [len(each["resps"][0][0]) > 0 for each in results["samples"]["made"]] == [True, True]
