"""Windows: golden pictures of who sees whom, and every row's logits against a fresh forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import build_model, build_runner, full_logits
from marslm.core.masks import dense_mask, window_mask
from marslm.core.streams import clean_rows, join, mask_rows
from marslm.models.loading import MarsModel
from marslm.models.tiny import ARCHITECTURES
from marslm.runtime.window import Window
from marslm.runtime.work import Work

CASES = sorted((Path(__file__).parents[1] / "cases" / "masks").glob("window_*.txt"))
MODELS = {name: build_model(name, seed=8) for name in ARCHITECTURES}
MASK = MODELS["llama"].mask_token_id


def read_case(path: Path) -> tuple[Work, list[str], str]:
    """Return the work, the kind of each row (t text, d draft, m mask) and the picture."""
    header, _, picture = path.read_text(encoding="utf-8").partition("\n\n")
    values = dict(line.split(": ", 1) for line in header.splitlines() if line[0] != "#")
    kinds = values["window"].split()
    parents = [int(number) for number in values["parents"].split()] if "parents" in values else None
    window = Window([0] * len(kinds), parents, values.get("bidirectional") == "yes")
    work = Work(0, int(values["cached"]), [0] * int(values["pending"]), window, 0)
    return work, [*"t" * len(work.pending), *kinds], picture.rstrip()


def draw(work: Work, kinds: list[str]) -> str:
    """Draw a line for each row, labelled by kind and place in the text, a column for each cell.

    Columns are headed by kind and by the last digit of the cell's place in the text.
    """
    tree = work.tree(0)
    mask = window_mask(torch.tensor([work.seen]), work.cells.stop, [tree] if tree else [])[0, 0]
    places = [*range(work.first_cell), *work.positions]
    heads = ["".join("t" * work.first_cell) + "".join(kinds), "".join(str(p % 10) for p in places)]
    lines = ["".join("x" if seen else "." for seen in line) for line in mask.tolist()]
    labels = ["", "", *(f"{k}{p}" for k, p in zip(kinds, work.positions, strict=True))]
    return "\n".join(f"{a:<5}{b}" for a, b in zip(labels, [*heads, *lines], strict=True))


def test_there_are_pictures() -> None:
    assert {path.stem for path in CASES} >= {"window_chain", "window_tree", "window_bidirectional"}


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_the_mask_equals_its_picture(path: Path) -> None:
    work, kinds, picture = read_case(path)
    assert draw(work, kinds) == picture


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 3))
def test_mask_runs_after_drafts_are_the_training_rule(text: int, drafts: int, masks: int) -> None:
    """A run of masks after each outcome is a block of masks after each of those anchors."""
    anchors = torch.arange(text - 1, text + drafts)
    rows = join([clean_rows(text + drafts), mask_rows(anchors, torch.full_like(anchors, masks))])
    parents = list(range(-1, drafts - 1))
    for outcome in range(drafts + 1):
        for mask in range(masks):
            parents.append(outcome - 1 if mask == 0 else len(parents) - 1)
    work = Work(0, 0, [0] * text, Window([0] * len(parents), parents), 0)
    tree = work.tree(0)
    mask = window_mask(torch.tensor([work.seen]), len(rows), [tree] if tree else [])
    assert torch.equal(mask[0], dense_mask(rows, rows))
    assert work.positions == rows.position.tolist()


tokens = st.integers(0, 255)


@st.composite
def trees(draw: st.DrawFn) -> Window:
    """Some drafts as a chain, then drafts and masks anywhere behind them."""
    chain, more = draw(st.lists(tokens, max_size=3)), draw(st.integers(0, 8))
    entries, parents = list(chain), list(range(-1, len(chain) - 1))
    for _ in range(more):
        parents.append(draw(st.integers(-1, len(entries) - 1)))
        entries.append(draw(st.one_of(st.just(MASK), tokens)))
    return Window(entries, parents)


def path_to(window: Window, entry: int) -> list[int]:
    """Return the tokens from the window's start to an entry."""
    assert window.parents is not None
    path: list[int] = []
    while entry >= 0:
        path.insert(0, window.tokens[entry])
        entry = window.parents[entry]
    return path


@settings(max_examples=20)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.lists(tokens, min_size=1, max_size=4), trees()),
        min_size=1,
        max_size=4,
    ),
    keep=st.randoms(use_true_random=False),
)
def test_any_history_of_trees_gives_the_logits_of_fresh_forwards(
    architecture: str, steps: list[tuple[int, list[int], Window]], keep: object
) -> None:
    """Three requests share each forward; some of the leading chain is kept, then text goes on."""
    model = MODELS[architecture]
    runner, _ = build_runner(model, slots=4)
    texts: dict[int, list[int]] = {1: [], 3: [], 0: []}
    cached = dict.fromkeys(texts, 0)
    for turn, pending, window in steps:
        works = []
        for shift, slot in enumerate(texts):
            texts[slot] += pending[: 1 + shift]
            mine = window.cut(len(window) - (shift == turn))
            fed = texts[slot][cached[slot] :]
            works.append(Work(slot, cached[slot], fed, mine, 1 + len(mine)))
        for work, logits in zip(works, runner.forward(works), strict=True):
            text = texts[work.slot]
            paths = [[], *(path_to(work.window, entry) for entry in range(len(work.window)))]
            expected = torch.stack([full_logits(model, [*text, *path])[-1] for path in paths])
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
            kept = max(k for k in range(4) if work.window.starts_with_chain(k))
            kept = keep.randint(0, kept)
            cached[work.slot] = len(text) + kept
            text += work.window.tokens[:kept]


def both_ways(model: MarsModel, text: list[int], window: list[int]) -> Tensor:
    """Return transformers' logits where the window's rows see each other both ways."""
    size = len(text) + len(window)
    sees = torch.ones(size, size, dtype=torch.bool).tril()
    sees[len(text) :, len(text) :] = True
    mask = torch.zeros(size, size, dtype=torch.float64).masked_fill(~sees, -torch.inf)
    with torch.no_grad():
        ids = torch.tensor([[*text, *window]])
        out = model.network(ids, attention_mask=mask[None, None], use_cache=False)
    logits: Tensor = out.logits[0]
    logits[:, model.mask_token_id] = -torch.inf
    return logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_bidirectional_window_sees_itself_both_ways(architecture: str) -> None:
    """Beside a chain and a tree in the same forward, behind cached and pending text."""
    model = MODELS[architecture]
    runner, _ = build_runner(model, slots=3)
    text, window = [5, 6, 7, 8, 9], [MASK, 3, MASK, 4]
    first = [Work(slot, 0, text[:3], Window(), 0) for slot in range(3)]
    runner.forward(first)
    windows = [
        Window(window, bidirectional=True),
        Window(window[:2]),
        Window(window, parents=[-1, -1, 1, 0]),
    ]
    works = [Work(slot, 3, text[3:], w, 2 + len(w)) for slot, w in enumerate(windows)]
    rows = runner.forward(works)[0]
    torch.testing.assert_close(rows, both_ways(model, text, window)[3:], rtol=0, atol=1e-9)


def test_a_window_may_be_cut_anywhere() -> None:
    window = Window([1, 2, 3], parents=[-1, 0, 0])
    assert window.cut(2) == Window([1, 2], parents=[-1, 0])
    assert window.cut(9) is window
    assert window.cut(0).tokens == []
    assert [window.starts_with_chain(n) for n in range(5)] == [True, True, True, False, False]
    assert window.depths == [0, 1, 1]
