"""The public contract on a real server: compose, warm, ask, and what the answers say."""

import asyncio
import json
import re
from dataclasses import replace

import httpx
import pytest

from minipic_sdk import (
    AsyncMiniPIC,
    BadRequestError,
    Document,
    InputError,
    MiniPIC,
    ModelProfile,
    ProfileMismatchError,
    Prompt,
)
from over_http import KEY, LIMIT_S, MODEL

TOWNS = [
    Document(
        "Averby lies on the river Tolm. Its market is held on Tuesdays, and its bridge has seven arches.", name="a"
    ),
    Document("Brindle is known for its clocks. The oldest one was built by Ada Quist in the year 1702.", name="b"),
    Document("Corvane stands on a cliff. Its lighthouse keeper, Tomas Ebel, has a grey cat called Soot.", name="c"),
]
QUESTION = "What is the name of the lighthouse keeper's cat?"


def compose(profile: ModelProfile, order: str = "abc", question: str = QUESTION, **options) -> Prompt:
    docs = {d.name: d for d in TOWNS}
    return Prompt.compose([docs[n] for n in order], question, profile=profile, **options)


def raw(served: str, body: dict, path: str = "/v1/completions") -> httpx.Response:
    return httpx.post(served + path, json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=LIMIT_S)


def body_of(prompt: Prompt, **extra) -> dict:
    sent = {"model": MODEL, "prompt": prompt.token_ids, "max_tokens": 4, "temperature": 0}
    return {**sent, "vllm_xargs": prompt.vllm_xargs, **extra}


def test_the_profile_is_that_of_the_model_directory(profile) -> None:
    from minipic_cli.models import default_model_dir

    local = ModelProfile.from_directory(default_model_dir(), block_size=profile.block_size)
    assert profile.model == MODEL
    assert profile.control_tokens == local.control_tokens
    assert profile.anchor_token_ids == local.anchor_token_ids
    assert profile.fingerprint == local.fingerprint


def test_warm_once_then_any_order_hits(client, profile) -> None:
    first = client.warm(TOWNS)
    assert {s.status for s in first.spans} <= {"hit", "computed"}
    assert client.warm(TOWNS).count("hit") == 3
    assert client.lookup(TOWNS).count("resident") == 3
    for order in ("cab", "bca", "ac", "b"):
        result = client.generate(compose(profile, order), max_tokens=4, temperature=0)
        assert [s.status for s in result.spans] == ["hit"] * len(order)
        assert [s.name for s in result.spans] == list(order)
        assert result.usage.cached_tokens >= sum(s.tokens for s in result.spans)


def test_an_empty_document_fails_nothing(client, profile) -> None:
    docs = ["", "The empty chapter is chapter nine.", " \n"]
    assert [s.status for s in client.warm(docs).spans] == ["rejected", "computed", "rejected"]
    assert [s.reason for s in client.lookup(docs).spans] == ["it has no tokens", None, "it has no tokens"]
    result = client.generate(Prompt.compose(docs, "Which chapter is empty?", profile=profile), max_tokens=4)
    assert [s.status for s in result.spans] == ["hit"]


def test_a_changed_document_is_computed_and_the_reason_named(client, profile) -> None:
    client.warm(TOWNS)
    changed = Document(TOWNS[0].text.replace("seven", "eight"), name="a")
    prompt = Prompt.compose([changed, TOWNS[1]], QUESTION, profile=profile)
    one, other = client.generate(prompt, max_tokens=2, temperature=0).spans
    assert (one.status, other.status) == ("computed", "hit")
    assert "text changed" in one.reason


