"""`marslm serve`: an OpenAI-compatible server with a live speed knob.

Knows nothing about how requests are answered.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from marslm.cli import options
from marslm.cli.groups import panel_option, with_groups

if TYPE_CHECKING:
    from marslm.serve.config import ServeConfig

EXAMPLES = """
[b]Examples[/b]

marslm serve --model smollm2

marslm serve --slo=tpot=40ms --strategy mars --tau-range 0.6,0.95

MARSLM_API_KEY=... marslm serve --host 0.0.0.0 --port 9000 --slots 16
"""

_USUAL: dict[str, str | None] = {"quantize": "none", "log_level": "info", "otlp_endpoint": None}
"""Defaults of options that no group holds."""

_NETWORK = "Network"
_LOAD = "Load"


@dataclass(frozen=True)
class Network:
    """Who may reach the server, and where."""

    host: Annotated[str, panel_option(_NETWORK, help="Where to listen.")] = "127.0.0.1"
    port: Annotated[int, panel_option(_NETWORK, help="0: any.")] = 8000
    api_key: Annotated[
        str | None,
        panel_option(_NETWORK, envvar="MARSLM_API_KEY", help="Wanted of every /v1 request."),
    ] = None
    cors_origin: Annotated[
        list[str] | None, panel_option(_NETWORK, help="Web pages from here may call; repeat.")
    ] = None


@dataclass(frozen=True)
class Load:
    """How much the server takes on, and what it does about more."""

    slots: Annotated[int, panel_option(_LOAD, help="Requests decoded together.")] = 8
    max_waiting: Annotated[int, panel_option(_LOAD, help="Further ones that may wait.")] = 64
    max_length: Annotated[
        int | None, panel_option(_LOAD, help="Tokens of prompt and answer together.")
    ] = None
    cache_mb: Annotated[
        int | None,
        panel_option(_LOAD, help="Most megabytes of keys and values for all slots."),
    ] = None
    max_body: Annotated[int, panel_option(_LOAD, help="Bytes of a request body.")] = 1 << 20
    timeout: Annotated[float, panel_option(_LOAD, help="Seconds that a request may take.")] = 600
    drain: Annotated[int, panel_option(_LOAD, help="Seconds to finish in when stopped.")] = 30
    slo: Annotated[
        str | None,
        panel_option(
            _LOAD,
            metavar="TARGET",
            help="Move the knob to hold tpot=40ms (time per output token) or queue=4.",
        ),
    ] = None
    tau_range: Annotated[
        str, panel_option(_LOAD, metavar="LOW,HIGH", help="How far --slo may move tau.")
    ] = "0.6,0.95"


@with_groups()
def serve(
    network: Network,
    load: Load,
    model: options.Model = "smollm2",
    adapter: options.Adapter = None,
    quantize: options.Quantize = "none",
    strategy: options.Strategy = "lossless",
    tau: options.Tau = 0.9,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model; default: --model.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="marslm, or vllm: vLLM's own server with MARS in it (docs/vllm.md).")
    ] = "marslm",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    otlp_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Send OpenTelemetry traces here.")
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's API under /v1, a page at /, metrics at /metrics."""
    if backend != "marslm":
        others: dict[str, str | None] = {
            "quantize": quantize,
            "log_level": log_level,
            "otlp_endpoint": otlp_endpoint,
        }
        _check_backend(backend, network, load, others)
        _serve_with_vllm(model, adapter, strategy, tau, name, network, load)
    from marslm.engine.async_engine import AsyncEngine
    from marslm.engine.engine import Engine
    from marslm.models import loading
    from marslm.serve.app import create_app
    from marslm.serve.logs import log_to_stderr
    from marslm.serve.server import make_server, open_socket

    config = _config(name or model, network, load)
    # First, since the model may take minutes: whoever needs another port hears of it at once.
    with open_socket(network.host, network.port) as socket:
        log_to_stderr(log_level)
        adapter = options.find_adapter(model, adapter)
        loaded = loading.load(model, adapter=adapter, quantize=quantize)
        options.warn_if_untrained(loaded, strategy)
        engine = Engine(
            loaded,
            slots=load.slots,
            max_length=load.max_length,
            cache_bytes=None if load.cache_mb is None else load.cache_mb * 1_000_000,
        )
        engine.speed.strategy, engine.speed.tau = strategy, tau
        traces = None
        if otlp_endpoint is not None:
            from marslm.serve.otlp import provider_to

            traces = provider_to(otlp_endpoint)
        app = create_app(AsyncEngine(engine, max_waiting=load.max_waiting), config, traces)
        _announce(config, *socket.getsockname()[:2])
        make_server(app, drain=load.drain).run(sockets=[socket])


_VLLM_TAKES = {"host", "port", "api_key", "slots", "max_length"}


def _check_backend(
    backend: str, network: Network, load: Load, others: dict[str, str | None]
) -> None:
    """Raise InputError for an unknown backend, or an option given that vLLM would not hear."""
    from marslm.errors import InputError

    if backend != "vllm":
        raise InputError(f"no backend {backend!r}: choose marslm or vllm")
    usual = {**asdict(Network()), **asdict(Load()), **_USUAL}
    for name, value in {**asdict(network), **asdict(load), **others}.items():
        if name not in _VLLM_TAKES and value != usual[name]:
            raise InputError(
                f"--backend vllm knows no --{name.replace('_', '-')}: give vLLM's own options to "
                "`vllm serve` (docs/vllm.md)"
            )


def _serve_with_vllm(
    model: str,
    adapter: str | None,
    strategy: str,
    tau: float,
    name: str | None,
    network: Network,
    load: Load,
) -> NoReturn:
    """Become vLLM's server."""
    from marslm.backends.vllm.command import VllmServer, become, place_of

    server = VllmServer(
        place_of(model),
        adapter=options.find_adapter(model, adapter),
        strategy=strategy,
        tau=tau,
        name=name or model,
        host=network.host,
        port=network.port,
        slots=load.slots,
        max_length=load.max_length,
    )
    become(server, network.api_key)


def _config(name: str, network: Network, load: Load) -> ServeConfig:
    from marslm.serve.config import ServeConfig
    from marslm.serve.policy import parse_target

    return ServeConfig(
        model_name=name,
        api_key=network.api_key,
        timeout=load.timeout,
        max_body=load.max_body,
        cors_origins=tuple(network.cors_origin or ()),
        target=None if load.slo is None else parse_target(load.slo),
        tau_range=_pair(load.tau_range),
    )


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
