"""Runs one vLLM engine: reads a job, does its calls, writes what came out.

A process of its own for each engine, so that memory comes back and no test sees another's state.
`python engine.py JOB OUT`; a job is {"engine": {...}, "calls": [{...}]}, all JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.update(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
)

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

DEFAULTS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "seed": 0}


def sampling(params: dict[str, Any]) -> SamplingParams:
    params = {"temperature": 0.0, **params}
    if regex := params.pop("regex", None):
        params["structured_outputs"] = StructuredOutputsParams(regex=regex)
    return SamplingParams(**params)


def plain(output: Any) -> dict[str, Any]:
    """Return one answer as JSON."""
    logprobs = output.logprobs and [
        {str(token): each.logprob for token, each in place.items()} for place in output.logprobs
    ]
    return {
        "ids": list(output.token_ids),
        "text": output.text,
        "finish": output.finish_reason,
        "stop": output.stop_reason,
        "logprobs": logprobs,
    }


def generate(llm: LLM, call: dict[str, Any]) -> Any:
    """Answer prompts, all at once or one after another; several settings take turns."""
    prompts = [{"prompt_token_ids": ids} for ids in call["prompts"]]
    settings = [sampling(each) for each in call["params"]]
    params = [settings[i % len(settings)] for i in range(len(prompts))]
    if call.get("together", True):
        done = llm.generate(prompts, params, use_tqdm=False)
    else:
        done = [
            llm.generate([one], [how], use_tqdm=False)[0]
            for one, how in zip(prompts, params, strict=True)
        ]
    return [[plain(output) for output in each.outputs] for each in done]


def abort(llm: LLM, call: dict[str, Any]) -> Any:
    """Start all prompts, abort every other one after some steps, and finish the rest."""
    engine = llm.llm_engine
    for i, ids in enumerate(call["prompts"]):
        engine.add_request(str(i), {"prompt_token_ids": ids}, sampling(call["params"][0]))
    for _ in range(call["steps"]):
        engine.step()
    engine.abort_request([str(i) for i in range(0, len(call["prompts"]), 2)])
    done = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = plain(output.outputs[0])
    return done


def refuse(llm: LLM, call: dict[str, Any]) -> Any:
    """Return what is said about a bad request."""
    try:
        generate(llm, call)
    except ValueError as error:
        return str(error)
    return None


def counters(llm: LLM, call: dict[str, Any]) -> Any:
    """Return the plugin's counts so far."""
    (counts,) = llm.collective_rpc("mars_counters")
    return counts


def defaults(llm: LLM, call: dict[str, Any]) -> Any:
    """Turn the defaults of requests."""
    llm.collective_rpc("mars_defaults", kwargs=call["values"])


def metric(llm: LLM, call: dict[str, Any]) -> Any:
    """Return one of vLLM's own counts."""
    return sum(each.value for each in llm.get_metrics() if each.name == call["name"])


def accepted(llm: LLM, call: dict[str, Any]) -> Any:
    """Return how many drafts vLLM accepted at each place."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos"
    (counts,) = (each.values for each in llm.get_metrics() if each.name == name)
    return counts


CALLS = {
    "accepted": accepted,
    "generate": generate,
    "abort": abort,
    "refuse": refuse,
    "counters": counters,
    "defaults": defaults,
    "metric": metric,
}


def attempt(llm: LLM, call: dict[str, Any]) -> Any:
    """Return what a call returns, or what went wrong in it; then its requests end, others go on."""
    try:
        return CALLS[call.pop("do", "generate")](llm, call)
    except Exception:
        engine = llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)
        return {"failed": traceback.format_exc()[-3000:]}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    llm = LLM(**{**DEFAULTS, **job["engine"]})
    results = [attempt(llm, call) for call in job["calls"]]
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
