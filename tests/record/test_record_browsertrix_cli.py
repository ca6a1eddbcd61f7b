from __future__ import annotations

import yaml
from click.testing import CliRunner

from stillweb.cli import cli

CALL = ["record", "crawl", "https://site.test/", "-c", "shop", "--engine", "browsertrix"]


def test_a_dry_run_prints_the_call_and_the_settings_and_runs_nothing(tmp_path):
    more = [
        "--collections",
        str(tmp_path),
        "--limit",
        "3",
        "--set",
        "blockAds=true",
        "--docker-arg=--memory=4g",
    ]
    found = CliRunner().invoke(
        cli, [*CALL, *more, "--docker", "no-docker", "--dry-run"], catch_exceptions=False
    )
    assert found.exit_code == 0
    call, _, settings = found.stdout.partition("\n\n# config.yaml\n")
    assert call.startswith("no-docker run --rm --name stillweb-browsertrix-shop-")
    assert "--memory=4g webrecorder/browsertrix-crawler:1.14.1 crawl --config /crawls/config.yaml" in call
    values = yaml.safe_load(settings)
    assert (values["pageLimit"], values["blockAds"]) == (3, True)
    assert list(tmp_path.iterdir()) == []


def refusal(*arguments: str) -> tuple[str, str]:
    error = CliRunner().invoke(cli, list(arguments)).exception
    return str(error), getattr(error, "hint", "")


def test_what_it_cannot_be_reported_is_refused_and_not_forgotten(tmp_path):
    words, hint = refusal(*CALL, "--seed", "7", "--dry-run")
    assert words.startswith("--seed is not supported by --engine browsertrix")
    assert "--engine browser" in hint
    words, _ = refusal(*CALL, "--viewport", "800x600", "--dry-run")
    assert "1920x1080" in words
    words, _ = refusal(*CALL, "--no-baseline", "--dry-run")
    assert words.startswith("--no-baseline is not supported by --engine browsertrix")


def test_what_only_it_has_needs_its_name(tmp_path):
    words, hint = refusal("record", "crawl", "https://site.test/", "-c", "shop", "--set", "blockAds=true")
    assert words == "--set requires --engine browsertrix"
    assert hint == "add --engine browsertrix"
