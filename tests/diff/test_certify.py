"""Certificates: rates, digests, files, what is a divergence and what another machine; and the command."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner
from PIL import Image, ImageDraw
from small_site import ORIGIN, build

from stillweb.cli.certify import certify
from stillweb.diff.certify.certificate import (
    Certificate,
    Machine,
    VerifyVerdict,
    compare_certificates,
    latest_certificate,
    this_machine,
)
from stillweb.diff.certify.certify import CertifyOptions, Condition, TraceRepetition, reference_of
from stillweb.diff.certify.divergence import explain, first_difference
from stillweb.diff.certify.rates import rate
from stillweb.diff.certify.watch import ContentStore, SeenStep, differing_boxes
from stillweb.env.episode.perturbation import Perturbation
from stillweb.env.trajectories.trace import Trace
from stillweb.errors import UsageError


def test_rates_have_the_bounds_of_the_books():
    assert rate(0, 300).high == pytest.approx(
        0.00994, abs=1e-5
    )  # 1 - 0.05^(1/300); the rule of three says 0.01
    assert (rate(0, 0).low, rate(0, 0).high) == (0.0, 1.0)
    assert rate(20, 20).low == pytest.approx(0.05 ** (1 / 20))
    # Wilson's interval as Newcombe (1998), table I, has it: 81 of 263, 15 of 148.
    assert (rate(81, 263).low, rate(81, 263).high) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert (rate(15, 148).low, rate(15, 148).high) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert str(rate(0, 20)) == "0 of 20: at most 13.91% (95%)"


def png(*boxes):
    picture = Image.new("RGB", (320, 200), "white")
    for box in boxes:
        ImageDraw.Draw(picture).rectangle(box, fill="#fefefe")
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def test_boxes_are_around_what_lies_together():
    assert differing_boxes(png(), png()) == []
    far_apart = png((10, 10, 19, 14), (200, 100, 259, 159))
    assert differing_boxes(png(), far_apart) == [(200, 100, 260, 160), (10, 10, 20, 15)]
    # A difference that no eye sees is one for a digest; a neighbouring tile belongs to the same box.
    assert differing_boxes(png(), png((15, 15, 17, 16))) == [(15, 15, 18, 17)]
    assert differing_boxes(b"", png()) == []


def step(stored, axtree, requests=(), **more):
    digests = {"axtree": stored.put(axtree.encode())}
    lines = "\n".join(requests).encode()
    return SeenStep("", "ok", "https://s.test/", digests, stored.put(lines), seconds=0.1, **more)


def test_a_difference_is_explained_by_node_and_request(tmp_path):
    stored = ContentStore(tmp_path)
    tree = "RootWebArea 'S'\n\tmain\n\t\tStaticText 'at {}'\n\t\tStaticText 'tail'"
    same = step(stored, "RootWebArea 'S'", ["GET https://s.test/ 200 exact"])
    one = [same, step(stored, tree.format("1700000000000"), ["GET /a 200 exact", "GET /b 200 exact"])]
    other = [same, step(stored, tree.format("1700000000999"), ["GET /b 200 exact", "GET /a 200 exact"])]
    assert first_difference(one, one) is None
    found = explain("t", one, other, stored, runs=3, streams=2)
    assert (found.step, found.forms) == (1, ("axtree",))
    assert found.node == "RootWebArea 'S' > main > StaticText 'at 1700000000999'"
    assert found.looks_like == "the same requests in another order: a race between responses"
    assert found.requests == (
        "order, step 1: request 1: reference GET /a 200 exact, other run GET /b 200 exact",
    )
    other[1] = step(stored, tree.format("1700000000999"), ["GET /a 200 exact", "GET /b?r=1 404 miss"])
    found = explain("t", one, other, stored, runs=3, streams=2)
    assert found.requests == (
        "only in the reference, step 1: GET /b 200 exact",
        "only in the other run, step 1: GET /b?r=1 404 miss",
    )
    assert found.looks_like.startswith("a clock")
    failed = [same, replace(one[1], status="action_failed")]
    found = explain("t", one, failed, stored, runs=1, streams=2)
    assert found.forms == ("status",)
    assert [line.text for line in found.lines] == [
        "ok at https://s.test/",
        "action_failed at https://s.test/",
    ]
    assert explain("t", one, one[:1], stored, runs=1, streams=2).forms == ("length",)


def test_the_reference_is_the_commonest_stream_and_broken_runs_are_none(tmp_path):
    stored = ContentStore(tmp_path)
    runs = [
        TraceRepetition("t", Condition(1), index, (step(stored, tree),), failure)
        for index, (tree, failure) in enumerate(
            [("a", ""), ("b", ""), ("b", ""), ("c", "gone"), ("c", "gone")]
        )
    ]
    assert reference_of(runs) is runs[1]
    assert reference_of(runs[3:]) is None


def test_options_say_how_many_runs_there_will_be():
    options = CertifyOptions(runs=20, jobs=(32, 1, 8), load=True)
    assert [(c.jobs, c.loaded) for c in options.conditions] == [
        (1, False), (8, False), (32, False), (1, True), (8, True), (32, True),
    ]  # fmt: skip
    # One trace at 32 sessions is run 32 times: an idle session is no neighbour.
    assert options.total(1) == 2 * (20 + 20 + 32)
    assert options.total(2) == 2 * 2 * (20 + 20 + 20)


SHORT = ("--runs", "1", "--jobs", "1,2")


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """The command on a small collection; with what it printed."""
    root = tmp_path_factory.mktemp("certified")
    build(root / "collections")
    trace = Trace("walk", ({"action": "goto", "url": f"{ORIGIN}/second"}, {"action": "back"}), f"{ORIGIN}/")
    trace.dump(root / "collections" / "small" / "traces" / "walk.jsonl")
    return root, run(root, "small", "--level", "clock", *SHORT, "--junit", str(root / "c.xml"), "--json")


def run(root, *arguments):
    places = ("--collections", str(root / "collections"), "--certs", str(root / "certs"))
    return CliRunner().invoke(certify, [*arguments, *places], standalone_mode=False)


@pytest.mark.browser
def test_the_command_certifies_and_keeps_what_it_ran(certified):
    root, result = certified
    assert result.exception is None
    assert result.return_value == 0
    printed = json.loads(result.stdout)
    path = root / "collections" / "small" / "certificate-clock.json"
    certificate = Certificate.load(path)
    assert printed == json.loads(path.read_text())
    assert certificate.passed
    assert certificate.flakes.tried == 1 + 2  # two sessions, so two runs
    assert [step.status for step in certificate.traces[0].steps] == ["ok"] * 3
    assert set(certificate.traces[0].steps[0].digests) == {"axtree", "dom", "screenshot"}
    assert certificate.traces[0].trace.actions[1] == {"action": "back"}
    assert "testcase" in (root / "c.xml").read_text()


@pytest.mark.browser
def test_a_certificate_is_verified_and_a_changed_one_refused(certified, tmp_path):
    root, _ = certified
    path = root / "collections" / "small" / "certificate-clock.json"
    keep = ("--keep", str(tmp_path / "keep"), "--runs", "1")
    result = run(root, "--verify", str(path), *keep)
    assert (result.return_value, result.exception) == (0, None)
    assert "3/3" in result.stdout
    assert len(list((tmp_path / "keep" / "runs").iterdir())) == 1

    environment_id = Certificate.load(path).environment_id
    latest = latest_certificate(path.parent, environment_id)
    assert latest is not None
    assert latest.passed
    assert latest_certificate(path.parent, "of another pack") is None

    forged = json.loads(path.read_text())
    forged["traces"][0]["steps"][1]["digests"]["axtree"] = "0" * 64
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    refused = run(root, "--verify", str(tmp_path / "forged.json"))
    assert isinstance(refused.exception, UsageError)
    assert "changed after it was signed" in str(refused.exception)

    # Signed anew it is a certificate of something else: on this kind of machine that is a divergence.
    honest = Certificate.load(path)
    first = honest.traces[0]
    steps = list(first.steps)
    steps[1] = replace(steps[1], digests={**steps[1].digests, "axtree": "0" * 64})
    other = replace(honest, traces=(replace(first, steps=tuple(steps)),))
    other.write(tmp_path / "other.json")
    result = run(root, "--verify", str(tmp_path / "other.json"), *keep)
    assert result.return_value == 1
    assert "divergence" in result.stdout
    assert "step 1: axtree" in result.stdout

    # On another machine it is that machine's.
    elsewhere = replace(other, machine=replace(honest.machine, browser="1.2.3.4"))
    (row,) = compare_certificates(elsewhere, honest)
    assert (row.verdict, row.equal, row.step, row.forms) == (VerifyVerdict.ELSEWHERE, 1, 1, ("axtree",))
    assert row.why.startswith("other browser build (1.2.3.4 there, ")


@pytest.mark.browser
def test_a_perturbed_certificate_is_verified_with_its_own_perturbation(certified, tmp_path):
    root, plain = certified
    out = str(tmp_path / "perturbed.json")
    perturbed = ("--perturb", "layout=1,interruptions=1", "--perturb-seed", "3")
    result = run(root, "small", "--level", "clock", *SHORT, *perturbed, "--out", out, "--json")
    assert (result.return_value, result.exception) == (0, None)
    printed, before = json.loads(result.stdout), json.loads(plain.stdout)
    certificate = Certificate.load(tmp_path / "perturbed.json")
    assert (certificate.perturb, certificate.perturb_seed) == (Perturbation(layout=1, interruptions=1), 3)
    (steps,), (unlike,) = ([trace["steps"] for trace in each["traces"]] for each in (printed, before))
    assert all(one["digests"] != other["digests"] for one, other in zip(steps, unlike, strict=True))
    assert run(root, "--verify", out, "--runs", "1").return_value == 0

    other = replace(certificate, perturb_seed=4)
    other.write(tmp_path / "other.json")
    assert run(root, "--verify", str(tmp_path / "other.json"), "--runs", "1").return_value == 1


def test_what_is_no_certificate_is_reported(tmp_path):
    for text in ("[]", "no JSON", '{"format": "stillweb-certificate", "version": 99}'):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(UsageError, match=r"c\.json"):
            Certificate.load(tmp_path / "c.json")


def test_this_machine_is_reported():
    machine = this_machine("156.0")
    assert machine.cpu
    assert machine.differs_from(machine) == ()
    assert Machine(**asdict(machine)) == machine
    assert machine.differs_from(replace(machine, fonts="sha256:0", system="other")) != ()


@pytest.mark.parametrize("jobs", ["0", "a", "1,999"])
def test_counts_of_sessions_are_judged(jobs, tmp_path):
    result = CliRunner().invoke(certify, ["small", "--jobs", jobs])
    assert result.exit_code == 2
