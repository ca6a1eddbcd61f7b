"""The harvest: what a document refers to, the order of URLs, and a site recorded without a browser."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote_plus

import httpx
import pytest
from endpoint_standin import called, refused, standin

from stillweb import clock
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed, Sighting
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.coverage import (
    CoverageOptions,
    CoverageResult,
    StepRecord,
    UntilOptions,
    WalkRecord,
    causes_of,
    choices,
    measure_coverage,
    record_until,
)
from stillweb.coverage import until as loop
from stillweb.coverage.fill import FillOptions, fill
from stillweb.coverage.report import take_pictures
from stillweb.env import Env
from stillweb.errors import AgentError, CollectionError, RecordError, UpstreamUnreachable
from stillweb.matching.keys import MultipartBody, read_body
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Page, Request, Response, header
from stillweb.record.amend.amend import AmendOptions
from stillweb.record.amend.plan import SealedIndex
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.options import ExploreOptions, WalkOptions
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import Values
from stillweb.record.explore.walks import record_walks
from stillweb.record.forms.plan import plan_forms
from stillweb.record.harvest.connections import TooLarge
from stillweb.record.harvest.fetch import PageFetcher, recorded_data, recorded_posts, recorded_requests
from stillweb.record.harvest.frontier import DAMPING, HarvestFrontier
from stillweb.record.harvest.harvest import harvest
from stillweb.record.harvest.keeper import LoginKeeper
from stillweb.record.harvest.links import STATE_FILE
from stillweb.record.harvest.misses import PlainRequest, is_plain_post, plain_requests, word_templates
from stillweb.record.harvest.opened import OpenedPosts, opened_posts
from stillweb.record.harvest.options import HarvestOptions, HarvestReport
from stillweb.record.harvest.page import Resource, css_urls, parse_page
from stillweb.record.harvest.posts import PostForm, PostForms
from stillweb.record.harvest.proofs import NonceRequests
from stillweb.record.harvest.scripts.bundles import bundled_urls, destination_of
from stillweb.record.harvest.scripts.entries import ListedValues, other_orders, requests_for_entries
from stillweb.record.harvest.scripts.loaded import LoadedLinks
from stillweb.record.harvest.scripts.named import listed_urls
from stillweb.record.harvest.scripts.requests import combined_requests, learn_kinds
from stillweb.record.harvest.scripts.rows import attribute_texts, requests_for_rows
from stillweb.record.harvest.words import SiteWords, WordRequests, WordTemplate, with_beginnings
from stillweb.record.htmlforms import encode_form, form_requests
from stillweb.record.login.steps import read_storage_state
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve

HOME = "https://site.test/"
SCOPE = Scope.of(ScopeKind.HOST, [HOME])


# --- what a document refers to ---------------------------------------------------------------------


def urls(html: str, base: str = "https://a.test/x/y?z") -> list[str]:
    return [link.url for link in parse_page(base, html.encode()).links]


def test_links_are_resolved_as_browsers_resolve_them():
    html = r"""<a href="b">b</a><a href=" c\d ">c</a><a href="?q=1">q</a><a href="#top">top</a>
    <a href="//b.test/e#f">e</a><a href="javascript:go()">js</a><a href="mailto:a@b">m</a><a href="http://[">no</a>
    <area href="/area"><a href="b">again</a><a>none</a>"""
    assert urls(html) == [
        "https://a.test/x/b",
        "https://a.test/x/c/d",
        "https://a.test/x/y?q=1",
        "https://a.test/x/y?z",
        "https://b.test/e",
        "https://a.test/area",
        "https://a.test/x/b",
    ]


def test_a_base_element_and_a_refresh_are_honoured():
    html = '<base href="/deep/"><a href="x">x</a><meta http-equiv=Refresh content="3; url=\'next\'">'
    assert urls(html) == ["https://a.test/deep/x", "https://a.test/deep/next"]


def test_resources_are_those_that_a_browser_may_load():
    html = """<link rel="stylesheet" href="a.css"><link rel="preload" as="font" href="f.woff2">
    <link rel=alternate href=no><script src="s.js"></script><img src="i.png" srcset="i1.png 1x, i2.png 2x">
    <img data-src="late.jpg" data-id="7">
    <style>@import "b.css"; p { background: url( 'bg.gif' ) }</style><div style="background:url(d.png)"></div>
    <iframe src="frame.html"></iframe><video poster="p.png"><source src="v.mp4"></video>"""
    found = {(each.url.removeprefix("https://a.test/"), each.destination) for each in page(html).resources}
    assert found == {
        *(("a.css", "style"), ("f.woff2", "font"), ("s.js", "script"), ("i.png", "image")),
        *(("i1.png", "image"), ("i2.png", "image"), ("late.jpg", "image"), ("b.css", "style")),
        *(("bg.gif", "image"), ("d.png", "image"), ("frame.html", "iframe"), ("p.png", "image")),
        ("v.mp4", "video"),
    }


def page(html: str):
    return parse_page("https://a.test/", html.encode())


def test_style_sheets_name_fonts_images_and_other_style_sheets():
    css = "@import url(x.css);@font-face{src:url('f.woff?v=1')}a{b:url(data:image/gif;base64,R0)}b{c:url()}"
    assert css_urls("https://a.test/s/a.css", css) == [
        Resource("https://a.test/s/x.css", "style"),
        Resource("https://a.test/s/f.woff?v=1", "font"),
    ]


def test_a_form_without_an_action_is_marked():
    html = "<form><input name=q></form><form action=/find><input name=q></form>"
    assert [form.unaddressed for form in page(html).forms] == [True, False]


def test_a_form_has_the_fields_and_targets_that_a_browser_gives_it():
    html = """<input name=before form=one value=b><form id=one action=/a>
    <input type=checkbox name=empty value="" checked><input type=checkbox name=plain checked>
    <fieldset disabled><input name=off value=x></fieldset><input name=other form=two value=o>
    <select name=hint required><option disabled selected>Choose<option>x<option>y</select>
    <select name=last><option disabled>n<option>m<option selected>k<option selected>l</select>
    <select name=first><optgroup disabled><option>g</optgroup><option>h</select>
    <input type=color name=c><input type=range name=r min=2 max=10><input type=hidden name=_charset_>
    <button name=go value=1>Go</button><button formaction=/copy>Copy</button>
    <button formaction=/save formmethod=post name=keep value=2>Save</button></form>
    <form id=two action=/b></form><button form=two>Send</button>"""
    found = page(html)
    fields = [
        *(("before", "b"), ("empty", ""), ("plain", "on"), ("last", "l"), ("first", "h")),
        *(("c", "#000000"), ("r", "6"), ("_charset_", "UTF-8")),
    ]
    queries = [each.url.partition("?") for form in found.forms for each in form_requests(form, Values())[:1]]
    chosen = [*fields[:3], ("hint", "x"), *fields[3:]]
    assert [(url.removeprefix("https://a.test"), parse_qsl(query, True)) for url, _, query in queries] == [
        ("/a", [*chosen, ("go", "1")]),
        ("/copy", chosen),
        ("/b", [("other", "o")]),
    ]
    assert found.forms[0].fields[3].options == ("x", "y")
    (save,) = found.posts
    assert save.action == "https://a.test/save"
    assert PostForm("https://a.test/", save, save.fields[-1]).pairs(save) == [*fields, ("keep", "2")]
    assert not list(PostForms().of("https://a.test/", found))  # a browser sends it once an option is chosen


def test_a_form_between_table_rows_owns_the_fields_behind_it():
    html = """<table><tr><th>Name</th></tr><form method=post><input type=hidden name=csrf_token value=A>
    <tr><td><button formaction=/mute/1>Mute</button></td></tr>
    <tr><td><button formaction=/mute/2>Mute</button><button form=other>No</button></td></tr></form></table>
    <table><tr><td><button formaction=/elsewhere>No</button></td></tr></table>"""
    posts = list(PostForms().of("https://a.test/", page(html)))
    assert [(post.form.action, post.pairs(post.form)) for post in posts] == [
        ("https://a.test/mute/1", [("csrf_token", "A")]),
        ("https://a.test/mute/2", [("csrf_token", "A")]),
    ]


def test_a_link_with_another_method_is_a_form():
    link = '<a href=/unlink/1 data-method="POST">Unlink</a><a href=/x data-method=get>X</a>'
    found = page(f"<form method=post action=/a><input type=hidden name=csrf_token value=A></form>{link}")
    assert [each.url for each in found.links] == ["https://a.test/x"]
    post = found.posts[1]
    assert (post.action, PostForm("", post, None).pairs(post)) == (
        "https://a.test/unlink/1",
        [("csrf_token", "A")],
    )
    form = "<form method=post><input type=hidden name=form_key value=C></form>"
    magento = page(f"{form}<a href=/d data-method=post>D</a>")
    assert PostForm("", magento.posts[-1], None).pairs(magento.posts[-1]) == [("form_key", "C")]
    metas = "<meta name=csrf-param content=authenticity_token><meta name=csrf-token content=B>"
    (post,) = page(f"{metas}<a href=/things/1 data-method=delete>Delete</a>").posts
    assert PostForm("", post, None).pairs(post) == [("_method", "delete"), ("authenticity_token", "B")]
    (sent,) = PostForms().of(
        "https://a.test/", page(f"{metas}<a href=/things/1 data-method=delete>Remove</a>")
    )
    assert AvoidRules.of().forbids(sent.label)
    assert not page("<a href=/things/1 data-method=delete>Delete</a>").posts  # nothing says what is sent


def test_a_form_with_a_required_choice_is_sent_with_one():
    html = """<form method=%s action=/join><input type=checkbox name=terms value=yes required>
    <select name=kind required><option value="">Choose<option>a<option>b</select><input name=text></form>"""
    (post,) = page(html % "post").posts
    assert not list(PostForms().of("https://a.test/", page(html % "post")))
    planned = plan_forms([("https://a.test/", (), (post,))], AvoidRules.of())[0].variant
    assert planned.pairs(post, ["x"], Values()) == [("terms", "yes"), ("kind", "a"), ("text", "x")]
    requests = form_requests(page(html % "get").forms[0], Values())
    assert requests[0].url == "https://a.test/join?terms=yes&kind=a&text="


def test_words_are_those_that_a_visitor_reads():
    html = """<title>Blue kettles</title><p>prose<script>var code</script></p><h2>Tea</h2>
    <a href=x aria-label="Details">Buy it now</a><input placeholder=Find>"""
    assert page(html).words == {
        *("Blue", "kettles", "Blue kettles", "prose", "Tea", "Buy", "now", "Buy it now", "Details", "Find"),
    }
    assert page(html).shown == {"Blue", "kettles", "Blue kettles", "Tea"}


def test_post_forms_are_sent_once_for_each_button_and_not_if_they_need_text():
    html = """<form method=post action=/buy><input type=hidden name=csrf_token value=%s>
    <input type=hidden name=id value=3>
    <button name=n value=1>One</button><button name=n value=2>Two</button></form>
    <form method=post action=/mail><input required name=mail></form>"""
    forms = PostForms()
    first = list(forms.of("https://a.test/", page(html % "A")))
    assert [post.pairs(post.form) for post in first] == [
        [("csrf_token", "A"), ("id", "3"), ("n", "1")],
        [("csrf_token", "A"), ("id", "3"), ("n", "2")],
    ]
    assert not list(forms.of("https://a.test/other", page(html % "B")))  # another token only
    assert len(list(forms.of("https://a.test/", page(html.replace("value=3", "value=4") % "C")))) == 2


# --- in which order --------------------------------------------------------------------------------


def test_the_likeliest_url_comes_first_and_each_once():
    frontier = HarvestFrontier()
    frontier.add("a", "", 0.5)
    frontier.add("b", "", 0.4)
    frontier.add("b", "", 0.4)
    taken = frontier.take()
    assert taken is not None
    assert (taken.url, taken.weight) == ("b", 0.8)
    frontier.lead(taken, ["b", "c", "d", "c"])
    frontier.add("b", "", 9.0)  # taken already
    order = [frontier.take(), frontier.take(), frontier.take(), frontier.take()]
    assert [each and each.url for each in order] == ["a", "c", "d", None]
    assert order[1] is not None
    assert order[1].weight == pytest.approx(DAMPING * 0.8 / 2)
    assert not frontier.waiting


def test_weight_that_comes_late_is_handed_on():
    frontier = HarvestFrontier()
    frontier.add("hub", "", 0.1)
    frontier.add("page", "", 0.05)
    hub = frontier.take()
    assert hub is not None
    frontier.lead(hub, [f"under hub {number}" for number in range(4)], {"form": 0.5})
    page = frontier.take()
    assert page is not None
    assert page.url == "page"
    frontier.lead(page, {"hub": 0.9, "elsewhere": 0.1})
    frontier.add("start", "", 40.0)
    start = frontier.take()
    assert start is not None
    frontier.lead(start, {"hub": 0.9, "rare": 0.002})  # most visitors are at the hub by now
    order = [frontier.take() for _ in range(5)]
    assert [each and each.url for each in order][:4] == [f"under hub {number}" for number in range(4)]
    assert frontier.weight_of("form") > DAMPING**2 * 40 * 0.9 / 2


def test_likely_words_of_likely_forms_come_first_and_each_once():
    words = SiteWords()
    words.add(["kettle", "lamp"], 1.0)
    words.add(["kettle"], 1.0)
    forms = WordRequests()
    often, seldom = page(_SEARCH % "find").forms[0], page(_SEARCH % "old").forms[0]
    forms.add_form(often, HOME)
    forms.add_form(seldom, HOME)
    weights = {often: 0.8, seldom: 0.1}

    def taken(least: float, most: int = 9) -> list[str]:
        ranked = words.likeliest(10)
        return [each.url for each in forms.take(weights.__getitem__, ranked, least, most)]

    assert taken(0.3) == ["https://a.test/find?q=kettle&go=1", "https://a.test/find?q=kettle&all=1"]
    assert taken(0.0, most=2) == [
        *("https://a.test/find?q=lamp&go=1", "https://a.test/find?q=lamp&all=1"),
        *("https://a.test/old?q=kettle&go=1", "https://a.test/old?q=kettle&all=1"),
    ]
    assert taken(0.0) == ["https://a.test/old?q=lamp&go=1", "https://a.test/old?q=lamp&all=1"]


_SEARCH = (
    "<form action=%s><input name=q><button name=go value=1>Go</button><button name=all value=1>All</form>"
)


def test_files_and_lists_of_several_choices_are_sent_as_browsers_send_them():
    html = """<form method=post action=/add enctype=multipart/form-data><input type=file name=picture>
    <select name=none multiple><option>a</select><select name=some multiple><option>a<option selected>b
    <option selected>c</select><select name=one><option>d</select></form>
    <form method=post action=/urgent><input type=file name=picture required></form>"""
    (post,) = PostForms().of("https://a.test/", page(html))
    assert post.form.multipart
    assert post.pairs(post.form) == [("picture", None), ("some", "b"), ("some", "c"), ("one", "d")]
    assert encode_form([("picture", None)], multipart=False)[0] == b"picture="


def test_a_form_is_sent_with_fresh_tokens_and_otherwise_as_recorded():
    html = """<form method=post action=/edit><input type=hidden name=csrf_token value=%s>
    <input type=hidden name=started value=%s><textarea name=text>one\ntwo</textarea></form>"""
    recorded, fresh = page(html % ("A" * 32, "20261123")), page(html % ("B" * 32, "20261124"))
    (post,) = PostForms().of("https://a.test/", recorded)
    assert post.fresh_pairs(fresh.posts[0]) == [
        *(("csrf_token", "B" * 32), ("started", "20261123"), ("text", "one\r\ntwo")),
    ]


# --- what a replay missed --------------------------------------------------------------------------


def missed(
    url: str, method: str = "GET", resource: str = "empty", body: bytes = b"", **fields: str
) -> Missed:
    seen = Sighting("s", 1, page=HOME)
    named = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    packed = b64encode(body).decode()
    return Missed("site", "e", method, url, seen, seen, named, packed, len(body), resource=resource)


def test_a_missed_type_ahead_is_repeated_with_other_words():
    (request,) = plain_requests([missed("https://a.test/suggest?v=2&s=lamp")], unsafe=False)
    places = WordRequests()
    for each, at in word_templates([request], {"lamp"}):
        places.add_template(WordTemplate(each, at))
    found = places.take(lambda source: 1.0, [("kettle", 0.6), ("lamp", 0.4)], 0.0, 9)
    assert [each.url for each in found] == [
        f"https://a.test/suggest?v=2&s={word}" for word in ("kettle", "lamp")
    ]
    assert [each.plain and each.plain.url for each in found] == [each.url for each in found]


FORM = {"content_type": "application/x-www-form-urlencoded;charset=UTF-8"}


def test_misses_without_a_token_are_sent_again_and_documents_are_not():
    misses = [
        missed(f"{HOME}a.json", accept="application/json"),
        missed(f"{HOME}page", resource="document"),
        missed(f"{HOME}suggest", "POST", body=b"s=tea", **FORM),
        missed(f"{HOME}save", "POST", body=b"t=8f14e45fceea167a5a36dedd4bea2543&s=tea", **FORM),
        missed(f"{HOME}keep", "POST", body=b"csrf=kettle&s=tea", **FORM),
        missed(f"{HOME}list", "POST", body=b"call=medialist&csrf=&at=1795476277&s=interactive", **FORM),
        missed(f"{HOME}json", "POST", body=b"{}", content_type="application/json"),
        missed(f"{HOME}socket.io/?EIO=4&transport=polling&sid=x"),  # the connection is that of a page
    ]
    plain = list(plain_requests(misses, unsafe=True))
    assert [(each.method, each.url, each.body) for each in plain] == [
        ("GET", f"{HOME}a.json", None),
        ("POST", f"{HOME}suggest", b"s=tea"),
        ("POST", f"{HOME}list", b"call=medialist&csrf=&at=1795476277&s=interactive"),  # long words
    ]
    assert plain[0].fields == (("accept", "application/json"),)
    assert plain[0].referer == HOME
    assert [each.method for each in plain_requests(misses, unsafe=False)] == ["GET"]


@pytest.mark.parametrize(
    ("path", "body", "is_plain"),
    [
        ("api/runs/search", '{"filter": "kettle", "limit": 9}', True),
        ("api/runs/create", '{"name": "kettle"}', False),
        ("api/searches", '{"name": "kettle"}', False),
        ("api/getItems", '{"ids": ["1", "2"]}', True),
        ("api/search", '{"session": {"id": "8f14e45fceea167a5a36dedd4bea2543"}}', False),
        ("api/logs/filter", '{"run_id": "8f14e45fceea167a5a36dedd4bea2543"}', True),
        ("api/search", '{"csrf_token": "kettle"}', False),
        ("api/search", "[" * 100_000, False),
        ("rpc", '{"method": "item-get", "arguments": {"ids": [1]}}', True),
        ("rpc", '{"method": "item-set", "arguments": {"ids": [1]}}', False),
        ("rpc", '{"method": "item-set", "arguments": {"method": "item-get"}}', False),
        ("graphql", '{"query": "query All { items { name } }"}', True),
        ("graphql", '{"query": "mutation Add { add { name } }"}', False),
        ("graphql", '{"query": "query A { a } mutation Add { add { name } }"}', False),
    ],
)
def test_json_by_post_is_sent_again_if_it_only_reads(path: str, body: str, is_plain: bool):
    miss = missed(HOME + path, "POST", body=body.encode(), content_type="application/json")
    assert bool(list(plain_requests([miss], unsafe=True))) == is_plain


def test_posts_that_opening_a_page_sends_are_sent_with_other_values_and_other_operations_are_not():
    def post(body: Any, path: str = "api/metrics") -> Request:
        fields = (("Content-Type", "application/json"),)
        return Request("POST", HOME + path, fields, json.dumps(body).encode())

    opened = OpenedPosts.of([post({"run": ["1"], "from": 1}), post({"method": "runs.read", "id": 1}, "rpc")])
    assert opened.is_plain(post({"run": ["2", "3"], "from": 9}))
    assert opened.is_plain(post({"method": "runs.read", "id": 2}, "rpc"))
    assert opened.is_plain(post({"text": "tea"}, "api/search"))  # its URL says that it reads
    for body, path in [
        ({"run": ["2"], "delete": True}, "api/metrics"),
        ({"run": ["2"]}, "api/others"),
        ({"method": "runs.delete", "id": 1}, "rpc"),
    ]:
        assert not opened.is_plain(post(body, path))
    assert not opened.is_plain(replace(post({"run": ["1"]}), method="PUT"))
    token = OpenedPosts.of([post({"csrf_token": "a1", "run": "1"})])
    assert not token.is_plain(post({"csrf_token": "b2", "run": "1"}))


def test_scripts_that_repeat_links_do_so_on_other_pages_of_the_kind():
    def media(page: str, folder: str = "") -> str:
        return f"{HOME}doku?id={page}&do=media" + (f"&ns={folder}" if folder else "")

    def part(page: str, pairs: str) -> PlainRequest:
        fields = (("content-type", "application/x-www-form-urlencoded"),)
        return PlainRequest("POST", f"{HOME}ajax", "empty", page, fields, pairs.encode())

    pages = {
        media(page): [media(page, "b"), media(page, "c"), f"{HOME}doku?id={page}&do=edit", f"{HOME}?ns=b"]
        for page in ("start", "about", "third")
    }
    seen = [
        part(media("start"), "call=list&id=start&do=media&ns=b"),
        part(media("about") + "#top", "call=list&id=about&do=media&ns=c"),
        part(media("about"), "call=find&q=kettle"),  # repeats no link
    ]
    (kind,) = learn_kinds(seen, lambda url: pages.get(url, []))
    assert [kind.is_on(url) for url in (media("third"), f"{HOME}doku?id=third&do=edit", HOME)] == [1, 0, 0]
    found = [each for url in pages[media("third")] if (each := kind.request_for(media("third"), url))]
    assert [each.body for each in found] == [
        b"call=list&id=third&do=media&ns=b",
        b"call=list&id=third&do=media&ns=c",
    ]
    assert {each.referer for each in found} == {media("third")}
    (single,) = learn_kinds(seen[:1], lambda url: pages.get(url, []))
    assert [single.is_on(url) for url in (media("third"), media("third", "b"), HOME)] == [1, 0, 0]


def test_a_parameter_that_a_script_adds_from_the_page_s_url_is_that_of_each_page():
    form = (
        f"{HOME}doku?sectok=&do=media&sort=date"  # the target of the form names the page, its data does not
    )
    seen = PlainRequest(
        "POST",
        f"{HOME}ajax",
        "empty",
        f"{HOME}doku?id=start&do=media",
        (("content-type", "application/x-www-form-urlencoded"),),
        b"call=list&id=start&sectok=&do=media&sort=date",
    )
    (kind,) = learn_kinds([seen], lambda url: [form])
    found = kind.request_for(f"{HOME}doku?id=third&do=media", form)
    assert found is not None
    assert found.body == b"call=list&id=third&sectok=&do=media&sort=date"
    assert kind.request_for(f"{HOME}doku?do=media", form) is None


def test_files_that_scripts_name_are_beside_recorded_ones_of_their_group():
    table = """r.u=e=>"chunks/"+({9:"icons"}[e]||e)+"."+{12:"0af1c2",34:"9be2d1",56:"77ac00"}[e]+".js" """
    css = """r.c=e=>"css/"+{12:"aa11bb22",34:"cc33dd44",56:"ee55ff66"}[e]+".css" """
    strings = """a="media/up.1a.svg";b="media/down.2b.svg";c="media/left.3c.svg";d="other/x.svg" """
    strings += """e="media/../y.svg" """
    recorded = {
        *(f"{HOME}static/chunks/{name}.js" for name in ("12.0af1c2", "34.9be2d1")),
        f"{HOME}static/css/aa11bb22.css",  # one is no proof
        *(f"{HOME}static/media/{name}.svg" for name in ("up.1a", "down.2b")),
        f"{HOME}other/x.svg",
    }
    found = bundled_urls([table + css, strings], recorded)
    assert found == [f"{HOME}static/chunks/56.77ac00.js", f"{HOME}static/media/left.3c.svg"]
    assert [destination_of(url) for url in found] == ["script", "image"]
    # Another script of the bundle; it alone has no recorded file.
    other = """f="media/hidden.svg";g="workers/json.a1b2c3d4.js";h="workers/plain.js" """
    assert bundled_urls([strings, other], recorded) == [
        *(f"{HOME}static/media/{name}.svg" for name in ("left.3c", "hidden")),
        f"{HOME}static/workers/json.a1b2c3d4.js",
    ]


def test_recorded_posts_are_those_of_scripts_without_a_token_each_once(tmp_path: Path):
    collection = Collection.create(tmp_path, "site")
    form = ("Content-Type", "application/x-www-form-urlencoded")
    script, page = ("Sec-Fetch-Dest", "empty"), ("Sec-Fetch-Dest", "document")
    sent = [
        ("suggest", (form, script), b"q=tea%20pot"),
        ("suggest", (form, script), b"q=tea+pot"),  # the same in another spelling
        ("plain", (form, ("Accept", "*/*")), b"q=tea"),
        ("chat", (form, page), b"q=tea"),
        ("save", (form, script), b"csrf=x1&q=tea"),
    ]
    with CollectionWriter(collection) as writer:
        for path, fields, body in sent:
            answer = Response(200, headers=(("Content-Type", "text/html"),))
            writer.write(Exchange(Request("POST", HOME + path, fields, body), answer, "20260101000000"))
    found = sorted(each.url.removeprefix(HOME) for each in recorded_posts(collection))
    assert found == ["plain", "suggest"]


def test_a_typed_word_makes_a_request_a_template():
    misses = [
        missed(f"{HOME}find?page=1&q=tea"),
        missed(f"{HOME}find?page=1&q=kettle"),
        missed(f"{HOME}find?q=tea&lang=tea"),
        missed(f"{HOME}suggest", "POST", body=b"call=q&s=Blue+kettles", **FORM),
    ]
    words = {"tea", "kettle", "Blue kettles"}
    templates = list(word_templates(plain_requests(misses, unsafe=True), words))
    assert [(each.url, at) for each, at in templates] == [
        (f"{HOME}find?page=1&q=tea", 1),
        (f"{HOME}suggest", 1),
    ]
    form = templates[1][0]
    assert form.with_pairs([("call", "q"), ("s", "a b")]).body == b"call=q&s=a+b"
    assert templates[0][0].with_pairs([("page", "1"), ("q", "ü")]).url == f"{HOME}find?page=1&q=%C3%BC"


def typed(*urls: str, words: frozenset[str] = frozenset({"tea", "kettle", "list"})) -> list[tuple[str, int]]:
    misses = plain_requests([missed(url) for url in urls], unsafe=False)
    return [(f"{each.url} {each.count} {each.by_key}", at) for each, at in word_templates(misses, words)]


def test_a_word_inside_of_a_filter_makes_a_request_a_template():
    def found(text: str) -> Missed:
        return missed(f"{HOME}search?filter={quote_plus(text)}&max=9")

    misses = [found(f"tags = 'true' AND name ILIKE '%{word}%'") for word in ("lamp", "tea")]
    misses += [found("tags = 'true'"), found("tags = 'true' AND team = 'tea'")]
    plain = list(plain_requests(misses, unsafe=False))
    ((request, at),) = word_templates(plain, {"lamp", "tea", "kettle"})
    assert request.count == 2
    (sent,) = WordTemplate(request, at).requests("kettle", 0.5)
    assert parse_qsl(sent.url.partition("?")[2]) == [
        ("filter", "tags = 'true' AND name ILIKE '%kettle%'"),
        ("max", "9"),
    ]
    assert not list(word_templates(plain, {"lamp", "kettle"}))  # one word is no pattern


def test_a_typed_text_of_a_json_body_makes_a_request_a_template():
    def found(word: str) -> Missed:
        body = json.dumps({"limit": 9, "flows": {"name": {"like_": word}}, "tags": []}).encode()
        return missed(f"{HOME}api/flows/filter", "POST", body=body, content_type="application/json")

    plain = list(plain_requests([found("tea"), found("lamp")], unsafe=True))
    ((request, at),) = word_templates(plain, {"lamp", "tea", "kettle"})
    (sent,) = WordTemplate(request, at).requests("kettle", 0.5)
    assert sent.plain is not None
    body = {"limit": 9, "flows": {"name": {"like_": "kettle"}}, "tags": []}
    assert json.loads(sent.plain.body or b"") == body
    assert sent.plain.fields == (("content-type", "application/json"),)


def test_a_word_may_be_the_last_segment_of_a_path():
    plain = [PlainRequest("GET", f"{HOME}search/{word}", "empty", HOME) for word in ("tea", "fig%20jam")]
    ((request, at),) = word_templates(plain, {"tea", "fig jam", "ink/pen"}, named=True)
    (sent,) = WordTemplate(request, at).requests("ink/pen", 0.5)
    assert sent.url == f"{HOME}search/ink%2Fpen"
    assert WordTemplate(request, at).identity == ("site.test/search/", "search")
    assert not list(word_templates([replace(plain[0], url=f"{HOME}tags/tea")], {"tea"}))


def entries(answers: dict[str, Any], *requests: PlainRequest) -> list[str]:
    listed = ListedValues()
    for path, answer in answers.items():
        listed.add(f"{HOME}{path}", answer)
    return [
        f"{each.url.removeprefix(HOME)} {(each.body or b'').decode()}".strip()
        for each in requests_for_entries(requests, listed)
    ]


def make_request(path: str, body: str = "") -> PlainRequest:
    json_type = (("Content-Type", "application/json"),)
    method = "POST" if body else "GET"
    return PlainRequest(method, f"{HOME}{path}", "empty", HOME, json_type, body.encode() if body else None)


async def test_documents_of_listed_entries_are_recorded_although_scripts_make_their_links(
    tmp_path: Path, ca, site
) -> None:
    site.page("/", "<a href='/tickets/4/'>4</a><a href='/tickets/9/'>9</a><script>draw()</script>")
    for number in (4, 9, 11, 30):
        site.page(f"/tickets/{number}/", f"<p>{number}</p>")
    collection = with_start(tmp_path, site)
    listed = [{"id": number, "title": f"ticket {number}"} for number in (4, 9, 11)]
    request = Request("GET", f"{HOME}list", (("Sec-Fetch-Dest", "empty"), ("Referer", HOME)))
    json_type = (("Content-Type", "application/json"),)
    rows = Response(200, headers=json_type, raw_body=json.dumps(listed).encode())
    with CollectionWriter(collection) as writer:
        writer.write(Exchange(request, rows, "20260101000001"))
    for _ in range(2):  # two documents show that the values come from the list
        await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    paths = sorted(each.path for each in site.requests if each.path != "/")  # some are requested together
    assert paths == ["/tickets/11/", "/tickets/4/", "/tickets/9/"]


def combined(*requests: PlainRequest) -> list[str]:
    return [each.url.removeprefix(HOME) for each in combined_requests(requests)]


def test_a_combination_is_requested_if_the_three_others_were():
    orders = make_request("runs?order=name&by=ada"), make_request("runs?order=date&by=ada")
    assert combined(*orders, make_request("runs?order=name&by=eve")) == ["runs?order=date&by=eve"]
    assert combined(*orders, make_request("runs?order=size&by=eve")) == []  # no order with both
    assert combined(*orders, make_request("jobs?order=name&by=eve")) == []
    together = [
        make_request(f"runs?id={each}&name=run+{each}&page={page}") for each in (1, 2) for page in (1, 2)
    ]
    assert combined(*together) == []  # no name has two identifiers
    assert combined(*together[:3]) == []
    corners = (("a", 1), ("a", 2), ("b", 1))
    by_post = [make_request("runs", f'{{"by": {{"name": "{by}"}}, "page": {page}}}') for by, page in corners]
    (found,) = combined_requests(by_post)
    assert (found.method, found.body) == ("POST", b'{"by":{"name":"b"},"page":2}')


def test_checkboxes_of_a_request_have_both_values_but_a_dry_run_stays_one():
    assert combined(make_request("runs?mine=true&archived=false&by=ada&dry_run=true")) == [
        f"runs?mine={mine}&archived={archived}&by=ada&dry_run=true"
        for mine, archived in (("false", "false"), ("true", "true"), ("false", "true"))
    ]
    assert combined(make_request("runs?page=1&mine=yes")) == []
    body = b'{"dry_run": true, "options": {"past": false}, "tasks": ["a"]}'
    (found,) = combined_requests([make_request("clear", body.decode())])
    assert found.body == b'{"dry_run":true,"options":{"past":true},"tasks":["a"]}'
    many = combined(*(make_request(f"{path}?{'&'.join(f'b{n}=true' for n in range(12))}") for path in "ab"))
    assert [each[0] for each in many[:4]] == ["a", "b", "a", "b"]
    assert len(many) == len(set(many)) == 1000


def test_combinations_of_controls_come_before_those_with_typed_words():
    words = [
        make_request(f"runs?q={word}&order=name&size={size}") for word in ("", "a", "b") for size in (10, 50)
    ]
    found = combined(*words, make_request("runs?q=&order=date&size=10"))
    assert found[0] == "runs?q=&order=date&size=50"
    assert len(found) == 3


def test_the_other_entries_of_a_list_are_requested_as_some_of_them_were():
    studies = {"studies": [{"id": number, "name": f"study {number}"} for number in range(1, 6)], "total": 9}
    two = make_request("api/studies/1?limit=9"), make_request("api/studies/4?limit=9")
    assert entries({"api/studies": studies}, *two) == [f"api/studies/{n}?limit=9" for n in (2, 3, 5)]
    assert entries({"api/studies": studies}, make_request("api/pages/1?limit=9")) == []  # 1 may be any number
    polls = (make_request("api/studies/2?limit=3"), make_request("api/studies/5?limit=3"))
    assert entries({"api/studies": studies}, *two, *polls) == [
        *("api/studies/2?limit=9", "api/studies/1?limit=3", "api/studies/3?limit=9"),
        *("api/studies/3?limit=3", "api/studies/5?limit=9", "api/studies/4?limit=3"),
    ]  # another parameter makes another request of each entry
    trials = [{"number": number} for number in range(30)]
    assert len(entries({"api/trials": trials, "api/studies": studies}, *two)) == 3
    assert entries({"api/other": {"id": 1, "is_on": True}}, *two) == []  # no list


def test_pages_and_limits_are_no_entries_although_lists_have_such_numbers():
    films = {"films": [{"id": number} for number in range(1, 40)]}
    sizes = (
        make_request("api/films?order=id&size=5&page=1"),
        make_request("api/films?order=id&size=15&page=1"),
    )
    assert entries({"api/films": films}, *sizes) == []
    chosen = (make_request("api/seats?film=5&page=1"), make_request("api/seats?film=15&page=1"))
    assert len(entries({"api/films": films}, *chosen)) == 37


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("api/studies/1", "api/studies/2"),
        ("api/trials?study=1", "api/trials?study=2"),
        ("api/trials?max=9&study_id=1", "api/trials?max=9&study_id=2"),
        ('api/trials/search {"study_ids":["1"]}', 'api/trials/search {"study_ids":["2"]}'),
        ("api/trials?page=1", ""),
        ("api/trials?id=1", ""),  # of what is not said
    ],
)
def test_one_request_is_enough_if_its_parameter_is_named_after_the_list(first: str, second: str):
    studies = {"studies": [{"id": number} for number in (1, 2)]}
    path, _, body = first.partition(" ")
    others = {"pages": [{"number": 1}, {"number": 7}]}
    assert entries({"api/studies": studies, "api/pages": others}, make_request(path, body)) == [
        second
    ] * bool(second)


def test_entries_that_are_like_what_the_request_names_come_first():
    tasks = [{"id": number, "project": 1 + number // 12} for number in range(10, 16)]
    found = entries({"api/tasks": {"tasks": tasks}}, make_request("api/tasks/13?project=2"))
    of_two = [each for each in found if each.endswith("?project=2")]
    assert of_two == [f"api/tasks/{number}?project=2" for number in (12, 14, 15, 10, 11)]


def test_a_body_that_holds_the_state_of_a_view_makes_few_requests():
    columns = [{"id": f"column-{number:04}", "type": "text"} for number in range(150)]
    body = json.dumps({"shown": [each["id"] for each in columns], "order": {"by": columns[0]["id"]}})
    found = entries(
        {"api/columns": columns}, make_request("api/views/1", body), make_request("api/views/2", body)
    )
    assert len(found) <= 200


def test_a_list_that_is_wrapped_has_the_name_of_its_url():
    wrapped = {"count": 3, "results": [{"id": number} for number in (1, 2, 3)]}
    first = make_request("api/studies/1/trials?limit=10")
    assert entries({"api/studies?limit=9": wrapped}, first) == [
        f"api/studies/{number}/trials?limit=10" for number in (2, 3)
    ]
    assert entries({"api/pages": {"results": [{"id": 10}]}}, first) == []


def test_one_request_is_enough_for_a_long_identifier_also_in_a_body():
    runs = [{"id": f"0b5c1f9e-aaaa-4000-8000-00000000000{n}", "state": "ok"} for n in range(3)]
    first = make_request(
        "api/logs/filter", json.dumps({"run": [runs[0]["id"]], "limit": 5, "about": runs[0]["id"]})
    )
    assert entries({"api/runs": runs}, first) == [
        "api/logs/filter "
        + json.dumps({"run": [run["id"]], "limit": 5, "about": run["id"]}, separators=(",", ":"))
        for run in runs[1:]
    ]
    assert entries({"api/names": [{"name": "a b/c"}]}, make_request("api/x")) == []


def test_numbers_of_a_body_stay_numbers():
    rows = [{"row": number} for number in (7, 8, 9)]
    found = entries(
        {"api/rows": rows}, *(make_request("api/get", f'{{"row": {n}, "all": true}}') for n in (7, 8))
    )
    assert found == ['api/get {"row":9,"all":true}']


def test_a_request_may_repeat_several_values_of_its_entry_and_values_with_slashes():
    packages = [
        {"name": name, "latest": {"version": version}, "kind": "package"}
        for name, version in (("abc", "1.0"), ("@hd/def", "2.1"), ("@hd/ghi", "2.1"), ("jkl", "3.0"))
    ]
    two = make_request("package/abc/v/1.0"), make_request("package/@hd/def/v/2.1")
    assert entries({"list": packages}, *two) == ["package/@hd/ghi/v/2.1", "package/jkl/v/3.0"]
    # A value that all examples share is one of the requests, even if entries hold it.
    same = make_request("package/@hd/def/v/2.1"), make_request("package/@hd/ghi/v/2.1")
    assert entries({"list": packages}, *same) == ["package/abc/v/2.1", "package/jkl/v/2.1"]
    assert entries({"list": packages}, two[0]) == []
    coded = make_request("readme/abc"), make_request("readme/%40hd%2Fdef")
    assert entries({"list": packages}, *coded) == ["readme/@hd%2Fghi", "readme/jkl"]


def test_a_list_is_requested_in_the_order_of_each_of_its_members():
    runs = {"runs": [{"id": 1, "name": "a", "tags": []}, {"id": 2, "name": "b", "tags": []}], "total": 2}

    def ordered(path: str, body: str = "") -> list[str]:
        found = other_orders(make_request(path, body), runs)
        return [(each.body or b"").decode() or each.url.removeprefix(HOME) for each in found]

    assert ordered("runs?limit=9&order=-name") == [
        f"runs?limit=9&order={order}" for order in ("id", "name", "-id")
    ]
    assert ordered("runs?by=name&to=asc") == ["runs?by=id&to=asc"]
    assert ordered("runs", '{"by": "id", "to": "desc"}') == ['{"by":"name","to":"desc"}']
    assert ordered("runs?q=total") == ordered("runs?order=tags") == ordered("runs") == []
    assert combined(make_request("runs?by=name&to=asc")) == ["runs?by=name&to=desc"]


def test_data_that_json_in_a_script_lists_is_of_one_folder():
    definitions = [{"name": name, "url": f"/api/docs/{name}"} for name in ("runs", "plugins/mail", "users")]
    code = 'load({url:"/api/docs/code"}); send({"other": "/a/b", "url2": "/api/x"}, {"other": "/c/d"})'
    found = listed_urls(f"{HOME}docs/start.js", f"var options = {json.dumps(definitions)}; {code}")
    assert list(found) == [[f"{HOME}api/docs/{name}" for name in ("runs", "plugins/mail", "users")]]


def test_an_empty_value_of_an_entry_is_no_part_of_a_request():
    tasks = [{"task": f"task-{n}-of-a", "host": "vm" if n else ""} for n in range(3)]
    found = entries({"api/tasks": {"tasks": tasks}}, make_request("logs?task=task-0-of-a"))
    assert found == ["logs?task=task-1-of-a", "logs?task=task-2-of-a"]


def test_one_request_is_enough_for_a_time_to_the_second():
    runs = [{"after": f"2026-11-2{n}T03:00:00Z", "number": n} for n in range(3)]
    found = entries(
        {"api/runs": runs}, make_request("grid?from=2026-11-20T03%3A00%3A00Z&to=2026-11-20T03%3A00%3A00Z")
    )
    assert [each.count(f"2026-11-2{n}T03") for n, each in enumerate(found, 1)] == [2, 2]
    minutes = [{"after": f"03:0{n}"} for n in range(3)]
    assert entries({"api/runs": minutes}, make_request("grid?from=03%3A00")) == []


def test_a_path_with_many_kinds_of_requests_leaves_space_for_others():
    rows = {"rows": [{"id": f"row-{number:04}"} for number in range(9)]}
    switches = [f'{{"b{n}": {str(on).lower()}, "row": "row-0000"}}' for n in range(9) for on in (True, False)]
    found = entries(
        {"api/rows": rows}, *(make_request("search", each) for each in switches), make_request("see/row-0000")
    )
    assert [each.partition(" ")[0] for each in found[:4]] == [
        "search",
        "see/row-0001",
        "search",
        "see/row-0002",
    ]


def test_one_request_is_enough_for_an_entry_of_another_if_it_is_named_after_the_list():
    jobs = {"jobs": [{"id": name} for name in ("daily", "weekly")]}
    runs = {"runs": [{"run_id": f"run {n}", "job": name} for n, name in enumerate(("daily", "weekly"))]}
    found = entries({"api/jobs": jobs, "api/runs": runs}, make_request("api/jobs/daily/runs/run%200/log"))
    assert "api/jobs/weekly/runs/run%201/log" in found
    assert entries({"api/old": runs["runs"]}, make_request("api/of/daily/all/run%200/log")) == []


def test_a_dry_run_only_reads():
    def is_plain(body: str) -> bool:
        json_type = (("Content-Type", "application/json"),)
        return is_plain_post(Request("POST", f"{HOME}api/clear", json_type, body.encode()))

    assert is_plain('{"dry_run": true, "run": "a"}')
    assert is_plain('{"options": {"dryRun": true}}')
    assert not any(map(is_plain, ('{"dry_run": false}', '{"dry_run": "true"}', '{"run": "dry_run"}')))


def test_urls_in_data_are_requested_if_one_of_the_same_name_was():
    listed = ListedValues()
    for n in (1, 2, 3):
        listed.add(f"{HOME}side/{n}", {"dist": {"tarball": f"{HOME}{n}.tgz", "home": f"{HOME}about/{n}"}})
    assert list(listed.linked({f"{HOME}2.tgz", HOME})) == [f"{HOME}1.tgz", f"{HOME}3.tgz"]
    assert list(listed.linked({HOME})) == []


def test_urls_in_data_may_begin_at_the_root_and_images_need_no_example():
    listed = ListedValues()
    for n in (1, 2):
        listed.add(
            f"{HOME}api/{n}", [{"file": f"/files/{n}", "icon": f"/static/{n}.png", "path": f"//x/{n}"}]
        )
    assert list(listed.linked({f"{HOME}files/2"})) == [f"{HOME}files/1"]
    assert list(listed.images({f"{HOME}static/1.png"})) == [f"{HOME}static/2.png"]


def test_words_that_walks_have_seen_are_as_likely_as_seen():
    words = SiteWords({"kettle": 3.0, "lamp": 1.0})
    words.raise_to({"lamp": 1, "tea": 3})
    assert words.weights == {"kettle": 3.0, "lamp": 1.0, "tea": 3.0}
    words.raise_to({})
    assert [word for word, _ in words.likeliest(2)] == ["tea", "kettle"]


def test_the_typed_parameter_is_that_of_a_search_or_the_one_that_differs():
    # Other values may be words of the site by chance.
    assert typed(f"{HOME}api?list=list&srsearch=tea") == [(f"{HOME}api?list=list&srsearch=tea 1 False", 1)]
    assert typed(f"{HOME}api?view=list") == []
    assert typed(f"{HOME}api?view=list", f"{HOME}api?view=tea") == [(f"{HOME}api?view=list 2 False", 0)]
    assert typed(f"{HOME}api?at=100", f"{HOME}api?at=200", words=frozenset({"100", "200"})) == []


def test_beginnings_of_words_are_sent_where_a_script_sends_them():
    (found,) = typed(f"{HOME}suggest?q=k", f"{HOME}suggest?q=ket", f"{HOME}suggest?q=kettle")
    assert found == (f"{HOME}suggest?q=k 3 True", 0)
    ranked = with_beginnings([("kettle", 0.5), ("kebab", 0.3), ("tea", 0.2)])
    assert ranked[:2] == [("ke", 0.8), ("k", 0.8)]
    assert len(ranked) == 3


def test_recorded_requests_are_those_of_scripts_by_kind(tmp_path: Path):
    collection = Collection.create(tmp_path, "site")
    dest = "Sec-Fetch-Dest"
    sent = [
        (
            "find?q=tea",
            ((dest, "empty"), ("Referer", HOME), ("X-Kind", "a"), ("Cookie", "c")),
            "application/json",
        ),
        ("find?q=lamp", ((dest, "empty"),), "application/json"),
        ("page?q=tea", ((dest, "document"),), "text/html"),
        ("code?q=tea", ((dest, "empty"),), "text/javascript"),
        ("plain?q=tea", (), "text/html"),
        ("http.json?q=tea", (), "application/json"),
    ]
    with CollectionWriter(collection) as writer:
        for path, fields, mime in sent:
            answer = Response(200, headers=(("Content-Type", mime),))
            writer.write(Exchange(Request("GET", HOME + path, fields), answer, "20260101000000"))
    found = {each.url.removeprefix(HOME): each for each in recorded_requests(collection)}
    assert sorted(found) == ["find?q=lamp", "find?q=tea", "http.json?q=tea"]
    names = {name for name, _ in found["find?q=lamp"].fields}
    assert ("cookie" in {name.lower() for name in names}, found["find?q=lamp"].destination) == (
        False,
        "empty",
    )
    ((_, at),) = word_templates([*found.values()][:2], {"tea", "lamp"}, named=True)
    assert at == 0


def test_answers_to_links_are_not_all_read_for_the_data_of_scripts(tmp_path: Path, monkeypatch) -> None:
    collection = Collection.create(tmp_path, "site")
    paths = [(f"rows/{number:03d}", "document") for number in range(120)] + [("zoo", "empty")]
    with CollectionWriter(collection) as writer:
        for path, kind in paths:
            answer = Response(200, headers=(("Content-Type", "application/json"),), raw_body=b"[1]")
            request = Request("GET", HOME + path, (("Sec-Fetch-Dest", kind),))
            writer.write(Exchange(request, answer, "20260101000000"))
    read = []
    for name in ("read_request", "read_capture"):
        original = getattr(Collection, name)
        monkeypatch.setattr(
            Collection,
            name,
            lambda self, capture, original=original: read.append(capture) or original(self, capture),
        )
    found = [(each.url, content) for each, content in recorded_data(collection, unsafe=False)]
    assert (found, len(read) < 60) == ([(f"{HOME}zoo", [1])], True)


# --- over the wire ---------------------------------------------------------------------------------


def fetcher(site, **more) -> PageFetcher:
    return PageFetcher(
        site.options, {"document": (("User-Agent", "recorded"), ("Accept-Encoding", "gzip"))}, **more
    )


async def test_an_exchange_holds_what_was_sent_and_received(site) -> None:
    packed = gzip.compress(b"<h1>x</h1>", mtime=0)
    site.page("/p%20q", "", headers=(("Content-Encoding", "gzip"), ("Set-Cookie", "a=1")))
    site.answers["/p%20q"] = replace(site.answers["/p%20q"], body=packed)
    async with fetcher(site) as fetch:
        got = await fetch.fetch(f"{HOME}p%20q", referer=HOME)
    assert got.request.url == f"{HOME}p%20q"
    assert header(got.request.headers, "user-agent") == site.requests[-1].headers["user-agent"] == "recorded"
    assert header(got.request.headers, "referer") == HOME
    assert got.response.raw_body == packed
    assert not header(got.response.headers, "connection")


async def test_a_post_has_one_content_type_also_if_scripts_give_get_requests_one(site) -> None:
    site.page("/list", "[]")
    given = (("content-type", "application/json"),)
    async with PageFetcher(site.options, {"empty": given}) as fetcher:
        exchanges = [
            await fetcher.fetch(f"{HOME}list", "empty", referer=HOME, body=b"[1]", fields=given),
            await fetcher.fetch(f"{HOME}list", "empty", referer=HOME, body=b"a=1"),
        ]
    assert [
        [value for name, value in each.request.headers if name.lower() == "content-type"]
        for each in exchanges
    ] == [["application/json"], ["application/x-www-form-urlencoded"]]


async def test_a_busy_site_is_requested_again_when_it_says_and_then_given_up(site) -> None:
    answers = iter([503, 429, 200])
    site.answers["/"] = lambda request: site.reply("x", status=next(answers), headers=(("Retry-After", "0"),))
    async with fetcher(site) as fetch:
        assert (await fetch.fetch(HOME)).response.status == 200
    site.answers["/"] = lambda request: site.reply("x", status=503, headers=(("Retry-After", "0"),))
    async with fetcher(site) as fetch:
        with pytest.raises(UpstreamUnreachable, match="status 503 3 times"):
            await fetch.fetch(HOME)


async def test_a_site_that_answers_too_late_gets_fewer_requests_at_a_time(site, monkeypatch) -> None:
    monkeypatch.setattr("stillweb.record.harvest.connections._TIMEOUT", 0.2)
    ended = threading.Event()
    site.answers["/late"] = replace(site.reply(""), chunks=(b"a", b"b"), hold=ended)
    async with fetcher(site, per_host=8) as fetch:
        with pytest.raises(UpstreamUnreachable, match=f"{HOME}late: no answer in time"):
            await fetch.fetch(f"{HOME}late")
        assert fetch._host(HOME)._limit == 4.0
    ended.set()


async def test_a_body_over_the_limit_is_left_out(site) -> None:
    site.page("/", "x" * 2000)
    async with fetcher(site, max_body=1000) as fetch:
        with pytest.raises(TooLarge):
            await fetch.fetch(HOME)


SOON = (("Retry-After", "0.2"),)  # instead of a second


async def test_broken_pages_do_not_hold_the_others_up(site) -> None:
    site.page("/broken", "", status=500, headers=SOON)
    site.page("/", "")
    async with fetcher(site) as fetch:
        for number in range(3):
            assert (await fetch.fetch(f"{HOME}broken?{number}")).response.status == 500
        before, started = len(site.requests), clock.monotonic()
        for number in range(20):
            assert (await fetch.fetch(f"{HOME}broken?{number}")).response.status == 500
        assert clock.monotonic() - started < 4.0  # each waited 0.6 s before
        assert len(site.requests) - before == 40


async def test_an_error_that_passes_is_not_the_pages_own(site) -> None:
    site.page("/broken", "", status=500, headers=SOON)
    site.page("/", "")
    busy = iter([500, 200, *[500] * 2, 200])
    site.answers["/at-times"] = lambda request: site.reply("<p>now</p>", status=next(busy), headers=SOON)
    async with fetcher(site) as fetch:
        for number in range(3):
            await fetch.fetch(f"{HOME}broken?{number}")
        for _ in range(2):  # the first one shows that errors pass, so that the second one has three attempts
            assert (await fetch.fetch(f"{HOME}at-times")).response.status == 200


async def test_requests_to_a_host_keep_their_distance(site) -> None:
    site.page("/", "x")
    async with fetcher(site, interval=0.1) as fetch:
        started = clock.monotonic()
        await asyncio.gather(*(fetch.fetch(HOME) for _ in range(4)))
    assert clock.monotonic() - started >= 0.3


# --- a site, recorded without a browser ------------------------------------------------------------


def with_start(tmp_path: Path, site, page: str = "") -> Collection:
    """A recording of the site's start page."""
    collection = Collection.create(tmp_path, "site")
    with CollectionWriter(collection) as writer:
        body = page.encode() or site.answers["/"].body
        home = Response(200, headers=(("Content-Type", "text/html"),), raw_body=body)
        request = Request("GET", HOME, (("Sec-Fetch-Dest", "document"),))
        writer.write(Exchange(request, home, "20260101000000"))
    collection.write_pages([Page(HOME, "20260101000000", seed=True)])
    return collection


