"""What a client knows about its server, and how it is told about spans that are off."""

import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from minipic_sdk.errors import ClientClosedError, SpansOffWarning
from minipic_sdk.profile import ModelProfile

if TYPE_CHECKING:
    import httpx

RESENT_AFTER: Final = 300.0  # seconds after which a span is prefetched again: it may have been evicted
REMEMBERED: Final = 1 << 16  # spans sent lately

Server = Literal["minipic", "vllm", "openai"]  # with the plugin, vLLM without it, anything else


@dataclass
class Session:
    """State of one client; shared by its threads, whose races here are harmless."""

    base_url: str  # without /v1
    max_retries: int
    cache_salt: str | None  # of every request that names no other
    model: str | None  # to ask for; None: the one served
    profile: ModelProfile | None = None  # the server's; without plugin the one given, if any
    server: Server | None = None  # None: not asked yet
    served_model: str | None = None  # as the server calls it
    served_root: str | None = None  # the directory or hub id behind it
    derenders: bool = True  # until /v1/chat/completions/derender turns out to be off
    returns_ids: bool = True  # until return_token_ids is refused
    closed: bool = False
    _sent: OrderedDict[Hashable, float] = field(default_factory=OrderedDict[Hashable, float])

    def check_open(self, http: "httpx.Client | httpx.AsyncClient") -> None:
        """Raise ``ClientClosedError`` if nothing can be sent any more."""
        if self.closed or http.is_closed:
            what = "client" if self.closed else "http_client of this client"
            raise ClientClosedError(
                f"the {what} is closed: make a new client, or use it inside its `with` block and close it last"
            )

    def serves(self, profile: ModelProfile) -> bool:
        """Whether token ids made with ``profile`` can be what the server's model reads."""
        if self.server == "minipic":
            return True
        names = {self.model, self.served_model, (self.served_root or "").rstrip("/").rsplit("/", 1)[-1]}
        return self.server == "vllm" and profile.model in names

    def sent_lately(self, span: Hashable) -> bool:
        """Whether ``span`` was sent within the last minutes."""
        at = self._sent.get(span)
        return at is not None and time.monotonic() - at < RESENT_AFTER

    def mark_sent(self, span: Hashable) -> None:
        """Remember that ``span`` is being sent."""
        self._sent[span] = time.monotonic()
        self._sent.move_to_end(span)
        while len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def forget_sent(self, spans: Iterable[Hashable]) -> None:
        """Sending ``spans`` failed."""
        for span in spans:
            self._sent.pop(span, None)

    def salt(self, given: str | None) -> str | None:
        """The cache salt of a request."""
        return self.cache_salt if given is None else given

    def warn_off(self) -> None:
        """Say that spans are off, at the caller's line."""
        level = 1
        frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("minipic_sdk"):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"{self.base_url} has no MiniPIC plugin: prompts are sent as ordinary ones, nothing is cached by span",
            SpansOffWarning,
            stacklevel=level,
        )
