import re

import pytest

from marslm.data.arithmetic import Problem, is_correct, problems, split
from marslm.errors import InputError

ALL = problems(8100, seed=0)


def operands(problem):
    found = re.fullmatch(r"(\d\d) \+ (\d\d) = \?", problem.question)
    return int(found[1]), int(found[2])


def test_every_answer_is_right_by_recomputation():
    for problem in ALL:
        a, b = operands(problem)
        assert problem.result == a + b
        assert is_correct(problem, problem.answer)


def test_every_step_of_every_answer_is_right():
    for problem in ALL:
        a, b = operands(problem)
        steps = re.findall(r"([\d+]+)=(\d+)", problem.answer)
        assert all(sum(map(int, left.split("+"))) == int(right) for left, right in steps)
        (ones, ones_sum), (tens, tens_sum) = steps
        carry = re.search(r"carry (\d),", problem.answer)[1]
        assert ones == f"{a % 10}+{b % 10}"
        assert tens == f"{a // 10}+{b // 10}+{carry}"
        assert int(carry) == int(ones_sum) // 10
        assert int(tens_sum) * 10 + int(ones_sum) % 10 == problem.result


def test_a_worked_answer_reads_as_documented():
    known = {problem.question: problem.answer for problem in ALL}
    assert known["47 + 85 = ?"] == "ones 7+5=12 carry 1, tens 4+8+1=13, total 132."
    assert known["10 + 12 = ?"] == "ones 0+2=2 carry 0, tens 1+1+0=2, total 22."


def test_answers_are_short():
    assert max(len(problem.answer) for problem in ALL) <= 60


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer[:-1],
        lambda answer: answer[:-2],
        lambda answer: answer[: answer.index("total")],
        lambda answer: answer.replace("total ", "total 1"),
        lambda answer: answer[:-1] + "0.",
        lambda answer: answer + " total 7.",
        lambda answer: answer + " or so",
        lambda answer: answer.replace("total", "about"),
        lambda _: "",
    ],
)
def test_wrong_and_truncated_answers_are_rejected(change):
    for problem in ALL[:200]:
        assert not is_correct(problem, change(problem.answer))


def test_no_prefix_of_an_answer_is_correct():
    for problem in ALL[:200]:
        assert not any(is_correct(problem, problem.answer[:n]) for n in range(len(problem.answer)))


def test_only_the_result_and_what_follows_it_count():
    problem = Problem("47 + 85 = ?", "", 132)
    assert is_correct(problem, "it is total 132. \n")
    assert not is_correct(problem, "ones 7+5=12 carry 1, tens 4+8+1=13, total 122.")


def test_problems_are_distinct_and_follow_the_seed():
    first = problems(300, seed=3)
    assert len({problem.question for problem in first}) == 300
    assert first == problems(300, seed=3)
    assert first != problems(300, seed=4)


def test_excluded_questions_stay_out():
    kept_out = {problem.question for problem in ALL[:8000]}
    rest = problems(100, seed=1, exclude=kept_out)
    assert {problem.question for problem in rest} == {problem.question for problem in ALL[8000:]}


def test_held_out_sums_are_not_in_training_in_either_order():
    for seed in range(3):
        train, held_out = split(7000, 500, seed)
        assert (len(train), len(held_out)) == (7000, 500)
        assert len({problem.question for problem in train}) == 7000
        assert len({problem.question for problem in held_out}) == 500
        tested = {frozenset(operands(problem)) for problem in held_out}
        assert tested.isdisjoint(frozenset(operands(problem)) for problem in train)


def test_split_follows_the_seed():
    assert split(50, 20, 1) == split(50, 20, 1)
    assert split(50, 20, 1)[1] != split(50, 20, 2)[1]


@pytest.mark.parametrize("count", [8101, -1])
def test_an_impossible_count_is_refused(count):
    with pytest.raises(InputError, match=f"{count} problems .* 8100 to choose from"):
        problems(count, seed=0)


def test_too_large_a_split_is_refused():
    with pytest.raises(InputError, match="to choose from"):
        split(8000, 100, 0)


def test_a_problem_is_a_dialogue():
    problem = ALL[0]
    dialogue = problem.dialogue
    assert [(message.role, message.content) for message in dialogue.messages] == [
        ("user", problem.question),
        ("assistant", problem.answer),
    ]
    assert problem.question in dialogue.source
