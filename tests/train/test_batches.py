"""Which examples, in what order, masked where: the same for the same seed and visit."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import torch

from marslm.core.losses import IGNORE
from marslm.core.streams import PADDING
from marslm.data.encode import Example
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig
from marslm.train.visits import EndlessVisits, fill_sequences


def data_of(examples: list[Example], **settings: object) -> TwoStreamData:
    return TwoStreamData(examples, TuneConfig.for_mode("full", steps=1, **settings))


def anchors(data: TwoStreamData, number: int, index: int) -> list[int]:
    return torch.nonzero(data[number, index]["first"]).flatten().tolist()


def test_the_same_visit_is_masked_the_same(examples: list[Example]) -> None:
    ours, again = data_of(examples, anchors=4), data_of(examples, anchors=4)
    again[3, 1]  # what was asked for before does not matter
    for index in range(len(examples)):
        left, right = ours[7, index], again[7, index]
        assert all(torch.equal(left[k], right[k]) for k in ("ids", "first", "noisy_targets"))
        assert torch.equal(left["noisy"].position, right["noisy"].position)


def test_other_visits_texts_and_seeds_are_masked_differently(examples: list[Example]) -> None:
    long = examples[1]
    data = data_of([long, long], anchors=4)
    other_seed = data_of([long, long], anchors=4, seed=1)
    drawn = [anchors(data, number, 0) for number in range(6)]
    assert len(set(map(tuple, drawn))) > 3
    assert any(anchors(data, n, 0) != anchors(data, n, 1) for n in range(6))
    assert any(anchors(data, n, 0) != anchors(other_seed, n, 0) for n in range(6))


def test_anchors_are_distinct_and_before_supervised_tokens(examples: list[Example]) -> None:
    data = data_of(examples, anchors=4)
    for index, example in enumerate(examples):
        for number in range(5):
            found = anchors(data, number, index)
            assert len(found) == min(4, sum(example.supervised))
            assert all(example.supervised[a + 1] for a in found)


def test_every_anchor_is_drawn_sometimes(examples: list[Example]) -> None:
    data = data_of(examples, anchors=2)
    seen = {a for number in range(60) for a in anchors(data, number, 3)}
    assert seen == {p - 1 for p, flag in enumerate(examples[3].supervised) if flag}


def test_fixed_blocks_are_the_same_at_every_visit(examples: list[Example]) -> None:
    data = data_of(examples, block_size=4)
    first_supervised = examples[1].supervised.index(True)
    expected = list(range(first_supervised - 1, len(examples[1].ids) - 2, 4))
    assert anchors(data, 0, 1) == anchors(data, 5, 1) == expected


def test_the_end_of_turn_is_learned_and_the_prompt_is_not(examples: list[Example]) -> None:
    for example in examples[:2]:
        item = data_of([example], block_size=3)[0, 0]
        start = example.supervised.index(True)
        end = len(example.ids) - 2  # the template writes a newline after the end token
        targets = item["clean_targets"].tolist()
        assert targets[: start - 1] == [IGNORE] * (start - 1)
        assert targets[start - 1 : end] == list(example.ids[start : end + 1])
        assert targets[end - 1] == 258  # <|im_end|>
        assert targets[end:] == [IGNORE, IGNORE]


def test_masks_predict_the_token_after_their_own_place(examples: list[Example]) -> None:
    item = data_of(examples, block_size=4)[0, 1]
    for place, target in zip(item["noisy"].position, item["noisy_targets"], strict=True):
        assert target == item["ids"][place + 1]


def test_collate_pads_with_rows_that_do_nothing(examples: list[Example]) -> None:
    data = data_of(examples, block_size=4)
    items = [data[0, index] for index in range(3)]
    batch = collate(items)
    for row, item in enumerate(items):
        clean, noisy = len(item["ids"]), len(item["noisy"])
        assert torch.equal(batch["ids"][row, :clean], item["ids"])
        assert torch.equal(batch["noisy_targets"][row, :noisy], item["noisy_targets"])
        assert (batch["clean"]["document"][row, clean:] == PADDING).all()
        assert (batch["noisy"]["document"][row, noisy:] == PADDING).all()
        assert (batch["clean_targets"][row, clean:] == IGNORE).all()
        assert (batch["noisy_targets"][row, noisy:] == IGNORE).all()
        assert not batch["first"][row, clean:].any()
    assert batch["ids"].shape[1] == max(len(item["ids"]) for item in items)


def test_every_pass_visits_an_example_at_most_once_and_fills_its_batches() -> None:
    lengths = [10 + (7 * i) % 23 for i in range(50)]
    visits = list(EndlessVisits(lengths, 8, 175, seed=0))
    assert len(visits) == len(EndlessVisits(lengths, 8, 175, seed=0)) == len(set(visits)) == 175
    # 48 of the 50 fill batches of 8; which two sit out differs from pass to pass.
    assert Counter(number for number, _, _ in visits) == {0: 48, 1: 48, 2: 48, 3: 31}
    left_out = [set(range(50)) - {i for n, i, _ in visits if n == number} for number in range(3)]
    assert len({frozenset(left) for left in left_out}) > 1


def test_a_pass_over_full_batches_visits_every_example_once() -> None:
    visits = list(EndlessVisits([5] * 48, 8, 48, seed=0))
    assert Counter(v[:2] for v in visits) == Counter((0, i) for i in range(48))


def test_fewer_examples_than_a_batch_are_all_visited() -> None:
    assert {i for _, i, _ in EndlessVisits([5, 6, 7], 8, 6, seed=0)} == {0, 1, 2}


def test_visits_know_their_optimiser_step() -> None:
    visits = list(EndlessVisits([5] * 20, 4, 50, seed=0))
    assert [v.step for v in visits] == [place // 4 for place in range(50)]


def test_sequences_are_filled_and_hold_every_example_once() -> None:
    lengths = [3, 9, 5, 2, 7, 1, 10, 4]
    groups = fill_sequences(lengths, room=10)
    assert sorted(i for group in groups for i in group) == list(range(8))
    sums = [sum(lengths[i] for i in group) for group in groups]
    assert max(sums) <= 10
    assert len(groups) == 5  # 41 tokens do not fit into four


def test_the_order_is_the_seeds_alone() -> None:
    lengths = [5 + i % 9 for i in range(40)]
    first = list(EndlessVisits(lengths, 4, 100, seed=3))
    assert first == list(EndlessVisits(lengths, 4, 100, seed=3))
    assert first[:40] != list(EndlessVisits(lengths, 4, 40, seed=4))
    assert [i for _, i, _ in first[:40]] != [i for _, i, _ in first[40:80]]
    # A longer run begins as a shorter one does.
    assert list(islice(EndlessVisits(lengths, 4, 10**6, seed=3), 100)) == first


def test_batches_hold_texts_of_like_length() -> None:
    lengths = [1 + (37 * i) % 128 for i in range(128)]
    order = [lengths[i] for _, i, _ in EndlessVisits(lengths, 8, 128, seed=0)]
    spread = [max(order[i : i + 8]) - min(order[i : i + 8]) for i in range(0, 128, 8)]
    assert max(spread) < 16
    # The batches themselves are shuffled: training does not go from short to long.
    firsts = order[::8]
    assert any(a > b for a, b in pairwise(firsts))
    assert any(a < b for a, b in pairwise(firsts))