async def test_a_page_is_what_a_first_visit_shows_unless_the_site_refuses_that(
    tmp_path: Path, ca, site
) -> None:
    site.page("/", "<a href='/a'>a</a><a href='/gate'>b</a>", headers=(("Set-Cookie", "seen=1"),))
    site.answers["/a"] = lambda request: site.reply(f"<p>{request.headers.get('cookie', 'no cookie')}</p>")
    site.page("/away", "", status=302, headers=(("Location", "/gate"),))
    away = site.answers["/away"]
    site.answers["/gate"] = lambda request: site.reply("<p>in</p>") if "cookie" in request.headers else away
    collection = with_start(tmp_path, site)
    await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    bodies = {each.request.url: each.response.raw_body for each in collection.exchanges()}
    assert (b"no cookie" in bodies[f"{HOME}a"], b"in" in bodies[f"{HOME}gate"]) == (True, True)


async def test_a_page_that_gave_no_answer_is_requested_by_the_next_harvest(
    tmp_path: Path, ca, site, monkeypatch
) -> None:
    monkeypatch.setattr("stillweb.record.harvest.connections._TIMEOUT", 2.0)
    site.page("/", "<a href='/late'>late</a>")
    ended = threading.Event()
    site.answers["/late"] = replace(site.reply(""), chunks=(b"a", b"b"), hold=ended)
    collection = with_start(tmp_path, site)
    first = await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    ended.set()
    site.page("/late", "<p>now</p>")
    await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    assert list(first.failed) == [f"{HOME}late"]
    assert f"{HOME}late" in {each.url for each in collection.captures()}


