"""Requests over HTTP that nobody should send: refused by name, nothing leaks, the server goes on."""

import json

import httpx
import pytest

from over_http import KEY, LIMIT_S, MODEL
from over_http.test_spans import body_of, compose, raw


def test_beam_search_is_refused(served, profile) -> None:
    """docs/errors.md says so; to_sampling_params isn't called for it, and the beams' own parameters don't opt in."""
    prompt = compose(profile)
    response = raw(served, body_of(prompt, use_beam_search=True, n=2))
    assert response.status_code == 400, response.json()["choices"][0]["text"]


def test_generate_returns_visible_prompt_ids(served, profile) -> None:
    prompt = compose(profile, "bac")
    body = {"model": MODEL, "token_ids": prompt.token_ids, "return_token_ids": True}
    body["sampling_params"] = {"max_tokens": 2, "temperature": 0, "extra_args": prompt.vllm_xargs}
    response = raw(served, body, "/inference/v1/generate")
    assert response.status_code == 400 or response.json()["prompt_token_ids"] == prompt.plain_token_ids


@pytest.mark.parametrize("stream", [False, True])
def test_chat_with_forwarded_ids_returns_visible_prompt_ids(served, profile, stream) -> None:
    """vLLM 0.32 takes a chat's prompt ids in kv_transfer_params, so token prompts reach the chat route."""
    prompt = compose(profile, "bac")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "temperature": 0}
    body |= {"kv_transfer_params": {"prompt_token_ids": prompt.token_ids}, "vllm_xargs": prompt.vllm_xargs}
    response = raw(served, {**body, "return_token_ids": True, "stream": stream}, "/v1/chat/completions")
    if response.status_code == 400:
        return
    events = [e.removeprefix("data: ") for e in response.text.strip().split("\n\n")]
    told = [
        b["prompt_token_ids"]
        for b in map(json.loads, (e for e in events if e != "[DONE]"))
        if b.get("prompt_token_ids")
    ]
    assert told and all(ids == prompt.plain_token_ids for ids in told)


def test_batches_sequences_and_usage_in_a_stream(served, profile) -> None:
    prompts = [compose(profile, "bac"), compose(profile, "cab")]
    body = {
        **body_of(prompts[0]),
        "prompt": [p.token_ids for p in prompts],
        "n": 2,
        "temperature": 1,
        "return_token_ids": True,
    }
    meta = json.loads(body["vllm_xargs"]["minipic"])
    meta.pop("names", None)
    body["vllm_xargs"] = {"minipic": json.dumps(meta)}
    whole = raw(served, body).json()
    assert "choices" in whole, whole
    assert [c["prompt_token_ids"] for c in whole["choices"]] == [p.plain_token_ids for p in prompts for _ in range(2)]
    streamed = raw(served, {**body, "stream": True, "stream_options": {"include_usage": True}}).text
    events = [json.loads(e[6:]) for e in streamed.split("\n\n") if e.startswith("data: {")]
    got = {c["index"]: c["prompt_token_ids"] for e in events for c in e["choices"] if c.get("prompt_token_ids")}
    assert got == {i: prompts[i // 2].plain_token_ids for i in range(4)}
    assert events[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_a_malformed_request_in_a_stream_that_asks_for_ids(served, profile) -> None:
    body = {**body_of(compose(profile)), "vllm_xargs": {"minipic": "{"}, "stream": True, "return_token_ids": True}
    response = raw(served, body)
    assert response.status_code == 400 or '"error"' in response.text


def test_a_fingerprint_that_no_answer_could_repeat(served, profile) -> None:
    prompt = compose(profile)
    meta = {**json.loads(prompt.vllm_xargs["minipic"]), "fingerprint": "\ud800"}
    response = raw(served, body_of(prompt, vllm_xargs={"minipic": json.dumps(meta)}))
    assert response.status_code == 400, response.text


@pytest.mark.parametrize("ids", [[-1], [10**30], [49152 * 4]], ids=["negative", "huge", "beyond the vocabulary"])
@pytest.mark.parametrize("path", ["/v1/minipic/spans", "/v1/minipic/spans/lookup"])
@pytest.mark.parametrize("where", ["span", "anchor"])
def test_ids_that_are_none_are_client_errors(served, ids, path, where) -> None:
    body = {"spans": [{"token_ids": ids if where == "span" else [5]}]}
    if where == "anchor":
        body["anchor_token_ids"] = ids
    response = raw(served, body, path)
    assert response.status_code < 500, response.text
    assert raw(served, {"spans": [{"token_ids": [5, 6]}]}, "/v1/minipic/spans").status_code == 200


def test_an_empty_span_is_rejected_alone(served) -> None:
    for anchor in ([], None):
        spans = [{"token_ids": []}, {"text": " "}, {"token_ids": [500, 600]}]
        body = {"spans": spans, **({} if anchor is None else {"anchor_token_ids": anchor})}
        *empty, other = raw(served, body, "/v1/minipic/spans").json()["spans"]
        assert [(s["status"], s["reason"]) for s in empty] == [("rejected", "it has no tokens")] * 2
        assert other["status"] in ("hit", "computed")


def test_statuses_of_others(served, profile) -> None:
    raw(served, body_of(compose(profile), cache_salt="tenant-a"))
    headers = {"Authorization": f"Bearer {KEY}"}
    assert httpx.get(f"{served}/v1/minipic/requests/cmpl", headers=headers, timeout=LIMIT_S).status_code == 404
