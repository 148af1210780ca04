"""Pinned spans on vLLM's real scheduler and block pool: eviction leaves them alone, and nothing starves because of them."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from vllm.exceptions import VLLMClientError

from minipic_server.pins import ABSENT, pin_limit
from minipic_server.prefill import SpanService
from minipic_server.routes import SpanIn, SpansIn
from reference.prompts import PromptSpec
from scheduling.dry import BLOCK, CONTROL, Dry, answer
from scheduling.test_directed import A, B, C, prompt, warm
from scheduling.test_properties import ANCHOR, check_empty, words

SMALL = {"max_model_len": 192}  # 12 blocks


def asked(document, salt=None):
    """A span as the routes ask the scheduler about it."""
    ids = [CONTROL.ssep, *document]
    return {"ids": [*ids, *[CONTROL.pad] * (-len(ids) % BLOCK)], "anchor": list(ANCHOR), "salt": salt}


def pin(d: Dry, *documents, ttl=None):
    return d.scheduler.minipic("pin", {"spans": [asked(x) for x in documents], "ttl": ttl})


def status(d: Dry, document) -> tuple[bool, bool]:
    """Resident, pinned."""
    _, blocks, resident, pinned, _ = d.scheduler.minipic("lookup", [asked(document)])[0]
    return blocks == resident, pinned


def pressure(d: Dry, blocks: int) -> None:
    """Plain requests that use so many blocks, one after another."""
    for i in range(-(-blocks // 6)):
        ids = [1 + (i * 31 + j * 7) % 400 for j in range(6 * BLOCK - 2)]
        request = d.add(ids, 2)
        d.drain()
        assert d.outputs[request] == answer(ids, 2)


def finish(d: Dry) -> None:
    d.scheduler.pins.clear()
    check_empty(d)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_pinned_span_survives_pressure_and_another_does_not(dry, lag):
    d = dry(blocks=40, lag=lag, cls="AsyncSpanScheduler" if lag else "SpanScheduler", **SMALL)
    d.add(warm(A, B))
    d.drain()
    assert pin(d, A) == [None]
    pressure(d, 200)
    assert status(d, A) == (True, True)
    assert status(d, B) == (False, False)
    spec = prompt(A, B)
    request = d.add(spec, 3)
    d.drain()
    assert d.outputs[request] == answer(spec, 3)
    assert [s["status"] for s in d.scheduler.span_log[request]] == ["hit", "computed"]
    assert d.scheduler.minipic("unpin", [asked(A), asked(B)]) == [True, False]
    assert status(d, A) == (True, False)
    pressure(d, 200)
    assert status(d, A) == (False, False)
    check_empty(d)


@pytest.mark.parametrize("blocks", range(13, 34, 3))
def test_whatever_is_pinned_the_longest_prompt_still_runs(dry, blocks):
    d = dry(blocks=blocks, **SMALL)
    d.scheduler.pins.limit = limit = pin_limit(blocks, 1.0, 12)
    for i in range(40):
        document = words(30 + i % 3)
        d.add(warm(document), 1)
        d.drain()
        assert pin(d, document)[0] is None or d.scheduler.pins.usage()["pinned_blocks"] + 3 > limit
    longest = [*words(184)]
    plain = [d.add(longest, 8) for _ in range(3)]
    d.drain()
    assert [d.outputs[r] for r in plain] == [answer(longest, 8)] * 3
    finish(d)


def test_there_is_a_limit_and_what_is_over_it_is_told_why(dry):
    d = dry(blocks=40, **SMALL)
    d.scheduler.pins.limit = 7
    d.add(warm(A, B, C))  # 3, 3 and 2 blocks
    d.drain()
    room = d.scheduler.minipic("room", [asked(x) for x in (A, B, C, A)])
    assert [r is None for r in room] == [True, True, False, True]
    assert pin(d, A, B, A) == [None, None, None]
    (why,) = pin(d, C)
    assert why == (
        "pinned spans may take 7 KV blocks, 6 are taken and this one has 2: unpin some, or serve with a larger --pin-share"
    )
    assert d.scheduler.minipic("stats", None)["pinned_blocks"] == 6
    d.scheduler.minipic("unpin", [asked(A)])
    assert pin(d, C) == [None]
    d.scheduler.pins.limit = 0
    assert pin(d, A)[0].startswith("nothing can be pinned")
    finish(d)


def test_the_default_limit_leaves_room_for_the_longest_prompt():
    assert pin_limit(1000, 0.5, 100) == 500
    assert pin_limit(1000, 0.5, 800) == 199
    assert pin_limit(100, 0.5, 100) == 0


def test_what_is_not_there_can_t_be_pinned(dry):
    d = dry(blocks=40, **SMALL)
    assert pin(d, A) == [ABSENT]
    d.add(warm(A))
    d.drain()
    assert pin(d, A) == [None]
    assert d.scheduler.minipic("pin", {"spans": [asked(A, salt="other")], "ttl": None}) == [ABSENT]
    finish(d)


def test_a_time_to_live_ends(dry):
    d = dry(blocks=40, **SMALL)
    now = [100.0]
    d.scheduler.pins._clock = lambda: now[0]
    d.add(warm(A, B))
    d.drain()
    assert pin(d, A, B, ttl=10) == [None, None]
    assert d.scheduler.minipic("lookup", [asked(A)])[0][3:] == (True, 10)
    now[0] = 105
    assert pin(d, A, ttl=20) == [None]  # anew
    now[0] = 112
    pressure(d, 200)
    assert status(d, A) == (True, True)
    assert status(d, B) == (False, False)
    assert pin(d, A) == [None]  # for good
    now[0] = 1000
    assert d.scheduler.minipic("stats", None)["pinned_spans"] == 1
    assert d.scheduler.minipic("lookup", [asked(A)])[0][3:] == (True, None)
    assert pin(d, A, ttl=1) == [None]
    now[0] = 1002
    assert d.scheduler.minipic("stats", None)["pinned_spans"] == 0  # without a step
    check_empty(d)


def test_pinning_the_same_again_and_again_is_not_remembered_each_time(dry):
    """As a client does that keeps its spans alive; a deadline far away would otherwise stay until it comes."""
    d = dry(blocks=40, **SMALL)
    d.add(warm(A, B))
    d.drain()
    now = [0.0]
    d.scheduler.pins._clock = lambda: now[0]
    for i in range(300):
        now[0] = i
        pin(d, A, B, ttl=1000)
        d.scheduler.minipic("unpin", [asked(B)])
    assert len(d.scheduler.pins._deadlines) < 20
    now[0] = 1298
    assert status(d, A) == (True, True)
    now[0] = 1299
    assert status(d, A) == (True, False)
    check_empty(d)


def test_common_leading_blocks_are_held_once_and_kept_for_the_other(dry):
    d = dry(blocks=40, **SMALL)
    longer = (*A[:31], *words(20))  # the first two blocks are A's
    d.add(warm(A, longer))
    d.drain()
    assert pin(d, A, longer) == [None, None]
    assert d.scheduler.pins.usage()["pinned_blocks"] == 5
    d.scheduler.minipic("unpin", [asked(A)])
    pressure(d, 200)
    assert status(d, longer) == (True, True)
    finish(d)


def test_resetting_the_cache_drops_pins(dry):
    d = dry(blocks=40, **SMALL)
    d.add(warm(A))
    d.drain()
    pin(d, A)
    assert d.scheduler.reset_prefix_cache() is True
    assert status(d, A) == (False, False)
    assert d.scheduler.pins.usage()["pinned_blocks"] == 0
    check_empty(d)


def test_a_span_whose_block_leaves_the_cache_is_pinned_no_longer(dry):
    """As when the request that is computing it is preempted in its own step."""
    d = dry(blocks=40, **SMALL)
    d.add(warm(A, B))
    d.drain()
    pin(d, A, B)
    held = next(iter(d.scheduler.pins._held.values())).block.block_id
    d.scheduler.pins.forget({held})
    d.scheduler.kv_cache_manager.evict_blocks({held})
    assert (status(d, A), status(d, B)) == ((False, False), (True, True))
    finish(d)


@pytest.mark.parametrize("seed", range(12))
def test_requests_among_pins_that_come_and_go_are_right_and_end(dry, seed):
    r = random.Random(seed)
    lag = seed % 2
    options = {**SMALL, "scheduling_policy": "priority"} if seed % 3 == 0 else SMALL
    d = dry(blocks=r.randint(16, 34), lag=lag, cls="AsyncSpanScheduler" if lag else "SpanScheduler", **options)
    d.scheduler.pins.limit = pin_limit(d.blocks, 1.0, 12)
    documents = [words(n) for n in (12, 20, 31, 40)]
    now, expected = [0.0], {}
    d.scheduler.pins._clock = lambda: now[0]
    for _ in range(60):
        now[0] += r.random()
        for _ in range(r.randrange(3)):
            chosen = r.sample(documents, r.randint(1, 2))
            spec: PromptSpec | list[int] = (
                prompt(*chosen, heading=ANCHOR) if r.random() < 0.7 else [*words(r.randint(5, 150))]
            )
            tokens = r.randint(1, 6)
            expected[d.add(spec, tokens, priority=r.randrange(3))] = (spec, tokens)
        document = r.choice(documents)
        if r.random() < 0.4:
            pin(d, document, ttl=r.choice([None, 1.0, 3.0]))
        elif r.random() < 0.3:
            d.scheduler.minipic("unpin", [asked(document)])
        d.step()
        assert d.scheduler.pins.usage()["pinned_blocks"] <= d.scheduler.pins.limit
        for document in documents:
            resident, pinned = status(d, document)
            assert resident or not pinned
    d.drain()
    for request, (spec, tokens) in expected.items():
        assert d.outputs[request] == answer(spec, tokens)
    finish(d)


def service(d: Dry) -> SpanService:
    """The routes' service over a dry scheduler."""

    class Engine:
        engine_core = None

        def __init__(self) -> None:
            self.engine_core = self
            self.calls = 0

        async def call_utility_async(self, name, operation, payload):
            return d.scheduler.minipic(operation, payload)

        async def generate(self, given, params, request_id, lora_request=None):
            from vllm.v1.request import Request

            self.calls += 1
            assert len(given["prompt_token_ids"]) + params.max_tokens <= d.scheduler.max_model_len
            request = Request(request_id, given["prompt_token_ids"], params, None, block_hasher=d.hasher)
            d.outputs[request_id] = []
            d.scheduler.add_request(request)
            d.drain()
            yield SimpleNamespace(kv_transfer_params={"minipic": {"spans": d.scheduler.span_log[request_id]}})

    made = object.__new__(SpanService)
    made._vocabulary = 512
    made._engine, made._models = Engine(), None
    made._config = SimpleNamespace(control=CONTROL, block_size=BLOCK)
    made.profile = SimpleNamespace(fingerprint="f", anchor_token_ids=ANCHOR, max_model_len=d.scheduler.max_model_len)
    return made