async def test_a_multipart_form_is_sent_and_its_tokens_are_learned(tmp_path: Path, ca, site) -> None:
    site.page("/", "<a href=/new>New</a>")
    site.answers["/new"] = lambda request: site.reply(
        "<form method=post action=/add enctype=multipart/form-data><input type=file name=picture>"
        f"<input type=hidden name=csrf_token value={token()}><input name=title><button>Save</button></form>"
    )
    site.page("/add", "<h1>Added</h1>")
    collection = with_start(tmp_path, site)
    await harvest(collection, ca, SCOPE, HarvestOptions(forms=5, record=site.options))
    (sent,) = (each.request for each in collection.exchanges() if each.request.method == "POST")
    body = read_body(header(sent.headers, "content-type"), sent.raw_body)
    assert isinstance(body, MultipartBody)
    assert [part.field for part in body.parts] == [None, "csrf_token", "title"]
    rules = {(rule.where, rule.name) for rule in read_rules(collection).own}
    assert ("multipart", "csrf_token") in rules


RUNS = [f"5f0c{number}e9a-run" for number in range(4)]


def application(tmp_path: Path, site) -> Collection:
    """Return a recording of a list, one of its entries, and one URL that it names."""
    site.page("/", "<div id=app></div>")
    data = (("Content-Type", "application/json"),)
    listed = json.dumps([{"id": each, "raw": f"{HOME}raw/{each}"} for each in RUNS]).encode()
    for each in RUNS[1:3]:
        site.answers[f"/api/runs/{each}"] = replace(site.reply(each), type="application/json")
        site.answers[f"/log/{each}"] = replace(site.reply(each), type="text/plain")
    collection = with_start(tmp_path, site)
    with CollectionWriter(collection) as writer:
        sent = {
            "api/runs": listed,
            f"api/runs/{RUNS[0]}": b"{}",
            f"log/{RUNS[0]}": b"-",
            f"raw/{RUNS[3]}": b"-",
        }
        for path, body in sent.items():
            request = Request("GET", HOME + path, (("Sec-Fetch-Dest", "empty"), ("Referer", HOME)))
            fields = data if body != b"-" else (("Content-Type", "text/plain"),)
            writer.write(Exchange(request, Response(200, headers=fields, raw_body=body), "20260101000000"))
    return collection


