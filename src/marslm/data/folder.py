"""The user's folder of public data sets, named by the environment variable MARSLM_DATA.

Knows nothing about what is in its files.
"""

from __future__ import annotations

import os
from pathlib import Path

from marslm.errors import InputError

FOLDER_VARIABLE = "MARSLM_DATA"


def data_file(name: str, purpose: str, *, folder: str | None = None) -> Path:
    """Return the file `name` of `folder` (None: the one that MARSLM_DATA names).

    Raises InputError, which begins with `purpose`, if there is no such file.
    """
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    advice = f"set {FOLDER_VARIABLE} to the folder that holds {name}"
    if not folder:
        raise InputError(f"{purpose}: its folder is not known; {advice}")
    file = Path(folder).expanduser() / name
    if not file.is_file():
        raise InputError(f"{purpose}: there is no {file}; {advice}")
    return file