def body(*documents, **more) -> SpansIn:
    return SpansIn(spans=[SpanIn(token_ids=list(x), name=f"d{i}") for i, x in enumerate(documents)], **more)


def test_the_route_pins_what_it_prefills_and_rejects_the_rest(dry):
    d = dry(blocks=40, max_model_len=256)
    d.scheduler.pins.limit = 7
    now = [100.0]
    d.scheduler.pins._clock = lambda: now[0]
    made = service(d)
    got = asyncio.run(made.prefill(body(A, B, A, C, pin=True)))
    assert [s["status"] for s in got] == ["computed", "computed", "hit", "rejected"]
    assert [s["pinned"] for s in got] == [True, True, True, False]
    assert "pinned spans may take 7" in got[3]["reason"]
    assert status(d, C) == (False, False)  # not computed in vain
    pressure(d, 200)
    again = asyncio.run(made.prefill(body(A, B, ttl=30)))
    assert [(s["status"], s["expires_in"]) for s in again] == [("hit", 30), ("hit", 30)]
    now[0] = 112
    looked = asyncio.run(made.lookup(body(A)))[0]
    assert (looked["pinned"], looked["expires_in"]) == (True, 18)
    gone = asyncio.run(made.unpin(body(A, B, C)))
    assert [s["pinned"] for s in gone] == [False] * 3
    assert [s["status"] for s in gone] == ["resident", "resident", "absent"]
    assert asyncio.run(made.prefill(body(C)))[0]["status"] == "computed"
    check_empty(d)