@pytest.mark.parametrize("first", [0.25, 0.0])
async def test_an_application_is_recorded_with_the_entries_that_no_visit_chose(
    tmp_path: Path, ca, site, monkeypatch, first: float
) -> None:
    # Without time before the pages they come after these.
    monkeypatch.setattr("stillweb.record.harvest.harvest.MISSES_SHARE", first)
    collection = application(tmp_path, site)
    await harvest(collection, ca, SCOPE, HarvestOptions(seconds=60.0, record=site.options))
    # The last one has an error page of the site. A URL that the site names is recorded with its error page.
    recorded = {each.url.removeprefix(HOME) for each in collection.captures()}
    assert recorded == {
        "",
        "api/runs",
        *(f"{kind}/{each}" for each in RUNS[:3] for kind in ("api/runs", "log")),
        *(f"raw/{each}" for each in RUNS),
    }


async def test_the_next_harvest_does_not_repeat_what_the_site_has_refused(tmp_path: Path, ca, site) -> None:
    collection = application(tmp_path, site)
    for _ in range(2):
        await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    gone = [each.path for each in site.requests if each.path == f"/api/runs/{RUNS[3]}"]
    assert len(gone) == 1


async def test_documents_of_views_that_walks_have_seen_are_recorded(tmp_path: Path, ca, site) -> None:
    site.page("/", "<div id=app></div>")
    for path in ("/views/2?tab=3", "/logout"):
        site.page(path, "<div id=app></div>")
    collection = with_start(tmp_path, site)
    seen = (f"{HOME}views/2?tab=3#top", f"{HOME}logout", "https://other.test/")
    await harvest(collection, ca, SCOPE, HarvestOptions(addresses=seen, record=site.options))
    assert [each.path for each in site.requests if each.path != "/"] == ["/views/2?tab=3"]


