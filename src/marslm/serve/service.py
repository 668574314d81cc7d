"""What all routes of one server share.

Knows nothing about requests.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from opentelemetry.trace import Tracer

from marslm.engine.async_engine import AsyncEngine
from marslm.engine.speed import SpeedKnob
from marslm.serve.config import ServeConfig
from marslm.serve.errors import ApiError
from marslm.serve.metrics import Metrics
from marslm.serve.policy import PaceMeter
from marslm.serve.prompts import PromptEncoder

_MEMORY = 0.8
"""Weight of the past in the mean duration of requests."""


class KnobLink(Protocol):
    """The way to other servers that share one knob."""

    async def publish(self, knob: SpeedKnob) -> None:
        """Tell them how it is set now."""

    async def follow(self, knob: SpeedKnob) -> None:
        """Set `knob` as whoever turns it last, for ever."""


class Service:
    """An engine, its limits and its instruments.

    link: to other servers that share the knob, if there are any. draining: set once the server
    takes no more requests; those it has go on.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        config: ServeConfig,
        tracer: Tracer,
        link: KnobLink | None = None,
    ) -> None:
        """Set up the instruments."""
        self.engine = engine
        self.config = config
        self.encoder = PromptEncoder(engine.engine)
        self.metrics = Metrics(engine, config.model_name)
        self.tracer = tracer
        self.link = link
        self.pace = PaceMeter()
        self.created = int(time.time())
        self.draining = False
        self._mean_duration = 1.0

    @property
    def knob(self) -> SpeedKnob:
        """The engine's speed knob."""
        return self.engine.engine.speed

    def check_model(self, name: str) -> None:
        """Raise the 404 for a model that is not served."""
        if name != self.config.model_name:
            message = f"the model '{name}' is not served here: ask for '{self.config.model_name}'"
            raise ApiError(404, message, param="model", code="model_not_found")

    def note_duration(self, seconds: float) -> None:
        """Remember how long a request took."""
        self._mean_duration = _MEMORY * self._mean_duration + (1 - _MEMORY) * seconds

    def seconds_until_room(self) -> int:
        """Return after how many seconds a refused client may find room, at least 1."""
        return max(1, math.ceil(self._mean_duration / self.engine.engine.slots))
