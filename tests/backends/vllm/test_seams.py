"""Every private part of vLLM that the plugin builds on is there, shaped as it was written for.

No engine starts, so this is also what can be checked of the V2 runner without a GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from marslm.backends.vllm.cpu import mend_verification

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]


def names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_v1_runner() -> None:
    from vllm.v1.sample.rejection_sampler import RejectionSampler  # noqa: PLC0415
    from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer  # noqa: PLC0415
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # noqa: PLC0415
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    from marslm.backends.vllm.v1 import MarsRejectionSampler  # noqa: PLC0415

    for method in ("forward", "apply_logits_processors"):
        ours, theirs = getattr(MarsRejectionSampler, method), getattr(RejectionSampler, method)
        assert names(ours) == names(theirs)
    assert names(create_custom_proposer) == ["vllm_config"]
    for runner in (CPUModelRunner, GPUModelRunner):
        assert "drafter.load_model(self.model)" in inspect.getsource(runner.load_model)
    assert ".propose(" in inspect.getsource(GPUModelRunner.propose_draft_token_ids)


def test_the_v2_runner() -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler  # noqa: PLC0415
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator  # noqa: PLC0415

    from marslm.backends.vllm import v2  # noqa: PLC0415

    ours, theirs = v2.MarsRejectionSampler, RejectionSampler
    assert names(ours.__call__) == names(theirs.__call__)
    assert names(ours._verify)[:-1] == names(theirs._verify)[: len(names(ours._verify)) - 1]
    assert not v2.MarsSpeculator.__abstractmethods__
    assert {"input_batch", "num_sampled"} < set(names(BaseSpeculator.propose))
    assert names(v2.MarsRunner.add_requests) == ["self", "scheduler_output"]
    assert hasattr(v2.Worker, "_make_model_runner")


# vLLM looks for the kernel through all that is imported, and so into what torch calls outdated.
@pytest.mark.filterwarnings("ignore:.*reduce_op:FutureWarning")
def test_a_draft_is_verified_with_its_requests_settings() -> None:
    """What vLLM's own kernel leaves unwritten on a CPU."""
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens  # noqa: PLC0415

    mend_verification()
    ends = torch.tensor([2, 5], dtype=torch.int32)
    temperatures, top_k = torch.tensor([0.5, 0.0]), torch.tensor([3, 9], dtype=torch.int32)
    assert expand_batch_to_tokens(temperatures, ends, 5, 0, 1).tolist() == [0.5, 0.5, 1, 1, 1]
    assert expand_batch_to_tokens(top_k, ends, 5).tolist() == [3, 3, 9, 9, 9]


def test_the_front_end_is_wrapped_once() -> None:
    from vllm.v1.engine.input_processor import InputProcessor  # noqa: PLC0415

    from marslm.backends.vllm import register  # noqa: PLC0415

    register()
    wrapped = InputProcessor.process_inputs
    register()
    assert InputProcessor.process_inputs is wrapped
    assert wrapped.checked_by_mars
