"""``minipic bench``: the project's benchmarks; each writes its rows into ``benchmarks/results/``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from minipic_cli import console, options
from minipic_cli.bench.results import merge_rows
from minipic_cli.errors import UsageError

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

    result = bench.run(
        repetitions=repetitions,
        items=items,
        block_size=block_size,
        eager=eager,
        note=console.note,
        keep=lambda rows: merge_rows(out or bench.RESULTS, rows),
    )
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


@app.command("trace")
def _trace(
    machine: Annotated[
        str, typer.Option("--machine", help="cpu (the bundled model) or h200 (Llama-3-8B's shape).")
    ] = "cpu",
    shape: Annotated[str, typer.Option("--shape", help="2wiki, long or agent.")] = "2wiki",
    prompts: Annotated[
        int | None, typer.Option("--prompts", min=2, help="Prompts of the trace; by default 200, h200: 800.")
    ] = None,
    stages: Annotated[
        str, typer.Option("--stages", help="What to compare, with commas: see benchmarks/traces/README.md.")
    ] = "fit,warm,off,empty,barrier,slope",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of every stage.")] = 2,
    budget: Annotated[
        float, typer.Option("--budget", help="Seconds for each engine; stages beyond are left out.")
    ] = 290.0,
    eager: Annotated[bool, typer.Option("--eager", help="On the CPU: without torch.compile.")] = False,
    out: Out = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """A RAG trace, arrivals all at once: stock, barriers, a model of SPNL, MiniPIC."""
    from minipic_cli.bench import trace as bench

    known = {"machine": ("cpu", "h200"), "shape": ("2wiki", "long", "agent")}
    for name, value in (("machine", machine), ("shape", shape)):
        if value not in known[name]:
            raise UsageError(f"--{name} {value}: it is one of {', '.join(known[name])}")
    chosen = stages.split(",")
    if unknown := [stage for stage in chosen if stage not in bench.STAGES]:
        raise UsageError(f"--stages {unknown[0]}: known are {', '.join(bench.STAGES)}")
    result = bench.run(
        bench.h200() if machine == "h200" else bench.cpu(eager=eager),
        shape=shape,
        prompts=prompts or (800 if machine == "h200" else 200),
        stages=chosen,
        repeats=repeats,
        engines=("stock", "minipic"),
        budget=budget,
        note=console.note,
    )
    result.pop("raw")
    merge_rows(out or Path(f"benchmarks/results/{machine}.json"), result["rows"])
    _report(result, as_json)


@app.command("questions")
def _questions(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where they go.")],
    items: Annotated[int, typer.Option("--items", min=4, help="Questions.")] = 240,
    seed: Annotated[int, typer.Option("--seed", help="Of the questions.")] = 0,
    quiet: options.Quiet = False,
) -> None:
    """Write the questions of `bench quality` and their texts to a file, to ask the same ones on another machine."""
    from minipic_cli.bench.quality import write_questions

    console.note(f"{write_questions(file, items, seed)} questions in {file}")


@app.command("quality")
def _quality(
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="A model directory; by default the bundled model.")
    ] = None,
    items: Annotated[int | None, typer.Option("--items", min=4, help="Questions; by default 240.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the questions.")] = 0,
    fast: Annotated[bool, typer.Option("--quick", help="16 questions and fewer methods.")] = False,
    questions: Annotated[
        Path | None, typer.Option("--questions", metavar="FILE", help="Ask those that `bench questions` wrote.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", metavar="DIR", help="A LoRA adapter of the model, asked too.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Of PyTorch.")] = "cpu",
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FILE", help="Keeps answered questions, to go on from.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="JSON; the plot goes beside it.")] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """What each layout costs in answers and saves in tokens computed, on real text."""
    from minipic_cli.bench import quality as bench

    if model is not None:
        options.check_model_directory(model)
    if questions is not None and not questions.is_file():
        raise UsageError(f"--questions {questions}: there is no such file")
    if adapter is not None and not (adapter / "adapter_config.json").is_file():
        raise UsageError(f"--adapter {adapter}: it has no adapter_config.json")
    result = bench.run(
        model=model,
        items=items,
        seed=seed,
        quick=fast,
        questions=questions,
        adapter=adapter,
        device=device,
        out=out or bench.RESULTS,
        resume=resume,
        note=console.note,
    )
    if as_json:
        console.print_json(result)
        return
    names = ("exact", "f1", "logprob", "kl", "computed")
    table = console.table("method", *names, right=names)
    for row in result["rows"]:
        table.add_row(row["method"], *(f"{row[name][0]:.3f}" for name in names))
    console.out().print(table, markup=False)


@app.command("sdk")
def _sdk(
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=1, help="Of every measurement of imports and corpora.")
    ] = 3,
    small: Annotated[bool, typer.Option("--small", help="A dry run on tiny sizes.")] = False,
    out: Out = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """What the client's side costs: a request, an import, tokenising a corpus. Needs no server and no model."""
    from minipic_cli.bench import sdk as bench

    sizes = bench.SMALL if small else bench.Sizes()
    result = bench.run(sizes, repetitions, console.note, lambda rows: merge_rows(out or bench.RESULTS, rows))
    _report(result, as_json)


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.print_json(result)
        return
    table = console.table(
        "row", "ratio", "spread", "MiniPIC", "baseline", "unit", right=("ratio", "MiniPIC", "baseline")
    )
    for row in result["rows"]:
        low, high = row["spread"]
        figures = (f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", str(row["value"]), str(row["baseline"]))
        table.add_row(row["name"], *figures, row["unit"])
    console.out().print(table)


def add_to(parent: typer.Typer) -> None:
    """Register the command."""
    parent.add_typer(app)
