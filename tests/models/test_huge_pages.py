"""Memory in large pages: copies beside one another that nothing overwrites."""

from __future__ import annotations

import gc

import pytest
import torch

from marslm.models import huge_pages
from marslm.models.huge_pages import HugePages


def test_copies_stay_what_they_were() -> None:
    pages = HugePages()
    sources = [torch.randn(3, 5), torch.arange(7), torch.randn(4, 6).t(), torch.randn(5 << 20)]
    copies = [pages.copy(source) for source in sources]
    del pages
    gc.collect()
    for source, copy in zip(sources, copies, strict=True):
        assert torch.equal(copy, source)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0


def test_one_lies_behind_the_other() -> None:
    pages = HugePages()
    first, second = (pages.copy(torch.ones(64, dtype=torch.uint8)) for _ in range(2))
    assert second.data_ptr() - first.data_ptr() == 64


def test_a_kernel_that_refuses_the_advice_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that was built without large pages, though Python knows them."""
    monkeypatch.setattr(huge_pages, "_HUGE", 9999)
    assert torch.equal(HugePages().copy(torch.ones(5)), torch.ones(5))


def test_a_system_without_large_pages_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_HUGE", None)
    assert torch.equal(HugePages().copy(torch.ones(5)), torch.ones(5))
