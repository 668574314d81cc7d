"""Continuous batching without a barrier: each request has its own cursor and its own pace.

`Engine.step` is the whole of it: schedule, propose, forward, accept. Knows nothing about text
formats, threads or where prompts come from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field, replace
from itertools import count

from marslm.engine.admission import (
    check_params,
    check_prompt,
    refused_fields,
    resolve_tau,
    trained_block,
)
from marslm.engine.memory import length_within
from marslm.engine.plan import Plan, add_windows
from marslm.engine.scheduler import Scheduler
from marslm.engine.speed import SpeedKnob
from marslm.engine.strategies import Strategies
from marslm.errors import InputError
from marslm.models.loading import MarsModel
from marslm.runtime.constraint import Grammars
from marslm.runtime.costs import StepCosts
from marslm.runtime.decoder import Decoder
from marslm.runtime.logits import Logits, logits_of_step
from marslm.runtime.logprobs import TokenLogprobs, read_logprobs
from marslm.runtime.params import SamplingParams
from marslm.runtime.runner import Runner
from marslm.runtime.sequence import Sequence
from marslm.runtime.stopping import FinishReason, Transcript
from marslm.strategies.base import DraftSide, EngineFacts, Outcome, StepSettings, Strategy

_DEFAULT_LENGTH = 4096


def block_of(model: MarsModel, params: SamplingParams) -> int:
    """Return the B of a request; "full" is its whole answer."""
    return params.max_new_tokens if params.block == "full" else params.block or trained_block(model)


@dataclass(frozen=True)
class StepEvent:
    """What one step brought one request: committed token ids and the text they completed.

    logprobs: those of the tokens, if they were asked for.
    """

    sequence: Sequence
    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Engine:
    """Decodes many requests together.

    speed: the live knob. slots: requests at once. max_length: tokens of one request, prompt, answer
    and window together; at most the model's context, and by default at most 4096, since the cache
    is allocated for all slots at once.
    """

    def __init__(
        self,
        model: MarsModel,
        *,
        slots: int = 8,
        max_length: int | None = None,
        cache_bytes: int | None = None,
        token_budget: int = 512,
        pack: bool = True,
        costs: StepCosts | None = None,
        draft: DraftSide | None = None,
    ) -> None:
        """Build the decoder and its cache; `pack=False` keeps plain linears.

        cache_bytes: the most that the cache may take; requests can then only be as long as fits.
        costs: what steps cost, by which windows are chosen; by default as measured here. draft: the
        second model of the strategies that need one.
        """
        limits = {"slots": slots, "token_budget": token_budget, "max_length": max_length}
        for name, value in limits.items():
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}: give at least 1")
        self.model = model
        self.slots = slots
        self.max_length = min(max_length or _DEFAULT_LENGTH, model.context_length)
        if cache_bytes is not None:
            self.max_length = min(self.max_length, length_within(model, slots, cache_bytes))
        decoder = Decoder(model, max_length=self.max_length, pack=pack)
        self._cache = decoder.new_cache(slots)
        self.runner = Runner(decoder, self._cache, model.mask_token_id)
        self._scheduler = Scheduler(self._cache, token_budget)
        self.facts = EngineFacts(model, slots, self.max_length, pack, costs or StepCosts(), draft)
        self._strategies = Strategies(self.facts)
        self.speed = SpeedKnob(check=self._strategies.check)
        self._grammars = Grammars(model)
        self._numbers = count()

    def add(self, prompt: list[int], params: SamplingParams | None = None) -> Sequence:
        """Queue a prompt of token ids; InputError if it cannot be answered."""
        sequence = self.new_sequence(prompt, params or SamplingParams())
        self._scheduler.add(sequence)
        return sequence

    def new_sequence(self, prompt: list[int], params: SamplingParams) -> Sequence:
        """Return a request that is not queued; InputError if it cannot be answered."""
        check_params(self.model, params, self.strategy(params.strategy or self.speed.strategy))
        room = self.check_prompt(prompt)
        params = replace(
            params,
            max_new_tokens=min(params.max_new_tokens, room),
            tau=resolve_tau(self.model, params),
        )
        transcript = Transcript(self.model.tokenizer, params, self.model.end_token_ids)
        constraint = self._grammars.constraint_for(params)
        return Sequence(next(self._numbers), prompt, params, transcript, constraint)

    def abort(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        """End a request now; its slot is free for the next step."""
        if not sequence.finished:
            self._release(sequence)
            self._scheduler.retire(sequence)
            sequence.transcript.finish(reason)

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    @property
    def largest_block(self) -> int:
        """B of requests that set none, where masks are read: the trained one, or the knob's."""
        trained = trained_block(self.model)
        return min(trained, self.speed.block or trained)

    @property
    def waiting(self) -> int:
        """How many requests have no slot yet."""
        return len(self._scheduler.waiting)

    @property
    def running(self) -> int:
        """How many requests hold a slot."""
        return len(self._scheduler.running)

    def run(self) -> Iterator[StepEvent]:
        """Step until idle; requests may be added and aborted meanwhile."""
        while self.busy:
            yield from self.step()

    def step(self) -> list[StepEvent]:
        """Run one forward for everybody; return what it brought each request that got tokens."""
        events = self.step_contained()
        for event in events:
            if event.sequence.fault is not None:
                raise event.sequence.fault
        return events

    def step_contained(self) -> list[StepEvent]:
        """Step, but let a fault end the request that has it, with reason "error", and no other."""
        start = time.perf_counter()
        scheduled = self._scheduler.schedule()
        if not scheduled:
            return []
        try:
            parts = self._forward(scheduled)
        except Exception:
            # Nothing is committed before a forward has ended, so it can be tried again, one by one.
            events = [self._step_alone(*part) for part in scheduled]
        else:
            events = [self._settle_safely(*part) for part in parts]
            self._note_cost([plan for plan, _ in parts], time.perf_counter() - start)
        return [event for event in events if event is not None]

    def _forward(self, scheduled: ListOf[tuple[Sequence, list[int]]]) -> list[tuple[Plan, Logits]]:
        """Run the forward of some requests; return each one's plan and logits."""
        rows = sum(len(chunk) for _, chunk in scheduled)
        plans = [self._plan(sequence, chunk, rows) for sequence, chunk in scheduled]
        add_windows([plan for plan in plans if plan.whole], self.max_length)
        results = self.runner.forward_with_hidden([plan.work for plan in plans])
        for plan, (_, hidden) in zip(plans, results, strict=True):
            if plan.whole:
                plan.strategy.read_hidden(plan.sequence, hidden)
        logits = logits_of_step([found for found, _ in results])
        return list(zip(plans, logits, strict=True))

    def _step_alone(self, sequence: Sequence, chunk: list[int]) -> StepEvent | None:
        try:
            return self._settle_safely(*self._forward([(sequence, chunk)])[0])
        except Exception as fault:
            return self._fail(sequence, fault)

    def _settle_safely(self, plan: Plan, logits: Logits) -> StepEvent | None:
        try:
            return self._settle(plan, logits)
        except Exception as fault:
            return self._fail(plan.sequence, fault)

    def _fail(self, sequence: Sequence, fault: Exception) -> StepEvent:
        """End a request that has a fault."""
        sequence.fault = fault
        self.abort(sequence, "error")
        return StepEvent(sequence, [], "")

    def _note_cost(self, plans: list[Plan], seconds: float) -> None:
        """Tell strategies what a decoding step of this many rows has cost."""
        if any(len(plan.sequence.runs) < 2 for plan in plans):
            return  # a prompt was read, most of whose rows need no logits
        if self.runner.recorded:
            return
        window = sum(len(plan.window) for plan in plans)
        masks = any(self.model.mask_token_id in plan.window.tokens for plan in plans)
        self.facts.costs.observe(sum(len(plan.chunk) for plan in plans) + window, masks, seconds)

    def _plan(self, sequence: Sequence, chunk: list[int], rows: int) -> Plan:
        """Choose a request's strategy for this step."""
        params = sequence.params
        name = params.strategy or self.speed.strategy
        if refused_fields(self.model, params, self.strategy(name)):
            name = "ar"  # the knob was turned after the request came in
        if sequence.strategy != name:
            self._release(sequence)
            sequence.strategy = name
        block = block_of(self.model, params)
        if params.block is None and self.strategy(name).reads_masks:
            block = self.largest_block
        assert not isinstance(params.tau, str)  # resolved when it came in
        tau = self.speed.tau if params.tau is None else params.tau
        return Plan(sequence, chunk, self.strategy(name), StepSettings(block, tau, rows))

    def _settle(self, plan: Plan, logits: Logits) -> StepEvent | None:
        """Commit what the strategy accepts and move the cursor."""
        sequence = plan.sequence
        if sequence.runs:
            sequence.decode_rows += len(plan.chunk) + len(plan.window)
        if not plan.whole:
            sequence.advance(len(plan.chunk))
            return None
        outcome = plan.strategy.accept(sequence, plan.window, logits, plan.settings)
        assert plan.window.starts_with_chain(outcome.kept)
        logprobs = _logprobs(sequence, outcome, logits)
        tokens = sequence.commit(outcome.new_tokens, logprobs)
        sequence.advance(len(plan.chunk) + outcome.kept)
        if sequence.finished:
            self._release(sequence)
            self._scheduler.retire(sequence)
        text = sequence.transcript.take_new_text()
        return StepEvent(sequence, tokens, text, logprobs[: len(tokens)])

    def _release(self, sequence: Sequence) -> None:
        """Let the strategy that served a request forget it."""
        if sequence.strategy is not None:
            self._strategies[sequence.strategy].release(sequence)
        sequence.strategy = sequence.state = None

    def check_prompt(self, prompt: list[int], source: str = "the prompt") -> int:
        """Return how many tokens the answer may have; InputError, naming `source`, if none."""
        return check_prompt(self.model, prompt, self.max_length, source)

    def strategy(self, name: str) -> Strategy:
        """Return this engine's strategy of that name, built when it is first asked for."""
        return self._strategies[name]


def _logprobs(sequence: Sequence, outcome: Outcome, logits: Logits) -> list[TokenLogprobs]:
    """Return the log-probabilities of an outcome's tokens, none if they were not asked for."""
    count, tokens = sequence.params.logprobs, outcome.new_tokens
    return [] if count is None else read_logprobs(logits.tensor[: len(tokens)], tokens, count)
