"""The engine as a model of lm-evaluation-harness, registered there as `marslm`.

Generation is batched through the engine, log-likelihoods through the plain forward (no window, so
the same for every strategy). Importing this module registers the model. Knows nothing about which
tasks are run or how they are scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from marslm.core.accept import Tau
from marslm.data.dialogues import Message
from marslm.data.encode import render_prompt
from marslm.engine.engine import Engine
from marslm.errors import InputError
from marslm.evaluation.answer_file import AnswerFile
from marslm.evaluation.answering import Generation, Request, answer_all, count
from marslm.models.loading import MarsModel, load
from marslm.models.quantize import Quantize
from marslm.models.short_names import find_adapter
from marslm.runtime.params import SamplingParams
from marslm.runtime.window import Window
from marslm.runtime.work import Work

_MAX_NEW_TOKENS = 256
_SAMPLING = ("top_k", "top_p", "min_p", "repetition_penalty")
_KNOWN = {"do_sample", "until", "max_gen_toks", "temperature", *_SAMPLING}


@register_model("marslm")
class MarsLM(TemplateLM):  # type: ignore[misc]
    """Answers the harness' requests with one decoding mode.

    generations: the answer to each generation request of the last call, by (task, document).
    """

    def __init__(
        self,
        model: str | MarsModel = "smollm2",
        *,
        adapter: str | None = None,
        quantize: Quantize = "none",
        strategy: str = "lossless",
        tau: Tau | str = 0.9,
        block: int | None = None,
        batch_size: int | str = 8,
        seed: int = 0,
        device: str | None = None,
        max_batch_size: int | None = None,
        answers: AnswerFile | None = None,
        on_answer: Callable[[Generation], None] | None = None,
    ) -> None:
        """Load the model, unless it is one already.

        adapter: a folder, or "none"; by default the one that ships with the model. device: where
        there is none of that kind, the CPU, for the harness names a GPU by default. batch_size:
        requests decoded together; max_batch_size, which the harness passes with "auto", is its
        upper end. answers: what was answered before, and where new answers go. on_answer: hears of
        every new answer.
        """
        super().__init__()
        if isinstance(model, str):
            if device is not None and not torch.cuda.is_available():
                device = "cpu"
            model = load(
                model, adapter=find_adapter(model, adapter), device=device, quantize=quantize
            )
        self.model = model
        self.tokenizer = model.tokenizer
        self._mode: dict[str, Any] = {
            "strategy": strategy,
            "tau": tau,
            "block": block,
            "seed": seed,
        }
        SamplingParams(**self._mode)
        self._slots = _slots(batch_size, max_batch_size)
        self._answers = answers or AnswerFile()
        self._on_answer = on_answer
        self._templated = False
        self.generations: dict[tuple[str | None, int | None], Generation] = {}

    @property
    def eot_token_id(self) -> int:
        """The end of a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def max_length(self) -> int:
        """Tokens that the model can see."""
        return self.model.context_length

    @property
    def tokenizer_name(self) -> str:
        """A name for the harness' caches."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness adds to its results: the mode, and each task's counts."""
        of_task: dict[str | None, list[Generation]] = {}
        for (task, _), generation in self.generations.items():
            of_task.setdefault(task, []).append(generation)
        counts = {task: count(generations) for task, generations in of_task.items()}
        return {"decoding": dict(self._mode), "counts": counts}

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the chat as the prompt's text; without `add_generation_prompt` it stays open."""
        self._templated = True
        messages = [Message(turn["role"], turn["content"]) for turn in chat_history]
        return render_prompt(self.tokenizer, messages, continuing=not add_generation_prompt)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Return token ids; a text that the chat template wrote has its special tokens already."""
        if add_special_tokens is None:
            add_special_tokens = not self._templated
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer all requests through the engine."""
        wanted = self._requests(requests)
        missing = [place for place, each in enumerate(wanted) if self._answers.get(each) is None]

        def keep(place: int, generation: Generation) -> None:
            self._answers.put(wanted[missing[place]], generation)
            if self._on_answer is not None:
                self._on_answer(generation)

        answer_all(
            self.model, [wanted[place] for place in missing], slots=self._slots, on_answer=keep
        )
        found = [self._answers.get(each) for each in wanted]
        generations = [generation for generation in found if generation is not None]
        self.generations = {
            (instance.task_name, instance.doc_id): generation
            for instance, generation in zip(requests, generations, strict=True)
        }
        return [generation.text for generation in generations]

    def _requests(self, instances: Sequence[Instance]) -> list[Request]:
        """Translate; a request that is repeated to sample it again gets another seed."""
        seen: Counter[tuple[str, str]] = Counter()
        requests = []
        for instance in instances:
            text, options = instance.args
            params = self._params(options, seen[text, str(options)])
            seen[text, str(options)] += 1
            requests.append(Request(self.tok_encode(text), params))
        return requests

    def _params(self, options: dict[str, Any], repeat: int) -> SamplingParams:
        options = dict(normalize_gen_kwargs(options, _MAX_NEW_TOKENS))
        unknown = sorted(set(options) - _KNOWN)
        if unknown:
            raise InputError(f"generation_kwargs has {', '.join(unknown)}: leave it out")
        sampled = bool(options["do_sample"])
        chosen = {name: options[name] for name in _SAMPLING if sampled and name in options}
        mode = dict(self._mode)
        if sampled:
            mode["seed"] += repeat
            chosen["temperature"] = float(options.get("temperature", 1.0))
        return SamplingParams(
            max_new_tokens=options["max_gen_toks"],
            stop=tuple(text for text in options["until"] if text),
            **chosen,
            **mode,
        )

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: object,
    ) -> list[tuple[float, bool]]:
        """Return of each (texts, context, continuation) its log-probability and if it is greedy."""
        if not requests:
            return []
        texts = [self._cut(context, wanted) for _, context, wanted in requests]
        engine = Engine(self.model, slots=self._slots, max_length=max(map(len, texts)))
        results: list[tuple[float, bool]] = []
        for start in range(0, len(texts), self._slots):
            part = range(start, min(start + self._slots, len(texts)))
            results += _score(engine, [(texts[i], requests[i][2]) for i in part])
        return results

    def _cut(self, context: list[int], continuation: list[int]) -> list[int]:
        """Return the tokens to feed: all but the last, without what is too far on the left."""
        if len(continuation) > self.max_length or not continuation:
            raise InputError(
                f"a continuation has {len(continuation)} tokens: between 1 and the model's "
                f"context of {self.max_length} can be scored"
            )
        return [*context, *continuation][:-1][-self.max_length :]

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of each whole text, in windows of the model's context."""
        totals = []
        for instance in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(instance.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [(("", ""), *make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(pairs)))
        return totals


def _score(
    engine: Engine, texts: Sequence[tuple[list[int], list[int]]]
) -> list[tuple[float, bool]]:
    """Return of each (fed tokens, continuation) the log-probability and whether it is greedy."""
    works = [
        Work(slot, 0, fed, Window(), len(continuation))
        for slot, (fed, continuation) in enumerate(texts)
    ]
    results = []
    for logits, (_, continuation) in zip(engine.runner.forward(works), texts, strict=True):
        targets = torch.tensor(continuation, device=logits.device)
        chosen = logits.double().log_softmax(-1).gather(1, targets[:, None])
        greedy = bool((logits.argmax(-1) == targets).all())
        results.append((float(chosen.sum()), greedy))
    return results


def _slots(batch_size: int | str, max_batch_size: int | None) -> int:
    """Return the requests decoded together; "auto" takes the largest that is allowed, or 8."""
    if isinstance(batch_size, str) and batch_size.startswith("auto"):
        return max_batch_size or 8
    try:
        return int(batch_size)
    except ValueError as error:
        raise InputError(f"batch_size is {batch_size!r}: give a whole number or auto") from error
