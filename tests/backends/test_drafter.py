"""The vLLM plugin's drafts, driven by a loop that verifies as vLLM's sampler does."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from helpers import full_logits, letters
from marslm.backends.vllm.counters import Counters
from marslm.backends.vllm.drafter import Drafter, Step
from marslm.backends.vllm.drafts import force, own_drafts, proposal, readable_masks
from marslm.backends.vllm.params import MarsParams
from marslm.models.loading import MarsModel

MASK = 9
PROMPTS = [letters(length, random.Random(length)) for length in (3, 5, 8, 13)]


def verify(logits: Tensor, window: list[int]) -> list[int]:
    """Return what greedy verification emits: drafts that agree, and the token after them."""
    choices = logits.argmax(-1).tolist()
    kept = next((i for i, draft in enumerate(window) if draft != choices[i]), len(window))
    return [*window[:kept], choices[kept]]


def run(
    model: MarsModel, prompt: list[int], params: MarsParams, *, width: int = 8, tokens: int = 40
) -> tuple[list[int], Drafter]:
    """Write at least `tokens` tokens by the plugin's rules, without any cache."""
    drafter = Drafter(model.mask_token_id, width)
    text, window = list(prompt), []
    while len(text) < len(prompt) + tokens:
        step = [Step("one", params, window)]
        logits = full_logits(model, [*text, *window])[len(text) - 1 :]
        judged = logits.clone()
        force(judged, *drafter.forced(step))
        emitted = verify(judged, window)
        drafter.read(step, [len(emitted) - 1], logits)
        text += emitted
        window = drafter.propose("one", params)
        assert len(window) <= width
    return text[len(prompt) : len(prompt) + tokens], drafter


def plain(model: MarsModel, prompt: list[int], tokens: int = 40) -> list[int]:
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(full_logits(model, text)[-1].argmax()))
    return text[len(prompt) :]


def paper(model: MarsModel, prompt: list[int], tau: float, masks: int) -> tuple[list[int], int]:
    """Write 40 tokens by METHOD section 3, no masks at prefill; also count the forwards."""
    text = [*prompt, int(full_logits(model, prompt)[-1].argmax())]
    forwards = 1
    while len(text) < len(prompt) + 40:
        logits = full_logits(model, [*text, *[model.mask_token_id] * masks])[len(text) - 1 :]
        confidence, candidates = logits.softmax(-1).max(-1)
        count = 1
        while count <= masks and confidence[count] >= tau:
            count += 1
        text += candidates[:count].tolist()
        forwards += 1
    return text[len(prompt) : len(prompt) + 40], forwards


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("tau", [None, 0.4])
def test_lossless_writes_what_plain_decoding_writes(
    fitted_model: MarsModel, width: int, tau: float | None
) -> None:
    params = MarsParams("lossless", tau, window=min(4, width + 1))
    for prompt in PROMPTS:
        written, drafter = run(fitted_model, prompt, params, width=width)
        assert written == plain(fitted_model, prompt)
        if width >= 3:
            assert drafter.counters.accepted > 0
            assert drafter.counters.forwards < 40


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.9])
def test_tau_writes_what_the_paper_writes_in_as_many_forwards(
    fitted_model: MarsModel, tau: float
) -> None:
    for prompt in PROMPTS:
        written, drafter = run(fitted_model, prompt, MarsParams("tau", tau, window=4))
        expected, forwards = paper(fitted_model, prompt, tau, masks=3)
        assert written == expected
        # Drafts are emitted a step after they were read, so the last ones may need one more.
        assert forwards <= drafter.counters.forwards <= forwards + 1


