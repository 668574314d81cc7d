"""MARS in vLLM's V1 model runner: `--speculative-config '{"method": "custom_class", ...}'`.

The proposer puts itself between the runner and its rejection sampler: the sampler verifies drafts
as vLLM always does, except those that mode tau keeps, and its logits are where new drafts are read.
Knows nothing about scheduling, caches or graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as ListOf
from typing import Any

from torch import Tensor
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler

from marslm.backends.vllm import check_version, gated
from marslm.backends.vllm.cpu import mend_verification
from marslm.backends.vllm.drafter import Drafter, Step
from marslm.backends.vllm.drafts import force
from marslm.backends.vllm.metrics import Metrics
from marslm.backends.vllm.params import MarsParams, request_params
from marslm.backends.vllm.settings import read_settings
from marslm.models.adapter import read_adapter


class MarsProposer:
    """vLLM's proposer of custom class: masks after drafts, drafts from the target's own masks."""

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings; InputError if MARS cannot run with them."""
        check_version()
        self.settings = read_settings(vllm_config)
        self.drafter = Drafter(self.settings.mask_token_id, self.settings.width)
        self.metrics = Metrics()
        self._runner: Any = None

    def load_model(self, model: Any) -> None:
        """Prepare the loaded target model and its runner, which calls this."""
        runner = sys._getframe(1).f_locals["self"]  # custom classes are not given it
        if self.settings.adapter is not None:
            gated.install(model, read_adapter(self.settings.adapter), runner.max_num_tokens)
        gated.exclude_mask(model, self.settings.mask_token_id)
        mend_verification()
        runner.rejection_sampler = MarsRejectionSampler(runner, self)
        self._runner = runner

    def propose(
        self, sampled_token_ids: ListOf[ListOf[int]], *_: object, **__: object
    ) -> list[list[int]]:
        """Return each request's next window; none for one whose prompt is not read to its end."""
        requests = self._runner.input_batch.req_ids
        self.drafter.forget_all_but(self._runner.requests)
        return [
            self.drafter.propose(name, self.params_of(name)) if sampled else []
            for name, sampled in zip(requests, sampled_token_ids, strict=True)
        ]

    def params_of(self, request_id: str) -> MarsParams:
        """Return how a request is decoded, read anew at every step."""
        params = self._runner.requests[request_id].sampling_params
        return request_params(params.extra_args, self.settings.defaults, self.settings.width)

    def steps(self, metadata: Any) -> list[Step]:
        """Return what the step at hand feeds, request by request."""
        tokens = metadata.draft_token_ids.tolist()
        steps, first = [], 0
        requests = self._runner.input_batch.req_ids
        for name, count in zip(requests, metadata.num_draft_tokens, strict=True):
            window = tokens[first : first + count]
            steps.append(Step(name, self.params_of(name), window))
            first += count
        return steps

    def kept(self, sampled: Tensor) -> list[int]:
        """Return how many drafts each request keeps; -1 where its prompt is not read to its end.

        sampled: [requests, longest window + 1], padded.
        """
        counts = (sampled != PLACEHOLDER_TOKEN_ID).sum(dim=1) - 1
        unread = self._runner.discard_request_mask.np[: len(sampled)].tolist()
        return [-1 if skip else n for n, skip in zip(counts.tolist(), unread, strict=True)]


class MarsRejectionSampler(RejectionSampler):
    """vLLM's rejection sampler, which also keeps what is trusted and hands its logits on."""

    def __init__(self, runner: Any, proposer: MarsProposer) -> None:
        """Take the place of the runner's own sampler."""
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        self._proposer = proposer
        self._forced: tuple[list[int], list[int]] = ([], [])

    def forward(
        self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any
    ) -> Any:
        """Sample as vLLM does, then read the next drafts.

        A step without windows goes to the plain sampler: vLLM's own verification cannot choose
        among the top k of no rows on a CPU.
        """
        drafter, steps = self._proposer.drafter, self._proposer.steps(metadata)
        self._forced = drafter.forced(steps)
        if metadata.max_spec_len:
            output = super().forward(metadata, draft_probs, logits, sampling_metadata)
        else:
            output = self.sampler(logits=logits, sampling_metadata=sampling_metadata)
        drafter.read(steps, self._proposer.kept(output.sampled_token_ids), logits)
        self._proposer.metrics.show(drafter.counters)
        return output

    def apply_logits_processors(
        self, logits: Tensor, sampling_metadata: Any, metadata: Any
    ) -> Tensor:
        """Process the judging rows [drafts, V] as vLLM does, then leave trusted drafts no rival.

        Both greedy and random verification then keep them, and log-probabilities, which come from
        the unprocessed rows, stay those of one-token decoding.
        """
        processed: Tensor = super().apply_logits_processors(logits, sampling_metadata, metadata)
        rows, tokens = self._forced
        if rows:
            force(processed, rows, tokens)
        return processed
