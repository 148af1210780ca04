"""Server-sent events, decoded from bytes as they come."""


class EventDecoder:
    """Collects ``data:`` fields. httpx's line iterator would cut lines at U+2028, which JSON leaves as it is."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that ``chunk`` completes."""
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        events: list[str] = []
        for line in (raw.removesuffix(b"\r") for raw in lines):
            if not line and self._data:
                events.append(b"\n".join(self._data).decode())
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events
