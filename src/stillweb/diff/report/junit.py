"""Reports as JUnit XML for CI systems: one test case per page, per trace, or per number of sessions.

JUnit XML has no single schema. The output is valid under the two common ones: Jenkins' `junit-10.xsd` and the
stricter `JUnit.xsd` of Windy Road (properties first, system-out and system-err last, timestamp without time
zone). Characters that XML 1.0 does not allow are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from stillweb import clock
from stillweb.diff.certify.certificate import Certificate, RunGroup, TraceResult
from stillweb.diff.compare.findings import FindingSeverity
from stillweb.diff.compare.settings import METRICS, shown
from stillweb.diff.report.report import DiffReport, PageDiff, TraceDiff

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 §2.2


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """A test case. `failure` and `error` are "" if it passed; the first line of each is the message."""

    group: str
    name: str
    seconds: float = 0.0
    failure: str = ""
    error: str = ""
    kind: str = "difference"


@dataclass(frozen=True, slots=True)
class JUnitSuite:
    name: str
    cases: tuple[JUnitCase, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


def write_junit(result: DiffReport | Certificate, path: Path) -> Path:
    suite = diff_suite(result) if isinstance(result, DiffReport) else certificate_suite(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = ElementTree.ElementTree(_element([suite]))
    ElementTree.indent(tree)
    tree.write(path, encoding="utf-8", xml_declaration=True)
    return path


def diff_suite(report: DiffReport) -> JUnitSuite:
    """Return a comparison as a suite: pages, then traces."""
    cases = [_page_case(report, page) for page in report.pages]
    cases += [_trace_case(report, trace) for trace in report.traces]
    return JUnitSuite(f"stillweb diff {report.collection}", tuple(cases), dict(report.about))


def certificate_suite(certificate: Certificate) -> JUnitSuite:
    """Return a certificate as a suite: a case per trace and count of sessions."""
    cases = [
        _group_case(certificate, result, group) for result in certificate.traces for group in result.groups
    ]
    stamps = {"environment_id": certificate.environment_id, "level": certificate.level}
    stamps |= {"backend": certificate.backend, **asdict(certificate.machine)}
    return JUnitSuite(f"stillweb certify {certificate.collection}", tuple(cases), stamps)


def _page_case(report: DiffReport, page: PageDiff) -> JUnitCase:
    broken = page.failures(report.gates)
    lines = [f"{METRICS[n][0]} is {shown(n, page.scores[n])}" for n in broken if n in page.scores]
    lines += [
        f"{finding.kind.value}: {finding.explanation}" + (f" (fix: {finding.fix})" if finding.fix else "")
        for finding in page.findings
        if finding.severity is FindingSeverity.ERROR
    ]
    return JUnitCase(report.collection, page.url, page.seconds, "\n".join(lines), page.error)


def _trace_case(report: DiffReport, trace: TraceDiff) -> JUnitCase:
    failure = ""
    if trace.rewards_agree is False:
        failure = f"recorded reward {trace.recorded_reward}, replayed {trace.replayed_reward}"
    return JUnitCase(f"{report.collection}.traces", trace.name, 0.0, failure, trace.error, "reward")


def _group_case(certificate: Certificate, result: TraceResult, group: RunGroup) -> JUnitCase:
    name = f"{result.trace.name}, {group.jobs} sessions{', machine loaded' if group.loaded else ''}"
    lines = []
    if group.failed:
        flagged = f", {group.flagged} steps flagged" if group.flagged else ""
        lines.append(f"{group.differ} of {group.runs} runs differ{flagged}")
        if divergence := result.divergence:
            lines.append(f"first difference at step {divergence.step}: {', '.join(divergence.forms)}")
            lines += filter(None, [divergence.looks_like, divergence.node, *divergence.requests])
    error = f"{group.broken} runs broken: {result.error}" if group.broken else ""
    seconds = round(group.median * group.steps / max(1, group.jobs), 3)
    return JUnitCase(certificate.collection, name, seconds, "\n".join(lines), error, "divergence")


def _element(suites: Iterable[JUnitSuite]) -> ElementTree.Element:
    root = ElementTree.Element("testsuites")
    for number, suite in enumerate(suites):
        element = ElementTree.SubElement(root, "testsuite", _suite_attributes(suite, number))
        properties = ElementTree.SubElement(element, "properties")
        for name, value in suite.properties.items():
            ElementTree.SubElement(properties, "property", name=_xml(name), value=_xml(value))
        for case in suite.cases:
            _add_case(element, case)
        ElementTree.SubElement(element, "system-out")
        ElementTree.SubElement(element, "system-err")
    return root


def _suite_attributes(suite: JUnitSuite, number: int) -> dict[str, str]:
    return {
        "name": _xml(suite.name),
        "package": "stillweb",
        "id": str(number),
        "hostname": "localhost",
        "timestamp": f"{clock.now():%Y-%m-%dT%H:%M:%S}",
        "tests": str(len(suite.cases)),
        "failures": str(sum(bool(case.failure and not case.error) for case in suite.cases)),
        "errors": str(sum(bool(case.error) for case in suite.cases)),
        "time": f"{sum(case.seconds for case in suite.cases):.3f}",
    }


def _add_case(suite: ElementTree.Element, case: JUnitCase) -> None:
    attributes = {"name": _xml(case.name), "classname": _xml(case.group), "time": f"{case.seconds:.3f}"}
    added = ElementTree.SubElement(suite, "testcase", attributes)
    text = case.error or case.failure
    if text:
        message = _xml(text.partition("\n")[0])
        tag = "error" if case.error else "failure"
        element = ElementTree.SubElement(added, tag, type=case.kind, message=message)
        element.text = _xml("\n".join(filter(None, (case.error, case.failure))))


def _xml(text: str) -> str:
    return _NOT_XML.sub("", str(text))
