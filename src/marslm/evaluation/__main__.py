"""`python -m marslm.evaluation ...`: the harness' own command line, which then knows `marslm`."""

from __future__ import annotations

from lm_eval.__main__ import cli_evaluate

import marslm.evaluation.harness_model  # noqa: F401 - registers the model

if __name__ == "__main__":
    cli_evaluate()
