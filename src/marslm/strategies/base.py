"""The interface between the engine and a decoding strategy.

Per step and request the engine feeds the pending tokens followed by the strategy's window, and
gives the strategy the logits of the last pending token and of every window entry. Knows nothing
about how the forward is run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from torch import Tensor

from marslm.core.accept import Tau
from marslm.models.loading import MarsModel
from marslm.runtime.costs import StepCosts
from marslm.runtime.logits import Logits
from marslm.runtime.sequence import Sequence
from marslm.runtime.window import Window


@dataclass(frozen=True)
class DraftSide:
    """A second, smaller model that drafts for the one that decodes.

    tau: the confidence from which it takes candidates of its own masks; 1 drafts one token a
    forward.
    """

    model: MarsModel
    tau: float = 1.0


@dataclass(frozen=True)
class EngineFacts:
    """What an engine tells the strategies that it builds.

    model: the model that decodes. slots: requests at once. max_length: cells of one request's
    cache, its window included. pack: whether linears are packed. costs: what steps have cost so
    far. draft: the second model, if any.
    """

    model: MarsModel
    slots: int
    max_length: int
    pack: bool = True
    costs: StepCosts = field(default_factory=StepCosts)
    draft: DraftSide | None = None


@dataclass(frozen=True)
class Outcome:
    """What a step brought one request.

    new_tokens: accepted tokens, left to right; at least one, unless a block fills over several
    steps. kept: how many leading window entries are among them, so that their keys and values stay
    in the cache; they must be one chain. Token i was drawn from row i of the logits; a strategy
    that draws otherwise refuses `logprobs`.
    """

    new_tokens: list[int]
    kept: int = 0


@dataclass(frozen=True)
class StepSettings:
    """What the engine tells a strategy about one request at this step.

    block: the largest B. tau: the request's own threshold, for all masks or for each, or the live
    knob's value now. rows: what the whole step feeds before windows are added, the pending tokens
    of all requests.
    """

    block: int
    tau: Tau
    rows: int = 1


class Strategy(ABC):
    """A way to decode. One object serves all requests of an engine.

    Per-request state lives in `sequence.state`, which is None at a strategy's first step of the
    request, or in the strategy until `release`. exact: whether its output equals one-token
    decoding's. refuses: fields of SamplingParams that it cannot honour. takes_full_block: whether
    it can guess all the rest of an answer at once, block "full". reads_masks: whether it reads what
    the model was trained to say at masks, so that B is at most the trained one.
    """

    name: str
    exact: bool
    refuses: frozenset[str] = frozenset()
    takes_full_block: bool = False
    reads_masks: bool = False

    @abstractmethod
    def propose(
        self, sequences: ListOf[Sequence], settings: ListOf[StepSettings]
    ) -> ListOf[Window]:
        """Return the window of each of this step's requests that use the strategy.

        They come together so that what drafts for them runs once for all.
        """

    @abstractmethod
    def accept(
        self, sequence: Sequence, window: Window, logits: Logits, settings: StepSettings
    ) -> Outcome:
        """Decide what to keep of one request.

        logits: 1 + len(window) rows, for `sampling.draw`; row 0 is the last pending token's, row i
        window entry i-1's. The window may be shorter than proposed where the text nears its limit.
        """

    def read_hidden(  # noqa: B027 - most look at logits alone
        self, sequence: Sequence, hidden: Tensor
    ) -> None:
        """See the last hidden states [1 + len(window), H] behind the next `accept`."""

    def release(self, sequence: Sequence) -> None:  # noqa: B027 - most hold nothing
        """Let go of what is held for a request that has ended or goes on with another strategy."""
