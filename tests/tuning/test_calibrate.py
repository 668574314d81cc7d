"""Thresholds that keep a rate, on samples written by hand and on a model."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from helpers import build_model, full_logits, letters, solo
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.models.calibration import Calibration, read_calibration
from marslm.models.loading import MarsModel
from marslm.runtime.params import SamplingParams
from marslm.tuning.calibrate import (
    Probe,
    calibrate,
    check,
    fit_thresholds,
    lowest_threshold,
    read_probes,
    reliability,
)


def test_the_lowest_threshold_counts_one_wrong_candidate_more() -> None:
    sure = [(0.9, True)] * 50
    assert lowest_threshold(sure, 0.02) == 0.9  # 1 of 51
    assert lowest_threshold(sure, 0.019) == 1.0
    assert lowest_threshold([*sure, *[(0.6, True)] * 50], 0.01) == 0.6
    assert lowest_threshold([*sure, *[(0.6, False)] * 50], 0.02) == 0.9
    assert lowest_threshold([], 0.5) == 1.0


def test_candidates_of_one_confidence_pass_together() -> None:
    """A threshold between them cannot be, however they are sorted."""
    judged = [(0.8, True)] * 40 + [(0.8, False)] * 40
    assert lowest_threshold(judged, 0.1) == 1.0


def test_a_mask_is_judged_where_those_before_it_pass_and_are_right() -> None:
    probes = [Probe((0.9, 0.9), (True, True))] * 60
    probes += [Probe((0.9, 0.99), (False, False))]  # wrong at once: the second says nothing
    probes += [Probe((0.2, 0.99), (True, False))] * 30  # the first does not pass at 0.05
    probes += [Probe((0.2,), (False,))] * 30
    assert fit_thresholds(probes, 0.05, 2) == (0.9, 0.9)
    first, second = check(probes, 0.05, (0.9, 0.9))
    assert first["candidates"] == 121
    assert first["accepted"] == pytest.approx(61 / 121)
    assert first["wrong"] == pytest.approx(1 / 61)
    assert (second["candidates"], second["accepted"], second["wrong"]) == (60, 1.0, 0.0)


def test_nothing_passes_a_threshold_of_one() -> None:
    row = check([Probe((1.0,), (True,))], 0.01, (1.0,))[0]
    assert (row["accepted"], row["wrong"]) == (0.0, None)


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_probes_are_what_a_step_would_read(fitted_model: MarsModel, length: int) -> None:
    """Against one cache-free forward per token, over the border between pieces too."""
    prompt = letters(6, random.Random(length))
    params = SamplingParams(strategy="ar", max_new_tokens=length, ignore_eos=True)
    answer = solo(fitted_model, prompt, params).ids
    engine = Engine(fitted_model, slots=1, max_length=200, pack=False)
    probes = read_probes(engine, prompt, answer, "probability", 3)
    assert len(probes) == length - 1
    for place, probe in enumerate(probes):
        text = [*prompt, *answer[:place], *[fitted_model.mask_token_id] * 3]
        rows = full_logits(fitted_model, text)[-3:].softmax(-1)
        wanted = answer[place + 1 : place + 4]
        assert len(probe.right) == len(wanted)
        best = rows.max(-1)
        assert list(probe.confidence) == pytest.approx(best.values.tolist()[: len(wanted)])
        assert list(probe.right) == [
            token == right for token, right in zip(best.indices.tolist(), wanted, strict=False)
        ]


def test_a_calibrated_model_decodes_by_its_thresholds(
    fitted_draft: MarsModel,
) -> None:
    """Looser rates accept more, and the answer differs from one-token decoding's accordingly."""
    prompts = [letters(4 + n % 5, random.Random(n)) for n in range(12)]
    parts: list[int] = []
    found, rows, probes = calibrate(
        fitted_draft, prompts, max_new_tokens=40, rates=(0.05, 0.3), on_part=parts.append
    )
    assert parts == list(range(1, 2 * len(prompts) + 1))
    assert {row["rate"] for row in rows} == {0.05, 0.3}
    assert all(a >= b for a, b in zip(found.taus(0.05), found.taus(0.3), strict=True))
    curves = reliability(probes)
    assert list(curves) == ["mask 1", "mask 2", "mask 3"]
    assert sum(count for *_, count in curves["mask 1"]) == len(probes)
    model = replace(fitted_draft, calibration=found)
    runs = {}
    for tau in ("auto:0.05", "auto:0.3", found.taus(0.3)):
        params = SamplingParams(strategy="mars", tau=tau, max_new_tokens=40, ignore_eos=True)
        runs[tau] = [len(solo(model, prompt, params).runs) for prompt in prompts]
    assert runs["auto:0.3"] == runs[found.taus(0.3)]
    assert sum(runs["auto:0.3"]) <= sum(runs["auto:0.05"])
    assert sum(runs["auto:0.3"]) < 40 * len(prompts)


def test_what_cannot_be_calibrated_is_refused(fitted_draft: MarsModel) -> None:
    prompts = [[1, 2], [3]]
    for model, options, said in [
        (fitted_draft, {"prompts": prompts[:1]}, "give at least two"),
        (fitted_draft, {"rates": (0.0,)}, "between 0 and 1"),
        (fitted_draft, {"confidence": "hunch"}, "choose from"),
        (build_model("llama", hidden_size=16, layers=1), {}, "tune it first"),
    ]:
        with pytest.raises(InputError, match=said):
            calibrate(model, options.pop("prompts", prompts), **options)


def test_auto_tau_without_a_calibration_is_refused(fitted_draft: MarsModel) -> None:
    def add(model: MarsModel, **params: object) -> None:
        Engine(model, slots=1, max_length=32).add([1], SamplingParams(strategy="mars", **params))

    with pytest.raises(InputError, match="is not calibrated; run `marslm calibrate`"):
        add(fitted_draft, tau="auto:0.02")
    known = replace(fitted_draft, calibration=Calibration("margin", {0.02: (0.5,)}))
    with pytest.raises(InputError, match="for confidence margin"):
        add(known, tau="auto:0.02")
    with pytest.raises(InputError, match="choose from auto"):
        add(known, tau="auto:0.03", confidence="margin")
    for text in ("fast", "auto:", "auto:x"):
        with pytest.raises(InputError, match="as auto"):
            SamplingParams(tau=text)
    add(known, tau="auto:0.02", confidence="margin")


def test_a_calibration_is_read_as_it_was_written(tmp_path: object) -> None:
    written = Calibration("entropy", {0.01: (0.9, 1.0), 0.05: (0.5, 0.75)})
    assert read_calibration(tmp_path) is None
    written.save(tmp_path)
    assert read_calibration(tmp_path) == written
    (tmp_path / "calibration.json").write_text('{"thresholds": []}')
    with pytest.raises(InputError, match="calibrate again"):
        read_calibration(tmp_path)