async def test_entries_of_lists_come_before_urls_that_json_names(tmp_path: Path, ca, site) -> None:
    collection = application(tmp_path, site)
    before = {each.url for each in collection.captures()}
    limits = HarvestOptions(requests=4, per_host=1, record=site.options)
    await harvest(collection, ca, SCOPE, limits)
    found = {each.url.removeprefix(HOME) for each in collection.captures() if each.url not in before}
    assert found == {f"{kind}/{each}" for each in RUNS[1:3] for kind in ("api/runs", "log")}


async def test_of_equally_likely_forms_the_first_of_the_page_is_sent_first(tmp_path: Path, ca, site) -> None:
    form = "<form method=post action=/{0}><button>{0}</button></form>"
    site.page("/", "".join(map(form.format, ("pause", "english", "german"))))
    for path in ("/pause", "/english", "/german"):
        site.page(path, "<p>Done</p>")
    collection = with_start(tmp_path, site)
    await harvest(collection, ca, SCOPE, HarvestOptions(forms=2, per_host=1, record=site.options))
    assert [each.path for each in site.requests if each.method == "POST"] == ["/pause", "/english"]


PART = (("x-requested-with", "XMLHttpRequest"), ("accept", "*/*"), ("sec-fetch-dest", "empty"))


def part_or_page(request, site):
    is_part = "x-requested-with" in request.headers
    more = (
        f"<a class='button dialog' href='{request.path}/more'>More</a>"
        if request.path.count("/") == 2
        else ""
    )
    return site.reply(f"<p>part</p>{more}<script src=/more.js></script>" if is_part else "<h1>Page</h1>")


def links(*urls: str, classes: str) -> str:
    return "".join(f"<a class='{classes}' href='{url}'>{url}</a>" for url in urls)


async def test_links_that_a_script_loads_are_requested_as_it_does(tmp_path: Path, ca, site) -> None:
    dialogs = [f"/edit/{number}" for number in range(3)]
    pages = ["/a", "/b", "/c", "/d"]
    site.page("/", links(*dialogs, classes="button dialog") + links(*pages, classes="button"))
    for path in (*dialogs, *(f"{each}/more" for each in dialogs)):
        site.answers[path] = lambda request: part_or_page(request, site)
    for path in pages:
        site.page(path, "")
    site.answers["/more.js"] = replace(site.reply("run()"), type="text/javascript")
    collection = with_start(tmp_path, site)
    await harvest(collection, ca, SCOPE, HarvestOptions(pages=3, record=site.options))  # some as documents
    seen = Sighting("s", 1, HOME, HOME)
    missed = (Missed("", "", "GET", f"{HOME}edit/1", seen, seen, PART, resource="empty"),)
    for misses in (missed, ()):
        await harvest(collection, ca, SCOPE, HarvestOptions(misses=misses, record=site.options))
    parts: dict[str, list[bool]] = {}
    for each in collection.exchanges():
        parts.setdefault(each.request.url.removeprefix(HOME), []).append(b"part" in each.response.raw_body)
    # Documents and parts of the dialogs, those that only a part shows too, each once; pages as documents.
    assert {path: sorted(found) for path, found in parts.items() if path} == {
        **{each[1:]: [False, True] for each in dialogs},
        **{f"{each[1:]}/more": [False, True] for each in dialogs},
        **{each[1:]: [False] for each in pages},
        "more.js": [False, False],  # as a script, and as jQuery requests those of a part
    }


async def test_forms_of_what_a_script_loads_are_sent_as_it_does(tmp_path: Path, ca, site) -> None:
    dialogs = [f"/edit/{number}" for number in range(2)]
    site.page("/", links(*dialogs, classes="dialog") + links("/a", "/b", "/c", classes=""))
    form = "<form method=post action={0}><input type=hidden name=csrf value={1}><input name=title value=Tea>"
    for path in dialogs:
        site.answers[path] = lambda request: site.reply(
            form.format(request.path + "/save", token()) + "<button name=go>Save</button></form>"
        )
        site.page(f"{path}/save", "saved")
    collection = with_start(tmp_path, site)
    seen = Sighting("s", 1, HOME, HOME)
    sent = (*PART, ("content-type", "multipart/form-data; boundary=x"), ("origin", "https://site.test"))
    misses = (
        Missed("", "", "GET", f"{HOME}edit/1", seen, seen, PART, resource="empty"),
        Missed("", "", "POST", f"{HOME}edit/1/save", seen, seen, sent, resource="empty", body_size=9),
    )
    options = HarvestOptions(misses=misses, forms=9, record=site.options)
    await harvest(collection, ca, SCOPE, options)
    posts = [each.request for each in collection.exchanges() if each.request.method == "POST"]
    by_script = [each for each in posts if header(each.headers, "x-requested-with")]
    assert sorted(each.url for each in by_script) == [f"{HOME}edit/{number}/save" for number in range(2)]
    for each in by_script:
        body = read_body(header(each.headers, "content-type"), each.raw_body)
        assert isinstance(body, MultipartBody)
        assert [part.field for part in body.parts] == ["csrf", "title"]  # without the button
    assert ("multipart", "csrf") in {(rule.where, rule.name) for rule in read_rules(collection).own}


def test_marks_of_links_that_scripts_load_are_learned_from_requests():
    page = links("/e/1", "/e/2", "/e/3", classes="button dialog") + links(*"abcdef", classes="button")
    found = parse_page(HOME, page.encode()).links
    known = LoadedLinks()
    for fields, marks in (((), set()), (PART, {"dialog"})):
        known.learn([PlainRequest("GET", f"{HOME}e/2", "empty", HOME, fields)], found)
        assert set(known.examples) == marks
    requests = [known.request_for(link, HOME) for link in found]
    assert [each and each.url for each in requests] == [*(f"{HOME}e/{n}" for n in (1, 2, 3)), *([None] * 6)]
    assert requests[0]
    assert requests[0].key == f"{HOME}e/1 x-requested-with: XMLHttpRequest"
    menus = [
        link for at in ("a", "b") for link in parse_page(HOME + at, links("#", classes="menu").encode()).links
    ]
    known = LoadedLinks()
    known.learn([PlainRequest("GET", f"{HOME}a", "empty", HOME, PART)], [*menus, *found])
    assert not known.examples


async def test_links_with_a_token_are_not_followed(tmp_path: Path, ca, site) -> None:
    site.page("/", links("/do?csrf_token=a1", "/see?csrf_token=", classes=""))
    site.page("/do?csrf_token=a1", "")
    site.page("/see?csrf_token=", "")
    collection = with_start(tmp_path, site)
    await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    assert [each.path for each in site.requests if each.path != "/"] == ["/see?csrf_token="]


async def test_missed_writes_of_scripts_are_sent_last_except_deletions(tmp_path: Path, ca, site) -> None:
    site.page("/", "<a href='/a'>a</a>")
    site.page("/a", "<p>a</p>")
    site.answers["/api/star"] = replace(site.reply("{}"), type="application/json")
    site.answers["/api/mute"] = replace(site.reply("{}"), type="application/json", status=403)
    collection = with_start(tmp_path, site)
    fields = (("content-type", "application/json"), ("sec-fetch-dest", "empty"))
    seen = Sighting("s", 1, HOME, HOME)

    def missed(method: str, path: str, content: Any) -> Missed:
        body = json.dumps(content).encode()
        sent = {"fields": fields, "body": b64encode(body).decode(), "body_size": len(body)}
        digest = f"sha256:{sha256(body).hexdigest()}"
        return Missed("", "", method, HOME + path, seen, seen, **sent, body_digest=digest, resource="empty")

    misses = (
        missed("PUT", "api/star", {"item": 3}),
        missed("POST", "api/star", {"csrf_token": "c0ffee"}),  # its page is needed
        missed("POST", "api/mute", {"item": 3}),  # refused: amend sends it from its page
        missed("DELETE", "api/star", {"item": 3}),
        replace(missed("PUT", "api/star", {"item": 4}), last=Sighting("s", 1, "", "")),  # without Referer
    )
    for writes in (False, True):
        options = HarvestOptions(misses=misses, writes=writes, forms=9, record=site.options)
        await harvest(collection, ca, SCOPE, options)
    requests = [(each.method, each.path) for each in site.requests if each.path != "/"]
    sent = [("PUT", "/api/star"), ("POST", "/api/mute")]
    assert requests == [("GET", "/a"), *sent, ("GET", "/a"), sent[0]]
    recorded = [(each.method, each.url) for each in collection.captures()]
    assert recorded[-1] == ("PUT", f"{HOME}api/star")
    assert ("POST", f"{HOME}api/mute") not in recorded


