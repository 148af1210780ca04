"""What the adapters share: clients of both kinds, and the documents that prompts may quote."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from minipic_sdk.async_client import AsyncMiniPIC
from minipic_sdk.client import MiniPIC
from minipic_sdk.documents import Document
from minipic_sdk.inline import KnownTexts

KNOWN: Final = 4096  # documents that are recognised, the latest


class Connection:
    """Clients, made when they are needed, and known documents."""

    def __init__(
        self, options: Mapping[str, Any], client: MiniPIC | None = None, async_client: AsyncMiniPIC | None = None
    ) -> None:
        """``options`` of the clients to make; ``client`` and ``async_client``: the application's own instead."""
        self._options = {k: v for k, v in options.items() if v is not None}
        self._given = client is not None or async_client is not None
        self._client = client
        self._async_client = async_client
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncMiniPIC] = WeakKeyDictionary()
        self._known = KnownTexts(limit=KNOWN)

    @property
    def client(self) -> MiniPIC:
        """The blocking client."""
        if self._client is None:
            self._client = MiniPIC(**self._options)
        return self._client

    @property
    def async_client(self) -> AsyncMiniPIC | None:
        """One per event loop, because connections belong to one; ``None`` where only a blocking one was given."""
        if self._given:
            return self._async_client
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = AsyncMiniPIC(**self._options)
        return self._by_loop[loop]

    def prefetch(self, documents: Iterable[Document]) -> None:
        """Begin to prefill, and recognise the texts from now on."""
        if given := self.learn(documents):
            self.client.prefetch(given)

    async def aprefetch(self, documents: Iterable[Document]) -> None:
        """As ``prefetch``; returns at once, too."""
        if given := self.learn(documents):
            (self.async_client or self.client).prefetch(given)

    def learn(self, documents: Iterable[Document]) -> list[Document]:
        """Recognise their texts from now on; returns those that have one."""
        given = [d for d in documents if d.content]
        self._known.add(given)
        return given

    def quoted(self, messages: Sequence[Mapping[str, Any]]) -> list[Document]:
        """Known documents that messages (OpenAI form) quote word for word."""
        texts = [t for m in messages if m["role"] != "assistant" for t in texts_of(m.get("content"))]
        return [found.document for text in texts for found in self._known.find(text)]


def texts_of(content: object) -> list[str]:
    """The texts of a message's content."""
    if isinstance(content, str):
        return [content]
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    blocks = [cast("dict[str, Any]", p) for p in parts if isinstance(p, dict)]
    return [b["text"] for b in blocks if isinstance(b.get("text"), str)]
