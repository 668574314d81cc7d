"""CUDA graphs: a recorded forward that a GPU replays at once, where that works.

Recorded by hand and not by torch.compile(mode="reduce-overhead"): the decoder's operations are few
and written out already, so there is little left to fuse; a recording takes a fraction of a second
where compiling takes a minute; and what may differ between two replays is visible, one buffer.
Knows nothing about what is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from typing import TypeAlias

import torch
from torch import Tensor

from marslm.runtime.cache import SlotCache
from marslm.runtime.decoder import Decoder
from marslm.runtime.static import Capture, Compute, StaticForward
from marslm.runtime.window import Window
from marslm.runtime.work import Work

Forward: TypeAlias = Callable[[ListOf[Work]], "Tensor | None"]
"""Returns the last states of the wanted rows."""

_WARM_UP = 2
"""Forwards before one is recorded: libraries choose kernels and allocate workspaces in them."""

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""By how much of the largest value two layouts may differ: each adds up in its own order."""


class CudaGraphs:
    """Records computations as CUDA graphs whose memory is shared, since only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        """Record on this device."""
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        """Return the replay of `compute`; its result is overwritten by the next one."""
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    compute()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on allocating: a server's engine has a thread of its own.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def capture_for(device: torch.device) -> Capture | None:
    """Return what records forwards on a device, None where launching them costs little."""
    return CudaGraphs(device) if device.type == "cuda" else None


def graphed_forward(
    decoder: Decoder, cache: SlotCache, mask_token_id: int, ragged: Forward
) -> StaticForward | None:
    """Return recorded forwards if this device has them and they compute what `ragged` does.

    `cache` is empty and is written to. A failure is told by a warning; every operation is then
    launched by itself.
    """
    try:
        capture = capture_for(decoder.device)
        if capture is None:
            return None
        static = StaticForward(decoder, cache, mask_token_id, capture)
        works = [each for each in _examples(mask_token_id) if each.cells.stop <= cache.max_length]
        reason = disagreement(static.hidden, ragged, works, _TOLERANCE[decoder.dtype])
    except Exception as error:  # whatever a driver may raise
        reason = f"they fail ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    if reason is None:
        return static
    warnings.warn(f"decoding does without CUDA graphs: {reason}", stacklevel=3)
    return None


def disagreement(
    static: Forward, ragged: Forward, works: ListOf[Work], tolerance: float
) -> str | None:
    """Return how `static` differs from `ragged` on steps of one request, None if it does not."""
    for work in works:
        expected, found = ragged([work]), static([work])
        assert expected is not None
        assert found is not None
        difference = float((found - expected).abs().max() / expected.abs().max())
        if not difference <= tolerance:
            return f"they differ from launched operations by {difference:.1g}"
    return None


def _examples(mask_token_id: int) -> Iterator[Work]:
    """Yield a prompt and steps behind it, two in each bucket, so that each is also replayed."""
    mask = mask_token_id
    yield Work(0, 0, [1, 2, 3], Window(), 3)
    yield Work(0, 3, [4], Window(), 1)
    yield Work(0, 4, [5], Window(), 1)
    yield Work(0, 4, [5], Window([6, mask, mask]), 4)
    yield Work(0, 4, [7], Window([8, mask, mask], parents=[-1, 0, -1]), 4)