async def test_what_scripts_of_a_page_load_is_recorded_with_further_pages(tmp_path: Path, ca, site) -> None:
    def text(name: str) -> str:
        return f"<a href='/list/b'>b</a><script>load({{url: '/rows/{name}'}})</script>"

    site.page("/", text("home"))
    site.page("/list/b", text("b"))
    for name in ("home", "b"):
        site.answers[f"/rows/{name}"] = replace(site.reply("[]"), type="application/json")
    collection = with_start(tmp_path, site)
    request = Request("GET", f"{HOME}rows/home?size=5", (("Sec-Fetch-Dest", "empty"), ("Referer", HOME)))
    rows = Response(200, headers=(("Content-Type", "application/json"),), raw_body=b"[]")
    with CollectionWriter(collection) as writer:
        writer.write(Exchange(request, rows, "20260101000001"))
    await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    assert [each.path for each in site.requests][1:] == ["/list/b", "/rows/b?size=5"]
    assert any(each.url == f"{HOME}rows/b?size=5" for each in collection.captures())


async def test_numbers_of_requests_are_proved_by_other_numbers(tmp_path: Path, ca, site) -> None:
    def answer(request: Any) -> Any:
        number = int(request.path.rpartition("draw=")[2])
        content = {"draw": number, "data": [number] if "lottery" in request.path else ["x"]}
        return replace(site.reply(json.dumps(content)), type="application/json")

    site.page("/", "<p>start</p>")
    collection = with_start(tmp_path, site)
    fields = (("Sec-Fetch-Dest", "empty"), ("Referer", HOME))
    with CollectionWriter(collection) as writer:
        for path in ("list/1?q=a&draw=", "list/2?draw=", "lottery?draw="):
            site.answers["/" + path.partition("?")[0]] = answer
            content = b'{"draw": 2, "data": ["x"]}'
            response = Response(200, headers=(("Content-Type", "application/json"),), raw_body=content)
            writer.write(Exchange(Request("GET", f"{HOME}{path}2", fields), response, "20260101000001"))
    await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
    rules = {(rule.where, rule.name, rule.shape, rule.path) for rule in read_rules(collection).own}
    assert rules == {("query", "draw", "counter", "/list/*")}


NONCES = ("mx09xxne", "mx09y7og", "mx09zb3k")
TIMES = ("1767225607123", "1767225614456")  # near 2026-01-01 00:00:10
DRAWS = ("0.0763206162175720", "0.7444048130996463")
UUIDS = ("123e4567-e89b-12d3-a456-426614174000", "00000000-e89b-12d3-a456-426614174000")


@pytest.mark.parametrize(
    ("url", "values", "chooses", "shape"),
    [
        ("sync?rid=1&*", NONCES, lambda value: False, "token"),
        ("sync?*", NONCES, lambda value: False, "token"),
        ("rows?t=*", TIMES, lambda value: False, "milliseconds"),
        ("rows?r=*&page=2", DRAWS, lambda value: False, "decimal"),
        ("rows?id=*", UUIDS, lambda value: False, "uuid"),
        # One of the recorded values, or an earlier time, has another answer.
        ("avatar?*", NONCES, lambda value: value == NONCES[1], None),
        ("rows?since=*", TIMES, lambda value: value < "1767", None),
        ("rows?id=*", UUIDS, lambda value: value not in UUIDS, None),
        # Visitors type it, or a site knows them by it.
        ("find?q=*", (*UUIDS, "tea"), lambda value: False, None),
        ("find?q=*", ("4f9a8Bc07dE6215a", "91Ab7cD2e3F40516"), lambda value: False, None),
        ("find?session=*", UUIDS, lambda value: False, None),
        ("rows?t=*", TIMES[:1], lambda value: False, None),
    ],
)
async def test_a_value_is_volatile_if_the_site_answers_alike_with_others(
    tmp_path, url, values, chooses, shape
):
    before, after = url.split("*")
    nonces = NonceRequests(Rules(), "20260101000010")
    for value in values:
        nonces.note(PlainRequest("GET", f"{HOME}{before}{value}{after}", "empty", HOME))

    async def fetch(request: PlainRequest) -> Exchange:
        value = request.url.removeprefix(HOME + before).removesuffix(after)
        fields = (("Content-Type", "application/json"),)
        response = Response(200, headers=fields, raw_body=b"[1]" if chooses(value) else b"[]")
        return Exchange(Request("GET", request.url), response, "20260101000020")

    collection = Collection.create(tmp_path, "site")
    await nonces.prove(collection, [f"{HOME}other?t={TIMES[0]}"], fetch)
    assert not read_rules(collection).own
    await nonces.prove(collection, [f"{HOME}{before}{values[0]}{after}"], fetch)
    assert [rule.shape for rule in read_rules(collection).own] == ([shape] if shape else [])


async def test_a_proof_of_nonces_sends_missed_kinds_again_and_no_request_that_is_avoided(
    tmp_path: Path, ca, site
) -> None:
    site.page("/", "<p>start</p>")
    collection = with_start(tmp_path, site)
    fields = (("Sec-Fetch-Dest", "empty"), ("Referer", HOME))
    response = Response(200, headers=(("Content-Type", "application/json"),), raw_body=b"[]")
    seen = Sighting("s", 1)
    misses = []
    with CollectionWriter(collection) as writer:
        for path in ("sync", "logout", "other"):
            site.answers[f"/{path}"] = replace(site.reply("[]"), type="application/json")
            for value in NONCES:
                request = Request("GET", f"{HOME}{path}?{value}", fields)
                writer.write(Exchange(request, response, "20260101000010"))
        misses = [
            Missed("site", "e", "GET", f"{HOME}{path}?mx0a1b2c", seen, seen) for path in ("sync", "logout")
        ]
    collection.write_manifest(replace(collection.manifest(), recorded_at="20260101000010"))
    site.requests.clear()
    await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options, misses=tuple(misses)))
    assert {(rule.path, rule.name, rule.shape) for rule in read_rules(collection).own} == {
        ("/sync", "", "token")
    }
    assert not any(request.path.startswith(("/logout", "/other")) for request in site.requests)


def starred(identifier: int) -> PlainRequest:
    return PlainRequest("POST", f"{HOME}?a=star&id={identifier}", "empty", HOME)


def test_the_other_rows_of_a_page_are_requested_as_some_of_them_were():
    rows = "".join(
        f"<li id=row_{n} data-n={n % 2}><a href='?a=star&id={n}'>star</a></li>" for n in range(5, 9)
    )
    pages = {HOME: attribute_texts(f"<option value=6><option value=7>{rows}")}
    found = [each.url for each in requests_for_rows([starred(6)], pages)]  # its URL is an attribute
    assert found == [f"{HOME}?a=star&id={n}" for n in (5, 7, 8)]
    form = (("Content-Type", "application/x-www-form-urlencoded"),)
    by_body = [PlainRequest("POST", f"{HOME}vote", "empty", HOME, form, b"entry=%d" % n) for n in (6, 8)]
    assert not requests_for_rows(by_body[:1], pages)  # 6 is the value of an option, too
    assert [each.body for each in requests_for_rows(by_body, pages)] == [b"entry=5", b"entry=7"]


def test_one_request_is_enough_for_the_long_identifier_of_a_row_whatever_its_token():
    pages = {HOME: attribute_texts("".join(f"<li data-entry={each}>" for each in RUNS))}
    kind = (("Content-Type", "application/json"),)

    def read(run: str, token: str) -> PlainRequest:
        body = json.dumps({"csrf": token, "id": [run]}).encode()
        return PlainRequest("POST", f"{HOME}read", "empty", HOME, kind, body)

    found = requests_for_rows([read(RUNS[0], "c0ffee"), read(RUNS[1], "decaf")], pages)
    assert [json.loads(each.body or b"")["id"] for each in found] == [[RUNS[2]], [RUNS[3]]]
    assert not requests_for_rows([read(RUNS[0], "c0ffee")], {f"{HOME}other": pages[HOME]})


def reader(site) -> None:
    """Serve a list whose script sends the token of the visit with each entry."""
    tokens: dict[str, str] = {}

    def home(request) -> Any:
        visit, made = token(), token()
        tokens[visit] = made
        entries = "".join(f"<li id='entry_{each}'>{each}</li>" for each in RUNS)
        page = f'<script type="application/json">{{"user": "a", "csrf": "{made}"}}</script><ul>{entries}</ul>'
        return replace(site.reply(page), headers=(("Set-Cookie", f"visit={visit}"),))

    def read(request) -> Any:
        sent = json.loads(request.body)
        known = tokens.get(request.headers.get("cookie", "").removeprefix("visit="))
        status = 200 if sent["_csrf"] == known else 403
        return replace(site.reply(json.dumps({"read": sent["id"]}), status=status), type="application/json")

    site.answers["/"] = home
    site.answers["/read"] = read


async def test_writes_with_a_token_are_sent_from_their_page_for_each_of_its_rows(
    tmp_path: Path, ca, site
) -> None:
    reader(site)
    collection = await crawled(tmp_path, ca, site)
    (page,) = (each for each in collection.exchanges() if each.request.url == HOME)
    shown = re.search(rb'"csrf": "(\w+)"', page.response.raw_body)
    assert shown
    with CollectionWriter(collection) as writer:  # a later visit shows no row any more
        emptied = replace(
            page.response, headers=(("Content-Type", "text/html"),), raw_body=b"<p>All read</p>"
        )
        writer.write(replace(page, response=emptied, timestamp="20990101000000"))
    fields = (("content-type", "application/json"), ("sec-fetch-dest", "empty"))
    seen = Sighting("s", 1, HOME, HOME)

    def body(run: str) -> bytes:
        return json.dumps({"_csrf": shown[1].decode(), "id": run}).encode()

    sent = {"body": b64encode(body(RUNS[0])).decode(), "body_size": len(body(RUNS[0]))}
    miss = Missed("", "", "POST", f"{HOME}read", seen, seen, fields, resource="empty", **sent)
    options = HarvestOptions(misses=(miss,), writes=True, forms=1, record=site.options)
    await harvest(collection, ca, SCOPE, options)
    await asyncio.to_thread(ensure_sealed, collection)
    with Pack.open(collection.pack) as pack:
        index = SealedIndex(pack, read_rules(collection))
        held = [index.holds(Request("POST", f"{HOME}read", fields, body(run))) for run in (*RUNS, "other")]
    assert held == [*([True] * len(RUNS)), False]


def members_only(site) -> Callable[[], httpx.Cookies]:
    """Serve pages that only a session sees, and a look-up that ends it; return the function that logs in."""
    sessions: set[str] = set()

    def page(request) -> Any:
        if request.headers.get("cookie", "").removeprefix("visit=") not in sessions:
            return site.reply("<title>Sign in</title><input type=password name=word>")
        return site.reply(f"<title>{request.path}</title><a href='/page?n=1'>1</a><a href='/page?n=2'>2</a>")

    def lookup(request) -> Any:
        sessions.discard(request.headers.get("cookie", "").removeprefix("visit="))
        return replace(site.reply("{}"), type="application/json")

    def log_in() -> httpx.Cookies:
        visit = token()
        sessions.add(visit)
        cookies = httpx.Cookies()
        cookies.set("visit", visit, domain="site.test", path="/")
        return cookies

    site.answers |= {"/": page, "/page": page, "/lookup": lookup}
    return log_in


async def test_a_login_that_a_request_ends_is_repeated_and_such_requests_are_sent_no_more(site) -> None:
    log_in = members_only(site)

    async def renew(secrets: Any) -> httpx.Cookies:
        return log_in()

    keeper = LoginKeeper(renew, log_in())
    async with fetcher(site, cookies=keeper.cookies, keeper=keeper) as pages:
        await pages.open_visit(HOME, None)
        for number in range(2):
            await pages.fetch(f"{HOME}lookup?user={number}", "empty")
            answers = [await pages.fetch(f"{HOME}page?n={n}") for n in (number, number)]
            assert not any(b"Sign in" in each.response.raw_body for each in answers)
        assert keeper.generation == 2
        with pytest.raises(UpstreamUnreachable, match="end the login"):
            await pages.fetch(f"{HOME}lookup?user=5", "empty")
        assert b"/page" in (await pages.fetch(f"{HOME}page?n=9")).response.raw_body
    assert keeper.generation == 2


async def test_what_a_visitor_sees_is_not_recorded_after_the_login_has_ended(
    tmp_path: Path, ca, site
) -> None:
    cookies = members_only(site)()
    (cookie,) = cookies.jar
    state = {"name": "visit", "value": cookie.value, "domain": "site.test", "path": "/"}
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"cookies": [state], "origins": []}))
    collection = with_start(tmp_path, site, "<a href='/page?n=1'>1</a>")
    seen = Sighting("s", 1, HOME, HOME)
    miss = Missed("", "", "GET", f"{HOME}lookup?user=a", seen, seen, resource="empty")
    options = HarvestOptions(misses=(miss,), login=read_storage_state(path), record=site.options)
    report = await harvest(collection, ca, SCOPE, options)
    assert not any(b"Sign in" in each.response.raw_body for each in collection.exchanges())
    assert report.failed[HOME] == "the login ended, and pages are those of a visitor now"


