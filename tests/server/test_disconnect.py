"""A client that has gone wants nothing computed any more."""

import asyncio
import json

import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI

from minipic_server import routes


def test_a_prefill_ends_with_its_client():
    ended: list[str] = []

    class Service:
        async def prefill(self, body):
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                ended.append(body.spans[0].text)
                raise

    app = FastAPI()
    app.include_router(routes.router)
    app.state.minipic_service = Service()
    body = json.dumps({"spans": [{"text": "a document"}]}).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/minipic/spans",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        pass

    async def call():
        await asyncio.wait_for(app(scope, receive, send), 60)
        await asyncio.sleep(0)

    asyncio.run(call())
    assert ended == ["a document"]
