"""Options of ``generate`` and ``chat``, as OpenAI and vLLM name them."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from minipic_sdk.errors import InputError

DEFAULT_MAX_TOKENS: Final = 512


class SamplingOptions(TypedDict, total=False):
    """What a request may say about generation; ``None`` means "not given", so the server's default holds."""

    max_tokens: int | None  # generated tokens, at most; by default 512
    temperature: float | None  # 0: greedy
    top_p: float | None
    top_k: int | None
    min_p: float | None
    n: int | None  # completions of the same prompt
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    min_tokens: int | None
    ignore_eos: bool | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | None  # token id, as text -> bias
    logprobs: int | None  # alternatives per generated token
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    structured_outputs: Mapping[str, Any] | None  # vLLM: {"json": schema}, {"regex": ...}, {"choice": [...]}, ...
    response_format: Mapping[str, Any] | None
    priority: int | None
    user: str | None
    cache_salt: str | None  # by default the client's
    timeout: float | None  # seconds; by default the client's
    extra_body: Mapping[str, Any] | None  # further fields of the request's JSON, unchecked


def request_params(options: SamplingOptions, *, cache_salt: str | None, stream: bool) -> dict[str, Any]:
    """The fields of a request body that ``options`` make.

    Raises:
        InputError: an option that doesn't exist.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if unknown := given.keys() - SamplingOptions.__annotations__.keys():
        name = min(unknown)
        near = get_close_matches(name, SamplingOptions.__annotations__, 1)
        hint = f"did you mean {near[0]!r}?" if near else "put further fields into extra_body"
        raise InputError(f"there is no option {name!r}: {hint}")
    given.pop("timeout", None)
    given.pop("extra_body", None)
    params: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS, **given}
    if cache_salt is not None:
        params.setdefault("cache_salt", cache_salt)
    if stream:
        params["stream"] = True
    return {**params, **(options.get("extra_body") or {})}