async def test_robots_txt_is_obeyed_if_that_is_wanted(tmp_path: Path, ca, site) -> None:
    site.page("/", "<a href='/a'>a</a><a href='/private/b'>b</a><a href='/c'>c</a>")
    site.page("/a", "<p>a</p>")
    site.page("/private/b", "<p>b</p>")
    site.page("/c", "<p>c</p>")
    rules = b"User-agent: *\nDisallow: /private\nCrawl-delay: 0.2\n"
    site.answers["/robots.txt"] = replace(site.reply(""), body=rules, type="text/plain")
    collection = with_start(tmp_path, site)
    began = clock.monotonic()
    report = await harvest(collection, ca, SCOPE, HarvestOptions(robots=True, record=site.options))
    assert (report.pages, report.forbidden) == (2, 1)
    assert "/private/b" not in {each.path for each in site.requests}
    assert clock.monotonic() - began >= 0.2


def build(site, pages: int = 24) -> None:
    links = "".join(f'<a href="/item/{n}">Item {n}</a> ' for n in range(pages))
    head = '<link rel="stylesheet" href="/main.css"><link rel="icon" href="data:,">'
    site.page(
        "/", f"{head}<h1>Shop</h1>{links}<form action=/search><input name=q><button>Search</button></form>"
    )
    for number in range(pages):
        site.answers[f"/item/{number}"] = lambda request, number=number: site.reply(
            f"{head}<h1>Item {number}</h1><img src='/pic/{number}.svg' alt=''><a href='/'>Home</a>"
            f"<a href='/old/{number}'>Details</a><a href='/logout'>Log out</a>"
            f"<form method=post action=/basket><input type=hidden name=csrf_token value={token()}>"
            f"<input type=hidden name=item value={number}><button>Add</button></form>"
        )
        site.page(f"/pic/{number}.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", type="image/svg+xml")
        site.page(f"/old/{number}", "", status=302, headers=(("Location", f"/new/{number}"),))
        site.page(f"/new/{number}", f"{head}<h1>Details {number}</h1><a href='/'>Home</a>")
    css = b"body { background: url(/bg.svg) }"
    site.answers["/main.css"] = replace(site.reply(""), body=css, type="text/css")
    site.page("/bg.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", type="image/svg+xml")
    site.answers["/search"] = lambda request: site.reply(f"{head}<h1>Found</h1><a href='/'>Home</a>")
    site.page("/basket", "", status=303, headers=(("Location", "/basket/shown"),))
    site.page("/basket/shown", f"{head}<h1>Basket</h1><a href='/'>Home</a>")
    site.page("/favicon.ico", "", status=404)


def token() -> str:
    return clock.new_id().replace("-", "")


async def crawled(tmp_path: Path, ca, site) -> Collection:
    collection = Collection.create(tmp_path, "site")
    await crawl([HOME], collection, ca, CrawlOptions(limit=1, record=site.options))
    return collection


async def missed_by_agents(collection: Collection, ca, first_seed: int, seeds: int) -> tuple[set[str], float]:
    await asyncio.to_thread(ensure_sealed, collection)
    options = CoverageOptions(seeds=seeds, steps=8, first_seed=first_seed, jobs=3)
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        result = await measure_coverage(client, "site", [HOME], {"site.test"}, options)
    assert not [walk.error for walk in result.walks if walk.error]
    return {missed for step in result.steps() for missed in step.missed}, result.miss_rate().share


