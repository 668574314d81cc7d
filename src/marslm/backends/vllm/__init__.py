"""MARS inside vLLM: several tokens per forward, with vLLM's own cache, batching and server.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). Importing this
package needs no vLLM; `v1`, `v2` and `front` do. docs/vllm.md lists every private part of vLLM that
is touched.
"""

from __future__ import annotations

SUPPORTED = "0.32"
"""The one minor version whose private parts this was written for and tested with."""


def register() -> None:
    """Have vLLM's front end check each request's settings, if this is a version known here.

    Another version's server without MARS must run as if this package were not there, so the
    refusal comes when MARS is asked for (`check_version`).
    """
    from vllm import __version__  # noqa: PLC0415

    if is_supported(__version__):
        from marslm.backends.vllm.front import check_requests  # noqa: PLC0415

        check_requests()


def is_supported(version: str) -> bool:
    """Return whether the plugin knows this version of vLLM."""
    return version == SUPPORTED or version.startswith(f"{SUPPORTED}.")


def check_version() -> None:
    """Raise InputError unless the installed vLLM is a version known here."""
    from vllm import __version__  # noqa: PLC0415

    from marslm.errors import InputError  # noqa: PLC0415

    if not is_supported(__version__):
        raise InputError(
            f"this vLLM is {__version__}, and MARS inside vLLM is written for {SUPPORTED}: run "
            f"pip install 'vllm=={SUPPORTED}.*'"
        )
