"""An evaluation as files: JSON, which a later one is compared with, and JUnit's XML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from connectagent.errors import ConfigError
from connectagent.output.masking import current
from connectagent.output.text import as_json, clean
from connectagent.testing.evals.changes import Compared
from connectagent.testing.evals.sums import Scores, Taken, mean, scores, scores_of, sums_of
from connectagent.testing.evals.trial import Case, Trial

FORMAT = 1
# What XML 1.0 cannot have, not even escaped: https://www.w3.org/TR/xml/#charsets
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_data(taken: Sequence[Taken], compared: Sequence[Compared], **head: Any) -> Any:
    """An evaluation as data for JSON, without secrets.

    Args:
        taken: its variants.
        compared: what they are compared with.
        head: what is said of the whole.
    """
    variants = [
        {
            "name": one.name,
            **sums_of(one.trials),
            "compared": [found.as_data() for found in compared if found.taken is one],
            "cases": _cases(one),
        }
        for one in taken
    ]
    return current().value({"format": FORMAT, **head, "variants": variants})


def _cases(taken: Taken) -> list[dict[str, Any]]:
    return [
        {"id": case.id, "prompt": case.prompt, "expected": case.expected, "trials": [_trial(one) for one in trials]}
        for case, trials in taken.by_case()
    ]


def _trial(trial: Trial) -> dict[str, Any]:
    error = trial.item.error and {"type": type(trial.item.error).__name__, "message": str(trial.item.error)}
    scores = {
        name: {"score": float(score.value), "reason": score.reason, "cost": score.cost}
        for name, score in (trial.scores or {}).items()
    }
    return {
        "status": trial.status,
        "outcome": trial.item.status,
        "result": as_json(trial.result),
        "error": error,
        "cost": trial.cost,
        "tokens": trial.tokens,
        "duration_ms": trial.item.duration_ms,
        "record": None if trial.record is None else str(trial.record),
        "scores": scores,
    }


def saved(path: str) -> dict[str, Scores]:
    """The scores of a saved evaluation, by variant.

    Raises:
        ConfigError: the file is none of `connectagent eval -o`.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        if data["format"] != FORMAT:
            raise ConfigError(f"{path} has format {data['format']!r:.40}, not {FORMAT}; write it again with eval -o")
        return {str(variant["name"]): _scores(variant) for variant in data["variants"]}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; eval -o FILE writes such a file") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is no evaluation; connectagent eval -o FILE writes one") from None


def _scores(variant: dict[str, Any]) -> Scores:
    trials = [(str(case["id"]), trial["scores"]) for case in variant["cases"] for trial in case["trials"]]
    return scores((id, {name: float(one["score"]) for name, one in found.items()}) for id, found in trials)


# -- JUnit -----------------------------------------------------------------------------------------


def junit(taken: Sequence[Taken], compared: Sequence[Compared], name: str, least: float | None) -> str:
    """An evaluation in JUnit's form: a suite for each variant, a test for each case.

    The elements are those of https://github.com/testmoapp/junitxml, which CI servers read.

    Args:
        taken: the variants.
        compared: what they are compared with: a property of the suite for each check.
        name: of the evaluation.
        least: the mean score that each check of a case needs; None for 1.
    """
    root = ElementTree.Element("testsuites", name=_xml(name))
    for variant in taken:
        title = f"{name} {variant.name}".strip()
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(title))
        _properties(suite, [one for one in compared if one.taken is variant])
        kinds = [_test(suite, title, case, trials, least) for case, trials in variant.by_case()]
        suite.set("tests", str(len(kinds)))
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(kinds.count(kind)))
        suite.set("time", _seconds(variant.trials))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _properties(suite: ElementTree.Element, compared: Sequence[Compared]) -> None:
    found = [(f"{check} {one.words}", str(signs)) for one in compared for check, signs in one.signs.items()]
    properties = ElementTree.SubElement(suite, "properties") if found else suite
    for name, value in found:
        ElementTree.SubElement(properties, "property", name=_xml(name), value=_xml(value))


def _test(
    suite: ElementTree.Element, title: str, case: Case, trials: Sequence[Trial], least: float | None
) -> str | None:
    """Add a test; the element that says that it did not pass, if any."""
    test = ElementTree.SubElement(
        suite, "testcase", name=_xml(case.id), classname=_xml(title), time=_seconds(trials)
    )
    kind, texts = _problem(trials, 1.0 if least is None else least)
    if kind is not None:
        element = ElementTree.SubElement(test, kind, message=_xml(texts[0]))
        if kind != "skipped":
            element.text = _xml("\n".join(texts))
    return kind


def _problem(trials: Sequence[Trial], least: float) -> tuple[str | None, list[str]]:
    statuses = [one.status for one in trials]
    if "failed" in statuses:
        errors = [one.item.error for one in trials if one.status == "failed"]
        return "error", [f"{type(error).__name__}: {error}" for error in errors]
    if said := _too_low(trials, least):
        return "failure", said
    return ("skipped", ["it waits for a person"]) if "waiting" in statuses else (None, [])


def _too_low(trials: Sequence[Trial], least: float) -> list[str]:
    """What the checks say whose mean score for a case is too low."""
    low = {name for name, cases in scores_of(trials).items() for found in cases.values() if mean(found) < least}
    scores = [pair for one in trials for pair in (one.scores or {}).items() if pair[0] in low]
    return [f"{name}: {score.reason or f'{score.value:g}'}" for name, score in scores if not score.passed]


def _seconds(trials: Iterable[Trial]) -> str:
    return f"{sum(trial.item.duration_ms for trial in trials) / 1000:.3f}"


def _xml(text: str) -> str:
    """A text without secrets and without characters that XML cannot have."""
    return _NOT_XML.sub("\ufffd", clean(current().text(text)))
