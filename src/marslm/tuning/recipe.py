"""Recipes: a tuning job as a YAML file of settings, which the command line may override.

The keys are the fields of `TuneJob` and of `TuneConfig`, flat. Knows nothing about terminals.
"""

from __future__ import annotations

import difflib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from marslm.errors import InputError
from marslm.train.config import TuneConfig, check_meaningful
from marslm.tuning.tune import TuneJob

_JOB = {field.name for field in fields(TuneJob)} - {"config", "resume"}
_CONFIG = {field.name for field in fields(TuneConfig)}
_NEEDED = ("data", "output")


def read_recipe(path: Path) -> dict[str, Any]:
    """Return a recipe's settings; InputError, naming the line's fix, for what is none."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"recipe {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"recipe {path} is not YAML ({reason}): mend it") from error
    if not isinstance(settings, dict):
        raise InputError(f"recipe {path} holds no settings: write lines such as `mode: full`")
    for name in settings:
        _check_name(str(name), str(path))
    return settings


def make_job(settings: dict[str, Any], *, resume: bool = False) -> TuneJob:
    """Return the job of flat `settings`; those that are None count as not given.

    Raises InputError for an unknown setting, a wrong type, or one that the mode does not read.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        _check_name(name, "this job")
        _check_type(name, value)
    for name in _NEEDED:
        if name not in given:
            raise InputError(f"{name} is missing: give --{name}, or a recipe that has it")
    job: dict[str, Any] = {name: given.pop(name) for name in _JOB if name in given}
    mode = given.pop("mode", "mask-only")
    check_meaningful(mode, **given)
    config = TuneConfig.for_mode(mode, **given)
    job.setdefault("model", "smollm2")
    for name in ("output", "from_adapter"):
        if name in job:
            job[name] = Path(job[name])
    return TuneJob(**job, config=config, resume=resume)


def _check_name(name: str, where: str) -> None:
    if name in _JOB | _CONFIG:
        return
    close = difflib.get_close_matches(name, sorted(_JOB | _CONFIG), n=1)
    hint = f"did you mean {close[0]}?" if close else "see `marslm tune --help`"
    raise InputError(f"{where}: unknown setting {name!r}; {hint}")


def _check_type(name: str, value: object) -> None:
    hints = {**get_type_hints(TuneJob), **get_type_hints(TuneConfig)}
    text = str(hints[name])
    # YAML reads 5e-6 as text: its numbers need a point.
    if isinstance(value, str) and ("float" in text or "int" in text):
        hint = " (YAML wants 5.0e-6, not 5e-6)" if "e" in value else ""
        raise InputError(f"{name} is the text {value!r}: give a number{hint}")
    if hints[name] is bool and not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}: give true or false")
    if text == "<class 'int'>" and (isinstance(value, float) and not value.is_integer()):
        raise InputError(f"{name} is {value}: give a whole number")
