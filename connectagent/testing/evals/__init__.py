"""For `connectagent eval`: what a file of checks imports.

    from connectagent.testing.evals import contains, judge, max_steps

    check_answer = contains()                        # the field `expected` of the case
    check_tone = judge("The answer is friendly and has at most two sentences.")
    check_steps = max_steps(3)

    def check_length(result, case):                  # a function of one's own
        assert len(result) < case.data["longest"], "too long"
"""

from __future__ import annotations

from connectagent.testing.evals.checks import calls_tools, contains, exact, judge, matches, max_cost, max_steps
from connectagent.testing.evals.trial import Case, Score, Trial

__all__ = [
    "Case",
    "Score",
    "Trial",
    "calls_tools",
    "contains",
    "exact",
    "judge",
    "matches",
    "max_cost",
    "max_steps",
]
