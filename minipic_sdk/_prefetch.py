"""Prefetches in the background, bounded: those that would come too late are dropped."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

WAITING: Final = 64  # calls


class ThreadPrefetcher:
    """One background thread, begun on first use; it never delays the program's end."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], None]) -> bool:
        """Run ``work`` in the background; whether it was accepted."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="minipic-prefetch", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Drop what waits and let the thread end."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            with suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()
            self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            with suppress(Exception):  # the prompt that needs the span will meet the same trouble and report it
                work()


class TaskPrefetcher:
    """Tasks on the running event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` in the background; whether it was accepted."""
        if len(self._tasks) >= WAITING:
            work.close()
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return True

    async def close(self) -> None:
        """Cancel what runs and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the prompt that needs the span will report it
