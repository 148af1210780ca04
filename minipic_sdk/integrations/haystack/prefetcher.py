"""A component that prefetches what was retrieved."""

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret

from minipic_sdk.client import MiniPIC
from minipic_sdk.integrations._connection import Connection
from minipic_sdk.integrations.haystack._convert import document_of


@component
class MiniPICPrefetcher:
    """Returns its documents unchanged; the server begins to prefill them at once.

    Stands behind a retriever or ranker; give it the same server, model and salt as the generator.
    """

    def __init__(
        self,
        *,
        api_base_url: str | None = None,
        api_key: Secret = Secret.from_env_var("MINIPIC_API_KEY", strict=False),  # noqa: B008 - immutable
        model: str | None = None,
        cache_salt: str | None = None,
        client: MiniPIC | None = None,
    ) -> None:
        """Nothing is sent yet; ``client`` is used instead of one made from the rest, and not serialised."""
        self.api_base_url = api_base_url
        self.api_key = api_key
        self.model = model
        self.cache_salt = cache_salt
        options = {"base_url": api_base_url, "model": model, "cache_salt": cache_salt}
        self._connection = Connection({**options, "api_key": api_key.resolve_value()}, client)

    def to_dict(self) -> dict[str, Any]:
        """See ``component``."""
        return default_to_dict(
            self,
            api_base_url=self.api_base_url,
            api_key=self.api_key.to_dict(),
            model=self.model,
            cache_salt=self.cache_salt,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "MiniPICPrefetcher":
        """See ``component``."""
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """The documents, unchanged."""
        self._connection.prefetch(map(document_of, documents))
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, list[Document]]:
        """As ``run``."""
        await self._connection.aprefetch(map(document_of, documents))
        return {"documents": documents}
