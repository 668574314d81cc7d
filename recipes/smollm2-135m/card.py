"""Write the card of a trained adapter from what its training left behind.

    python recipes/smollm2-135m/card.py ADAPTER --data TRAINING_ROWS

Reads the adapter's `mars.json`, `adapter_config.json`, `log.jsonl` and `bench-*.json`, and the
training rows; fills in `card.md` and writes `README.md` into the folder. Figures come from those
files alone, so a card cannot say what was not measured.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

NAMES = {
    "self": "prompts that the model wrote itself",
    "gsm8k": "questions of GSM8K's training split (MIT)",
    "instructions": "instructions written by the recipe",
    "code": "small programming tasks written by the recipe",
}
ABOUT = {
    "mask-only": (
        "Lets `smollm2` write several tokens per forward pass. The base model is untouched: "
        "one-token mode is bit-identical with and without this adapter. It cannot be merged, and "
        "PEFT refuses it on purpose (`peft_type: MASK_ONLY_LORA`), because PEFT would apply it to "
        "every row."
    ),
    "lora": (
        "Lets `smollm2` write several tokens per forward pass. An ordinary LoRA: it is merged into "
        "the weights at load, so the model also runs in other engines, one token at a time or more."
    ),
}
COLUMNS = (
    "strategy",
    "tau",
    "prompts",
    "tokens",
    "tokens_per_forward",
    "rows_per_forward",
    "tokens_per_second",
    "identical_to_ar",
    "agreement",
)
TEMPLATE = Path(__file__).with_name("card.md").read_text(encoding="utf-8")


def main() -> None:
    """Write the card."""
    parser = argparse.ArgumentParser(description="Write an adapter's card.")
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the rows it was trained on")
    arguments = parser.parse_args()
    (arguments.adapter / "README.md").write_text(
        card(arguments.adapter, arguments.data), encoding="utf-8"
    )


def card(adapter: Path, data: Path) -> str:
    """Return the card's text."""
    record = _json(adapter / "mars.json")
    config = _json(adapter / "adapter_config.json")
    steps = [row for row in _rows(adapter / "log.jsonl") if row["event"] == "step"]
    rows = _rows(data)
    reports = {path.stem: _json(path) for path in sorted(adapter.glob("bench-*.json"))}
    weights = adapter / "adapter_model.safetensors"
    return TEMPLATE.format(
        mode=record["mode"],
        about=ABOUT[record["mode"]],
        rows=len(rows),
        cut=sum("cut" in row for row in rows),
        sources=_sources(rows),
        hours=steps[-1]["elapsed"] / 3600,
        machine=_machine(reports),
        steps=steps[-1]["step"],
        tokens=steps[-1]["tokens"],
        rank=config["r"],
        mask=record["mask_token_id"],
        block=record["block_size"],
        dtype=_dtype(weights),
        megabytes=weights.stat().st_size / 1e6,
        curve=_curve(steps, 1 if record["mode"] == "mask-only" else 0),
        figures="\n\n".join(map(_figures, reports.values())),
    )


def _sources(rows: list[dict[str, Any]]) -> str:
    """Return how many rows come from where; `gsm8k_train.jsonl.gz:7` counts as gsm8k."""
    kinds = Counter(re.split(r"[_.:]", row["source"])[0] for row in rows)
    return ", ".join(f"{count} {NAMES.get(kind, kind)}" for kind, count in kinds.most_common())


def _machine(reports: dict[str, dict[str, Any]]) -> str:
    """Return where the measurements ran."""
    if not reports:
        return "no machine yet"
    machine = next(iter(reports.values()))["machine"]
    return str(machine["gpu"] or f"{machine['cores']} cores of an {machine['processor']}")


def _dtype(weights: Path) -> str:
    """Return the stored number type, from the safetensors header."""
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    return "/".join(
        {"BF16": "bfloat16", "F32": "float32"}.get(kind, kind) for kind in sorted(kinds)
    )


def _curve(steps: list[dict[str, Any]], nearest: int) -> str:
    """Return accuracy by distance after an eighth, a quarter, a half and all of the tokens.

    nearest: the least distance; one-token rows, at distance 0, are trained by some modes only.
    """
    total = steps[-1]["tokens"]
    shown = ", ".join(map(str, range(nearest, len(steps[0]["accuracy"]))))
    lines = [f"| clean tokens | right at distance {shown} |", "|---|---|"]
    for share in (1 / 8, 1 / 4, 1 / 2, 1):
        until = [row for row in steps if row["tokens"] <= share * total] or steps[:1]
        window = until[-max(1, len(steps) // 20) :]
        distances = zip(*(row["accuracy"][nearest:] for row in window), strict=True)
        means = [_mean([value for value in values if value is not None]) for values in distances]
        lines.append(f"| {until[-1]['tokens']:,} | {' '.join(f'{m:.2f}' for m in means)} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _figures(report: dict[str, Any]) -> str:
    """Return one measurement as its command and a table."""
    rows = [row for row in report["rows"] if row.get("kind") in (None, "all")]
    shown = [column for column in COLUMNS if any(row.get(column) is not None for row in rows)]
    lines = [f"`{report['command']}`", "", "| " + " | ".join(shown).replace("_", " ") + " |"]
    lines.append("|" + "---|" * len(shown))
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in shown) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
