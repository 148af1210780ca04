"""One measurement of the SDK benchmark, in a process of its own: ``python -m minipic_cli.bench.sdk.worker DO ARGUMENT``.

Prints a line of JSON. No server is involved: requests are answered inside the process.
"""

import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx

from minipic_cli.bench.sdk.corpora import documents
from minipic_cli.corpus.chunking import DEFAULT_TOKENS
from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.sources import scope, walk
from minipic_cli.corpus.warming import Warmer
from minipic_sdk import MiniPIC, ModelProfile, Prompt
from minipic_sdk.testing import FakeServer
from minipic_sdk.wire import PROFILE_PATH

_WARM_UP: Final = 20  # requests
_PIECE: Final = 8192  # characters that the bare tokenizer gets at once: about a chunk of ``minipic warm``


def requests(count: int) -> dict[str, Any]:
    """Requests through the SDK, each followed by a bare post of the same body; documents come in a new order each time.

    Returns:
        Seconds: ``pairs`` (SDK, bare) and ``compose``, the SDK's time until the prompt is there.
    """
    profile = ModelProfile.default()
    fake = FakeServer(profile=profile, reply="Forty crowns, says the handbook.").http_client()
    canned: dict[str, httpx.Response] = {}
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        """What the fake server said the first time, so that its work doesn't blur the difference."""
        seen[:] = [request]
        path = request.url.path
        if path not in canned:
            canned[path] = fake.request(request.method, request.url, content=request.content).raise_for_status()
        return httpx.Response(200, headers=canned[path].headers, content=canned[path].content)

    texts, shuffle = documents(profile), random.Random(0)
    found: list[tuple[float, float]] = []
    composed: list[float] = []
    bare = httpx.Client(transport=httpx.MockTransport(answer))
    with MiniPIC(http_client=httpx.Client(transport=httpx.MockTransport(answer))) as client:
        for number in range(count + _WARM_UP):
            shuffle.shuffle(texts)
            start = time.process_time()
            prompt = Prompt.compose(texts, f"How much is delivery to town {number}?", profile=profile)
            between = time.process_time()
            client.generate(prompt, max_tokens=16, temperature=0)
            stop = time.process_time()
            sent = json.loads(seen[0].content)
            headers, url = seen[0].headers, seen[0].url
            again = time.process_time()
            bare.post(url, json=sent, headers=headers).json()
            if number >= _WARM_UP:
                found.append((stop - start, time.process_time() - again))
                composed.append(between - start)
    return {"pairs": found, "compose": composed}


def warm(path: str) -> dict[str, Any]:
    """Read, cut, tokenise, record and send a corpus as ``minipic warm`` does, to a server that answers at once.

    Returns:
        Bytes, seconds of processor time, what was found, and the process's peak memory in MiB.
    """
    served = ModelProfile.default().to_json()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == PROFILE_PATH:
            return httpx.Response(200, json=served)
        # Counted, not parsed: reading ids costs the server, not the client.
        told = {"name": "", "status": "computed", "reason": "first seen", "tokens": 1, "blocks": 1}
        return httpx.Response(200, json={"spans": [told] * request.content.count(b'"token_ids"')})

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with tempfile.TemporaryDirectory() as folder, MiniPIC(http_client=http) as client:
        profile = client.profile()
        client.warm(["Tokenizer and fingerprint are there now."])
        begin = time.process_time()
        with Manifest(Path(folder, "corpus.db")) as manifest:
            warmer = Warmer(manifest, profile, client.warm, chunk_tokens=DEFAULT_TOKENS)
            warmer.run(walk([path]), scope([path]))
        taken = time.process_time() - begin
    assert not warmer.failures, warmer.failures
    totals = warmer.totals
    return {
        "bytes": totals.bytes,
        "cpu_seconds": taken,
        "documents": totals.documents,
        "chunks": totals.chunks,
        "tokens": totals.tokens,
        "peak_mib": _peak_mib(),
    }


def encode(path: str) -> dict[str, Any]:
    """The tokenizers package alone over the same texts; bytes and seconds of processor time."""
    from tokenizers import Tokenizer

    inner = Tokenizer.from_str(ModelProfile.default().tokenizer_spec.data)
    inner.encode_batch_fast(["loaded"], add_special_tokens=False)
    size, taken = 0, 0.0
    for source in walk([path]):
        text = source.path.read_text()
        if source.format == "jsonl":
            pieces = [json.loads(line)["text"] for line in text.splitlines()]
        else:
            pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        begin = time.process_time()
        for piece in pieces:
            _ = inner.encode_batch_fast([piece], add_special_tokens=False)[0].ids
        taken += time.process_time() - begin
        size += sum(len(piece.encode()) for piece in pieces)
    return {"bytes": size, "cpu_seconds": taken}


def _peak_mib() -> float:
    # Not getrusage: a child's ru_maxrss begins at what its parent had when it was started.
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    what, argument = sys.argv[1:]
    result = {"requests": lambda a: requests(int(a)), "warm": warm, "encode": encode}[what](argument)
    sys.stdout.write(json.dumps(result) + "\n")