class TestASite:
    pytestmark = pytest.mark.browser

    @pytest.mark.timeout(240)
    async def test_a_harvested_site_answers_agents_that_never_saw_it_recorded(
        self, tmp_path: Path, ca, site
    ) -> None:
        build(site, pages=4)
        collection = await crawled(tmp_path, ca, site)
        assert (await missed_by_agents(collection, ca, 1, seeds=1))[1] > 0.4
        reports: list[HarvestReport] = []
        options = HarvestOptions(words=500, forms=100, record=site.options)
        report = await harvest(collection, ca, SCOPE, options, reports.append)
        assert report.ended_by == ""
        assert not report.failed
        assert report.forms == 4
        assert reports
        assert not [request for request in site.requests if request.path == "/logout"]
        recorded = {capture.url.removeprefix(HOME) for capture in collection.captures()}
        assert {"pic/3.svg", "main.css", "old/3", "new/3", "basket/shown", "search?q=Item"} <= recorded
        rules = read_rules(collection)
        assert [(rule.where, rule.name, rule.path, rule.shape) for rule in rules.own] == [
            ("form", "csrf_token", "**", "hex"),
            ("multipart", "csrf_token", "**", "hex"),
            ("query", "q", "/search", "any"),  # the page is the same for every word
        ]
        missed, _ = await missed_by_agents(collection, ca, 1001, seeds=3)
        assert missed <= {f"GET {HOME}logout"}  # left alone on purpose

    @pytest.mark.timeout(240)
    async def test_until_records_until_fresh_seeds_miss_nothing(
        self, tmp_path: Path, ca, site, monkeypatch
    ) -> None:
        monkeypatch.setattr(choices, "_DRY", 20)
        build(site, pages=3)
        site.answers["/logout"] = site.reply("<a href='/'>Bye</a>")
        site.page("/suggest", "<p>Perhaps</p>")
        home = site.answers["/"].body.decode()
        ask = "fetch('/suggest', {method: 'POST', body: new URLSearchParams({s: this.value})})"
        site.answers["/"] = site.reply(f'{home}<input aria-label="Suggest" oninput="{ask}">')
        collection = await crawled(tmp_path, ca, site)
        measured = CoverageOptions(agents=("uniform", "reader"), seeds=2, steps=6)
        options = UntilOptions(
            seconds=200,
            measure=measured,
            harvest=HarvestOptions(avoid=AvoidRules.of(destructive=True), record=site.options),
            explore=ExploreOptions(1, record=site.options),
            amend=AmendOptions(record=site.options),
        )
        said: list[str] = []
        report = await record_until(collection, ca, SCOPE, [HOME], options, said.append)
        assert report.reached, report.to_dict()
        first, last = report.rounds[0], report.rounds[-1]
        assert first.result.miss_rate().share > 0.2
        assert last.result.miss_rate().failed == 0
        seeds = [{walk.seed for walk in each.result.walks} for each in report.rounds]
        assert not seeds[0] & seeds[-1]
        assert any(text.startswith("round 1: miss rate 0 of") for text in said)

    async def test_a_measurement_ends_with_its_time(self, tmp_path: Path, ca, site) -> None:
        build(site, pages=3)
        collection = await crawled(tmp_path, ca, site)
        await asyncio.to_thread(ensure_sealed, collection)
        options = CoverageOptions(seeds=20, steps=30, jobs=1, seconds=1.0)
        async with (
            serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
            ReplayClient(server.url) as client,
        ):
            result = await measure_coverage(client, "site", [HOME], {"site.test"}, options)
        assert not result.complete
        assert len(result.walks) < 2  # none if the time ends before a first step
        assert all(len(walk.steps) < 30 for walk in result.walks)

    async def test_a_page_with_a_missing_file_of_another_host_has_not_left(
        self, tmp_path: Path, ca, site
    ) -> None:
        image = "<img src=https://cdn.test/a.png>"
        site.page("/", f"<a href='/'>Here</a><a href='https://away.test/'>Away</a>{image}")
        collection = await crawled(tmp_path, ca, site)
        await asyncio.to_thread(ensure_sealed, collection)
        options = CoverageOptions(agents=("uniform",), seeds=2, steps=8, jobs=2)
        async with (
            serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
            ReplayClient(server.url) as client,
        ):
            result = await measure_coverage(client, "site", [HOME], {"site.test"}, options)
        seen = {(step.control, step.left) for step in result.steps() if step.requested and step.control}
        assert seen == {('link "Here"', False), ('link "Away"', True)}

    async def test_pictures_of_a_report_end_with_their_time(self, tmp_path: Path, ca, site) -> None:
        site.page("/", "<a href='/gone'>Gone</a>")
        collection = await crawled(tmp_path, ca, site)
        await asyncio.to_thread(ensure_sealed, collection)
        missing = f"GET {HOME}gone"
        action = {"action": "goto", "url": f"{HOME}gone"}
        step = StepRecord(1, HOME, action, "", requested=True, left=False, dead=True, missed=(missing,))
        result = CoverageResult("site", "e", (WalkRecord("uniform", 1, HOME, [step]),))
        async with (
            serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
            ReplayClient(server.url) as client,
        ):
            causes = causes_of(result)
            assert await take_pictures(client, result, causes, "clock", 0.0) == {}
            assert set(await take_pictures(client, result, causes, "clock", 60.0)) == {0}

    async def test_a_model_at_an_endpoint_measures_too_and_its_failure_is_no_rate(
        self, tmp_path: Path, ca, site
    ) -> None:
        site.page("/", "<title>Shop</title><a href='/gone'>Gone</a><input aria-label=Find>")
        site.page("/favicon.ico", "", status=404)
        collection = await crawled(tmp_path, ca, site)
        await asyncio.to_thread(ensure_sealed, collection)

        def follows(request: dict[str, Any]) -> Any:
            shown = str(request["messages"][-1]["content"])
            link = re.search(r"\[(\w+)\] link", shown)
            return called(arguments=json.dumps({"action": "click", "bid": link[1]} if link else {"no": 1}))

        async def measured(server: ReplayClient, url: str) -> CoverageResult:
            given = {"model": "m", "base_url": url, "retries": "0"}
            options = CoverageOptions(agents=("openai",), agent_options=given, seeds=2, steps=2, jobs=1)
            return await measure_coverage(server, "site", [HOME], {"site.test"}, options)

        async with (
            serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
            ReplayClient(server.url) as client,
        ):
            with standin(follows) as model:
                result = await measured(client, model.url)
            assert [step.missed for step in result.steps()] == [(f"GET {HOME}gone",), ()] * 2
            assert [step.action["action"] for step in result.steps()] == ["click", "invalid"] * 2
            assert len({request["seed"] for request in model.requests}) == 2
            with (
                standin(refused(400)) as model,
                pytest.raises(AgentError, match="openai on site took a step"),
            ):
                await measured(client, model.url)

    async def test_a_walk_records_what_depends_on_the_page_before(self, tmp_path: Path, ca, site) -> None:
        script = "fetch('/bundle?m=' + (localStorage.has ? 'b' : 'a,b')); localStorage.has = 1"
        button = "<button onclick=\"fetch('/do', {method: 'POST'})\">Do</button>"
        site.page("/", f"<script>{script}</script><a href='/next'>Next</a>{button}")
        site.page("/do", "not now", status=409)
        site.page("/next", f"<script>{script}</script><h1>Next</h1>")
        for wanted in ("a,b", "b"):
            site.page(f"/bundle?m={wanted}", "1")
        site.page("/favicon.ico", "", status=404)
        collection = await crawled(tmp_path, ca, site)
        before = [capture.url for capture in collection.captures()]
        options = WalkOptions(15.0, jobs=1, record=site.options)
        report = await record_walks(collection, ca, SCOPE, [HOME], options)
        after = [capture.url for capture in collection.captures()]
        assert report.steps
        assert f"{HOME}bundle?m=b" not in before
        assert sorted(set(after) - set(before)) == [f"{HOME}bundle?m=b", f"{HOME}do", f"{HOME}next"]
        assert len(after) == len(set(after))

    async def test_a_loop_without_time_for_another_replay_harvests(
        self, tmp_path: Path, ca, site, monkeypatch
    ) -> None:
        monkeypatch.setattr(loop, "_LEAST", 10_000.0)
        build(site, pages=3)
        button = """<button onclick="fetch('/star', {method: 'POST'})">Star</button>"""
        site.page("/", f'<a href="/item/0">0</a><a href="/item/1">1</a>{button}')
        site.page("/star", "")
        collection = await crawled(tmp_path, ca, site)
        measure = CoverageOptions(("uniform",), seeds=2, steps=6, jobs=1)
        options = UntilOptions(
            seconds=600.0, measure=measure, harvest=HarvestOptions(pages=50, record=site.options)
        )
        report = await record_until(collection, ca, SCOPE, [HOME], options)
        assert len(report.rounds) == 2
        assert {f"{HOME}item/0", f"{HOME}item/1", f"{HOME}star"} <= {
            capture.url for capture in collection.captures()
        }

    async def test_writes_that_agents_missed_come_before_filling_walks_if_time_is_short(
        self, tmp_path: Path, ca, site, monkeypatch
    ) -> None:
        monkeypatch.setattr(loop, "_FILL_AND_WRITE", 10_000.0)
        monkeypatch.setattr(choices, "_DRY", 10)
        button = """<button onclick="fetch('/star', {method: 'POST'})">Star</button>"""
        site.page("/", f"<link rel=icon href='data:,'>{button}")
        site.page("/star", "")
        collection = await crawled(tmp_path, ca, site)
        held: list[bool] = []

        async def noted(recorded: Collection, *more: Any) -> Any:
            held.append(any(each.url == f"{HOME}star" for each in recorded.captures()))
            return await fill(recorded, *more)

        monkeypatch.setattr(loop, "fill", noted)
        measure = CoverageOptions(("uniform",), seeds=2, steps=6, jobs=1)
        options = UntilOptions(seconds=300.0, measure=measure, harvest=HarvestOptions(record=site.options))
        await record_until(collection, ca, SCOPE, [HOME], options)
        assert all(held)
        assert any(each.url == f"{HOME}star" for each in collection.captures())

    async def test_filling_walks_fetch_what_the_replay_lacks(
        self, tmp_path: Path, ca, site, monkeypatch
    ) -> None:
        monkeypatch.setattr(choices, "_DRY", 20)
        script = "fetch('/bundle?m=' + (localStorage.has ? 'b' : 'a,b')); localStorage.has = 1"
        button = "<button onclick=\"fetch('/do', {method: 'POST'})\">Do</button>"
        site.page(
            "/", f"<script>{script}</script><a href='/next'>Next</a>{button}<a href='/logout'>Log out</a>"
        )
        site.page("/next", f"<script>{script}</script><a href='/gone'>Gone</a>")
        site.page("/gone", "<a href='/'>Home</a>", status=404)
        for wanted in ("a,b", "b"):
            site.page(f"/bundle?m={wanted}", "1")
        site.page("/favicon.ico", "", status=404)
        collection = await crawled(tmp_path, ca, site)
        before = [capture.url for capture in collection.captures()]
        options = FillOptions(60.0, 0.02, jobs=1, record=site.options)
        report = await fill(collection, ca, SCOPE, [HOME], options)
        assert report.is_dry
        after = [capture.url for capture in collection.captures()]
        assert sorted(set(after) - set(before)) == [f"{HOME}bundle?m=b", f"{HOME}gone", f"{HOME}next"]
        assert len(after) == len(set(after))
        assert {(each.method, each.url) for each in report.misses} == {("POST", f"{HOME}do")}
        assert 0 < report.filled < report.requested <= report.steps
        again = await fill(collection, ca, SCOPE, [HOME], options)  # nothing was recorded since
        assert (again.is_dry, again.requested) == (True, 0)

    async def test_a_part_under_the_url_of_a_recorded_page_is_recorded_too(
        self, tmp_path: Path, ca, site, monkeypatch
    ) -> None:
        monkeypatch.setattr(choices, "_DRY", 8)
        load = "fetch('/edit/1', {headers: {'X-Requested-With': 'XMLHttpRequest'}})"
        site.page("/", f'<button onclick="{load}">Edit</button><a href=/edit/1>Edit</a>')
        site.answers["/edit/1"] = lambda request: part_or_page(request, site)
        site.page("/favicon.ico", "", status=404)
        collection = await crawled(tmp_path, ca, site)
        await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
        for _ in range(2):
            report = await fill(
                collection, ca, SCOPE, [HOME], FillOptions(60.0, 0.02, jobs=1, record=site.options)
            )
        edits = (each.response for each in collection.exchanges() if "edit" in each.request.url)
        assert sorted(b"part" in each.raw_body for each in edits) == [False, True]
        assert not report.exchanges

    @pytest.mark.parametrize("unsafe", [True, False])
    async def test_filling_walks_send_the_posts_of_scripts_if_they_may(
        self, tmp_path: Path, ca, site, monkeypatch, unsafe
    ) -> None:
        monkeypatch.setattr(choices, "_DRY", 8)
        ask = "fetch('/{0}', {{method: 'POST', body: new URLSearchParams({1})}})"
        list_it = ask.format("list", "{part: 'a'}") + ".then(a => a.text()).then(t => out.innerHTML = t)"
        inside = ask.format("list", "{part: 'b'}").replace("'", "&quot;")
        token_too = ask.format("save", f"{{t: '{token()}'}}")
        json_type = "{{'Content-Type': 'application/json'}}"
        metrics = f"fetch('/metrics', {{{{method: 'POST', headers: {json_type}, body: '{{0}}'}}}})"
        later = metrics.format("[2]")
        site.page(
            "/",
            f'<button onclick="{list_it}">List</button><button onclick="{token_too}">Save</button>'
            f'<button onclick="{later}">Later</button><script>{metrics.format("[1]")}</script><p id=out>',
        )
        site.page("/metrics", "{}")
        site.answers["/list"] = lambda request: site.reply(f"<button onclick='{inside}'>More</button>")
        site.page("/save", "saved")
        site.page("/favicon.ico", "", status=404)
        collection = await crawled(tmp_path, ca, site)
        options = FillOptions(60.0, 0.02, unsafe=unsafe, jobs=1, record=site.options)
        report = await fill(collection, ca, SCOPE, [HOME], options)
        bodies = [each.request.raw_body for each in collection.exchanges() if each.request.method == "POST"]
        assert sorted(set(bodies)) == ([b"[1]", b"[2]", b"part=a", b"part=b"] if unsafe else [b"[1]"])
        assert {each.url for each in report.misses} == {f"{HOME}save"} | (
            set() if unsafe else {f"{HOME}list", f"{HOME}metrics"}
        )

    async def test_filling_walks_send_what_opened_views_post_and_not_what_buttons_do(
        self, tmp_path: Path, ca, site, monkeypatch
    ) -> None:
        monkeypatch.setattr(choices, "_DRY", 8)
        send = (
            "fetch('/{0}', {{method: 'POST', headers: {{'Content-Type': 'application/json'}},"
            " body: JSON.stringify({{part: {1}}})}})"
        )
        marks = send.format("graphql", 3).replace("part: 3", "query: 'mutation Seen { seen }'")
        site.page(
            "/",
            f'<a href="#/detail" onclick="{send.format("detail", 1)};{marks}">Detail</a>'
            f'<button onclick="{send.format("change", 2)}">Change</button>',
        )
        site.page("/detail", "{}")
        site.page("/graphql", "{}")
        site.page("/change", "{}")
        site.page("/favicon.ico", "", status=404)
        collection = await crawled(tmp_path, ca, site)
        options = FillOptions(60.0, 0.02, unsafe=True, jobs=1, record=site.options)
        report = await fill(collection, ca, SCOPE, [HOME], options)
        posts = [each.request for each in collection.exchanges() if each.request.method == "POST"]
        assert [(each.url, each.raw_body) for each in posts] == [(f"{HOME}detail", b'{"part":1}')]
        assert [each.url for each in report.reads] == [f"{HOME}detail"]
        assert {each.url for each in report.misses} == {f"{HOME}change", f"{HOME}graphql"}
        other = replace(report.reads[0], raw_body=b'{"part":7}')
        assert opened_posts(collection, report.reads).is_plain(other)
        assert not opened_posts(collection).is_plain(other)

    async def test_files_that_scripts_name_are_fetched_if_the_site_has_them(
        self, tmp_path: Path, ca, site
    ) -> None:
        names = [f"/media/{name}.svg" for name in ("up", "down", "left", "gone", "page")]
        listed = "".join(f"'{name}'," for name in names)
        shown = "".join(f"<img src={name} alt=''>" for name in names[:2])
        site.page("/", f"<script src=/app.js></script>{shown}")
        site.answers["/app.js"] = replace(
            site.reply(""), body=f"x=[{listed}]".encode(), type="text/javascript"
        )
        for name in names[:3]:
            site.page(name, "<svg xmlns='http://www.w3.org/2000/svg'/>", type="image/svg+xml")
        site.page("/media/gone.svg", "no", status=404)
        site.page("/media/page.svg", "the page for any path")
        collection = await crawled(tmp_path, ca, site)
        await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
        recorded = {capture.url.removeprefix(HOME) for capture in collection.captures()}
        assert {name for name in recorded if "media" in name} == {
            "media/up.svg",
            "media/down.svg",
            "media/left.svg",
        }

    async def test_a_form_leads_to_the_page_behind_it(self, tmp_path: Path, ca, site) -> None:
        build(site, pages=3)
        site.page("/", '<a href="/item/0">0</a><a href="/item/1">1</a>')
        site.answers["/basket"] = lambda request: site.reply(f"<h1>Added {request.body.decode()[-1]}</h1>")
        collection = await crawled(tmp_path, ca, site)
        await harvest(collection, ca, SCOPE, HarvestOptions(forms=10, record=site.options))
        await asyncio.to_thread(ensure_sealed, collection)
        async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
            for number in (0, 1):
                async with Env(server.url, level="clock") as env:
                    seen, _ = await env.reset(url=f"{HOME}item/{number}")
                    button = next(node for node in seen.nodes if node.name == "Add")
                    seen, _, _, _, info = await env.step({"action": "click", "bid": button.bid})
                    assert f"Added {number}" in (seen.axtree or "")
                    assert info["traffic"]["misses"] == 0

    async def test_a_likely_form_comes_before_pages_that_are_hardly_reached(
        self, tmp_path: Path, ca, site
    ) -> None:
        build(site, pages=1)
        for number in range(60):
            site.page(
                f"/deep/{number}", f"<a href='/deep/{number + 1}'>Next</a>" + "<a href='/'>Home</a>" * 9
            )
        form = "<form method=post action=/basket><button>Add</button></form>"
        site.page("/", f"{form}<a href='/deep/0'>Deep</a>")
        collection = await crawled(tmp_path, ca, site)
        options = HarvestOptions(forms=1, requests=30, jobs=1, record=site.options)
        report = await harvest(collection, ca, SCOPE, options)
        assert (report.forms, report.ended_by) == (1, "--requests")
        assert report.waiting

    async def test_links_that_only_the_page_behind_a_form_has_are_fetched_in_its_visit(
        self, tmp_path: Path, ca, site
    ) -> None:
        build(site, pages=1)
        form = "<form method=post action=/basket><button>Add</button></form>"
        site.page("/", f"{form}<a href='/item/0'>Item</a>")
        site.page(
            "/basket", "", status=303, headers=(("Location", "/basket/shown"), ("Set-Cookie", "full=yes"))
        )
        site.page("/basket/shown", "<a href='/item/0'>Item</a><a href='/checkout'>Checkout</a>")
        site.answers["/checkout"] = lambda request: site.reply(
            f"<p>{request.headers.get('cookie', 'empty')}</p>"
        )
        collection = await crawled(tmp_path, ca, site)
        await harvest(collection, ca, SCOPE, HarvestOptions(forms=1, record=site.options))
        pages = [each for each in collection.exchanges() if each.request.url == f"{HOME}checkout"]
        assert [page.response.raw_body for page in pages] == [b"<!doctype html><p>full=yes</p>"]

    async def test_a_server_error_behind_a_form_is_not_recorded(self, tmp_path: Path, ca, site) -> None:
        build(site, pages=1)
        site.page("/", "<form method=post action=/basket><button>Add</button></form>")
        site.page("/basket", "Server Error", status=500)
        collection = await crawled(tmp_path, ca, site)
        report = await harvest(collection, ca, SCOPE, HarvestOptions(forms=1, record=site.options))
        assert (report.forms, report.failed) == (0, {f"POST {HOME}basket": "status 500"})
        assert all(each.method == "GET" for each in collection.captures())

    async def test_limits_end_it_and_the_next_continues(self, tmp_path: Path, ca, site) -> None:
        build(site)
        collection = await crawled(tmp_path, ca, site)
        first = await harvest(collection, ca, SCOPE, HarvestOptions(pages=10, jobs=1, record=site.options))
        assert (first.pages, first.ended_by) == (10, "--pages")
        assert first.waiting
        before = len(site.requests)
        second = await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options))
        assert second.ended_by == ""
        fetched = [request.path for request in site.requests[before:] if request.path != "/"]
        assert len(fetched) == len(set(fetched))
        assert {f"/new/{number}" for number in range(24)} <= {
            capture.url.removeprefix(HOME[:-1]) for capture in collection.captures()
        }

    async def test_what_a_login_shows_is_harvested_and_its_cookie_is_not_written(
        self, tmp_path: Path, ca, site
    ) -> None:
        secret = "s3ss10n-" + token()
        site.answers["/"] = lambda request: site.reply(
            '<a href="/private">Mine</a>' if secret in request.headers.get("cookie", "") else "<p>Log in</p>"
        )
        site.answers["/private"] = lambda request: site.reply(
            f"<h1>{request.headers.get('cookie', 'no cookie')}</h1>"
        )
        site.page("/favicon.ico", "", status=404)
        state = tmp_path / "state.json"
        cookie = {"name": "sid", "value": secret, "domain": "site.test", "path": "/"}
        state.write_text(
            json.dumps(
                {
                    "cookies": [
                        {**cookie, "expires": -1, "httpOnly": True, "secure": True, "sameSite": "Lax"}
                    ],
                    "origins": [],
                }
            )
        )
        login = read_storage_state(state, None)
        collection = Collection.create(tmp_path, "site")
        await crawl([HOME], collection, ca, CrawlOptions(limit=1, record=site.options, login=login))
        await harvest(collection, ca, SCOPE, HarvestOptions(record=site.options, login=login))
        bodies = {each.request.url: each.response.raw_body for each in collection.exchanges()}
        assert f"{HOME}private" in bodies
        assert secret.encode() not in b"".join(bodies.values())

    async def test_a_damaged_state_names_the_file_and_the_way_out(self, tmp_path: Path, ca, site) -> None:
        build(site, pages=2)
        collection = await crawled(tmp_path, ca, site)
        options = HarvestOptions(record=site.options)
        await harvest(collection, ca, SCOPE, options)
        path = collection.path / STATE_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | {"waiting": 7}))
        with pytest.raises(CollectionError, match="not the state of a harvest") as raised:
            await harvest(collection, ca, SCOPE, options)
        assert raised.value.path == path
        assert f"rm {path}" in raised.value.hint


async def test_a_collection_without_a_document_says_what_to_do(tmp_path: Path, ca) -> None:
    with pytest.raises(RecordError, match="no document in scope") as raised:
        await harvest(Collection.create(tmp_path, "empty"), ca, SCOPE, HarvestOptions(record=RecordOptions()))
    assert "record crawl" in raised.value.hint
