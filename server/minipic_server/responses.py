"""Answers of vLLM's completions route, freed of what only the engine should see: invariant I2.

With ``return_token_ids`` vLLM hands back the prompt as it was sent, with control tokens and padding. A span request
gets its visible tokens in logical order instead: what stock vLLM would have returned for the bare prompt.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig

_PREFIX = "data: "


def with_visible_prompts(config: SpanConfig, body: Any, response: Any) -> Any:
    """Map every ``prompt_token_ids`` of a CompletionResponse, or of a stream of SSE lines; else return it as it is."""
    if not getattr(body, "return_token_ids", None):
        return response
    if hasattr(response, "choices"):
        meta = _meta(body)
        for choice in response.choices:
            if choice.prompt_token_ids is not None:
                choice.prompt_token_ids = visible_ids(config, meta, choice.prompt_token_ids)
    elif hasattr(response, "__aiter__"):
        return _stream(config, _meta(body), response)
    return response


def visible_ids(config: SpanConfig, meta: RequestMeta, ids: Sequence[int]) -> list[int]:
    """Visible tokens of a prompt in logical order; copies that no other segment sees are left out."""
    layout = meta.parse(list(ids), control=config.control, block_size=config.block_size)
    segments = sorted(layout.segments, key=lambda s: s.logical_shown)
    return [t for s in segments for t in ids[s.shown_start : s.visible_stop]]


async def _stream(config: SpanConfig, meta: RequestMeta, lines: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async for line in lines:
        if '"prompt_token_ids":[' not in line:  # all but each choice's first
            yield line
            continue
        event = json.loads(line.removeprefix(_PREFIX))
        for choice in event["choices"]:
            if choice.get("prompt_token_ids") is not None:
                choice["prompt_token_ids"] = visible_ids(config, meta, choice["prompt_token_ids"])
        yield f"{_PREFIX}{json.dumps(event)}\n\n"


def _meta(body: Any) -> RequestMeta:
    return RequestMeta.from_json(body.vllm_xargs[XARGS_KEY])
