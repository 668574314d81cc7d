"""vLLM's verification on CPUs, mended: it took temperatures and top-k from memory nobody wrote.

vLLM 0.32 repeats each request's settings for its drafts in a kernel whose CPU form fills a copy
that is thrown away (vllm-project/vllm issue 55005), so whatever samples with drafts is wrong there.
Knows nothing about MARS; the GPU's kernels are left alone.
"""

from __future__ import annotations

from torch import Tensor

_KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


def mend_verification() -> None:
    """Put `expand` where vLLM keeps that kernel, if this is a CPU."""
    from vllm.platforms import current_platform  # noqa: PLC0415
    from vllm.triton_utils import HAS_TRITON  # noqa: PLC0415
    from vllm.triton_utils.dispatcher import register_kernels  # noqa: PLC0415

    if current_platform.is_cpu() and not HAS_TRITON:
        register_kernels({_KERNEL: expand})


def expand(
    output: Tensor, values: Tensor, ends: Tensor, old: float, new: float, *_: object
) -> None:
    """Write each request's value [R] once for each of its drafts into output [N], `old` as `new`.

    ends: where each request's drafts end among the N, in order [R].
    """
    counts = ends.diff(prepend=ends.new_zeros(1))
    output.copy_(values.masked_fill(values == old, new).repeat_interleave(counts))
