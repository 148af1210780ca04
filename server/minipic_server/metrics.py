"""Prometheus metrics beside vLLM's, with its labels: ``minipic:span_queries``, ``minipic:span_hits`` and so on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

EVERY_S = 1.0  # the scheduler is asked this often, never by a scrape itself

_COUNTERS = {
    "queries": ("minipic:span_queries", "Spans of arriving requests."),
    "hits": ("minipic:span_hits", "Spans that were resident when their request arrived."),
    "query_tokens": ("minipic:span_query_tokens", "Visible tokens of the spans of arriving requests."),
    "hit_tokens": ("minipic:span_hit_tokens", "Visible tokens of the spans that were resident on arrival."),
    "arranged": ("minipic:span_requests_arranged", "Requests whose cached spans were moved to the front."),
    "waited": ("minipic:span_wait_steps", "Steps that requests waited for a span computed by another one."),
}


class SpanMetrics(Collector):
    """Serves the last snapshot of the scheduler's counters."""

    def __init__(self, model_name: str, ask: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._ask = ask
        self._last: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin polling on the running event loop and register with the process's registry."""
        self._task = asyncio.get_running_loop().create_task(self._poll())
        REGISTRY.register(self)

    async def _poll(self) -> None:
        while True:
            with suppress(Exception):  # one failed question must not end the metrics
                self._last = await self._ask("stats", None)
            await asyncio.sleep(EVERY_S)

    def collect(self) -> Iterable[Metric]:
        """Metric families of the last snapshot."""
        labels, values = list(self._labels), list(self._labels.values())
        for key, (name, text) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=labels)
            family.add_metric(values, self._last.get(key, 0))
            yield family
        resident = GaugeMetricFamily("minipic:free_blocks", "KV blocks free, cached ones among them.", labels=labels)
        resident.add_metric(values, self._last.get("free_blocks", 0))
        yield resident
        pinned = GaugeMetricFamily("minipic:pinned_blocks", "KV blocks of pinned spans.", labels=labels)
        pinned.add_metric(values, self._last.get("pinned_blocks", 0))
        yield pinned
        shares = self._last.get("hit_shares", [])
        if shares:
            share = HistogramMetricFamily(
                "minipic:span_hit_share", "Share of a request's spans that were resident on arrival.", labels=labels
            )
            counts = [sum(shares[: i + 1]) for i in range(len(shares))]
            bounds = [str(i / (len(shares) - 1)) for i in range(len(shares) - 1)] + ["+Inf"]
            total = sum(i / (len(shares) - 1) * n for i, n in enumerate(shares))
            share.add_metric(values, list(zip(bounds, counts, strict=True)), sum_value=total)
            yield share
