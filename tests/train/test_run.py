"""Whole runs on a small model: curves, checkpoints and what is left on disk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers import build_model as build_small
from marslm.data.encode import Example
from marslm.errors import InputError
from marslm.models.adapter import read_adapter
from marslm.models.calibration import Calibration, read_calibration
from marslm.models.loading import MarsModel
from marslm.models.tiny import build_model, build_tokenizer
from marslm.train import run as run_module
from marslm.train.checkpoints import last_checkpoint
from marslm.train.config import TuneConfig
from marslm.train.events import Event, Progress, Saved
from marslm.train.run import train
from marslm.train.saving import save_adapter

MakeModel = Callable[..., MarsModel]
MODES = ("full", "lora", "mask-only")


def config_for(mode: str, **settings: object) -> TuneConfig:
    usual = {"steps": 6, "batch_size": 4, "learning_rate": 1e-3, "rank": 4}
    return TuneConfig.for_mode(mode, **{**usual, **settings})  # type: ignore[arg-type]


class Record:
    """Hears a run; stops it, as a kill would, when step `stop_at` has been taken."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.steps: list[Progress] = []
        self.saved: list[Saved] = []
        self._stop_at = stop_at

    def __call__(self, event: Event) -> None:
        if isinstance(event, Saved):
            self.saved.append(event)
            return
        self.steps.append(event)
        if event.step == self._stop_at:
            raise KeyboardInterrupt

    @property
    def losses(self) -> list[float]:
        return [event.loss for event in self.steps]


def fresh() -> MarsModel:
    """Return an untrained model, whose logits are nearly uniform."""
    tokenizer = build_tokenizer()
    network = build_model(hidden_size=32, layers=2)
    return MarsModel("small", network, tokenizer, int(tokenizer.mask_token_id))


def run(
    make_model: MakeModel, examples: list[Example], config: TuneConfig, folder: Path
) -> list[float]:
    record = Record()
    train(make_model(), examples, config, folder, listener=record)
    return record.losses


@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_are_one_batch(
    make_model: MakeModel, examples: list[Example], mode: str, tmp_path: Path
) -> None:
    """The texts differ in length, so a mean of the micro-batches' means would be another curve."""
    config = config_for(mode)
    whole = run(make_model, examples, config, tmp_path / "whole")
    split = run(make_model, examples, replace(config, accumulation=4), tmp_path / "split")
    assert len(whole) == 6
    assert split == pytest.approx(whole, abs=1e-5)
    assert len(set(whole)) == 6


@pytest.mark.parametrize(("weight", "means"), [(1.0, 2), (0.0, 1), (0.5, 1.5)])
def test_the_first_loss_is_that_of_a_model_that_knows_nothing(
    examples: list[Example], weight: float, means: float, tmp_path: Path
) -> None:
    """Each mean starts near ln V, so a lost or doubled normalisation shows."""
    losses = run(fresh, examples, config_for("full", steps=1, ar_weight=weight), tmp_path)
    assert losses[0] == pytest.approx(means * math.log(288), rel=0.05)


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_falls(examples: list[Example], mode: str, tmp_path: Path) -> None:
    """An adapter can do little with a random base; the end is below any constant guess's start."""
    config = config_for(mode, steps=25, batch_size=5, learning_rate=1e-2, kl_weight=0.0, rank=8)
    losses = run(fresh, examples, config, tmp_path)
    assert sum(losses[-3:]) < 0.85 * sum(losses[:3])


@pytest.mark.parametrize("mode", ["lora", "mask-only"])
def test_the_base_weights_stay_bit_for_bit(
    make_model: MakeModel, examples: list[Example], mode: str, tmp_path: Path
) -> None:
    model, before = make_model(), make_model().network.state_dict()
    train(model, examples, config_for(mode, steps=3, learning_rate=1e-2), tmp_path)
    # PEFT wraps modules in place: the weight of `q_proj` is now that of `q_proj.base_layer`.
    after = {
        name.replace(".base_layer", "").replace(".token_adapter", ""): weight
        for name, weight in model.network.state_dict().items()
    }
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name


