"""Whether lm-evaluation-harness is here, in a version whose inside this package knows.

Task configurations are read and changed before the harness builds them, which no stable interface
of it covers. Knows nothing about tasks or models.
"""

from __future__ import annotations

import importlib.metadata

from packaging.version import Version

from marslm.errors import InputError

OLDEST, TOO_NEW = "0.4.13", "0.5"


def check_harness() -> str:
    """Return the harness' version; InputError if it is missing or not supported."""
    try:
        version = importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            "evaluation needs lm-evaluation-harness: pip install 'marslm[eval]'"
        ) from error
    if not Version(OLDEST) <= Version(version) < Version(TOO_NEW):
        raise InputError(
            f"lm_eval {version} is not supported: pip install "
            f"'lm_eval[ifeval]>={OLDEST},<{TOO_NEW}'"
        )
    return version
