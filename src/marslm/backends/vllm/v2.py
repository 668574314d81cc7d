"""MARS in vLLM's V2 model runner: asynchronous, whole graphs. Experimental: no GPU has run it yet.

`--worker-cls marslm.backends.vllm.v2.MarsWorker` with method `ngram_gpu`, the one method without a
model that this runner admits; the worker puts MARS in its place. Every window is full, as graphs
want it, so a request in mode off still carries masks. Knows nothing about scheduling and caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from vllm.v1.worker.gpu_worker import Worker

from marslm.backends.vllm import check_version, gated
from marslm.backends.vllm.batched import Limits, forced_rows, leave_one, next_windows
from marslm.backends.vllm.params import MarsParams, request_params
from marslm.backends.vllm.settings import MarsSettings, read_settings
from marslm.errors import InputError
from marslm.models.adapter import read_adapter


class MarsWorker(Worker):
    """vLLM's GPU worker with a runner that decodes by MARS."""

    def _make_model_runner(self) -> Any:
        check_version()
        if not self.use_v2_model_runner:
            raise InputError(
                "this worker is for vLLM's V2 model runner; set VLLM_USE_V2_MODEL_RUNNER=1, or use "
                "the custom_class proposer marslm.backends.vllm.v1.MarsProposer"
            )
        return MarsRunner(self.vllm_config, self.device)


class MarsRunner(GPUModelRunner):
    """vLLM's V2 runner with another speculator and another rejection sampler."""

    rejection_sampler: Any

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        """Build vLLM's runner, then put MARS where its n-gram speculator was."""
        super().__init__(vllm_config, device)
        settings = read_settings(vllm_config)
        self.mars = Slots(settings, self.max_num_reqs, device)
        self.speculator = MarsSpeculator(self.mars)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load as vLLM does; then the adapter, [MASK]'s logit and the sampler."""
        super().load_model(*args, **kwargs)
        if self.batch_sharder is not None:
            raise InputError(
                "MARS needs each rank to sample all requests; turn off sampler sharding"
            )
        settings = self.mars.settings
        if settings.adapter is not None:
            gated.install(self.model, read_adapter(settings.adapter), self.max_num_tokens)
        gated.exclude_mask(self.model, settings.mask_token_id)
        if self.rejection_sampler is not None:  # the ranks that sample
            self.rejection_sampler = MarsRejectionSampler(
                self.sampler, self.speculative_config, self.device, self.mars
            )

    def add_requests(self, scheduler_output: Any) -> None:
        """Take in requests as vLLM does, and how each of them is decoded."""
        super().add_requests(scheduler_output)
        for request in scheduler_output.scheduled_new_reqs:
            if request.sampling_params is not None:
                slot = self.req_states.req_id_to_index[request.req_id]
                self.mars.add(slot, request.sampling_params.extra_args)
                # Its first windows, before anything was read from it.
                self.req_states.draft_tokens[slot] = self.mars.settings.mask_token_id


class Slots:
    """What MARS knows of each request, by vLLM's slot, on the device."""

    def __init__(self, settings: MarsSettings, slots: int, device: torch.device) -> None:
        """Begin with no requests."""
        self.settings = settings
        self.threshold = torch.full((slots,), 2.0, device=device)
        self.masks = torch.zeros(slots, dtype=torch.long, device=device)
        self.unread = torch.zeros(slots, dtype=torch.bool, device=device)
        self.proposed = torch.full((slots, settings.width), -1, device=device)
        self.last_step: tuple[Any, Tensor, Tensor] | None = None

    def add(self, slot: int, extra_args: Any) -> None:
        """Set how the request in `slot` is decoded."""
        params: MarsParams = request_params(extra_args, self.settings.defaults, self.settings.width)
        self.threshold[slot] = params.threshold if params.masks else 2.0
        self.masks[slot] = params.masks
        self.unread[slot] = params.mode == "tau"
        self.proposed[slot] = -1


class MarsSpeculator(BaseSpeculator):
    """Reads the next windows from the logits that the rejection sampler was given."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, slots: Slots) -> None:
        """Share what is known of requests with the sampler."""
        self._slots = slots

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Have no graphs of its own: nothing here is a model."""

    def capture(self) -> None:
        """Have nothing to capture."""

    def propose(
        self, input_batch: Any, *_: object, dummy_run: bool = False, **__: object
    ) -> Tensor:
        """Return the next windows [R, width]; all masks where there is nothing to read."""
        slots, width = self._slots, self._slots.settings.width
        mask = slots.settings.mask_token_id
        index = input_batch.idx_mapping
        seen, slots.last_step = slots.last_step, None
        if dummy_run or seen is None or seen[0] is not input_batch:
            windows = torch.full((input_batch.num_reqs, width), mask, device=index.device)
        else:
            _, logits, sampled = seen
            windows = next_windows(
                logits,
                input_batch.input_ids[input_batch.logits_indices].long(),
                input_batch.expanded_local_pos.long(),
                input_batch.cu_num_logits.long(),
                sampled,
                Limits(slots.threshold[index], slots.masks[index]),
                mask,
                width,
            )
        if not dummy_run:
            slots.proposed[index] = torch.where(slots.unread[index, None], windows, -1)
        return windows


class MarsRejectionSampler(RejectionSampler):
    """vLLM's V2 rejection sampler, which keeps what is trusted and rejects every mask."""

    def __init__(self, sampler: Any, config: Any, device: torch.device, slots: Slots) -> None:
        """Take the place of the runner's own sampler."""
        super().__init__(sampler, config, device)
        self._slots = slots

    def __call__(
        self,
        logits: Tensor,
        input_batch: Any,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> Any:
        """Sample as vLLM does, and keep the logits for the speculator."""
        tokens = input_batch.input_ids[input_batch.logits_indices]
        masks = (tokens == self._slots.settings.mask_token_id) & (
            input_batch.expanded_local_pos > 0
        )
        invalid = masks if invalid_drafts is None else masks | invalid_drafts
        output = super().__call__(logits, input_batch, draft_logits, invalid)
        self._slots.last_step = (input_batch, logits, output.num_sampled.long())
        return output

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        *rest: Any,
    ) -> Any:
        place = expanded_local_pos.long()
        entry = (place - 1).clamp(min=0)
        proposed = self._slots.proposed[expanded_idx_mapping, entry]
        judged = forced_rows(draft_sampled, place, proposed, self._slots.settings.mask_token_id)
        return super()._verify(
            leave_one(logits, judged, draft_sampled),
            draft_logits,
            draft_sampled,
            pos,
            cu_num_logits,
            idx_mapping,
            idx_mapping_np,
            expanded_idx_mapping,
            expanded_local_pos,
            *rest,
        )
