"""Engines in processes of their own, prompts, and the smollm2 folder and adapter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from helpers import LETTERS, TOKENIZER, fit_letters, with_random_adapter
from marslm.hub.export import export_merged
from marslm.models.adapter import CONFIG_FILE, WEIGHTS_FILE
from marslm.models.loading import MarsModel, load_tokenizer
from marslm.models.record import MarsRecord, marks_of
from marslm.models.short_names import shipped_adapter, smollm2_folder

ROOT = Path(__file__).parents[3]
PROPOSER = "marslm.backends.vllm.v1.MarsProposer"
CONTROL = "marslm.backends.vllm.control.MarsControl"
Run = Callable[..., list[Any]]
MASK_EMBEDDING = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
LETTER_RUNS = [(start, 2 + 3 * start % 11) for start in range(12)]


class Failed:
    """A call that failed; whoever uses its result is told why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def _tell(self, *_: object) -> Any:
        pytest.fail(self.reason)

    __getitem__ = __iter__ = __len__ = _tell


def is_failure(result: Any) -> bool:
    return isinstance(result, dict) and "failed" in result


@pytest.fixture(scope="session")
def run_engine(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that starts an engine, does the calls, and returns their results."""

    def run(engine: dict[str, Any], *calls: dict[str, Any]) -> list[Any]:
        folder = tmp_path_factory.mktemp("engine")
        job, out = folder / "job.json", folder / "out.json"
        job.write_text(json.dumps({"engine": engine, "calls": calls}))
        script = Path(__file__).with_name("engine.py")
        done = subprocess.run(
            [sys.executable, str(script), str(job), str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        results: list[Any] = json.loads(out.read_text())
        return [Failed(each["failed"]) if is_failure(each) else each for each in results]

    return run


@pytest.fixture(scope="session")
def smollm2() -> dict[str, Any]:
    """Engine settings of plain vLLM with smollm2."""
    return {"model": str(smollm2_folder())}


@pytest.fixture(scope="session")
def mars(smollm2: dict[str, Any]) -> dict[str, Any]:
    """Engine settings of MARS with smollm2 and the adapter that ships."""
    return {
        **smollm2,
        "speculative_config": {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": 8,
        },
        "worker_extension_cls": CONTROL,
        "additional_config": {"mars": {"adapter": str(shipped_adapter("smollm2"))}},
    }


@pytest.fixture(scope="session")
def letters_model() -> MarsModel:
    """A small model trained by the paper's objective on runs of twelve letters; many drafts hit.

    Its heads are as wide as vLLM's attention on CPUs wants at least.
    """
    model = fit_letters(hidden_size=128)
    model.network.float()
    return model


@pytest.fixture(scope="session")
def letters_plain(letters_model: MarsModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engine settings of plain vLLM with that model, as `marslm export --merged` writes it."""
    folder = tmp_path_factory.mktemp("letters")
    trained, merged = folder / "trained", folder / "merged"
    network, mask = letters_model.network, letters_model.mask_token_id
    network.save_pretrained(trained)
    TOKENIZER.save_pretrained(trained)
    MarsRecord("full", mask, block_size=4, base=marks_of(network, TOKENIZER)).save(trained)
    export_merged(str(trained), merged)
    return {"model": str(merged), "max_num_seqs": 64}


@pytest.fixture(scope="session")
def letters_mars(letters_plain: dict[str, Any]) -> dict[str, Any]:
    """Engine settings of MARS with that model."""
    speculation = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": 6}
    return {**letters_plain, "speculative_config": speculation, "worker_extension_cls": CONTROL}


@pytest.fixture(scope="session")
def letters_adapter(letters_model: MarsModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mask-only adapter for that model: random, and large enough to change drafts."""
    folder = tmp_path_factory.mktemp("mask-only")
    adapter = with_random_adapter(letters_model).adapter
    assert adapter is not None
    weights = {
        f"base_model.model.{name}.lora_{part}.weight": 0.3 * tensor.float()
        for name, update in adapter.updates.items()
        for part, tensor in (("A", update.down), ("B", update.up))
    }
    embedding = letters_model.network.get_input_embeddings().weight[letters_model.mask_token_id]
    moved = embedding.detach() + 0.1 * adapter.mask_embedding
    weights["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = moved[
        None
    ]
    save_file(
        {name: each.float().contiguous() for name, each in weights.items()}, folder / WEIGHTS_FILE
    )
    (folder / CONFIG_FILE).write_text(json.dumps({"r": 3, "lora_alpha": 3}))
    adapter.record.save(folder)
    return folder


@pytest.fixture(scope="session")
def letter_prompts() -> list[list[int]]:
    """Beginnings of such runs."""
    return [[LETTERS[(start + i) % 12] for i in range(length)] for start, length in LETTER_RUNS]


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Fifty chat prompts of different lengths."""
    topics = (ROOT / "recipes" / "smollm2-135m" / "topics.txt").read_text().splitlines()[:50]
    forms = ("What is {}?", "Explain {} to a child in three sentences.", "List facts about {}.")
    tokenizer = load_tokenizer("smollm2")
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": forms[i % 3].format(topic)}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for i, topic in enumerate(topics)
    ]
