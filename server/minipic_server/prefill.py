"""Prefilling and looking up spans by content, for the HTTP routes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.entrypoints.generate.base.protocol import validate_cache_salt
from vllm.utils import random_uuid

from minipic_sdk import Document
from minipic_sdk.errors import MiniPICError
from minipic_sdk.profile import ModelProfile
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig
from minipic_server.pins import ABSENT
from minipic_server.validation import InvalidSpanRequest, ProfileMismatch

if TYPE_CHECKING:
    from minipic_server.routes import SpanIn, SpansIn

PACKED_TOKENS = 8192  # spans prefilled by one request, at most: small enough to interleave with decoding

PIN_ATTEMPTS = 3  # times a span is computed, when it is evicted before it can be pinned

Ask = Callable[[str, Any], Awaitable[Any]]


class SpanService:
    """Holds the served profile and talks to the engine like vLLM's own handlers do."""

    def __init__(self, engine: Any, name: str, models: Any) -> None:
        config = SpanConfig.of(engine.vllm_config)
        assert config is not None
        self._engine, self._models, self._config = engine, models, config
        model = engine.vllm_config.model_config
        self._vocabulary = model.get_vocab_size()
        self.profile = ModelProfile.from_directory(
            local_directory(model.model),
            block_size=config.block_size,
            control_tokens=config.control,
            model=name,
            max_model_len=model.max_model_len,
        )

    async def ask(self, operation: str, payload: Any) -> Any:
        """Ask the scheduler; see ``_SpanScheduling.minipic``."""
        return await self._engine.engine_core.call_utility_async("minipic", operation, payload)

    async def lookup(self, body: "SpansIn") -> list[dict[str, Any]]:
        """Resident, partial, absent or rejected, per span."""
        return [found for found, _ in await self._look_up(body)]

    async def unpin(self, body: "SpansIn") -> list[dict[str, Any]]:
        """Let go of pinned spans; what is known of each afterwards."""
        looked = await self._look_up(body)
        await self.ask("unpin", self._asked(body, [(i, ids) for i, (_, ids) in enumerate(looked) if ids]))
        return await self.lookup(body)

    async def prefill(self, body: "SpansIn") -> list[dict[str, Any]]:
        """Prefill what isn't resident, packed into few requests, and pin it if asked to; waits for all of it."""
        looked = await self._look_up(body)
        refused: dict[str, str] = {}  # by key: why it can't be pinned
        if body.holds:
            if self._adapter(body.model) is not None:
                raise InvalidSpanRequest("spans of adapters can't be pinned")
            await self._refuse(body, looked, refused)
        missing: dict[str, int] = {}
        there: dict[str, int] = {}
        for i, (found, ids) in enumerate(looked):
            if ids and found["key"] not in refused:
                (there if found["status"] == "resident" else missing).setdefault(found["key"], i)
        if body.holds:
            lost = await self._pin(body, [(i, looked[i][1]) for i in there.values()], looked, refused)
            missing |= {looked[i][0]["key"]: i for i, _ in lost}
        packs = self._pack(body, [(i, looked[i][1]) for i in missing.values()])
        reasons = await asyncio.gather(*(self._fill(body, pack, looked, refused) for pack in packs))
        why = {i: reason for pack in reasons for i, reason in pack.items()}
        out: list[dict[str, Any]] = []
        for i, (found, _) in enumerate(looked):
            if found["status"] == "rejected":
                out.append(found)
                continue
            if found["key"] in refused:
                reason = refused[found["key"]]
                out.append({**found, "status": "rejected", "reason": reason, "pinned": False, "expires_in": None})
                continue
            if body.holds:
                found |= {"pinned": True, "expires_in": body.ttl}
            first = missing.get(found["key"])
            status = "hit" if first != i else "computed"
            out.append({**found, "status": status, "reason": why.get(i) if status == "computed" else None})
        return out

    async def _look_up(self, body: "SpansIn") -> list[tuple[dict[str, Any], list[int]]]:
        if body.fingerprint and body.fingerprint != self.profile.fingerprint:
            raise ProfileMismatch(
                f"stale profile {body.fingerprint}: this server has {self.profile.fingerprint}; fetch it again"
            )
        validate_cache_salt(body.cache_salt)  # as vLLM's routes do: an empty one would be none, and shared with all
        out: list[tuple[dict[str, Any], list[int]]] = []
        room = self._room(body)
        for ordinal, span in enumerate(body.spans):
            found: dict[str, Any] = {"name": span.name or f"span {ordinal}", "key": None, "reason": None}
            try:
                ids = self._physical(span, room)
            except (MiniPICError, ValueError) as error:
                out.append(({**found, "status": "rejected", "reason": str(error), "tokens": 0, "blocks": 0}, []))
                continue
            visible = len(ids) - 1 - ids.count(self._config.control.pad)
            out.append(({**found, "tokens": visible}, ids))
        asked = self._asked(body, [(i, ids) for i, (_, ids) in enumerate(out) if ids])
        answers = iter(await self.ask("lookup", asked))
        for found, ids in out:
            if ids:
                key, blocks, resident, pinned, left = next(answers)
                status = "resident" if resident == blocks else "partial" if resident else "absent"
                found |= {"key": key, "status": status, "blocks": blocks, "resident_blocks": resident}
                found |= {"pinned": pinned, "expires_in": left}
        return out

    def _asked(self, body: "SpansIn", spans: list[tuple[int, list[int]]]) -> list[dict[str, Any]]:
        """Spans, with their numbers in the body, as the scheduler is asked about them."""
        if not spans:
            return []
        anchor, adapter = self._anchor(body), self._adapter(body.model)
        lora = None if adapter is None else (adapter.lora_name, adapter.lora_path)
        salts = (None if body.spans[i].public else body.cache_salt or None for i, _ in spans)
        return [
            {"ids": ids, "anchor": anchor, "salt": salt, "lora": lora}
            for (_, ids), salt in zip(spans, salts, strict=True)
        ]

    async def _refuse(
        self, body: "SpansIn", looked: list[tuple[dict[str, Any], list[int]]], refused: dict[str, str]
    ) -> None:
        """Find the spans that there is no room to pin, before anything is computed for them."""
        spans = [(i, ids) for i, (_, ids) in enumerate(looked) if ids]
        answers = await self.ask("room", self._asked(body, spans))
        refused |= {looked[i][0]["key"]: why for (i, _), why in zip(spans, answers, strict=True) if why is not None}

    async def _pin(
        self,
        body: "SpansIn",
        spans: list[tuple[int, list[int]]],
        looked: list[tuple[dict[str, Any], list[int]]],
        refused: dict[str, str],
    ) -> list[tuple[int, list[int]]]:
        """Pin resident spans; those that aren't resident any more are returned."""
        payload = {"spans": self._asked(body, spans), "ttl": body.ttl}
        answers = await self.ask("pin", payload) if spans else []
        refused |= {
            looked[i][0]["key"]: why
            for (i, _), why in zip(spans, answers, strict=True)
            if why is not None and why != ABSENT
        }
        return [span for span, why in zip(spans, answers, strict=True) if why == ABSENT]

    async def _fill(
        self,
        body: "SpansIn",
        pack: list[tuple[int, list[int]]],
        looked: list[tuple[dict[str, Any], list[int]]],
        refused: dict[str, str],
    ) -> dict[int, str | None]:
        """Prefill a pack and pin it at once: under pressure it could be evicted again by the next one."""
        reasons: dict[int, str | None] = {}
        for _ in range(PIN_ATTEMPTS):
            reasons = {**await self._prefill(body, pack), **reasons}
            pack = await self._pin(body, pack, looked, refused) if body.holds else []
            if not pack:
                return reasons
        refused |= {
            looked[i][0]["key"]: "evicted again before it could be pinned: the cache is too small" for i, _ in pack
        }
        return reasons

    def _anchor(self, body: "SpansIn") -> list[int]:
        own = body.anchor_token_ids
        if own is None:
            return list(self.profile.anchor_token_ids)
        if (bad := self._strange(own)) is not None:
            raise InvalidSpanRequest(f"anchor_token_ids[{bad}] is no token of the model")
        return own

    def _strange(self, ids: list[int]) -> int | None:
        """Index of the first id that the model has no embedding for."""
        return next((i for i, t in enumerate(ids) if not 0 <= t < self._vocabulary), None)

    def _room(self, body: "SpansIn") -> int:
        """Physical tokens of spans that fit behind the padded anchor, and one that is generated."""
        return max(0, self.profile.max_model_len - self._config.block_size - len(self._anchor(body)))

    def _physical(self, span: "SpanIn", room: int) -> list[int]:
        """SSEP, the visible tokens, padding up to the block."""
        control, size = self._config.control, self._config.block_size
        if span.token_ids is not None:
            ids = span.token_ids
        else:
            ids = self.profile.encode(Document.of(span.text or "").content)
        if not ids:
            raise ValueError("it has no tokens")
        if (bad := next((i for i, t in enumerate(ids) if t in control), None)) is not None:
            raise ValueError(f"token {bad} is a control token")
        if (bad := self._strange(ids)) is not None:
            raise ValueError(f"token {bad} is none of the model's")
        physical = [control.ssep, *ids]
        physical += [control.pad] * (-len(physical) % size)
        if len(physical) > room:
            raise ValueError(f"{len(physical)} tokens with padding, the model has room for {room}")
        return physical

    def _pack(self, body: "SpansIn", spans: list[tuple[int, list[int]]]) -> list[list[tuple[int, list[int]]]]:
        packs: list[list[tuple[int, list[int]]]] = []
        size = 0
        room = min(PACKED_TOKENS, self.profile.max_model_len // 2, self._room(body))
        for i, ids in spans:
            if not packs or size + len(ids) > room:
                packs.append([])
                size = 0
            packs[-1].append((i, ids))
            size += len(ids)
        return packs

    async def _prefill(self, body: "SpansIn", pack: list[tuple[int, list[int]]]) -> dict[int, str | None]:
        """One request: [anchor PAD][span]...; its sampled token is discarded. Returns the reason per span."""
        control, size = self._config.control, self._config.block_size
        anchor = self._anchor(body)
        head = [*anchor, *[control.pad] * (-len(anchor) % size)]
        public = tuple(n for n, (i, _) in enumerate(pack) if body.spans[i].public)
        names = tuple(body.spans[i].name or f"span {i}" for i, _ in pack)
        meta = RequestMeta(anchor=tuple(anchor), public=public, names=names)
        prompt: dict[str, Any] = {"prompt_token_ids": [*head, *(t for _, ids in pack for t in ids)]}
        if body.cache_salt:
            prompt["cache_salt"] = body.cache_salt
        params = SamplingParams(max_tokens=1, temperature=0, detokenize=False, extra_args={XARGS_KEY: meta.to_json()})
        adapter = self._adapter(body.model)
        statuses: list[dict[str, Any]] = []
        async for output in self._engine.generate(prompt, params, f"spans-{random_uuid()}", lora_request=adapter):
            statuses = ((output.kv_transfer_params or {}).get("minipic") or {}).get("spans") or []
        return {i: status.get("reason") for (i, _), status in zip(pack, statuses, strict=False)}

    def _adapter(self, model: str | None) -> Any:
        if model is None or self._models is None or self._models.is_base_model(model):
            return None
        found = self._models.lora_requests.get(model)
        if found is None:
            raise InvalidSpanRequest(f"the model {model!r} is not served here")
        return found


def local_directory(model: str) -> Path:
    """Where the model's files are: a directory as it is, a hub id in the hub's local cache."""
    path = Path(model)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["*.json", "*.jinja", "*.model", "*.tiktoken"]))
