"""`marslm eval`: the six benchmarks, with every decoding mode, through one harness.

Knows nothing about how answers are scored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marslm.cli import options
from marslm.cli.decoding import read_tau
from marslm.cli.groups import panel_option, with_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from marslm.core.accept import Tau
    from marslm.evaluation.run import Plan
    from marslm.report import Row

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)

EXAMPLES = """
[b]Examples[/b]

MARSLM_DATA=data marslm eval --tasks gsm8k,ifeval --limit 100 --strategies base,ar,mars,lossless

marslm eval --suite paper --model runs/mine --allow-code --output runs/paper
"""

_WHAT = "What is asked"


@dataclass(frozen=True)
class Asked:
    """Everything about an evaluation but the decoding modes."""

    model: options.Model = "smollm2"
    adapter: options.Adapter = None
    quantize: options.Quantize = "none"
    suite: Annotated[
        str,
        panel_option(
            _WHAT,
            help="local: 256 tokens, data from the folder that MARSLM_DATA names; paper: 256 "
            "tokens, data from the Hub; long: 1024 tokens, data from the Hub.",
        ),
    ] = "local"
    tasks: Annotated[
        str | None,
        panel_option(
            _WHAT,
            metavar="A,B",
            help="ifeval, bbh, mmlu_pro, gpqa, gsm8k, gsm8k_5shot, humaneval; by default all but "
            "gsm8k_5shot.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        panel_option(_WHAT, help="Items of each task, the same ones every time; default: all."),
    ] = None
    seed: Annotated[int, panel_option(_WHAT, help="Which items --limit takes.")] = 0
    allow_code: Annotated[
        bool,
        panel_option(_WHAT, "--allow-code", help="Run the programs that answers to humaneval are."),
    ] = False
    batch: Annotated[int, typer.Option(help="Prompts decoded together.")] = 8
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Results; a stopped run goes on there.")
    ] = Path("runs/eval")

    def plan(
        self, strategies: str, taus: Sequence[Tau | str], blocks: Sequence[int | None]
    ) -> Plan:
        """Return the plan, checked; InputError for one that cannot be carried out."""
        from marslm.evaluation.benchmarks import DEFAULT_TASKS, find_benchmarks, find_suite
        from marslm.evaluation.harness import check_harness
        from marslm.evaluation.modes import modes_of

        check_harness()
        suite = find_suite(self.suite)
        benchmarks = find_benchmarks(DEFAULT_TASKS if self.tasks is None else _split(self.tasks))
        modes = modes_of(_split(strategies), taus, blocks)
        from marslm.evaluation.run import Plan

        plan = Plan(
            self.model,
            options.find_adapter(self.model, self.adapter),
            suite,
            benchmarks,
            modes,
            self.limit,
            self.seed,
            self.batch,
            self.allow_code,
            self.quantize,
        )
        plan.check()
        return plan


Strategies = Annotated[
    str,
    typer.Option(
        help="Comma-separated; base: without the adapter, one token a forward.",
        rich_help_panel="Decoding",
    ),
]


@app.callback(epilog=EXAMPLES)
@with_groups()
def evaluate(
    context: typer.Context,
    asked: Asked = Asked(),
    strategies: Strategies = "ar,lossless",
    tau: Annotated[
        str,
        typer.Option("--tau", "-t", help="Threshold of mars.", rich_help_panel="Decoding"),
    ] = "0.9",
    block: Annotated[
        int | None,
        typer.Option("--block", "-B", help="Candidates a step.", rich_help_panel="Decoding"),
    ] = None,
    json: options.Json = None,
) -> None:
    """Score decoding modes on benchmarks, on the same items; tell what each one costs."""
    if context.invoked_subcommand is None:
        _run(asked, strategies, [read_tau(tau)], [block], json)


@app.command()
@with_groups()
def sweep(
    asked: Asked = Asked(),
    strategies: Strategies = "ar,mars,lossless",
    taus: Annotated[
        str, typer.Option(help="Thresholds of mars, comma-separated.", rich_help_panel="Decoding")
    ] = "0.95,0.9,0.8,0.6",
    blocks: Annotated[
        str | None,
        typer.Option(
            metavar="N,M",
            help="Candidates a step, comma-separated; default: as trained.",
            rich_help_panel="Decoding",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Evaluate strategies x tau x B; leave a page with the paper's figures beside, and plots."""
    from marslm.plots.scores import plot_scores

    rows = _run(
        asked, strategies, [read_tau(tau) for tau in _split(taus)], _read_blocks(blocks), json
    )
    plot_scores(rows, "tokens_per_forward", asked.output / "score-by-speed.svg")
    plot_scores(rows, "seconds", asked.output / "score-by-time.svg")


@app.command()
def compare(
    left: Annotated[Path, typer.Argument(metavar="A", help="As runs/eval/ar.")],
    right: Annotated[Path, typer.Argument(metavar="B", help="As runs/eval/mars-0.9.")],
    show: Annotated[int, typer.Option(help="How many flipped items to show.")] = 5,
    json: options.Json = None,
) -> None:
    """Show where two decoding modes, or two models, differ on the same items."""
    from marslm.cli.evaluation_view import print_comparison, print_flip
    from marslm.cli.render import console
    from marslm.evaluation.compare import compare as compare_items
    from marslm.evaluation.folder import read_items
    from marslm.report import write_report

    rows, flips = compare_items(read_items(left), read_items(right))
    print_comparison(rows)
    for flip in flips[:show]:
        print_flip(flip)
    if len(flips) > show:
        console.print(f"{len(flips) - show} more items flipped: --show {len(flips)}")
    if json is not None:
        write_report(json, rows)


def _run(
    asked: Asked,
    strategies: str,
    taus: Sequence[Tau | str],
    blocks: Sequence[int | None],
    json: Path | None,
) -> list[Row]:
    """Evaluate with progress; show the rows and write the reports."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # before the harness imports tqdm
    from marslm.cli.evaluation_view import print_scores
    from marslm.evaluation.markdown import page_of
    from marslm.files import write_text
    from marslm.report import write_report

    plan = asked.plan(strategies, taus, blocks)
    rows = _run_shown(plan, asked.output)
    print_scores(rows)
    for path in [asked.output / "report.json", *([json] if json else [])]:
        write_report(path, rows)
    write_text(asked.output / "report.md", page_of(rows, f"{asked.model}, suite {asked.suite}"))
    return rows


def _run_shown(plan: Plan, output: Path) -> list[Row]:
    from marslm.cli.progress import FactsBar, answering_facts
    from marslm.evaluation.run import Progress, run

    with FactsBar() as bar:

        def show(progress: Progress) -> None:
            facts = answering_facts(
                progress.done,
                progress.total,
                progress.tokens,
                progress.seconds,
                progress.seconds_left,
            )
            bar.show(f"{progress.mode} {progress.task}", progress.done / progress.total, facts)

        rows = run(plan, output, show)
        bar.hide()
    return rows


def _read_blocks(text: str | None) -> list[int | None]:
    from marslm.errors import InputError

    if text is None:
        return [None]
    try:
        return [int(block) for block in _split(text)]
    except ValueError as error:
        raise InputError(f"--blocks {text}: give whole numbers, as 4,8") from error


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
