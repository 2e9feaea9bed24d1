"""How the state machines are run: no limit of time, and what Hypothesis warns of is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(machine: Callable[[], RuleBasedStateMachine], examples: int, steps: int, **how: Any) -> None:
    """So many random runs of at most so many steps; ``how`` are further settings. A failure prints how to repeat it."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            **how,
        ),
    )