def test_progress_tells_the_facts(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    record = Record()
    train(make_model(), examples, config_for("full", batch_size=5), tmp_path, listener=record)
    per_pass = sum(len(example.ids) for example in examples)
    assert [event.step for event in record.steps] == [1, 2, 3, 4, 5, 6]
    assert [event.tokens for event in record.steps] == [per_pass * n for n in range(1, 7)]
    assert [event.fraction for event in record.steps] == pytest.approx([n / 6 for n in range(1, 7)])
    assert all(len(event.accuracy) == 4 for event in record.steps)
    assert all(0 <= a <= 1 for event in record.steps for a in event.accuracy if a is not None)
    assert record.steps[-1].seconds_left == 0
    for event in record.steps:
        assert event.loss == pytest.approx(event.mask_loss + event.ar_loss)


def test_mask_only_measures_no_clean_rows(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    record = Record()
    train(make_model(), examples, config_for("mask-only", steps=1), tmp_path, listener=record)
    assert record.steps[0].accuracy[0] is None
    assert all(a is not None for a in record.steps[0].accuracy[1:])


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_continues_the_same_curve(
    make_model: MakeModel, examples: list[Example], mode: str, tmp_path: Path
) -> None:
    config = config_for(mode, checkpoint_minutes=1e-9, anchors=3)
    whole = run(make_model, examples, config, tmp_path / "whole")
    stopped = Record(stop_at=4)
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), examples, config, tmp_path / "parts", listener=stopped)
    assert [event.step for event in stopped.saved] == [1, 2, 3]
    assert not (tmp_path / "parts" / "mars.json").exists()
    resumed = Record()
    train(make_model(), examples, config, tmp_path / "parts", resume=True, listener=resumed)
    assert [event.step for event in resumed.steps] == [4, 5, 6]
    assert stopped.losses + resumed.losses[1:] == pytest.approx(whole, abs=1e-6)
    assert resumed.losses[0] == pytest.approx(whole[3], abs=1e-6)


def test_a_resumed_run_ends_with_the_same_weights(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    config = config_for("full", checkpoint_minutes=1e-9)
    whole, parts = make_model(), make_model()
    train(whole, examples, config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), examples, config, tmp_path / "parts", listener=Record(stop_at=4))
    train(parts, examples, config, tmp_path / "parts", resume=True)
    for name, weight in whole.network.state_dict().items():
        torch.testing.assert_close(parts.network.state_dict()[name], weight, rtol=0, atol=1e-6)


def test_an_incomplete_checkpoint_is_ignored(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    config = config_for("lora", checkpoint_minutes=1e-9)
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), examples, config, tmp_path, listener=Record(stop_at=4))
    newest = last_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "checkpoint-3"
    # Killed while the third was being written.
    (newest / "complete").unlink()
    (newest / "trained.safetensors").write_bytes(b"half")
    resumed = Record()
    train(make_model(), examples, config, tmp_path, resume=True, listener=resumed)
    assert resumed.steps[0].step == 3


def test_last_checkpoint_is_the_highest_complete_one(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 80, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert last_checkpoint(tmp_path) is None
    for step in (9, 80):
        (tmp_path / f"checkpoint-{step}" / "complete").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-80"


def test_a_run_by_minutes_ends_by_the_clock(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    record = Record()
    config = config_for("lora", steps=None, minutes=0.01)
    train(make_model(), examples, config, tmp_path, listener=record)
    assert record.steps[-1].fraction == 1
    # The clock may pass the end between a step's check and its report; then one more is taken.
    assert all(event.fraction < 1 for event in record.steps[:-2])
    assert record.saved[-1].step == record.steps[-1].step


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock for the budget that stands still until the test moves it: [now]."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("marslm.train.budget.time", clock)
    return now


def test_a_run_by_minutes_resumes_its_schedule(
    make_model: MakeModel, examples: list[Example], tmp_path: Path, seconds: list[float]
) -> None:
    """Time used before counts: the learning rate goes on falling, and the run ends as planned."""
    config = config_for("lora", steps=None, minutes=8 / 60, checkpoint_minutes=1e-9)

    class OneSecondSteps(Record):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            seconds[0] += isinstance(event, Progress)

    whole, stopped, resumed = OneSecondSteps(), OneSecondSteps(stop_at=4), OneSecondSteps()
    train(make_model(), examples, config, tmp_path / "whole", listener=whole)
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), examples, config, tmp_path / "parts", listener=stopped)
    seconds[0] += 3600
    train(make_model(), examples, config, tmp_path / "parts", resume=True, listener=resumed)
    assert len(whole.steps) == 9
    assert [event.step for event in resumed.steps] == [4, 5, 6, 7, 8, 9]
    for ours, theirs in zip(resumed.steps, whole.steps[3:], strict=True):
        assert ours.elapsed == theirs.elapsed
        assert ours.fraction == pytest.approx(theirs.fraction)
        assert ours.learning_rate == pytest.approx(theirs.learning_rate)
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)


