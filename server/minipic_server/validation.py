"""Refusing malformed span requests in the front end, before the engine sees them (I6, I9).

Everything here ends in a 4xx that names the token index and the rule. vLLM answers 400 for its own client errors only
(v1/engine/async_llm.py turns any other exception into a 500), hence the classes.
"""

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError

from minipic_sdk.errors import LayoutError
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig
from minipic_server.cut import find_cut, pack
from minipic_server.state import CHECKED_KEY, opted_in

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine import EngineCoreRequest


MAX_SEEN = 1 << 22  # segments that all dependent ones see together: each takes memory in the worker
_MAX_BIASES = 1024  # a row of v1/worker/gpu/sample/logit_bias.py; three are ours


class ProfileMismatch(GracefulHTTPError, ValueError):
    """The request was composed with another profile than the server's: HTTP 409."""

    def __init__(self, message: str) -> None:
        super().__init__(message, HTTPStatus.CONFLICT)


class InvalidSpanRequest(VLLMClientError, ValueError):
    """The request breaks a rule of the token layout: HTTP 400."""


def check_request(vllm_config: "VllmConfig", request: "EngineCoreRequest", prompt: Any) -> None:
    """Validate a processed request that opted in; plain requests return at once.

    Also masks the control tokens from sampling in the request's own copy of its parameters, and packs the ids there.

    Raises:
        InvalidSpanRequest: with the index and the rule.
        ProfileMismatch: for a stale fingerprint.
    """
    text = opted_in(request.sampling_params)
    if text is None:
        return
    try:
        _check(vllm_config, request, prompt, text)
    except ProfileMismatch:
        raise
    except ValueError as error:
        raise InvalidSpanRequest(str(error)) from None


def _check(vllm_config: "VllmConfig", request: "EngineCoreRequest", prompt: Any, text: str) -> None:
    params = request.sampling_params
    assert params is not None
    config = SpanConfig.of(vllm_config)
    if config is None:
        raise ValueError(f"vllm_xargs[{XARGS_KEY!r}]: this server was not started for spans")
    if request.prompt_token_ids is None or request.prompt_embeds is not None or request.mm_features:
        raise ValueError("span requests take token ids only")
    if isinstance(prompt, str) or (isinstance(prompt, dict) and prompt.get("prompt") is not None):
        # Text that end users typed may spell a control token; ids come from compose, which can't produce one.
        raise ValueError("span requests take token ids, not text: compose the prompt with the SDK")
    if request.resumable:
        raise ValueError("span requests can't be streaming-input sessions")
    meta = RequestMeta.from_json(text)
    if meta.fingerprint and config.fingerprint and meta.fingerprint != config.fingerprint:
        raise ProfileMismatch(
            f"stale profile: the prompt was composed with fingerprint {meta.fingerprint}, this server has "
            f"{config.fingerprint} (another tokenizer, chat template, block size, control ids, anchor or plugin "
            "version); fetch GET /v1/minipic/profile and compose again"
        )
    if meta.head_at:
        raise LayoutError(None, "head_at is set by the engine only")
    ids, size = request.prompt_token_ids, config.block_size
    packed = pack(ids)
    cut = find_cut(packed, config.control, size)
    layout = meta.parse(ids, control=config.control, block_size=size, cut=cut)
    dependents = [s.kind for s in layout.segments].count("dependent")
    if dependents * len(layout.segments) > MAX_SEEN:
        raise LayoutError(None, f"{dependents} dependent segments among {len(layout.segments)} are too many")
    limit = vllm_config.model_config.max_model_len
    placed = layout.segments if meta.placements else layout.segments[-1:]  # else the last one reaches furthest
    if any(s.logical_stop > limit for s in placed):
        raise LayoutError(None, f"a logical position reaches beyond max_model_len={limit}")
    tail = layout.segments[-1]
    if tail.logical_stop > layout.num_tokens and tail.logical_stop + (params.max_tokens or 0) > limit:
        raise LayoutError(tail.start, f"max_tokens reaches beyond max_model_len={limit} behind the gaps in positions")
    if not layout.generates and (params.max_tokens or 0) > 1:
        raise LayoutError(tail.start, "a prompt that generates must not end in a span")
    for option in ("prompt_logprobs", "prompt_logprob_token_ids"):
        if getattr(params, option, None) is not None:
            raise ValueError(f"{option} is not available for span requests")
    params.logit_bias = {**(params.logit_bias or {}), **dict.fromkeys(config.control, float("-inf"))}
    if len(params.logit_bias) > _MAX_BIASES:
        raise ValueError(f"logit_bias of a span request has room for {_MAX_BIASES - len(config.control)} tokens")
    # Always ours, whatever a client sends under this name: packing takes milliseconds, handing bytes over does not.
    params.extra_args = {**(params.extra_args or {}), CHECKED_KEY: (packed, cut)}


_WITHOUT_SPANS = ("echo", "suffix", "use_beam_search")  # hand physical prompts back, or leave the opt-in behind


def body_refusal(body: Any) -> str | None:
    """Why a request body of one of vLLM's generating routes can't be served with spans, or ``None``."""
    if not spans_in(body):
        return None
    named = next((option for option in _WITHOUT_SPANS if getattr(body, option, None)), None)
    if named is None and getattr(body, "return_token_ids", None) and not hasattr(body, "prompt"):
        named = "return_token_ids (other than at /v1/completions)"
    return named and f"{named} is not available for span requests (vllm_xargs[{XARGS_KEY!r}] is set)"


def spans_in(body: Any) -> bool:
    """Whether a request body of a generating route opts in."""
    given = getattr(body, "vllm_xargs", None) or getattr(getattr(body, "sampling_params", None), "extra_args", None)
    return XARGS_KEY in (given or {})
