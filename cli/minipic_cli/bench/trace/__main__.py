"""``python -m minipic_cli.bench.trace``: the benchmark without the CLI around it."""

import argparse
import json
import sys
from pathlib import Path

from minipic_cli.bench import trace
from minipic_cli.bench.results import merge_rows


def main() -> None:
    """Run, print the rows, merge them into the results file."""
    parser = argparse.ArgumentParser(prog="python -m minipic_cli.bench.trace")
    parser.add_argument("--machine", choices=["cpu", "h200"], default="cpu")
    parser.add_argument("--model", help="on the CPU: a directory instead of the bundled model")
    parser.add_argument("--shape", choices=["2wiki", "long", "agent"], default="2wiki")
    parser.add_argument("--prompts", type=int, default=None)
    parser.add_argument("--stages", default="fit,warm,off,empty,barrier,slope", help=f"of {','.join(trace.STAGES)}")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", choices=["stock", "minipic"])
    parser.add_argument("--kv-tokens", type=int, default=None)
    parser.add_argument("--budget", type=float, default=290.0, help="seconds for each engine")
    parser.add_argument("--raw", type=Path, default=None)
    parser.add_argument("--eager", action="store_true", help="on the CPU: without torch.compile")
    parser.add_argument("--out", type=Path, default=None)
    a = parser.parse_args()
    size = {} if a.kv_tokens is None else {"kv_tokens": a.kv_tokens}
    machine = trace.h200(**size) if a.machine == "h200" else trace.cpu(**size, model=a.model, eager=a.eager)
    result = trace.run(
        machine,
        shape=a.shape,
        prompts=a.prompts or (800 if a.machine == "h200" else 200),
        stages=a.stages.split(","),
        repeats=a.repeats,
        engines=(a.only,) if a.only else ("stock", "minipic"),
        budget=a.budget,
        raw=a.raw,
        note=lambda text: print(text, file=sys.stderr, flush=True),
    )
    raw = result.pop("raw")
    if a.out is not None and result["rows"]:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        merge_rows(a.out, result["rows"])
        (a.out.parent / f"trace-raw-{a.machine}.json").write_text(json.dumps(raw))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
