from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from stillweb.browser.profile import Profile
from stillweb.errors import UsageError
from stillweb.record.behaviors.options import Behavior
from stillweb.record.browsertrix.settings import (
    Container,
    dump,
    run_arguments,
    settings_of,
)
from stillweb.record.crawl.scope import Scope
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import parse_all

SEED = "https://site.test/shop/list?page=1"


PLAIN, DOCKER = CrawlOptions(), Container()


def planned(options: CrawlOptions = PLAIN, container: Container = DOCKER, **more):
    return settings_of("shop", [SEED], options, container, **more)


def test_options_become_settings_of_the_same_meaning():
    options = CrawlOptions(
        scope=ScopeKind.DOMAIN,
        depth=2,
        limit=7,
        time_limit=90.4,
        size_limit=5000,
        exclude=(r"/logout$",),
        jobs=3,
        retries=4,
        page_timeout=30,
        delay=1.0,
        rate=20,
        robots=True,
        sitemap="",
        profile=Profile(locale="de-DE"),
        behaviors=frozenset({Behavior.SCROLL}),
    )
    settings = planned(options).settings
    assert yaml.safe_load(dump(settings)) == settings
    assert settings == {
        "collection": "shop", "crawlId": "shop", "generateWACZ": True, "text": ["to-warc"],
        "screenshot": ["view"], "saveState": "always", "saveStateInterval": 60,
        "workers": 3, "pageLoadTimeout": 30, "maxPageRetries": 4,
        "extraChromeArgs": ["--accept-lang=de-DE"],
        "scopeType": "domain", "exclude": ["/logout$"], "depth": 2, "sitemap": True, "useRobots": True,
        "pageLimit": 7, "timeLimit": 90, "sizeLimit": 5000, "pageExtraDelay": 9.0,
        "behaviors": ["autoscroll"], "seeds": [{"url": SEED}],
    }  # fmt: skip


def test_what_the_user_sets_wins_and_a_state_goes_along():
    container = Container(settings={"text": ["final-to-warc"], "blockAds": True})
    settings = planned(container=container, state={"finished": [SEED], "queued": []}).settings
    assert (settings["text"], settings["blockAds"]) == (["final-to-warc"], True)
    assert settings["state"] == {"finished": [SEED], "queued": []}


def test_all_behaviors_are_its_own_none_are_none_and_what_it_lacks_is_reported():
    assert "behaviors" not in planned().settings
    assert planned(CrawlOptions(behaviors=frozenset())).settings["behaviors"] == ""
    some = planned(CrawlOptions(behaviors=frozenset({Behavior.TABS, Behavior.MEDIA})))
    assert some.settings["behaviors"] == ["autoplay"]
    assert some.notes == ("it has no behavior like ours for tabs",)


@pytest.mark.parametrize("pattern", [r"(?P<x>a)", r"(?i)a", r"\Aa", r"a\Z", r"a++", r"(?>a)"])
def test_a_pattern_that_javascript_does_not_know_is_refused(pattern):
    with pytest.raises(UsageError, match="JavaScript"):
        planned(CrawlOptions(exclude=(pattern,)))


HOSTS = st.sampled_from(["site.test", "www.site.test", "a.site.test", "nosite.test", "site.test.evil.test"])
PATHS = st.lists(st.sampled_from(["shop", "list", "cart", "x.y", "a+b"]), max_size=3).map("/".join)
URLS = st.builds(
    "{}://{}{}/{}{}".format,
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.sampled_from(["", ":8443"]),
    PATHS,
    st.sampled_from(["", "?page=1", "?page=2&q=shop"]),
)


@given(
    st.sampled_from(ScopeKind),
    st.lists(st.sampled_from(["cart", r"page=\d", "^https", "y$"]), min_size=1),
    URLS,
)
def test_an_include_holds_besides_the_scope_as_it_does_with_us(kind, include, url):
    seed = "https://site.test/shop/list"
    assume(url != seed)
    options = CrawlOptions(scope=kind, include=tuple(include))
    settings = settings_of("shop", [seed], options, Container()).settings
    assert settings["scopeType"] == "custom"
    # `\/` is how JavaScript writes `/`; all else in these patterns means the same to both.
    found = any(re.search(pattern, url) for pattern in settings["include"])
    assert found == Scope.of(kind, [seed], include).contains(url)


PROXY = "socks5://127.0.0.1:1080"


def call(options: CrawlOptions, container: Container = DOCKER, proxy: str = "") -> list[str]:
    files = {"upstream-ca.pem": Path("/x/ca.pem")}
    return run_arguments("label", Path("/data/work"), options, container, files, proxy)


def test_the_call_mounts_one_volume():
    made = call(CrawlOptions(record=RecordOptions(upstream_ca=Path("/x/ca.pem"))))
    volume = ["-v", "/data/work:/crawls"]
    assert made[:9] == ["docker", "run", "--rm", "--name", "label", "--shm-size", "1g", *volume]
    assert "/x/ca.pem:/stillweb/upstream-ca.pem:ro" in made
    assert "NODE_EXTRA_CA_CERTS=/stillweb/upstream-ca.pem" in made
    assert "--network" not in made
    assert made[-4:] == ["webrecorder/browsertrix-crawler:1.14.1", "crawl", "--config", "/crawls/config.yaml"]


def test_all_connections_go_through_the_forwarder():
    options = CrawlOptions(record=RecordOptions(resolve=parse_all(["*.test=127.0.0.1:8443"])))
    made = call(options, proxy=PROXY)
    assert made[made.index("--network") + 1] == "host"
    assert f"PROXY_SERVER={PROXY}" in made
    assert "--proxy-bypass-list=<-loopback>" in planned(options).settings["extraChromeArgs"]
    with pytest.raises(UsageError, match="host's network"):
        call(options, Container(arguments=("--network=lab",)), PROXY)
