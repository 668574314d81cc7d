"""Bad settings of a request are refused in vLLM's front end, before the engine sees them.

vLLM has no hook for this, so its input processor is wrapped. Knows nothing about decoding.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor

from marslm.backends.vllm.params import request_params
from marslm.backends.vllm.settings import MarsSettings, read_settings, wants_mars
from marslm.errors import InputError


class BadRequestError(VLLMValidationError, InputError):
    """An InputError in the form that vLLM's server answers with a 400."""


def check_requests() -> None:
    """Wrap the input processor, once in a process."""
    original = InputProcessor.process_inputs
    if hasattr(original, "checked_by_mars"):
        return

    @functools.wraps(original)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        if wants_mars(self.vllm_config):
            try:
                check_request(request, _settings_of(self))
            except InputError as error:
                raise BadRequestError(str(error)) from error
        return request

    process_inputs.checked_by_mars = True  # type: ignore[attr-defined]
    InputProcessor.process_inputs = process_inputs


def check_request(request: Any, settings: MarsSettings) -> None:
    """Raise InputError if MARS cannot serve a request."""
    if request.sampling_params is None:
        return
    request_params(request.sampling_params.extra_args, settings.defaults, settings.width)
    if settings.mask_token_id in (request.prompt_token_ids or ()):
        raise InputError(
            f"the prompt contains token {settings.mask_token_id}, which is [MASK] here: "
            "leave it out"
        )


def _settings_of(processor: Any) -> MarsSettings:
    """Return the settings, read once for each front end."""
    known: MarsSettings | None = getattr(processor, "mars_settings", None)
    if known is None:
        known = processor.mars_settings = read_settings(processor.vllm_config)
    return known
