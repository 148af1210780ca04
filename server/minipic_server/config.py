"""The plugin's settings inside vLLM's own configuration, so that every process of an engine has them."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from minipic_sdk.layout import ControlTokens

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY: Final = "minipic"  # in VllmConfig.additional_config


@dataclass(frozen=True, slots=True)
class SpanConfig:
    """What hashing, attention and validation must agree on."""

    control: ControlTokens
    block_size: int  # tokens per KV block
    fingerprint: str  # of the served profile; "" when it has none (bare engines in tests)
    model: str  # what the cached keys and values belong to: part of every span's hash domain
    pin_share: float = 0.5  # of the KV blocks, that spans may be pinned in

    def to_dict(self) -> dict[str, Any]:
        """JSON form for ``--additional-config``."""
        return {**asdict(self), "control": list(self.control)}

    @classmethod
    def of(cls, config: "VllmConfig") -> "SpanConfig | None":
        """Settings of this engine; ``None`` if it was not started for spans."""
        extra = config.additional_config
        body = extra.get(KEY) if isinstance(extra, dict) else None
        if body is None:
            return None
        return cls(**{**body, "control": ControlTokens(*body["control"])})
