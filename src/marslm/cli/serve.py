"""`marslm serve`: an OpenAI-compatible server with a live speed knob.

Knows nothing about how requests are answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from marslm.cli import options

if TYPE_CHECKING:
    from marslm.serve.config import ServeConfig

EXAMPLES = """
[b]Examples[/b]

marslm serve --model smollm2

marslm serve --slo=tpot=40ms --strategy mars --tau-range 0.6,0.95

MARSLM_API_KEY=... marslm serve --host 0.0.0.0 --port 9000 --slots 16
"""

_NETWORK = "Network"
_LOAD = "Load"


def serve(
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    strategy: options.Strategy = "lossless",
    tau: options.Tau = 0.9,
    host: Annotated[
        str, typer.Option(help="Where to listen.", rich_help_panel=_NETWORK)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any.", rich_help_panel=_NETWORK)] = 8000,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model; default: --model.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MARSLM_API_KEY",
            help="Wanted of every /v1 request.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Web pages from here may call; repeat.", rich_help_panel=_NETWORK),
    ] = None,
    slots: Annotated[
        int, typer.Option(help="Requests decoded together.", rich_help_panel=_LOAD)
    ] = 8,
    max_waiting: Annotated[
        int, typer.Option(help="Further ones that may wait.", rich_help_panel=_LOAD)
    ] = 64,
    max_length: Annotated[
        int | None,
        typer.Option(help="Tokens of prompt and answer together.", rich_help_panel=_LOAD),
    ] = None,
    max_body: Annotated[
        int, typer.Option(help="Bytes of a request body.", rich_help_panel=_LOAD)
    ] = 1 << 20,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a request may take.", rich_help_panel=_LOAD)
    ] = 600,
    drain: Annotated[
        int, typer.Option(help="Seconds to finish in when stopped.", rich_help_panel=_LOAD)
    ] = 30,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Move the knob to hold tpot=40ms (time per output token) or queue=4.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    tau_range: Annotated[
        str,
        typer.Option(metavar="LOW,HIGH", help="How far --slo may move tau.", rich_help_panel=_LOAD),
    ] = "0.6,0.95",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    otlp_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Send OpenTelemetry traces here.")
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's API under /v1, a page at /, metrics at /metrics."""
    from marslm.engine.async_engine import AsyncEngine
    from marslm.engine.engine import Engine
    from marslm.models.loading import load
    from marslm.serve.app import create_app
    from marslm.serve.config import ServeConfig
    from marslm.serve.logs import log_to_stderr
    from marslm.serve.policy import parse_target
    from marslm.serve.server import make_server, open_socket

    config = ServeConfig(
        model_name=name or model,
        api_key=api_key,
        timeout=timeout,
        max_body=max_body,
        cors_origins=tuple(cors_origin or ()),
        target=None if slo is None else parse_target(slo),
        tau_range=_pair(tau_range),
    )
    log_to_stderr(log_level)
    loaded = load(model, adapter=options.find_adapter(model, adapter))
    options.warn_if_untrained(loaded, strategy)
    engine = Engine(loaded, slots=slots, max_length=max_length)
    engine.speed.strategy, engine.speed.tau = strategy, tau
    traces = None
    if otlp_endpoint is not None:
        from marslm.serve.otlp import provider_to

        traces = provider_to(otlp_endpoint)
    with open_socket(host, port) as socket:
        app = create_app(AsyncEngine(engine, max_waiting=max_waiting), config, traces)
        _announce(config, *socket.getsockname()[:2])
        make_server(app, drain=drain).run(sockets=[socket])


def _pair(text: str) -> tuple[float, float]:
    from marslm.errors import InputError

    try:
        low, high = map(float, text.split(","))
    except ValueError as error:
        raise InputError(f"--tau-range is {text!r}: give two numbers, as in 0.6,0.95") from error
    return low, high


def _announce(config: ServeConfig, host: str, port: int) -> None:
    import ipaddress

    from marslm.cli.render import console

    shown = f"[{host}]" if ":" in host else host
    console.print(f"{config.model_name} at http://{shown}:{port} (Ctrl-C stops)", markup=False)
    if config.api_key is None and not ipaddress.ip_address(host).is_loopback:
        console.print("warning: anyone who reaches this address may use it; set --api-key")
