"""The live knob over HTTP, and the load policy that turns it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from marslm.engine.speed import SpeedKnob
from marslm.errors import InputError
from marslm.serve.config import ServeConfig
from marslm.serve.policy import LoadPolicy, PaceMeter, Target, block_dial, parse_target, tau_dial
from serve.conftest import Running, Serve, chat, wait_for


def runs_of(line: str) -> int | None:
    if not line.startswith("data: {"):
        return None
    event = json.loads(line.removeprefix("data: "))
    return event["marslm"]["tokens"] if "marslm" in event else None


@contextmanager
def under_load(http: httpx2.Client) -> Iterator[None]:
    """Have four long answers written, three of which wait in a server of one slot."""
    body = chat(max_tokens=200, ignore_eos=True, stream=True)
    with ExitStack() as streams:
        for _ in range(4):
            streams.enter_context(http.stream("POST", "/v1/chat/completions", json=body))
        yield


def test_the_knob_shows_and_turns(server: Running) -> None:
    with server.http as http:
        before = http.get("/v1/speed").json()
        assert before == {"strategy": "lossless-chain", "tau": 0.9, "block": 4, "policy": None}
        turned = http.put("/v1/speed", json={"tau": 0.4}).json()
        assert turned == {**before, "tau": 0.4}
        assert http.put("/v1/speed", json={"strategy": "mars"}).json()["strategy"] == "mars"
        assert http.get("/v1/speed").json() == {**before, "tau": 0.4, "strategy": "mars"}


@pytest.mark.parametrize(
    "body",
    [
        *({"tau": 0}, {"tau": 2}, {"tau": "x"}, {"strategy": "warp"}, {"speed": 1}),
        *({"block": 0}, {"block": 5}, {"block": "full"}, {"block": 5, "tau": 0.3}),
    ],
)
def test_a_bad_turn_changes_nothing(server: Running, body: dict[str, Any]) -> None:
    with server.http as http:
        before = http.get("/v1/speed").json()
        assert http.put("/v1/speed", json=body).status_code == 400
        assert http.get("/v1/speed").json() == before


def test_the_knob_is_heard_in_the_middle_of_an_answer(server: Running) -> None:
    """Single tokens at tau = 1, then whole blocks; whoever set a tau does not hear it."""
    body = chat(stream=True, max_tokens=120, ignore_eos=True)
    fixed = {**body, "marslm": {"strategy": "mars", "tau": 1.0}}
    with server.http as http:
        http.put("/v1/speed", json={"strategy": "mars", "tau": 1.0})
        follows: list[int] = []
        with (
            http.stream("POST", "/v1/chat/completions", json=body) as hears,
            http.stream("POST", "/v1/chat/completions", json=fixed) as deaf,
        ):
            for line in hears.iter_lines():
                if (run := runs_of(line)) is not None:
                    follows.append(run)
                if len(follows) == 3:
                    with server.http as other:
                        other.put("/v1/speed", json={"tau": 1e-6})
            alone = {runs_of(line) for line in deaf.iter_lines()} - {None}
    assert follows[:3] == [1, 1, 1]
    assert follows[-2] == 4
    assert alone == {1}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("tpot=40ms", Target("tpot", 0.04)),
        ("tpot=0.5s", Target("tpot", 0.5)),
        ("queue=4", Target("queue", 4)),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize("text", ["", "tpot", "tpot=40", "tpot=-1ms", "tpot=1.2.3s", "queue=0"])
def test_bad_targets(text: str) -> None:
    with pytest.raises(InputError, match="--slo is"):
        parse_target(text)


def levels(policy: LoadPolicy, values: list[float | None]) -> list[int]:
    found = []
    for value in values:
        policy.observe(value)
        found.append(policy.level)
    return found


def test_the_policy_moves_after_some_patience_and_comes_back() -> None:
    policy = LoadPolicy(limit=1.0, levels=3)
    assert levels(policy, [2, 2, 0.9, 2, 2]) == [0] * 5  # one good look starts the count anew
    assert levels(policy, [2, 2, 2, 2, 2, 2, 2]) == [1, 1, 1, 2, 2, 2, 2]
    assert levels(policy, [0.8] * 50) == [2] * 50  # between relief and limit nothing moves
    assert levels(policy, [0.1] * 12) == [2] * 5 + [1] * 6 + [0]
    assert levels(policy, [None] * 9) == [0] * 9


def test_an_idle_server_goes_back() -> None:
    policy = LoadPolicy(limit=1.0, levels=2)
    assert levels(policy, [2, 2, 2])[-1] == 1
    assert levels(policy, [None] * 6)[-1] == 0


def test_a_steady_load_that_no_level_fits_does_not_swing() -> None:
    """Level 0 is too slow and level 1 has ample room: moves become rare, not regular."""
    policy = LoadPolicy(limit=1.0, levels=4)
    moves = [policy.observe(1.5 if policy.level == 0 else 0.3) for _ in range(2000)]
    assert sum(moves[:200]) <= 12
    assert sum(moves[1000:]) <= 12


def test_pace() -> None:
    pace = PaceMeter()
    assert pace.take() is None
    pace.add(0.3, 2)
    pace.add(0.1, 2)
    assert pace.take() == pytest.approx(0.1)
    assert pace.take() is None


def test_the_tau_dial() -> None:
    knob = SpeedKnob(tau=1.0)
    dial = tau_dial(knob, 0.5, 1.0)
    assert list(dial.values) == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    dial.set(dial.values[-1])
    assert knob.tau == 0.5
    with pytest.raises(InputError, match="lower bound first"):
        tau_dial(knob, 0.9, 0.5)


@pytest.mark.parametrize(
    ("tau", "values"),
    [(0.75, [0.75, 0.7, 0.65, 0.6, 0.55, 0.5]), (0.95, [0.8, 0.74, 0.68, 0.62, 0.56, 0.5])],
)
def test_the_tau_dial_starts_at_the_operators_own(tau: float, values: list[float]) -> None:
    assert tau_dial(SpeedKnob(tau=tau), 0.5, 0.8).values == values


@pytest.mark.parametrize("tau", [0.3, 0.5])
def test_a_tau_below_the_range_is_left_there(tau: float) -> None:
    assert tau_dial(SpeedKnob(tau=tau), 0.5, 0.8).values == [tau]


def test_a_server_is_not_configured_with_a_range_that_its_policy_would_refuse() -> None:
    """The policy is a task, whose error nobody would hear."""
    with pytest.raises(InputError, match="lower bound first"):
        ServeConfig("letters", tau_range=(0.95, 0.6))


def test_the_block_dial() -> None:
    knob = SpeedKnob()
    dial = block_dial(knob, 4)
    assert list(dial.values) == [4, 3, 2, 1]
    dial.set(dial.values[-1])
    assert knob.block == 1


def test_in_lossless_mode_load_moves_the_window_and_the_answers_stay(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marslm.serve.speed.INTERVAL", 0.01)
    with serve(slots=1, target=parse_target("queue=1")) as server:
        server.engine.speed.strategy = "lossless-chain"
        alone = server.post("/v1/chat/completions", chat(max_tokens=100)).json()
        with server.http as http:
            with under_load(http):
                wait_for(lambda: server.engine.speed.block == 1)
                assert http.get("/v1/speed").json()["block"] == 1
                loaded = http.post("/v1/chat/completions", json=chat(max_tokens=100)).json()
            server.wait_until_idle()
            wait_for(lambda: server.engine.speed.block == 4)
            server.engine.speed.block = 2
            http.put("/v1/speed", json={"strategy": "mars"})
            wait_for(lambda: server.engine.speed.block == 4)
    content = [each["choices"][0]["message"]["content"] for each in (alone, loaded)]
    assert content[0] == content[1]


def test_load_turns_the_knob_and_its_end_turns_it_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marslm.serve.speed.INTERVAL", 0.01)
    target = parse_target("queue=1")
    with serve(slots=1, target=target, tau_range=(0.4, 0.8)) as server:
        server.engine.speed.strategy = "mars"
        with server.http as http:
            speed = http.get("/v1/speed").json()
            assert speed == {"strategy": "mars", "tau": 0.8, "block": 4, "policy": "queue=1"}
            with under_load(http):
                wait_for(lambda: server.engine.speed.tau < 0.8)
            server.wait_until_idle()
            wait_for(lambda: server.engine.speed.tau == 0.8)
            metrics = http.get("/metrics").text
    assert 'marslm:speed_moves_total{cause="policy",model_name="letters"}' in metrics


def test_load_moves_tau_from_where_it_was_set_and_back_to_there(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marslm.serve.speed.INTERVAL", 0.01)
    queue = parse_target("queue=1")
    with serve(slots=1, target=queue, tau_range=(0.4, 0.95)) as server, server.http as http:
        assert http.get("/v1/speed").json()["tau"] == 0.9  # the engine's own
        http.put("/v1/speed", json={"strategy": "mars", "tau": 0.7})
        with under_load(http):
            wait_for(lambda: server.engine.speed.tau < 0.7)
        server.wait_until_idle()
        wait_for(lambda: server.engine.speed.tau == 0.7)
