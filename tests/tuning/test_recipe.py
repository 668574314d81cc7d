"""Recipes: every one that ships can be run, and what is wrong with one is said in a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.tuning.recipe import make_job, read_recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted(p for p in (ROOT / "recipes").rglob("*.yaml") if p.parent.name != "launch")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "recipes"))


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_shipped_recipe_is_a_job_and_says_how_to_run_it(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert re.fullmatch(
        r"# (accelerate launch --config_file recipes/launch/\S+ -m )?marslm tune .*", first
    )
    assert f"--recipe recipes/{name(path)}" in first
    for named in re.findall(r"recipes/launch/\S+", first):
        assert (ROOT / named).is_file()
    job = make_job(read_recipe(path))
    assert (
        job.config.batch_size % (8 * job.config.accumulation if "accelerate" in first else 1) == 0
    )


def test_the_papers_table_is_complete() -> None:
    """Both sizes: AR twice, MARS at three block sizes with and without L_AR, block diffusion."""
    names = {path.stem for path in RECIPES if path.parent.name == "paper"}
    for size in ("0.5b", "7b"):
        for row in ("ar-5-epochs", "ar-10-epochs", "block-diffusion-b4", "previous-mask-b4"):
            assert f"qwen2.5-{size}-{row}" in names
        for block in (4, 8, 16):
            with_loss = make_job(
                read_recipe(ROOT / f"recipes/paper/qwen2.5-{size}-mars-b{block}.yaml")
            ).config
            without = make_job(
                read_recipe(ROOT / f"recipes/paper/qwen2.5-{size}-mars-b{block}-no-ar-loss.yaml")
            ).config
            assert (with_loss.block_size, with_loss.ar_weight) == (block, 1)
            assert (without.block_size, without.ar_weight) == (block, 0)
            assert (with_loss.learning_rate, with_loss.warmup) == (5e-6, 0.03)
            assert (with_loss.batch_size, with_loss.max_length, with_loss.epochs) == (384, 512, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode: full\nblocksize: 4", "unknown setting 'blocksize'; did you mean block_size?"),
        ("- mode", "holds no settings"),
        ("mode: [", "is not YAML"),
    ],
)
def test_a_bad_recipe(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        read_recipe(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 1, "output": "x"}, "data is missing: give --data"),
        ({"steps": "5e3", "data": "d", "output": "x"}, "give a number (YAML wants 5.0e-6"),
        ({"steps": 1, "packing": "yes", "data": "d", "output": "x"}, "give true or false"),
        ({"steps": 1.5, "batch_size": 2.5, "data": "d", "output": "x"}, "give a whole number"),
        ({"steps": 1, "ar_weight": 1.0, "data": "d", "output": "x"}, "has no meaning in mode"),
        ({"steps": 1, "turns": "first", "data": "d", "output": "x"}, "choose all or last"),
    ],
)
def test_a_bad_job(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make_job(settings)


def test_what_is_given_on_top_wins() -> None:
    job = make_job({"data": "d", "output": "x", "mode": "full", "steps": 5, "seed": None})
    assert (job.config.steps, job.config.seed, job.model, job.output) == (
        5,
        0,
        "smollm2",
        Path("x"),
    )
