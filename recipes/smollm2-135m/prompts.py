"""Write the recipe's own prompts: instructions and small programming tasks.

    python recipes/smollm2-135m/prompts.py instructions 1500 > runs/smollm2-135m/instructions.jsonl
    python recipes/smollm2-135m/prompts.py code 800 > runs/smollm2-135m/code.jsonl

Templates times topics, passages and computed examples, all written for this recipe: no benchmark's
items are among them. The order is shuffled with a fixed seed, so the first n rows are always the
same.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path

HERE = Path(__file__).parent
TOPICS = (HERE / "topics.txt").read_text(encoding="utf-8").splitlines()
PASSAGES = [json.loads(row) for row in (HERE / "passages.jsonl").open(encoding="utf-8")]

ABOUT_TOPIC = (
    "Explain {topic} in two sentences.",
    "Explain {topic} to a ten-year-old.",
    "What are the three most important things to know about {topic}?",
    "List five facts about {topic}.",
    "List three common mistakes that people make about {topic}.",
    "Write a short introduction to {topic} for a newsletter.",
    "Write a haiku about {topic}.",
    "Write a four-line poem about {topic}.",
    "Write a short story of about 100 words that has something to do with {topic}.",
    "Give me a step-by-step plan for learning about {topic} in one week.",
    "What are the advantages and disadvantages of {topic}?",
    "Write three quiz questions about {topic}, with answers.",
    "Suggest a title for an article about {topic}.",
    "Who should care about {topic}, and why?",
    "Describe {topic} using an analogy.",
    "Write an email to a friend in which you recommend reading about {topic}.",
    "Compare {topic} with {other}. What do they have in common?",
    "Is {topic} more important than {other}? Give one argument for each side.",
    "Define {topic} in one sentence, then give an example.",
    "Make a table with two columns, term and meaning, of four words connected with {topic}.",
    "Write a tweet about {topic}.",
    "Write a dialogue between a teacher and a student about {topic}.",
    "What is a good question to ask an expert on {topic}?",
    "Give me ten keywords about {topic}, separated by commas.",
    "Answer yes or no, then explain: is {topic} hard to understand?",
    "Imagine {topic} did not exist. What would change?",
    "How has our understanding of {topic} changed over time?",
    "Write a JSON object with the keys name, category and summary that describes {topic}.",
)

ABOUT_PASSAGE = (
    "Summarize the following text in one sentence.\n\n{text}",
    "Summarize this text in three bullet points:\n\n{text}",
    "Write a title for this text:\n\n{text}",
    "Rewrite the following text in simpler words:\n\n{text}",
    "Rewrite the following text in a formal style.\n\n{text}",
    "Translate the first sentence of this text to French:\n\n{text}",
    "Translate the last sentence of this text to Spanish:\n\n{text}",
    "{text}\n\nList all numbers and dates in the text above.",
    "{text}\n\nWhat is the main idea of the text above?",
    "Read the text and write two questions that it answers.\n\n{text}",
    "Is the tone of this text serious, humorous or neutral? Explain.\n\n{text}",
    "Turn the following text into a short news report.\n\n{text}",
    "Continue the following text with two more sentences.\n\n{text}",
    "Correct any mistakes in the following text, or say that there are none.\n\n{text}",
)

WITH_QUESTION = (
    "{text}\n\nQuestion: {question}",
    "Answer the question using the text.\n\nText: {text}\n\nQuestion: {question}\nAnswer:",
    "{question}\n\n{text}",
)

SENTENCES = (
    "The meeting was moved to Thursday because the room was not available.",
    "I would like to order two coffees and a slice of cake, please.",
    "She has lived in this city for ten years and still gets lost.",
    "If it rains tomorrow, we will visit the museum instead of the park.",
    "He don't know where the keys is, but he think they are in the car.",
    "Our new product help customers to saves time and money every days.",
    "The children were playing in the garden when the storm began.",
    "Thank you for your letter; I am sorry that it took me so long to answer.",
    "Due to the fact that it was raining, the decision was made to postpone the event.",
    "The film was long, but the ending surprised everybody in the cinema.",
    "My grandmother taught me how to bake bread before I could read.",
    "Nobody told the driver that the bridge was closed for repairs.",
)

ABOUT_SENTENCE = (
    'Correct the grammar of this sentence: "{sentence}"',
    'Translate to German: "{sentence}"',
    'Translate to Spanish: "{sentence}"',
    'Translate to Italian: "{sentence}"',
    'Rewrite this sentence in the past tense: "{sentence}"',
    'Rewrite this sentence as a question: "{sentence}"',
    'Make this sentence shorter: "{sentence}"',
    'Make this sentence more polite: "{sentence}"',
    'What is the subject of this sentence? "{sentence}"',
    'Write three paraphrases of this sentence: "{sentence}"',
    'Is the sentiment of this sentence positive, negative or neutral? "{sentence}"',
)


def instructions() -> Iterator[str]:
    """Yield every instruction prompt."""
    for place, (topic, template) in enumerate(product(TOPICS, ABOUT_TOPIC)):
        yield template.format(topic=topic, other=TOPICS[(7 * place + 3) % len(TOPICS)])
    for passage, template in product(PASSAGES, ABOUT_PASSAGE):
        yield template.format(text=passage["text"])
    for passage in PASSAGES:
        for question, template in product(passage["questions"], WITH_QUESTION):
            yield template.format(text=passage["text"], question=question)
    for sentence, template in product(SENTENCES, ABOUT_SENTENCE):
        yield template.format(sentence=sentence)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


# What is looked at: a phrase, a name and the test itself, so that every example is computed.
NUMBERS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "even numbers": ("even", lambda n: n % 2 == 0),
    "odd numbers": ("odd", lambda n: n % 2 == 1),
    "positive numbers": ("positive", lambda n: n > 0),
    "negative numbers": ("negative", lambda n: n < 0),
    "prime numbers": ("prime", _is_prime),
    "multiples of 3": ("multiples_of_three", lambda n: n % 3 == 0),
    "numbers greater than 10": ("above_ten", lambda n: n > 10),
    "numbers with two digits": ("two_digit", lambda n: 10 <= abs(n) <= 99),
    "perfect squares": ("perfect_square", lambda n: n >= 0 and int(n**0.5) ** 2 == n),
    "numbers that end in 5": ("ending_in_five", lambda n: abs(n) % 10 == 5),
}

NUMBER_RESULTS: dict[str, tuple[str, Callable[[list[int]], object]]] = {
    "the sum of the {what}": ("sum", sum),
    "the number of {what}": ("count", len),
    "the largest of the {what}, or None if there are none": (
        "largest",
        lambda found: max(found, default=None),
    ),
    "the smallest of the {what}, or None if there are none": (
        "smallest",
        lambda found: min(found, default=None),
    ),
    "a list of the {what}, in their original order": ("filter", list),
    "a list of the {what}, sorted in descending order": (
        "sorted",
        lambda found: sorted(found, reverse=True),
    ),
    "a list of the squares of the {what}": ("squared", lambda found: [n * n for n in found]),
    "the mean of the {what}, or 0 if there are none": (
        "mean",
        lambda found: statistics.mean(found) if found else 0,
    ),
    "True if there are any {what}, else False": ("has", bool),
    "a dictionary from each of the {what} to how often it occurs": (
        "tally",
        lambda found: {n: found.count(n) for n in found},
    ),
}

WORDS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "words longer than four letters": ("long", lambda w: len(w) > 4),
    "words that start with a vowel": ("vowel_initial", lambda w: w[0].lower() in "aeiou"),
    "words that end with s": ("s_final", lambda w: w.endswith("s")),
    "capitalized words": ("capitalized", lambda w: w[0].isupper()),
    "words that contain the letter a": ("with_a", lambda w: "a" in w.lower()),
    "words with an even number of letters": ("even_length", lambda w: len(w) % 2 == 0),
    "words with a double letter": (
        "double_letter",
        lambda w: any(a == b for a, b in pairwise(w)),
    ),
    "words without the letter e": ("without_e", lambda w: "e" not in w.lower()),
}

WORD_RESULTS: dict[str, tuple[str, Callable[[list[str]], object]]] = {
    "the number of {what} in the text": ("count", len),
    "a list of the {what} in the text": ("find", list),
    "the {what} in the text, joined by hyphens": ("join", "-".join),
    "the longest of the {what} in the text, or an empty string": (
        "longest",
        lambda found: max(found, key=len, default=""),
    ),
    "a list of the {what} in the text, reversed letter by letter": (
        "reverse",
        lambda found: [w[::-1] for w in found],
    ),
    "a list of the {what} in the text, in alphabetical order": ("sort", sorted),
    "a dictionary from the {what} in the text to their lengths": (
        "measure",
        lambda found: {w: len(w) for w in found},
    ),
    "the text's {what} in upper case, as a list": (
        "shout",
        lambda found: [w.upper() for w in found],
    ),
}

TEXTS = (
    "The quick Fox jumps over lazy dogs",
    "Anna sees seven small apples under trees",
    "All good things come in threes",
    "Every morning Oscar walks across the bridge",
)

ASK_FOR_CODE = (
    "Complete the following Python function:\n\n```python\n{stub}```",
    "Complete this function.\n\n{stub}",
    "Write the body of this Python function and return the whole function:\n\n{stub}",
    "Write a Python function `{name}` that takes {argument} and returns {returns}.",
    "How do I write a Python function that takes {argument} and returns {returns}? Show the code "
    "and explain it briefly.",
    "Write a Python function `{name}` that takes {argument} and returns {returns}. Then write "
    "three assert statements that test it.",
)


def code() -> Iterator[str]:
    """Yield every programming prompt."""
    rng = random.Random(1)
    for (what, (noun, keep)), (result, (verb, finish)) in product(
        NUMBERS.items(), NUMBER_RESULTS.items()
    ):
        numbers = [rng.choice((2, 3, 4, 5, 7, 9, 12, 15, 16, 25, 33, -4, -5)) for _ in range(6)]
        value = finish([n for n in numbers if keep(n)])
        name, returns = f"{verb}_{noun}", result.format(what=what)
        signature = f"{name}(numbers: list[int])"
        yield from _asked(name, "a list of integers", signature, returns, numbers, value)
    for (what, (noun, keep_word)), (result, (verb, finish_words)) in product(
        WORDS.items(), WORD_RESULTS.items()
    ):
        text = rng.choice(TEXTS)
        word_value = finish_words([w for w in text.split() if keep_word(w)])
        name, returns = f"{verb}_{noun}_words", result.format(what=what)
        yield from _asked(name, "a text", f"{name}(text: str)", returns, text, word_value)


def _asked(
    name: str, argument: str, signature: str, returns: str, given: object, value: object
) -> Iterator[str]:
    stub = (
        f'def {signature}:\n    """Return {returns}.\n\n'
        f'    >>> {name}({given!r})\n    {value!r}\n    """\n'
    )
    for template in ASK_FOR_CODE:
        yield template.format(stub=stub, name=name, argument=argument, returns=returns)


KINDS = {"instructions": instructions, "code": code}


def prompts(kind: str, count: int) -> list[str]:
    """Return the first `count` prompts of a kind, in the recipe's shuffled order."""
    found = list(KINDS[kind]())
    random.Random(0).shuffle(found)
    return found[:count]


def main() -> None:
    """Print `count` prompts of a kind as JSON lines."""
    kind, count = sys.argv[1], int(sys.argv[2])
    for prompt in prompts(kind, count):
        print(json.dumps({"prompt": prompt}))


if __name__ == "__main__":
    main()