def test_a_finished_run_can_be_lengthened(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("lora", steps=3), tmp_path)
    record = Record()
    longer = config_for("lora", steps=6)
    train(make_model(), examples, longer, tmp_path, resume=True, listener=record)
    assert [event.step for event in record.steps] == [4, 5, 6]
    assert [event.fraction for event in record.steps] == pytest.approx([4 / 6, 5 / 6, 1])


def continued(folder: Path, make_model: MakeModel) -> MarsModel:
    return replace(make_model(), adapter=read_adapter(folder))


def test_a_run_goes_on_from_an_adapter(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    """What is set up from an adapter's files is saved as the same files again."""
    config = config_for("mask-only", learning_rate=1e-2)
    train(make_model(), examples, config, tmp_path / "first")
    model = continued(tmp_path / "first", make_model)
    network, _ = run_module.prepare(model, config)
    save_adapter(network, model.adapter.record, tmp_path / "again")
    first, again = (
        (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("first", "again")
    )
    assert first == again


def test_a_continued_run_starts_at_the_adapters_loss(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    config = config_for("mask-only", steps=25, batch_size=5, learning_rate=1e-2, kl_weight=0.0)
    record = Record()
    train(make_model(), examples, config, tmp_path / "first", listener=record)
    more = Record()
    short = replace(config, steps=2, block_size=4)
    model = continued(tmp_path / "first", make_model)
    result = train(model, examples, short, tmp_path / "second", listener=more)
    assert more.losses[0] < 0.5 * (record.losses[0] + record.losses[-1])
    assert result.block_size == 4
    assert result.training["continues"]["steps"] == 25


def test_a_lora_starts_from_half_of_a_mask_only_adapter(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("mask-only", learning_rate=1e-2), tmp_path / "first")
    model = continued(tmp_path / "first", make_model)
    network, _ = run_module.prepare(model, config_for("lora"))
    result = train(
        continued(tmp_path / "first", make_model), examples, config_for("lora"), tmp_path / "second"
    )
    assert result.training["continues"]["mode"] == "mask-only"
    for name, update in model.adapter.updates.items():
        layer = network.get_base_model().get_submodule(name)
        torch.testing.assert_close(layer.get_delta_weight("default"), update.up @ update.down / 2)
    embedding = network.get_base_model().get_input_embeddings()
    mask = embedding(torch.tensor([model.mask_token_id]))[0]
    torch.testing.assert_close(mask, model.adapter.mask_embedding.float())


def test_an_adapter_that_does_not_fit_is_not_continued(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("mask-only", steps=1), tmp_path / "first")
    model = continued(tmp_path / "first", make_model)
    for config, said in (
        (config_for("mask-only", rank=5), "has rank 4, not 5: give its rank"),
        (config_for("full"), "cannot be continued in mode full: use mode mask-only or lora"),
    ):
        with pytest.raises(InputError, match=said):
            train(model, examples, config, tmp_path / "second")
    model.adapter.updates.pop("model.layers.0.mlp.up_proj")
    with pytest.raises(InputError, match=r"does not update .* of every layer: start without it"):
        train(model, examples, config_for("mask-only"), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_nothing_to_resume(make_model: MakeModel, examples: list[Example], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no complete checkpoint: start without --resume"):
        train(make_model(), examples, config_for("full"), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("lora", steps=1), tmp_path)
    before = (tmp_path / "adapter_model.safetensors").read_bytes()
    with pytest.raises(InputError, match="already holds a run: continue it with --resume"):
        train(make_model(), examples, config_for("lora", steps=2), tmp_path)
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == before


def test_resuming_with_other_settings_is_refused(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("lora", steps=1), tmp_path)
    with pytest.raises(InputError, match="started with another mode"):
        train(make_model(), examples, config_for("full", steps=2), tmp_path, resume=True)


def test_resuming_with_other_turns_supervised_is_refused(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("lora", steps=1), tmp_path)
    more = [replace(each, supervised=(False, *[True] * (len(each.ids) - 1))) for each in examples]
    assert more != examples
    with pytest.raises(InputError, match="started with another data"):
        train(make_model(), more, config_for("lora", steps=2), tmp_path, resume=True)


def test_resuming_with_another_rank_is_refused(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    train(make_model(), examples, config_for("lora", steps=1), tmp_path)
    with pytest.raises(InputError, match="started with another rank"):
        train(make_model(), examples, config_for("lora", steps=2, rank=5), tmp_path, resume=True)


def test_resuming_on_another_model_is_refused(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    """What an adapter learned beside one model's weights is worth nothing beside another's."""
    config = config_for("lora", steps=1)
    train(make_model(), examples, config, tmp_path)
    longer = replace(config, steps=2)
    other = build_small("qwen2", seed=2, dtype=torch.float32)
    with pytest.raises(InputError, match="started on another model: resume it with the --model"):
        train(other, examples, longer, tmp_path, resume=True)
    with pytest.raises(InputError, match="started with another mask_token_id"):
        train(replace(make_model(), mask_token_id=261), examples, longer, tmp_path, resume=True)


def test_thresholds_go_with_the_weights_that_they_were_measured_on(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    measured = Calibration("probability", {0.02: (0.9,)})
    train(make_model(), examples, config_for("lora", steps=2), tmp_path)
    measured.save(tmp_path)
    train(make_model(), examples, config_for("lora", steps=2), tmp_path, resume=True)
    assert read_calibration(tmp_path) == measured  # nothing was left to train
    train(make_model(), examples, config_for("lora", steps=4), tmp_path, resume=True)
    assert read_calibration(tmp_path) is None


def test_no_examples(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to train on: give examples"):
        train(make_model(), [], config_for("full"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    model = make_model()
    with torch.no_grad():
        model.network.get_submodule("model.norm").weight.fill_(float("nan"))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"the loss is nan at step 0; .* lower learning rate"):
        train(model, examples, config_for("full"), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    """The loss is finite, its gradient is not: nothing may be learned from it or saved."""
    model = make_model()
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    weight = model.network.get_submodule("model.norm").weight
    assert isinstance(weight, torch.Tensor)
    weight.register_hook(lambda gradient: gradient * float("nan"))
    config = config_for("full", checkpoint_minutes=1e-9)
    with pytest.raises(InputError, match=r"the gradient's norm is nan at step 0"):
        train(model, examples, config, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    for name, after in model.network.state_dict().items():
        assert torch.equal(after, before[name]), name


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_recomputed_activations_give_the_same_curve(
    make_model: MakeModel, examples: list[Example], mode: str, tmp_path: Path
) -> None:
    kept = run(make_model, examples, config_for(mode), tmp_path / "kept")
    recomputed = run(make_model, examples, config_for(mode, recompute=True), tmp_path / "again")
    assert recomputed == pytest.approx(kept, abs=1e-5)


def test_epochs_are_passes_over_the_data(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    config = config_for("lora", steps=None, epochs=4, batch_size=2)
    assert len(run(make_model, examples, config, tmp_path)) == 10


def test_plain_fine_tuning_runs(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    record = Record()
    train(make_model(), examples, config_for("full", objective="ar"), tmp_path, listener=record)
    assert all(event.accuracy[0] is not None for event in record.steps)
    assert all(accuracy is None for event in record.steps for accuracy in event.accuracy[1:])
    assert [event.mask_loss for event in record.steps] == [0] * 6


def test_training_does_not_touch_the_callers_random_state(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    """Initial adapter weights come from the run's own seed."""
    first, second = make_model(), make_model()
    torch.manual_seed(1)
    train(first, examples, config_for("lora", steps=1), tmp_path / "a")
    torch.manual_seed(2)
    train(second, examples, config_for("lora", steps=1), tmp_path / "b")
    for name, weight in first.network.state_dict().items():
        assert torch.equal(weight, second.network.state_dict()[name]), name


@pytest.mark.parametrize("mode", MODES)
def test_training_runs_in_bfloat16(
    make_model: MakeModel,
    examples: list[Example],
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_for(mode)
    wide = run(make_model, examples, config, tmp_path / "wide")
    monkeypatch.setattr("marslm.train.run.computes_in_bfloat16", lambda network: True)
    assert run(make_model, examples, config, tmp_path / "narrow") == pytest.approx(wide, rel=0.02)
