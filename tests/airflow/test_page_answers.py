"""Answers that take long: nobody waits, nothing is computed twice, and nothing old is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from airflow_provider_segments.plugins.answers import _KEPT_S, Answers, StillWorkingError

_T = TypeVar("_T")
SOON_S = 0.05
GENEROUS_S = 60.0


class Work:
    """Work that goes on until it is let go, and counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = threading.Event()

    def __call__(self) -> int:
        self.begun += 1
        assert self.gate.wait(GENEROUS_S)
        return self.begun


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asked(answers: Answers, key: str, work: Callable[[], _T]) -> _T:
    """As the page asks: again until there is an answer."""
    deadline = time.monotonic() + GENEROUS_S
    while True:
        try:
            return answers.get(key, work)
        except StillWorkingError:
            assert time.monotonic() < deadline


def test_who_has_waited_long_enough_asks_again_and_the_work_goes_on() -> None:
    work, answers = Work(), Answers(SOON_S)
    for _ in range(3):
        with pytest.raises(StillWorkingError, match="Still reading"):
            answers.get("key", work)
    work.gate.set()
    assert asked(answers, "key", work) == 1 == work.begun


def test_all_who_ask_for_the_same_meanwhile_share_one_answer() -> None:
    work, answers = Work(), Answers(SOON_S)
    with ThreadPoolExecutor(10) as threads:
        tries = [threads.submit(answers.get, "key", work) for _ in range(10)]
        assert {type(one.exception()) for one in tries} == {StillWorkingError}
    work.gate.set()
    assert asked(answers, "key", work) == 1 == work.begun


def test_an_answer_is_given_once_and_then_computed_anew() -> None:
    work, answers = Work(), Answers(GENEROUS_S)
    work.gate.set()
    assert [answers.get("key", work) for _ in range(3)] == [1, 2, 3]


def test_an_answer_that_nobody_has_asked_for_in_time_is_forgotten() -> None:
    now = [0.0]
    work, answers = Work(), Answers(SOON_S, lambda: now[0])
    with pytest.raises(StillWorkingError):
        answers.get("key", work)
    work.gate.set()
    until(lambda: answers._jobs["key"].done_s is not None)
    now[0] = _KEPT_S + 1
    assert asked(answers, "other", lambda: "x") == "x"
    assert "key" not in answers._jobs


def test_an_error_is_told_to_who_asks_and_is_not_remembered() -> None:
    answers = Answers(GENEROUS_S)

    def fail() -> int:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        answers.get("key", fail)
    assert answers.get("key", lambda: 5) == 5
