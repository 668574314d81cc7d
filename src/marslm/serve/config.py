"""What an operator decides about one server.

Knows nothing about how it is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass

from marslm.serve.policy import Target, check_tau_range


@dataclass(frozen=True)
class ServeConfig:
    """The server's settings.

    model_name: what requests call the model. api_key: wanted of every /v1 request; None: none is.
    timeout: seconds that a request may take. max_body: bytes of a request body. cors_origins: web
    pages of which hosts may call this server. target: what moves the knob under load, if anything;
    tau_range: how far it may move tau, the faster end first.
    """

    model_name: str
    api_key: str | None = None
    timeout: float = 600.0
    max_body: int = 1 << 20
    cors_origins: tuple[str, ...] = ()
    target: Target | None = None
    tau_range: tuple[float, float] = (0.6, 0.95)

    def __post_init__(self) -> None:
        """Raise InputError for a range that no policy could use: its task would end unheard."""
        check_tau_range(*self.tau_range)
