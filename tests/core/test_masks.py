"""Golden pictures of the attention mask, and the other forms of the same rule against them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from marslm.core.masks import dense_mask, flex_mask, may_attend, window_mask
from marslm.core.streams import (
    CLEAN,
    PADDING,
    Rows,
    block_anchors,
    clean_rows,
    join,
    mask_rows,
    rows_per_anchor,
)

CASES = sorted(
    path
    for path in (Path(__file__).parents[1] / "cases" / "masks").glob("*.txt")
    if not path.stem.startswith("window_")  # a decoder's, drawn in tests/runtime/test_windows.py
)


@dataclass(frozen=True)
class Case:
    """A picture and the settings above it.

    text: one character a token, C context or A answer (supervised); texts of one sequence are
    parted by spaces. block: B. anchors: "fixed" or positions. padding: rows added to the clean and
    to the noisy stream.
    """

    text: str
    block: int
    anchors: str
    padding: tuple[int, int]
    picture: str

    @property
    def rows(self) -> Rows:
        supervised = torch.tensor([c == "A" for c in self.text])
        if self.anchors == "fixed":
            anchors = block_anchors(supervised, self.block)
        else:
            anchors = torch.tensor([int(a) for a in self.anchors.split()])
        noisy = mask_rows(anchors, rows_per_anchor(supervised, anchors, self.block))
        clean = clean_rows(len(self.text))
        return join([pad(clean, self.padding[0]), pad(noisy, self.padding[1])])


def read_case(path: Path) -> Case:
    """Read comments, `name: value` lines, an empty line and the picture."""
    header, _, picture = path.read_text(encoding="utf-8").partition("\n\n")
    lines = [line for line in header.splitlines() if not line.startswith("#")]
    values = dict(line.split(": ", 1) for line in lines)
    clean, noisy = map(int, values.get("padding", "0 0").split())
    return Case(
        values["text"], int(values["block"]), values["anchors"], (clean, noisy), picture.rstrip()
    )


def pad(rows: Rows, count: int) -> Rows:
    """Append rows as a training batch does: position 0 everywhere, and of no text."""
    zeros = torch.zeros(count, dtype=torch.int64)
    return join([rows, Rows(zeros, zeros, zeros, torch.full_like(zeros, PADDING))])


def draw(rows: Rows) -> str:
    """Draw who sees whom: a line for each query, labelled, and under it a column for each key.

    c5 is the clean token at position 5, m7/5 the mask at 7 in the block of anchor 5, -- padding.
    Columns are headed alike, by kind and by the last digit of the position.
    """
    labels, kinds, digits = [], "", ""
    for position, anchor, block, document in zip(
        rows.position.tolist(),
        rows.anchor.tolist(),
        rows.block.tolist(),
        rows.document.tolist(),
        strict=True,
    ):
        padding, clean = document == PADDING, block == CLEAN
        kinds += "-" if padding else "c" if clean else "m"
        digits += "-" if padding else str(position % 10)
        labels.append("--" if padding else f"c{position}" if clean else f"m{position}/{anchor}")
    seen = dense_mask(rows, rows)[0].tolist()
    lines = ["".join("x" if cell else "." for cell in line) for line in seen]
    pairs = zip(["", "", *labels], [kinds, digits, *lines], strict=True)
    return "\n".join(f"{label:<7}{line}" for label, line in pairs)


def test_there_are_pictures() -> None:
    assert len(CASES) >= 5


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_the_mask_equals_its_picture(path: Path) -> None:
    case = read_case(path)
    assert draw(case.rows) == case.picture


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_flex_attention_is_given_the_same_mask(path: Path) -> None:
    """Two sequences in a batch, the second with its rows reversed, so that batch matters."""
    rows = read_case(path).rows
    flipped = rows[torch.arange(len(rows)).flip(0)]
    batch = Rows(
        *(
            torch.stack([getattr(rows, name), getattr(flipped, name)])
            for name in ("position", "anchor", "block", "document")
        )
    )
    count = len(rows)
    flex = create_mask(flex_mask(batch, batch), 2, 1, count, count, device="cpu")
    assert torch.equal(flex, dense_mask(batch, batch))
    assert torch.equal(flex[0, 0], may_attend(rows[:, None], rows[None, :]))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Rows, list[tuple[int, int]]]:
    """A text with masked blocks at any anchors, and (anchor, masks) of each block."""
    length = draw(st.integers(1, 10))
    blocks = draw(st.lists(st.tuples(st.integers(0, length - 1), st.integers(0, 4)), max_size=4))
    anchors, masks = (torch.tensor([b[i] for b in blocks], dtype=torch.int64) for i in (0, 1))
    return join([clean_rows(length), mask_rows(anchors, masks)]), blocks


@given(layouts())
def test_a_mask_sees_its_clean_prefix_and_its_own_block(
    layout: tuple[Rows, list[tuple[int, int]]],
) -> None:
    """As sets: clean p sees clean 0..p; mask d of a block sees clean 0..anchor and masks 1..d."""
    rows, blocks = layout
    length = int((rows.block == CLEAN).sum())
    expected = [set(range(p + 1)) for p in range(length)]
    start = length
    for anchor, masks in blocks:
        prefix = set(range(anchor + 1))
        expected += [prefix | set(range(start, start + d)) for d in range(1, masks + 1)]
        start += masks
    seen = dense_mask(rows, rows)[0]
    assert [set(torch.nonzero(line).flatten().tolist()) for line in seen] == expected


@given(layouts(), layouts())
def test_packed_texts_do_not_see_each_other(
    left: tuple[Rows, list[tuple[int, int]]], right: tuple[Rows, list[tuple[int, int]]]
) -> None:
    first, second = left[0], right[0]
    second = Rows(second.position, second.anchor, second.block, second.document + 1)
    both = join([first, second])
    mask = dense_mask(both, both)[0]
    size = len(first)
    assert torch.equal(mask[:size, :size], dense_mask(first, first)[0])
    assert torch.equal(mask[size:, size:], dense_mask(second, second)[0])
    assert not mask[:size, size:].any()
    assert not mask[size:, :size].any()


@given(layouts(), st.integers(1, 3), st.integers(1, 3))
def test_padding_is_unreachable_and_sees_something(
    layout: tuple[Rows, list[tuple[int, int]]], before: int, after: int
) -> None:
    """A row that sees nothing has a softmax of NaN, which spreads to every gradient."""
    clean = layout[0][layout[0].block == CLEAN]
    noisy = layout[0][layout[0].block != CLEAN]
    rows = join([pad(clean, before), pad(noisy, after)])
    mask, padding = dense_mask(rows, rows)[0], rows.document == PADDING
    assert not mask[~padding][:, padding].any()
    assert not mask[padding][:, ~padding].any()
    assert mask.any(-1).all()


@given(st.integers(1, 8), st.integers(0, 4))
def test_the_decoders_mask_is_the_training_rule(prefix: int, masks: int) -> None:
    """A decoder's cells hold a text and one block of masks after it, in text order."""
    anchor = torch.tensor([prefix - 1])
    rows = join([clean_rows(prefix), mask_rows(anchor, torch.tensor([masks]))])
    cells = torch.arange(prefix + masks)
    assert torch.equal(window_mask(cells[None] + 1, len(cells))[0], dense_mask(rows, rows))


def test_the_decoders_mask_of_ragged_requests() -> None:
    """Each request's rows see its own cells up to theirs; later cells are garbage."""
    mask = window_mask(torch.tensor([[5, 6], [1, 2]]), keys=6)
    assert mask.shape == (2, 1, 2, 6)
    pictures = ["".join("x" if c else "." for c in line) for line in mask.flatten(0, 2).tolist()]
    assert pictures == ["xxxxx.", "xxxxxx", "x.....", "xx...."]


def test_queries_and_keys_may_differ() -> None:
    """As for a frozen clean stream, whose rows are keys alone."""
    clean = clean_rows(4)
    noisy = mask_rows(torch.tensor([1]), torch.tensor([2]))
    keys = join([clean, noisy])
    whole = dense_mask(keys, keys)
    assert torch.equal(dense_mask(noisy, keys), whole[:, 4:])


def test_a_mask_broadcasts_over_heads() -> None:
    rows = clean_rows(3)
    batch = Rows(
        *(t.expand(2, -1) for t in (rows.position, rows.anchor, rows.block, rows.document))
    )
    mask: Tensor = dense_mask(batch, batch)
    assert mask.dtype == torch.bool
    assert mask.shape == (2, 1, 3, 3)
