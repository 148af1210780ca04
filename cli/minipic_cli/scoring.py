"""How likely a server finds given answers: log-probabilities of gold tokens, the same way for any vLLM server.

`prompt_logprobs` would do it in one request, but recomputes the whole prompt, and span requests refuse it. So the
answer is generated greedily with the best alternatives of each token; as long as the model says what the gold answer
says, one request scores it all. Where it deviates, the gold token's own log-probability is taken from the
alternatives, or asked for with a request that allows only this token (vLLM reports log-probabilities from before that
restriction), and the rest is scored behind the gold token.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx

from minipic_cli.errors import CLIError

_ALTERNATIVES: Final = 20  # vLLM's own limit by default
_AT_ONCE: Final = 32  # requests in flight


class Asked(NamedTuple):
    """A prompt as it goes over the wire, and the answer to score."""

    token_ids: Sequence[int]
    extra: Mapping[str, Any]  # further fields of the request, such as vllm_xargs
    gold: Sequence[int]


def score(
    url: str, model: str, asked: Sequence[Asked], done: Callable[[], None] = lambda: None, api_key: str | None = None
) -> list[list[float]]:
    """Log-probability of every gold token, in the order asked.

    Args:
        url: of the server, without /v1.
        model: as it is served.
        asked: prompts with their answers.
        done: called after each.
        api_key: the server's.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def run() -> list[list[float]]:
        limits = asyncio.Semaphore(_AT_ONCE)
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600) as http:

            async def one(item: Asked) -> list[float]:
                async with limits:
                    found = await _score(http, model, item)
                done()
                return found

            # The first alone: it fills the cache for those that share its documents.
            return [await one(asked[0]), *await asyncio.gather(*map(one, asked[1:]))]

    return asyncio.run(run()) if asked else []


async def _score(http: httpx.AsyncClient, model: str, asked: Asked) -> list[float]:
    gold = asked.gold
    found: list[float] = []
    while len(found) < len(gold):
        at = len(found)
        body = _body(model, asked, at) | {"max_tokens": len(gold) - at, "logprobs": _ALTERNATIVES}
        answer = await _complete(http, body)
        for said, alternatives in zip(answer["tokens"], answer["top_logprobs"], strict=True):
            token = f"token_id:{gold[len(found)]}"
            if token not in alternatives:
                break
            found.append(alternatives[token])
            if said != token:
                break
        if len(found) == at:
            found.append(await _of_one(http, model, asked, at))
    return found


async def _of_one(http: httpx.AsyncClient, model: str, asked: Asked, at: int) -> float:
    """Of a gold token that is not among the alternatives."""
    only = {"max_tokens": 1, "logprobs": 1, "allowed_token_ids": [asked.gold[at]]}
    return (await _complete(http, _body(model, asked, at) | only))["token_logprobs"][0]


def _body(model: str, asked: Asked, at: int) -> dict[str, Any]:
    prompt = [*asked.token_ids, *asked.gold[:at]]
    fixed = {"temperature": 0, "ignore_eos": True, "return_tokens_as_token_ids": True}
    return {"model": model, "prompt": prompt, **fixed, **asked.extra}


async def _complete(http: httpx.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    response = await http.post("/v1/completions", json=body)
    if not response.is_success:
        raise CLIError(f"{http.base_url} refused to score an answer: {response.status_code} {response.text[:300]}")
    return response.json()["choices"][0]["logprobs"]