def test_cold_warm_and_streamed_give_the_same_tokens_and_text(client, profile) -> None:
    documents = [Document(f"{d.text} This is note {i}, told only here.", name=d.name) for i, d in enumerate(TOWNS)]
    prompt = Prompt.compose(documents, QUESTION, profile=profile)
    cold = client.generate(prompt, max_tokens=12, temperature=0)
    warm = client.generate(prompt, max_tokens=12, temperature=0)
    with client.generate(prompt, max_tokens=12, temperature=0, stream=True) as stream:
        chunks = list(stream)
        streamed = stream.result()
    assert {s.status for s in cold.spans} == {"computed"}
    assert {s.status for s in (*warm.spans, *streamed.spans)} == {"hit"}
    assert cold.token_ids == warm.token_ids == streamed.token_ids != ()
    assert cold.text == warm.text == streamed.text == "".join(c.text for c in chunks)
    assert profile.tokenizer.decode(list(cold.token_ids)).strip().startswith(cold.text.strip()[:8])


def test_everything_dependent_answers_as_plain_tokens_do(client, profile) -> None:
    """Transparency, I2: control tokens and padding change nothing."""
    documents = [Document(d.text, name=d.name, cache=False) for d in TOWNS]
    spans = client.generate(Prompt.compose(documents, QUESTION, profile=profile), max_tokens=12, temperature=0)
    plain = client.generate(compose(profile, layout="prefix"), max_tokens=12, temperature=0)
    assert spans.token_ids == plain.token_ids


@pytest.mark.parametrize("stream", [False, True])
def test_returned_prompt_ids_are_the_visible_ones(served, profile, stream) -> None:
    prompt = compose(profile, "bac")
    response = raw(served, body_of(prompt, return_token_ids=True, stream=stream))
    if stream:
        events = [json.loads(e[6:]) for e in response.text.split("\n\n") if e.startswith("data: {")]
        choices = [e["choices"][0] for e in events if e["choices"]]
    else:
        choices = response.json()["choices"]
    assert choices[0]["prompt_token_ids"] == prompt.plain_token_ids
    assert sum(len(c["token_ids"]) for c in choices) == 4


def test_what_stock_does_for_a_request_works_for_spans(served, profile) -> None:
    prompt = compose(profile, "cb")
    sampled = body_of(prompt, n=2, logprobs=3, temperature=1.0, seed=1, return_tokens_as_token_ids=True)
    two = raw(served, sampled).json()["choices"]
    control = {f"token_id:{t}" for t in profile.control_tokens}
    assert len(two) == 2
    for choice in two:
        assert len(choice["logprobs"]["tokens"]) == 4
        assert not control & set(choice["logprobs"]["tokens"])
    stopped = raw(served, body_of(prompt, max_tokens=40, stop=["."])).json()["choices"][0]
    assert "." not in stopped["text"]
    schema = {"type": "object", "properties": {"cat": {"enum": ["Soot", "Rex"]}}, "required": ["cat"]}
    made = raw(served, body_of(prompt, max_tokens=40, structured_outputs={"json": schema})).json()
    assert json.loads(made["choices"][0]["text"])["cat"] in ("Soot", "Rex")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids, p: [*ids[:3], p.control_tokens.ssep, *ids[4:]], "token 3: SSEP inside a block"),
        (lambda ids, p: [*ids[:3], p.control_tokens.pad, *ids[4:]], "token 3: PAD before the end"),
        (lambda ids, p: [ids[1], *ids[1:]], "token 0: .*anchor"),
    ],
    ids=["ssep", "pad", "anchor"],
)
def test_a_malformed_layout_names_index_and_rule(served, client, profile, change, says) -> None:
    prompt = compose(profile)
    response = raw(served, {**body_of(prompt), "prompt": change(prompt.token_ids, profile)})
    assert response.status_code == 400
    assert re.search(says, response.json()["error"]["message"])
    assert client.generate(prompt, max_tokens=1).text is not None