def test_a_corpus_larger_than_the_cache_is_pinned_as_far_as_it_goes(dry):
    d = dry(blocks=40, max_model_len=256)
    made = service(d)
    documents = [words(40) for _ in range(30)]
    got = asyncio.run(made.prefill(body(*documents, pin=True)))
    pinned = [s["status"] == "computed" for s in got]
    assert pinned == [True] * sum(pinned) + [False] * (30 - sum(pinned))
    assert sum(pinned) == d.scheduler.pins.limit // 3
    assert all(status(d, x) == (True, True) for x in documents[: sum(pinned)])
    finish(d)


def test_a_long_anchor_of_ones_own_leaves_less_room_for_spans(dry):
    """One span too many in a pack would be a 400 for all of them; one that fits nowhere is rejected alone."""
    d = dry(blocks=40, max_model_len=256)
    made = service(d)
    long = body(*[words(40) for _ in range(3)], words(120), anchor_token_ids=list(words(150)))
    got = asyncio.run(made.prefill(long))
    assert [s["status"] for s in got] == ["computed"] * 3 + ["rejected"]
    assert got[3]["reason"] == "128 tokens with padding, the model has room for 90"
    assert [s["status"] for s in asyncio.run(made.lookup(long))] == ["resident"] * 3 + ["rejected"]
    everything = body(A, anchor_token_ids=list(words(300)))
    assert [s["status"] for s in asyncio.run(made.prefill(everything))] == ["rejected"]
    check_empty(d)


@pytest.mark.parametrize("salt", ["", "x" * 129, "a/b"], ids=["empty", "long", "slash"])
@pytest.mark.parametrize("route", ["prefill", "lookup", "unpin"])
def test_a_salt_is_one_that_vllms_own_routes_take(dry, route, salt):
    """An empty one, that vLLM refuses, would have put a tenant's spans where everybody hits them."""
    d = dry(blocks=40, max_model_len=256)
    with pytest.raises(VLLMClientError, match="cache_salt"):
        asyncio.run(getattr(service(d), route)(body(A, cache_salt=salt)))
    assert status(d, A) == (False, False)


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")])
def test_a_ttl_is_a_time(ttl):
    with pytest.raises(ValidationError):
        body(A, ttl=ttl)
