"""What hostile or careless requests do to the scheduler, its statuses and its memory."""

import json

import pytest

from invariants.engines import CONTROL
from minipic_sdk.errors import LayoutError
from minipic_sdk.protocol import RequestMeta
from reference.prompts import PromptSpec, dep, head, span
from scheduling.test_directed import HEAD, LONG, A, finish, prompt
from scheduling.test_properties import words


@pytest.mark.parametrize("asked", ["cmpl", "spans", "0_cmpl"])
def test_the_status_route_answers_for_whole_ids_only(dry, asked):
    """GET /v1/minipic/requests/cmpl must not return the oldest remembered request of whoever it was."""
    d = dry(blocks=100)
    spec = PromptSpec((head(*HEAD), span(*A), dep(1, 2)), anchor=3, names=("merger with Acme.pdf",))
    d.add(spec, 1, salt="tenant-a", request_id=f"{asked}-5f1c9a7e0b-0-12ab34cd")
    d.drain()
    assert d.scheduler.minipic("statuses", asked) is None


def test_the_status_route_finds_requests_of_several_sequences(dry):
    """vLLM names the n sequences of a request 0_<id>, 1_<id>, ... (v1/engine/parallel_sampling.py)."""
    d = dry(blocks=100)
    for i in range(2):
        d.add(prompt(A), 1, request_id=f"{i}_cmpl-5f1c9a7e0b-0-12ab34cd")
    d.drain()
    assert d.scheduler.minipic("statuses", "cmpl-5f1c9a7e0b") is not None


def test_salt_differs_is_a_reason_that_can_happen(dry):
    """docs/is-it-working.md lists it: a shared (public) copy is cached, yours is under a salt."""
    d = dry(blocks=100)
    public = PromptSpec((head(*HEAD), span(*A, public=True), dep(1, 2)), anchor=3)
    private = PromptSpec((head(*HEAD), span(*A), dep(1, 2)), anchor=3)
    d.add(public, 1, salt="red")
    d.drain()
    d.add(private, 1, salt="blue", request_id="mine")
    d.drain()
    assert d.scheduler.minipic("statuses", "mine")[0]["reason"] == "salt differs"


def test_public_marks_are_not_repeated():
    """A list of a million zeros would be scanned once per span in the engine's loop."""
    spec = PromptSpec((head(*HEAD), span(*A), dep(1, 2)), anchor=3)
    meta = RequestMeta.from_json(json.dumps({**json.loads(spec.meta()), "public": [0] * 1000}))
    with pytest.raises(LayoutError, match="twice"):
        meta.parse(spec.physical(), control=CONTROL, block_size=16)


def test_names_cannot_fill_the_engines_memory(dry):
    """4096 logs and 65536 names are kept, whatever their length: 200 kB names are refused or cut."""
    d = dry(blocks=100)
    for i in range(20):
        spec = PromptSpec((head(*HEAD), span(*words(20)), dep(1, 2)), anchor=3, names=(f"{i}" + "x" * 200_000,))
        d.add(spec, 1)
        d.drain()
    kept = sum(len(n) for *_, n in d.scheduler.history._names)
    kept += sum(len(s["name"]) for log in d.scheduler.span_log.values() for s in log)
    assert kept < 100_000


@pytest.mark.parametrize("reader", ["span", "plain"])
def test_a_plain_chunk_preempted_in_its_own_step_is_never_hit(dry, reader):
    """The hole that _preempt_request closes for span requests is open for plain ones (stock vLLM has it too).

    Head blocks hash as stock's, so what a plain request published and never wrote becomes a span request's head.
    """
    met = 0
    for blocks, n in ((23, 32), (24, 33), (24, 34)):
        d = dry(blocks=blocks, scheduling_policy="priority", long_prefill_token_threshold=48, max_num_batched_tokens=96)
        long = [*HEAD, *LONG]
        d.add(long, 2, priority=2)
        d.step()
        for _ in range(3):
            d.add(list(words(n)), 14)
        for _ in range(20):
            d.step()
            if d.scheduler.requests["r1"].num_preemptions:
                met += 1
                break
        d.abort("r1")
        again = PromptSpec((head(*long), dep(*words(5))), anchor=3) if reader == "span" else [*long, *words(5)]
        asked = {d.add(again, 2, priority=1): (again, 2)}
        finish(d, asked)
    assert met


def test_the_status_log_is_bounded_by_spans(dry, monkeypatch):
    monkeypatch.setattr("minipic_server.scheduler.SPANS_REMEMBERED", 100)
    d = dry(blocks=400, max_model_len=4096, max_num_batched_tokens=4096)
    spec = PromptSpec((head(*HEAD), *(span(*words(4)) for _ in range(30)), dep(1, 2)), anchor=3)
    for number in range(9):
        d.add(spec, 1, request_id=f"r{number}")
        d.drain()
    log = d.scheduler.span_log
    assert sum(map(len, log.values())) <= 100
    assert list(log) == ["r6", "r7", "r8"]


def test_requests_without_spans_cannot_fill_the_status_log(dry, monkeypatch):
    """A head and a dependent segment have no status to count."""
    monkeypatch.setattr("minipic_server.scheduler.SPANS_REMEMBERED", 20)
    d = dry(blocks=100)
    for number in range(60):
        d.add(PromptSpec((head(*HEAD), dep(1, 2)), anchor=3), 1, request_id=f"r{number}")
        d.drain()
    d.add(prompt(A), 1, request_id="x" * 100_000)
    d.drain()
    assert len(d.scheduler.span_log) <= 20
    assert max(map(len, d.scheduler.span_log)) < 1000


def test_one_id_many_times_does_not_push_others_out_of_the_status_log(dry, monkeypatch):
    """A client that retries under its own X-Request-Id, or sends a list of prompts: each takes the last one's place."""
    monkeypatch.setattr("minipic_server.scheduler.SPANS_REMEMBERED", 20)
    d = dry(blocks=100)
    for request_id in ("mine", *(f"yours-{i}-{i:08x}" for i in range(30)), "hers"):
        d.add(prompt(A), 1, request_id=request_id)
        d.drain()
    assert list(d.scheduler.span_log) == ["mine", "yours", "hers"]
    assert d.scheduler.minipic("statuses", "mine") is not None


def test_spans_shorter_than_a_block_are_not_remembered(dry):
    """Hashes of spans are counted by their blocks; those without one would stay for ever, one a salt."""
    d = dry(blocks=100)
    for number in range(20):
        ids = [*range(200, 216), CONTROL[0], 1, 2]
        d.add(ids, 1, salt=f"tenant {number}", extra_args={"minipic": '{"v":1}'})
        d.drain()
    assert not d.hasher._memo


def test_salts_and_anchors_are_remembered_by_digest(dry):
    """65536 names and keys are kept: not with a salt or an anchor of a megabyte each."""
    d = dry(blocks=100, max_model_len=4096)
    d.add(PromptSpec((head(*range(1000, 1900)), span(*A), dep(1, 2)), anchor=900, names=("a",)), 1, salt="x" * 100_000)
    d.drain()
    kept = [part for entry in (*d.scheduler.history._names, *d.scheduler.history._keys) for part in entry]
    assert max(map(len, kept)) <= 64
    assert d.hasher._span_root.cache_info().maxsize <= 64