def test_tau_differs_from_plain_decoding_where_it_should(fitted_model: MarsModel) -> None:
    runs = [run(fitted_model, prompt, MarsParams("tau", 0.3, window=4))[0] for prompt in PROMPTS]
    assert runs != [plain(fitted_model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("params", [MarsParams("off"), MarsParams("tau", 1.0, 4)])
def test_one_token_a_step_proposes_nothing(fitted_model: MarsModel, params: MarsParams) -> None:
    written, drafter = run(fitted_model, PROMPTS[0], params)
    assert written == plain(fitted_model, PROMPTS[0])
    assert drafter.counters.drafts == 0
    assert drafter.counters.forwards == 40


def test_what_the_plugin_did_not_propose_is_never_kept_unread() -> None:
    params = MarsParams("tau", 0.5, window=3)
    drafter = Drafter(MASK, width=4)
    drafter._fresh["a"] = [1, 2]
    assert drafter.propose("a", params) == [1, 2, MASK, MASK]
    assert drafter.forced([Step("a", params, [0, 0, 0, 0])]) == ([], [])  # vLLM's filler
    assert drafter.forced([Step("a", params, [1, 2, MASK, MASK])]) == ([], [])  # asked only once
    drafter._fresh["a"] = [1, 2]
    drafter.propose("a", params)
    others = Step("b", params, [5, MASK, MASK])
    assert drafter.forced([others, Step("a", params, [1, 2])]) == ([3, 4], [1, 2])  # cut at its end


def test_drafts_of_a_lossless_request_are_never_kept_unread() -> None:
    params = MarsParams("lossless", None, window=3)
    drafter = Drafter(MASK, width=4)
    drafter._fresh["a"] = [1, 2]
    window = drafter.propose("a", params)
    assert drafter.forced([Step("a", MarsParams("tau", 0.5, 3), window)]) == ([], [])


def test_requests_in_one_batch_do_not_see_each_others_rows(fitted_model: MarsModel) -> None:
    """Several modes in one step: every request writes what it writes alone."""
    mask = fitted_model.mask_token_id
    settings = [MarsParams("lossless", None, 4), MarsParams("tau", 0.4, 4), MarsParams("off")]
    drafter = Drafter(mask, width=8)
    texts = {str(i): list(PROMPTS[i]) for i in range(3)}
    windows: dict[str, list[int]] = {key: [] for key in texts}
    for _ in range(12):
        steps = [Step(str(i), settings[i], windows[str(i)]) for i in range(3)]
        rows = [
            full_logits(fitted_model, [*texts[s.request_id], *s.window])[-1 - len(s.window) :]
            for s in steps
        ]
        judging = torch.cat([each[:-1] for each in rows])
        force(judging, *drafter.forced(steps))
        split = judging.split([len(s.window) for s in steps])
        emitted = [
            verify(torch.cat([judged, own[-1:]]), s.window)
            for s, own, judged in zip(steps, rows, split, strict=True)
        ]
        drafter.read(steps, [len(each) - 1 for each in emitted], torch.cat(rows))
        for s, new in zip(steps, emitted, strict=True):
            texts[s.request_id] += new
            windows[s.request_id] = drafter.propose(s.request_id, s.params)
    for i in range(3):
        new = texts[str(i)][len(PROMPTS[i]) :]
        alone, _ = run(fitted_model, PROMPTS[i], settings[i], tokens=len(new))
        assert new == alone


def test_an_unfinished_prompt_counts_for_nothing() -> None:
    drafter = Drafter(MASK, width=4)
    drafter.read([Step("a", MarsParams(), [])], [-1], torch.zeros(1, 12))
    assert drafter.counters == Counters()


def test_ended_requests_are_forgotten() -> None:
    drafter = Drafter(MASK, width=4)
    drafter.propose("a", MarsParams("tau", 0.5, 3))
    drafter.forget_all_but({"b"})
    assert drafter.forced([Step("a", MarsParams("tau", 0.5, 3), [MASK, MASK])]) == ([], [])
    assert not drafter._trusted


def test_a_window_holds_at_least_one_mask_and_fits() -> None:
    assert proposal([1, 2, 3], 2, MASK, 5) == [1, 2, 3, MASK, MASK]
    assert proposal([1, 2, 3], 2, MASK, 4) == [1, 2, 3, MASK]
    assert proposal([1, 2, 3], 2, MASK, 3) == [1, 2, MASK]


def test_masks_behind_a_rejected_draft_are_not_read() -> None:
    assert list(readable_masks([1, 2, MASK, MASK], 2, MASK)) == [3, 4]
    assert list(readable_masks([1, 2, MASK, MASK], 1, MASK)) == []
    assert list(readable_masks([MASK, MASK], 0, MASK)) == [1, 2]
    assert list(readable_masks([1, 2], 2, MASK)) == []


def test_filler_that_begins_like_a_proposal_is_ours_only_if_all_of_it_is() -> None:
    assert own_drafts([0, 0], [0, MASK], MASK) == 0
    assert own_drafts([0], [0, MASK], MASK) == 1
    assert own_drafts([0, 7], [0], MASK) == 0


def test_counts_by_position() -> None:
    counters = Counters()
    counters.add(drafts=3, accepted=2, tokens=3)
    counters.add(drafts=1, accepted=1, tokens=2)
    assert counters.snapshot() == {
        "forwards": 2,
        "tokens": 5,
        "drafts": 4,
        "accepted": 3,
        "by_position": [2, 1],
        "tokens_per_forward": 2.5,
    }


def test_a_token_that_was_ruled_out_is_not_forced() -> None:
    logits = torch.zeros(2, 4)
    logits[:, 2] = -torch.inf
    force(logits, [0, 1], [1, 2])
    assert logits[0].tolist() == [-torch.inf, 0, -torch.inf, -torch.inf]
    assert logits[1].tolist() == [0, 0, -torch.inf, 0]
