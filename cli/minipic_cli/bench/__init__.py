"""``minipic bench``: the project's benchmarks; each writes its rows into ``benchmarks/results/``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from minipic_cli import console, options

app = typer.Typer(name="bench", help="Measure MiniPIC against stock vLLM.", no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Results file to merge the rows into.")]


@app.command("cpu")
def _cpu(
    repetitions: Annotated[int, typer.Option("--repetitions", min=1, help="Of every pair of measurements.")] = 9,
    items: Annotated[int, typer.Option("--items", min=2, help="Lookup questions of the answer gap.")] = 104,
    block_size: Annotated[
        int, typer.Option("--block-size", help="Tokens per KV block, for both engines; stock takes multiples of 32.")
    ] = 32,
    eager: Annotated[bool, typer.Option("--eager", help="Without torch.compile: starts sooner.")] = False,
    out: Out = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Stock vLLM and MiniPIC on this CPU, interleaved, with the bundled model."""
    from minipic_cli.bench import cpu as bench

    result = bench.run(repetitions=repetitions, items=items, block_size=block_size, eager=eager, note=console.note)
    bench.merge_rows(out or bench.RESULTS, result["rows"])
    _report(result, as_json)


@app.command("gpu")
def _gpu(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the rows and the plot go.")] = Path(
        "benchmarks/results/h200.json"
    ),
    small: Annotated[bool, typer.Option("--small", help="A dry run on a tiny model.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Stock vLLM and MiniPIC on this GPU, one after the other with the same settings."""
    from minipic_cli.bench.gpu import run

    _report(run(out, small=small), as_json)


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.print_json(result)
        return
    table = console.table("row", "ratio", "spread", "MiniPIC", "stock", "unit", right=("ratio", "MiniPIC", "stock"))
    for row in result["rows"]:
        low, high = row["spread"]
        figures = (f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", str(row["value"]), str(row["baseline"]))
        table.add_row(row["name"], *figures, row["unit"])
    console.out().print(table)


def add_to(parent: typer.Typer) -> None:
    """Register the command."""
    parent.add_typer(app)
