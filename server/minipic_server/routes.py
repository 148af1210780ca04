"""HTTP routes beside vLLM's own, under /v1 so that vLLM's API-key check guards them (DESIGN section 7).

Loaded through the ``vllm.endpoint_plugins`` group (vllm/plugins/endpoint_plugins/interface.py) when ``VLLM_PLUGINS``
names us. Vllm's OpenAI routes are untouched.
"""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from vllm.entrypoints.serve.utils.api_utils import with_cancellation

from minipic_server.config import SpanConfig
from minipic_server.envs import switched_on
from minipic_server.metrics import SpanMetrics
from minipic_server.prefill import SpanService

if TYPE_CHECKING:
    from starlette.datastructures import State

router = APIRouter(prefix="/v1/minipic", tags=["minipic"])
_SERVICE = "minipic_service"


class SpanIn(BaseModel):
    """One span: its text, as ``Prompt.compose`` would make it a span, or its visible token ids."""

    model_config = ConfigDict(extra="forbid")
    text: str | None = None
    token_ids: list[int] | None = None
    name: str | None = None
    public: bool = False  # shared across cache salts

    @model_validator(mode="after")
    def _one_source(self) -> "SpanIn":
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("give either text or token_ids")
        return self


class SpansIn(BaseModel):
    """Body of both span routes."""

    model_config = ConfigDict(extra="forbid")
    spans: list[SpanIn] = Field(max_length=4096)
    anchor_token_ids: list[int] | None = None  # default: the profile's
    cache_salt: str | None = None
    fingerprint: str | None = None
    model: str | None = None  # a served LoRA adapter's name, or the base model
    pin: bool = False  # keep the spans until they are unpinned; only where they are prefilled
    ttl: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # keep them for so many seconds

    @property
    def holds(self) -> bool:
        """Whether the spans are to be pinned, for ever or for a time."""
        return self.pin or self.ttl is not None


@router.get("/profile")
async def profile(request: Request) -> dict[str, Any]:
    """What a client must know to compose prompts: ``ModelProfile.to_json()``."""
    return _service(request).profile.to_json()


@router.post("/spans", response_model=None)  # a cancelled one has no answer
@with_cancellation  # a client that has gone wants nothing computed any more
async def spans(body: SpansIn, raw_request: Request) -> dict[str, Any]:
    """Prefill spans; waits for them. Per span: hit, computed or rejected, with the reason."""
    return {"spans": await _service(raw_request).prefill(body)}


@router.post("/spans/lookup")
async def lookup(request: Request, body: SpansIn) -> dict[str, Any]:
    """What is resident; computes nothing. Per span: resident, partial, absent or rejected."""
    return {"spans": await _service(request).lookup(body)}


@router.post("/spans/unpin")
async def unpin(request: Request, body: SpansIn) -> dict[str, Any]:
    """Let eviction take spans again; they stay cached until it does. Answers as the look-up does."""
    return {"spans": await _service(request).unpin(body)}


@router.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """Span counters since the server started, and the block pool's state."""
    return await _service(request).ask("stats", None)


@router.get("/requests/{request_id}")
async def statuses(request: Request, request_id: str) -> dict[str, Any]:
    """Per-span status of a recent request, for clients that streamed it."""
    found = await _service(request).ask("statuses", request_id)
    if found is None:
        raise HTTPException(404, f"no span request {request_id!r} is remembered")
    return {"spans": found}


def _service(request: Request) -> SpanService:
    service = getattr(request.app.state, _SERVICE, None)
    if service is None:
        raise HTTPException(404, "the engine was not started for spans: use `minipic serve`")
    return service


class MiniPICEndpoints:
    """The endpoint plugin."""

    name = "minipic"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes, if this server was started for spans (I10)."""
        if switched_on():
            app.include_router(router)

    async def init_state(self, engine_client: Any, state: "State", args: Namespace) -> None:
        """Keep what the routes need."""
        if engine_client is None or not switched_on() or SpanConfig.of(engine_client.vllm_config) is None:
            return
        names = getattr(args, "served_model_name", None) or [engine_client.vllm_config.model_config.model]
        service = SpanService(engine_client, names[0], getattr(state, "openai_serving_models", None))
        setattr(state, _SERVICE, service)
        SpanMetrics(names[0], service.ask).start()


def plugin() -> MiniPICEndpoints:
    """Entry point."""
    return MiniPICEndpoints()
