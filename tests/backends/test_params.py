"""Settings of a request and of a server, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marslm.backends.vllm import is_supported
from marslm.backends.vllm.params import MarsParams, request_params
from marslm.backends.vllm.settings import read_settings, wants_mars
from marslm.errors import InputError
from marslm.models.record import BaseMarks, MarsRecord

DEFAULTS = MarsParams("lossless", None, 4)


def config(folder: Path, *, width: int = 6, mask: int | None = None, **mars: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=width, model="marslm.backends.vllm.v1.MarsProposer"
        ),
        additional_config={"mars": mars} if mars else {},
        parallel_config=SimpleNamespace(worker_cls="auto"),
        model_config=SimpleNamespace(
            model=str(folder),
            hf_config=SimpleNamespace(**({"mask_token_id": mask} if mask else {})),
        ),
    )


def save_record(folder: Path, mode: str = "full", **fields: Any) -> Path:
    record = MarsRecord(mode, 16, block_size=4, base=BaseMarks("", "", ()), **fields)  # type: ignore[arg-type]
    record.save(folder)
    return folder


def test_extra_args_of_a_request() -> None:
    assert request_params(None, DEFAULTS, 6) is DEFAULTS
    assert request_params({"other": 1}, DEFAULTS, 6) is DEFAULTS
    given = {"mars_mode": "tau", "mars_tau": 0.7, "mars_window": 3}
    assert request_params(given, DEFAULTS, 6) == MarsParams("tau", 0.7, 3)


def test_a_change_of_mode_alone_takes_that_modes_own_threshold() -> None:
    server = MarsParams("lossless", 0.3, 4)
    assert request_params({"mars_mode": "tau"}, server, 6).threshold == 0.9
    assert request_params({"mars_window": 2}, server, 6).threshold == 0.3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mars_mode": "fast"}, "mars_mode is 'fast': choose off, lossless, tau"),
        ({"mars_mode": "tau", "mars_tau": 0}, "mars_tau is 0"),
        ({"mars_tau": 1.5}, "mars_tau is 1.5"),
        ({"mars_tau": float("nan")}, "mars_tau is nan"),
        ({"mars_tau": "high"}, "mars_tau is 'high'"),
        ({"mars_tau": True}, "mars_tau is True"),
        ({"mars_window": 1}, "mars_window is 1: give a whole number from 2 to 7"),
        ({"mars_window": 8}, "mars_window is 8"),
        ({"mars_window": 3.0}, "mars_window is 3.0"),
        ({"mars_speed": 3}, "no setting mars_speed"),
    ],
)
def test_bad_values_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        request_params(given, DEFAULTS, 6)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_of_a_merged_checkpoint(tmp_path: Path) -> None:
    settings = read_settings(config(save_record(tmp_path)))
    assert settings.mask_token_id == 16
    assert settings.adapter is None
    assert settings.defaults == MarsParams("lossless", None, 4)


def test_settings_of_a_checkpoint_that_only_names_its_mask(tmp_path: Path) -> None:
    settings = read_settings(config(tmp_path, mask=7, width=6))
    assert settings.mask_token_id == 7
    assert settings.defaults.window == 4


def test_settings_of_an_adapter(tmp_path: Path) -> None:
    folder = save_record(tmp_path, "mask-only")
    settings = read_settings(config(tmp_path / "base", adapter=str(folder), mode="tau", tau=0.8))
    assert settings.adapter == folder
    assert settings.defaults == MarsParams("tau", 0.8, 4)


def test_the_window_fits_what_a_step_carries(tmp_path: Path) -> None:
    assert read_settings(config(save_record(tmp_path), width=2)).defaults.window == 3


def test_a_server_that_cannot_run_mars_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"names no \[MASK\]"):
        read_settings(config(tmp_path))
    with pytest.raises(InputError, match="export --merged"):
        read_settings(config(tmp_path, adapter=str(save_record(tmp_path, "lora"))))
    with pytest.raises(InputError, match="no setting mars_speed"):
        read_settings(config(tmp_path, mask=7, speed=3))
    with pytest.raises(InputError, match="another form of block"):
        read_settings(config(save_record(tmp_path, attention="bidirectional")))


def test_other_servers_are_left_alone(tmp_path: Path) -> None:
    assert wants_mars(config(tmp_path))
    ngram = config(tmp_path)
    ngram.speculative_config.model = None
    assert not wants_mars(ngram)
    ngram.parallel_config.worker_cls = "marslm.backends.vllm.v2.MarsWorker"
    assert wants_mars(ngram)
    ngram.speculative_config = None
    assert not wants_mars(ngram)


def test_only_known_versions_are_supported() -> None:
    assert is_supported("0.32.0")
    assert is_supported("0.32.1+cpu")
    assert not is_supported("0.33.0")
    assert not is_supported("0.320.0")


def test_defaults_are_json(tmp_path: Path) -> None:
    given = json.loads('{"mode": "tau", "tau": 0.95, "window": 3}')
    assert read_settings(config(tmp_path, mask=7, **given)).defaults == MarsParams("tau", 0.95, 3)