def test_other_refusals(served, profile) -> None:
    prompt = compose(profile)
    unknown = {**json.loads(prompt.vllm_xargs["minipic"]), "v": 99}
    for extra, says in (
        ({"vllm_xargs": {"minipic": json.dumps(unknown)}}, "version 99"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": "text"}, "token ids"),
    ):
        response = raw(served, {**body_of(prompt), **extra})
        assert response.status_code == 400, extra
        assert says in response.json()["error"]["message"]


def test_control_ids_are_ordinary_tokens_without_the_opt_in(served, profile) -> None:
    ids = [
        *profile.encode("One two"),
        profile.control_tokens.ssep,
        profile.control_tokens.pad,
        *profile.encode(" three"),
    ]
    answer = raw(served, {"model": MODEL, "prompt": ids, "max_tokens": 2, "return_token_ids": True})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["prompt_token_ids"] == ids


def test_a_stale_profile_is_a_conflict(client, profile) -> None:
    other = replace(profile, anchor_token_ids=profile.anchor_token_ids[:2])
    with pytest.raises(ProfileMismatchError, match="fingerprint"):
        client.generate(compose(other), max_tokens=1)


def test_too_long_is_a_client_error(client, profile) -> None:
    long = [Document(" ".join(f"word{i}" for i in range(n, n + 300)), name=str(n)) for n in (0, 300, 600)]
    with pytest.raises(InputError, match="the model takes 2048"):
        Prompt.compose(long, QUESTION, profile=profile)
    elsewhere = Prompt.compose(long, QUESTION, profile=replace(profile, max_model_len=8192))
    with pytest.raises(BadRequestError, match="2048"):
        client.generate(elsewhere, max_tokens=1)


def test_salts_keep_caches_apart_but_public_documents_are_shared(served, profile) -> None:
    private, public = Document("A private remark about the mill.", name="x"), Document("Public!", name="y", public=True)
    with (
        MiniPIC(base_url=served, api_key=KEY, cache_salt="one") as one,
        MiniPIC(base_url=served, api_key=KEY, cache_salt="two") as two,
    ):
        one.warm([private, public])
        assert [s.status for s in one.lookup([private, public]).spans] == ["resident", "resident"]
        assert [s.status for s in two.lookup([private, public]).spans] == ["absent", "resident"]


def test_many_at_once_with_a_new_document_compute_it_once(served, profile) -> None:
    fresh = Document("Dunmore has a windmill whose sails were painted green by Lise Arno.", name="d")

    async def ask() -> list:
        async with AsyncMiniPIC(base_url=served, api_key=KEY) as it:
            prompts = [Prompt.compose([t, fresh], f"{QUESTION} {i}", profile=profile) for i, t in enumerate(TOWNS * 2)]
            return await asyncio.gather(*(it.generate(p, max_tokens=2, temperature=0) for p in prompts))

    before = raw_stats(served)
    results = asyncio.run(ask())
    after = raw_stats(served)
    assert all(r.text for r in results)
    assert after["computed_twice"] == before["computed_twice"]


def raw_stats(served: str) -> dict:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.get(f"{served}/v1/minipic/stats", headers=headers, timeout=LIMIT_S).json()


def test_a_chat_keeps_its_documents_and_its_past(client) -> None:
    messages: list = [{"role": "user", "content": "Which town has old clocks? Answer with its name."}]
    first = client.chat(messages, documents=TOWNS, max_tokens=12, temperature=0)
    messages += [first.message, {"role": "user", "content": "Who built the oldest one?"}]
    second = client.chat(messages, documents=TOWNS, max_tokens=12, temperature=0)
    assert {s.status for s in second.spans} == {"hit"}
    assert second.usage.cached_tokens >= first.usage.cached_tokens
    other = client.chat(messages, documents=TOWNS[::-1], max_tokens=12, temperature=0)
    assert {s.status for s in other.spans} == {"hit"}


def test_the_plain_openai_client_can_send_a_composed_prompt(served, profile) -> None:
    import openai

    prompt = compose(profile, "ca")
    with openai.OpenAI(base_url=f"{served}/v1", api_key=KEY) as it:
        done = it.completions.create(
            model=MODEL, prompt=prompt.token_ids, max_tokens=8, temperature=0, extra_body=prompt.extra_body
        )
    with MiniPIC(base_url=served, api_key=KEY) as ours:
        assert done.choices[0].text == ours.generate(prompt, max_tokens=8, temperature=0).text


def test_metrics_tell_of_spans(served) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    told = httpx.get(f"{served}/metrics", headers=headers, follow_redirects=True, timeout=LIMIT_S)
    assert "minipic:span_" in told.text
