"""Loader of WebArena's task configurations (`test.raw.json`); they score as in WebArena's harness.

The configurations name sites by placeholders (`__SHOPPING__`, `__REDDIT__`); `sites` maps them to URLs. A
task with an unmapped placeholder is loaded and cannot be scored. Evaluators that query the live site
(Magento's REST API for orders and reviews, with an administrator's password) become
`UnsupportedEvaluator`, and scoring raises. The two helper functions that only read pages or URLs are
implemented here. Comparisons that WebArena leaves to a language model need a judge (`EnvOptions.judge`).
The recording determines who is logged in; `storage_state` is ignored, since it names files of the
authors' machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stillweb.env.tasks.evaluators import (
    AllEvaluator,
    AnswerEvaluator,
    ContentEvaluator,
    TaskEvaluator,
    UnsupportedEvaluator,
    UrlEvaluator,
)
from stillweb.env.tasks.formats.verified import verified_task
from stillweb.env.tasks.task import Task
from stillweb.errors import TaskError

_PLACEHOLDER = re.compile(r"__([A-Z][A-Z_]*[A-Z])__")
_OR, _AND = " |OR| ", " |AND| "
_RULE = "GOLD in PRED"
_MEMBER_ROLE = re.compile(r"func:gitlab_get_project_memeber_role\(__page__, '([^']*)'\)")
_POST_URL = "func:reddit_get_post_url('__last_url__')"
# Role of an account in GitLab's table of members.
_ROLE_SCRIPT = """(() => {
  const names = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const row = names.findIndex((name) => name.outerText === %s);
  return document.querySelectorAll("td.col-max-role span")[row].outerText;
})()"""


def webarena_tasks(
    entries: Iterable[Any],
    *,
    sites: Mapping[str, str],
    collections: Mapping[str, str],
    source: str = "webarena",
) -> list[Task]:
    """Read configurations of WebArena or webarena-verified as tasks.

    Args:
        entries: the list in the file.
        sites: URL of each site by its placeholder, in any case, with or without `__`.
        collections: name of the collection that holds a site, by the site's name in `sites`.

    Raises:
        TaskError: naming source and index of the first entry that is wrong.
    """
    urls = {_site(name): url.rstrip("/") for name, url in sites.items()}
    held = {_site(name): collection for name, collection in collections.items()}
    tasks = []
    for index, entry in enumerate(entries):
        where = f"{source}#{index}"
        try:
            filled = _filled(entry, urls)
            task = (verified_task if isinstance(filled["eval"], list) else _task)(filled, where)
            if unknown := _PLACEHOLDER.findall(json.dumps(filled)):
                missing = ", ".join(sorted(set(unknown)))
                reason = f"no URL is given for {missing} (sites=...)"
                task = replace(task, evaluation=UnsupportedEvaluator(reason=reason, need="site_url"))
            collection = next((held[_site(s)] for s in filled["sites"] if _site(s) in held), "")
            tasks.append(replace(task, collection=collection))
        except KeyError as error:
            raise TaskError(f"{where}: no configuration of WebArena: {error} is missing") from error
        except (TypeError, AttributeError, ValueError, IndexError) as error:
            raise TaskError(f"{where}: no configuration of WebArena: {error}") from error
    return tasks


def _site(name: str) -> str:
    return name.strip("_").upper()


def _filled(value: Any, urls: Mapping[str, str]) -> Any:
    """Return a configuration with the placeholders replaced by URLs."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: urls.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(each, urls) for key, each in value.items()}
    return [_filled(each, urls) for each in value] if isinstance(value, list) else value


def _task(entry: Mapping[str, Any], where: str) -> Task:
    start, *tabs = entry["start_url"].split(_AND)
    if not entry["intent"] or not start:
        raise TaskError(f"{where}: 'intent' and 'start_url' must not be empty")
    return Task(
        id=f"webarena.{entry['task_id']}",
        goal=entry["intent"],
        start_url=start,
        evaluation=_evaluation(entry, where),
        source=where,
        tabs=tuple(tabs),
    )


def _evaluation(entry: Mapping[str, Any], where: str) -> TaskEvaluator:
    spec = entry["eval"]
    parts: list[TaskEvaluator] = []
    for kind in spec["eval_types"]:
        if kind == "string_match":
            parts.append(_answer(spec, entry["intent"]))
        elif kind == "url_match":
            parts.append(_url(spec))
        elif kind == "program_html":
            parts += [_content(target) for target in spec["program_html"]]
        else:
            raise TaskError(f"{where}: eval_type {kind!r} is none of string_match, url_match, program_html")
    if not parts:
        raise TaskError(f"{where}: nothing is evaluated")
    return parts[0] if len(parts) == 1 else AllEvaluator(parts=tuple(parts))


def _answer(spec: Mapping[str, Any], question: str) -> TaskEvaluator:
    reference = spec["reference_answers"]
    if unknown := set(reference) - {"exact_match", "must_include", "fuzzy_match"}:
        return UnsupportedEvaluator(reason=f"answers are compared by {', '.join(sorted(unknown))}")
    fuzzy = reference.get("fuzzy_match", [])
    unachievable = fuzzy == "N/A"
    return AnswerEvaluator(
        exact=reference.get("exact_match"),
        include=tuple(reference.get("must_include", ())),
        fuzzy=() if unachievable else tuple(fuzzy),
        unachievable=spec["string_note"] if unachievable else None,
        question=question,
    )


def _url(spec: Mapping[str, Any]) -> TaskEvaluator:
    rule = spec.get("url_note", _RULE)
    if rule != _RULE:
        return UnsupportedEvaluator(reason=f"URLs are compared by {rule!r}")
    return UrlEvaluator(holds=tuple(spec["reference_url"].split(_OR)))


def _content(target: Mapping[str, Any]) -> TaskEvaluator:
    url, locator = target["url"], target["locator"].strip()
    if url == _POST_URL:
        url = "reddit_post"
    elif url == "last":
        url = ""
    elif url.startswith("func"):
        return UnsupportedEvaluator(reason=f"{url} queries the live site")
    if member := _MEMBER_ROLE.fullmatch(locator):
        locator = _ROLE_SCRIPT % json.dumps(f"@{member[1]}")
    elif locator.startswith("func:"):
        return UnsupportedEvaluator(reason=f"{locator} queries the live site")
    contents = target["required_contents"]
    if set(contents) - {"exact_match", "must_include"}:
        return UnsupportedEvaluator(reason=f"contents are compared by {', '.join(contents)}")
    return ContentEvaluator(
        url=url,
        locator=locator,
        prepare=tuple(target.get("prep_actions", ())),
        exact=contents.get("exact_match"),
        include=tuple(tuple(each.split(_OR)) for each in contents.get("must_include", ())),
    )
