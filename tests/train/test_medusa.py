"""Medusa heads in training: what each has to guess, and whole runs that leave the base alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from helpers import build_model
from marslm.core.losses import IGNORE, LossCounts
from marslm.data.encode import Example
from marslm.errors import InputError
from marslm.models.loading import MarsModel, load
from marslm.models.medusa import MedusaHeads
from marslm.train.batches import TwoStreamData, collate
from marslm.train.config import TuneConfig
from marslm.train.events import Event, Progress
from marslm.train.medusa import Medusa, head_targets
from marslm.train.run import train

MakeModel = Callable[..., MarsModel]
CONFIG = TuneConfig.for_mode("medusa", block_size=3, steps=10, batch_size=4, learning_rate=1e-2)


def test_a_head_guesses_supervised_tokens_of_its_own_text() -> None:
    targets = torch.tensor([[IGNORE, 5, 6, 7, IGNORE, 8, 9, IGNORE]])
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1]])
    batch = {"clean_targets": targets, "clean": {"document": document}}
    none = IGNORE
    assert head_targets(batch, 1).tolist() == [[none, 6, 7, none, none, 9, none, none]]
    assert head_targets(batch, 2).tolist() == [[none, 7, none, none, none, none, none, none]]


@pytest.mark.parametrize("packing", [False, True])
def test_the_loss_is_the_weighed_mean_over_heads(examples: list[Example], packing: bool) -> None:
    """Against a loop over one unpadded text at a time, in float64."""
    model = build_model("llama", seed=1)
    heads = MedusaHeads(model.network.get_output_embeddings().weight.detach(), 2).double()
    with torch.no_grad():
        for weight in heads.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, dtype=weight.dtype))
    config = TuneConfig.for_mode("medusa", block_size=3, steps=1, packing=packing, max_length=200)
    data = TwoStreamData(examples, config)
    batch = collate([data[0, i, 0] for i in range(len(data))])
    objective = Medusa(model.network, heads, model.mask_token_id, distance_decay=0.5)
    count = objective.count_targets(batch)
    loss, hits = objective(batch, LossCounts(*map(float, count)))

    total = weight = 0.0
    for example in examples:
        ids = torch.tensor([example.ids])
        hidden = model.network.model(input_ids=ids).last_hidden_state[0]
        for place in range(len(example.ids) - 1):
            for head in (1, 2):
                further = place + 1 + head
                if further >= len(example.ids) or not example.supervised[place + 1]:
                    continue
                if not example.supervised[further]:
                    continue
                logits = heads.logits(hidden[place], head)
                logits[model.mask_token_id] = -torch.inf
                own = F.cross_entropy(logits, torch.tensor(example.ids[further])).detach()
                total += 0.5 ** (head - 1) * float(own)
                weight += 0.5 ** (head - 1)
    assert count == (pytest.approx(weight), 0)
    # Losses are computed in float32.
    assert float(loss.detach()) == pytest.approx(total / weight, rel=1e-5)
    assert hits.total[0] == 0
    assert hits.total[1] > hits.total[2] > 0


def test_a_run_trains_heads_alone(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    model = make_model()
    model.network.save_pretrained(base)
    model.tokenizer.save_pretrained(base)
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    events: list[Event] = []
    record = train(model, examples, CONFIG, tmp_path / "heads", listener=events.append)
    losses = [event.loss for event in events if isinstance(event, Progress)]
    assert record.mode == "medusa"
    assert losses[-1] < losses[0] - 0.1
    for name, weight in model.network.state_dict().items():
        assert torch.equal(weight, before[name])
    loaded = load(str(base), adapter=tmp_path / "heads")
    assert loaded.heads is not None
    assert loaded.adapter is None
    assert len(loaded.heads) == 2
    own = loaded.network.get_output_embeddings().weight
    assert not torch.equal(loaded.heads.outputs[0].weight, own)


def test_damaged_heads_are_one_line(
    make_model: MakeModel, examples: list[Example], tmp_path: Path
) -> None:
    model = make_model()
    model.network.save_pretrained(tmp_path / "base")
    model.tokenizer.save_pretrained(tmp_path / "base")
    train(model, examples, CONFIG, tmp_path / "heads")
    (tmp_path / "heads" / "medusa_heads.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="are damaged") as error:
        load(str(tmp_path / "base"), adapter=tmp_path / "heads")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings", [{"mode": "full", "objective": "medusa"}, {"mode": "medusa", "objective": "ar"}]
)
def test_mode_and_objective_belong_together(settings: dict[str, str]) -> None:
    with pytest.raises(InputError, match="belong together"):
        TuneConfig.for_mode(steps=5, **settings)  # type: ignore[arg-type]
