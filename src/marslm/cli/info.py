"""`marslm info`: what a model is and whether it can be served, before anything runs.

Knows nothing about decoding.
"""

from __future__ import annotations

from marslm.cli import options

EXAMPLES = """
[b]Examples[/b]

marslm info --model smollm2

marslm info --model Qwen/Qwen2.5-0.5B-Instruct --adapter runs/qwen --json info.json
"""


def info(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    json: options.Json = None,
) -> None:
    """Show a model's shape, its [MASK] row and what it was trained for."""
    from rich.markup import escape
    from rich.table import Table

    from marslm.cli.render import console
    from marslm.models.loading import load
    from marslm.report import describe_machine, write_report

    adapter = options.find_adapter(model, adapter)
    loaded = load(model, adapter=adapter)
    config, record = loaded.network.config, loaded.record
    mask = loaded.tokenizer.convert_ids_to_tokens(loaded.mask_token_id)
    parameters = sum(weight.numel() for weight in loaded.network.parameters())
    facts: dict[str, str | int | float | bool | None] = {
        "model": loaded.name,
        "type": config.model_type,
        "parameters": parameters,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocabulary": config.vocab_size,
        "context": loaded.context_length,
        "weights_mb": round(parameters * loaded.network.dtype.itemsize / 1e6),
        "mask_token_id": loaded.mask_token_id,
        "mask_token": str(mask) if mask is not None else "(a spare row)",
        "mode": record.mode if record else "not trained for several tokens a forward",
        "block": record.block_size if record else None,
        "machine": describe_machine()["processor"],
    }
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        shown = "" if value is None else escape(str(value))  # token names may have brackets
        table.add_row(f"[dim]{name.replace('_', ' ')}[/dim]", shown)
    console.print(table)
    if json is not None:
        write_report(json, [facts])
