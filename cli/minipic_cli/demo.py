"""``minipic demo``: the main job, start to finish, on this machine."""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final

import typer

from minipic_cli import console, options
from minipic_cli.connection import connected
from minipic_cli.errors import CLIError
from minipic_cli.lookups import Scorer, compare, orders, passages
from minipic_cli.models import ensure_default_model
from minipic_cli.scoring import Gold, Probe, Said, score
from minipic_cli.servers import Server, minipic_server
from minipic_sdk import Document, MiniPIC, Prompt

ORDERS: Final = 3
ANSWER_TOKENS: Final = 24
ITEMS: Final = 104
_QUESTION: Final = "What is a context manager?"
_AT_ONCE: Final = 32  # lookup questions in flight
_KINDS: Final = (("plain", "prefix"), ("minipic", "anchored"))  # as shown, and the layout that makes it
# Compiling would take longer than the whole demo, the sampler's part too.
_SERVE: Final = ("--dtype", "float32", "--max-model-len", "4096", "--enforce-eager")
_ENVIRONMENT: Final = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(demo)


def demo(
    items: Annotated[int, typer.Option("--items", min=0, help="Lookup questions that compare the answers.")] = ITEMS,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve the bundled model, warm documents, ask in changing orders; compare with plain prompts.

    Plain prompts are what stock vLLM is sent: bare tokens, cached by prefix. The lookup questions compare how likely
    the true answers are with spans and without.
    """
    begin = time.monotonic()
    model = ensure_default_model(progress=not quiet)
    # Questions come one after another here, so the engine may have the core that vLLM would leave to its front end.
    spare = {} if "VLLM_CPU_NUM_OF_RESERVED_CPU" in os.environ else {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
    with minipic_server(str(model), _SERVE, {**_ENVIRONMENT, **spare}) as server:
        with console.waiting("starting the server (about 40 s on two cores)"):
            server.wait_ready()
        with connected(server.url, None, max_retries=0) as client:
            result = _run(client, server, items)
    result["seconds"] = round(time.monotonic() - begin, 1)
    if as_json:
        console.print_json(result)
    else:
        _show(result)


def _run(client: MiniPIC, server: Server, items: int) -> dict[str, Any]:
    documents = list(passages())
    with console.waiting(f"warming {len(documents)} documents"):
        warmed = client.warm(documents)
    shuffled = orders(documents, ORDERS)
    rows = [_asked(client, order, number) for number, order in enumerate(shuffled, 1)]
    result: dict[str, Any] = {
        "question": _QUESTION,
        "warmed": {"documents": len(documents), "tokens": warmed.tokens, "blocks": warmed.blocks},
        "orders": rows,
    }
    if items:
        # In the orders just asked, which are cached for the plain prompts too.
        result["answers"] = _answers(server.url, client, shuffled, items)
    return result


def _asked(client: MiniPIC, order: list[Document], number: int) -> dict[str, Any]:
    """Ask in one order; plain first, so that nothing of it is cached by then."""
    profile = client.profile()
    row: dict[str, Any] = {"order": [d.name for d in order]}
    for kind, layout in _KINDS:
        prompt = Prompt.compose(order, _QUESTION, profile=profile, layout=layout)
        with console.waiting(f"asking in order {number} of {ORDERS}: {kind}"):
            row[kind] = _ask(client, prompt)
    return row


def _ask(client: MiniPIC, prompt: Prompt) -> dict[str, Any]:
    begin = time.perf_counter()
    first = None
    with client.generate(prompt, max_tokens=ANSWER_TOKENS, temperature=0, stream=True) as stream:
        for _ in stream:
            first = first or time.perf_counter() - begin
        answer = stream.result()
    return {
        "ttft_ms": round(1000 * (first or 0), 1),
        "prompt_tokens": answer.usage.prompt_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "answer": " ".join(answer.text.split()),
    }


def _answers(url: str, client: MiniPIC, shuffled: Sequence[Sequence[Document]], items: int) -> dict[str, Any]:
    """Mean log probability per token of the true answers: bare tokens against spans; the orders take turns."""
    profile = client.profile()
    with console.progress(f"scoring {items} true answers, plain and with spans", 2 * items) as bar:

        def scorer(spans: bool) -> Scorer:
            def scored(golds: Sequence[Gold], prompt: Prompt) -> list[list[float]]:
                extra = prompt.extra_body if spans else {}
                return score(golds, lambda probes: _complete(url, profile.model, probes, extra), bar.tell)

            return scored

        plain, spans = map(statistics.fmean, compare(profile, shuffled, items, scorer(False), scorer(True)))
    return {
        "items": items,
        "plain_logprob": round(plain, 4),
        "minipic_logprob": round(spans, 4),
        "gap": round(plain - spans, 4),
    }


def _complete(url: str, model: str, probes: list[Probe], extra: Mapping[str, Any]) -> list[list[Said]]:
    """Run scoring's requests over HTTP."""
    import httpx

    with httpx.Client(base_url=url, timeout=600) as http, ThreadPoolExecutor(_AT_ONCE) as pool:

        def one(probe: Probe) -> list[Said]:
            body = {"model": model, "prompt": probe.token_ids, "return_tokens_as_token_ids": True, **probe.params()}
            response = http.post("/v1/completions", json={**body, **extra})
            if not response.is_success:
                raise CLIError(f"the server refused to score an answer: {response.text[:300]}")
            told = response.json()["choices"][0]["logprobs"]
            rows = ({_token(t): p for t, p in row.items()} for row in told["top_logprobs"])
            return [Said(_token(t), row) for t, row in zip(told["tokens"], rows, strict=True)]

        return list(pool.map(one, probes))


def _token(text: str) -> int:
    return int(text.removeprefix("token_id:"))


def _show(result: Mapping[str, Any]) -> None:
    out = console.out()
    warmed = result["warmed"]
    out.print(f"{warmed['documents']} documents warmed: {warmed['tokens']} tokens. {result['question']}", markup=False)
    out.print()
    columns = ("documents in the order of", "prompt", "cached tokens", "first token", "answer")
    table = console.table(*columns, right=("cached tokens", "first token"))
    for row in result["orders"]:
        order = ", ".join(row["order"][:2]) + ", ..."
        for kind, _ in _KINDS:
            got = row[kind]
            cached = f"{got['cached_tokens']} of {got['prompt_tokens']}"
            table.add_row(order, kind, cached, f"{got['ttft_ms']:.0f} ms", got["answer"])
            order = ""
    out.print(table, markup=False)
    out.print()
    ratio = statistics.median(r["plain"]["ttft_ms"] / r["minipic"]["ttft_ms"] for r in result["orders"])
    out.print(f"time to first token in a new order: {ratio:.1f} times shorter")
    if answers := result.get("answers"):
        out.print(
            f"true answers of {answers['items']} lookup questions, log probability per token: plain "
            f"{answers['plain_logprob']:.3f}, MiniPIC {answers['minipic_logprob']:.3f} (gap {answers['gap']:.3f})"
        )
    out.print(f"{result['seconds']:.0f} s in all")
