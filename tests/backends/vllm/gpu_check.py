"""The plugin on one GPU in a few minutes: both runners, equality in float32, speed in bfloat16.

python tests/backends/vllm/gpu_check.py --model DIR [--adapter DIR] --out FILE

Each engine is a process of its own. Prints one line for each check and writes them as JSON; the
exit code is the number of checks that failed. Not run by any target: no test machine has a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from marslm.backends.vllm.command import speculation

SCRIPT = Path(__file__).with_name("engine.py")
GREEDY = {"max_tokens": 64, "ignore_eos": True}
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
TEXTS = (
    "The three largest cities of France are",
    "def fibonacci(n):",
    "One, two, three, four, five,",
    "Question: what is 12 plus 30? Answer:",
)


def with_mode(mode: str, **settings: Any) -> dict[str, Any]:
    extra = {"mars_mode": mode, **{f"mars_{key}": value for key, value in settings.items()}}
    return {**GREEDY, "extra_args": extra}


def run(folder: Path, engine: dict[str, Any], environment: dict[str, str], calls: list[Any]) -> Any:
    """Return the calls' results and the seconds that the process took."""
    job, out = folder / "job.json", folder / "out.json"
    job.write_text(json.dumps({"engine": engine, "calls": calls}))
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(job), str(out)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None, done.stderr[-3000:]
    return json.loads(out.read_text()), time.perf_counter() - start


def ids(answers: list[Any]) -> list[list[int]]:
    return [each[0]["ids"] for each in answers]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    prompts = [tokenizer.encode(text) for text in TEXTS] * 4
    plain = {"model": given.model, "max_model_len": 512, "enforce_eager": False}
    plain |= {"gpu_memory_utilization": 0.3}
    mars = {"mars": {"adapter": given.adapter}} if given.adapter else {}
    v1 = {"speculative_config": speculation(given.adapter or given.model)}
    width = v1["speculative_config"]["num_speculative_tokens"]
    v2 = {
        "worker_cls": "marslm.backends.vllm.v2.MarsWorker",
        "speculative_config": {
            "method": "ngram_gpu",
            "num_speculative_tokens": width,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        },
    }
    modes = [{}, with_mode("off"), with_mode("tau", tau=1.0), with_mode("tau", tau=0.6)]
    calls = [{"prompts": prompts, "params": [{**GREEDY, **mode}]} for mode in modes]
    results: dict[str, Any] = {}
    folder = given.out.parent
    wanted, _ = run(folder, plain, {}, [{"prompts": prompts, "params": [GREEDY]}])
    tau_answers = []
    for name, config, environment in (("v1", v1, V1), ("v2", v2, V2)):
        engine = {**plain, **config, "additional_config": mars}
        found, note = run(folder, engine, environment, calls)
        results[f"{name} runs"] = found is not None
        if found is None:
            results[f"{name} error"] = note
            continue
        for label, answers in zip(("lossless", "off", "tau 1"), found, strict=False):
            results[f"{name} {label} is plain"] = ids(answers) == ids(wanted[0])
        tau_answers.append(ids(found[3]))
    results["v1 and v2 agree at tau 0.6"] = len(tau_answers) == 2 and (
        tau_answers[0] == tau_answers[1]
    )
    given.out.write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))
    return sum(value is False for value in results.values())


if __name__ == "__main__":
    sys.exit(main())
