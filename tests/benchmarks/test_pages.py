"""Pages: what a document shows to a reader, and the ways between pages."""

from __future__ import annotations

import pytest
import shop_site

from stillweb.benchmarks.pages import (
    ENTRY,
    SiteFact,
    SiteItem,
    SiteLink,
    SiteOpener,
    SitePage,
    fold,
    read_page,
)
from stillweb.benchmarks.site import SiteMap, split_pages, with_subjects

URL = "https://site.test/a/page"


def read(body: str, url: str = URL):
    return read_page(url, f"<!doctype html><html><body>{body}</body></html>")


def test_names_are_compared_without_space_icons_and_case():
    assert fold(" Add to\n basket \ue001") == fold("ADD TO BASKET")
    assert fold("Add to basket") != fold("Add to cart")


def test_links_have_names_targets_and_numbers():
    page = read(
        '<a href="/x#part">More</a><a href="../b">More</a><a href="#top">Top</a><a href="mailto:a@b">Mail</a>'
        '<a href="/y"><img alt="Logo"></a><a href="/z" target="_blank">Other tab</a><a href="/e"></a>'
    )
    assert page.links == (
        SiteLink("https://site.test/x", "More", 0, within=True),
        SiteLink("https://site.test/b", "More", 1),
        SiteLink("https://site.test/y", "Logo", 0),
    )


@pytest.mark.parametrize(
    "hidden",
    [
        '<p hidden><a href="/x">X</a></p>',
        '<p style="display: none"><a href="/x">X</a></p>',
        '<template><a href="/x">X</a></template>',
        '<p aria-hidden="true"><a href="/x">X</a></p>',
    ],
)
def test_what_no_reader_sees_is_left_out(hidden):
    assert read(hidden).links == ()


def test_pairs_of_row_headers_and_definition_lists_are_facts_of_the_page():
    page = read(
        "<h1>Oak lamp</h1><table><tr><th>Code:</th><td>A 1</td></tr><tr><td>no</td><td>head</td></tr></table>"
        "<dl><dt>Weight</dt><dd>2 kg</dd><dt>Colours</dt><dd>red</dd><dd>blue</dd></dl>"
    )
    assert page.facts == (
        SiteFact("Oak lamp", "Code", "A 1", "pair"),
        SiteFact("Oak lamp", "Weight", "2 kg", "pair"),
    )


@pytest.mark.parametrize(
    "element",
    [
        '<div><div class="label">Status:</div><div class="value">New</div></div>',
        "<li><strong>Status</strong>: New</li>",
        '<p><b>Status:</b> <a href="/new">New</a></p>',
    ],
)
def test_a_label_with_a_colon_and_a_value_is_a_fact(element):
    assert read(f"<h1>Bug 7</h1>{element}").facts == (SiteFact("Bug 7", "Status", "New", "pair"),)


@pytest.mark.parametrize(
    "element",
    [
        "<p><b>Status:</b> <select><option>New</option></select></p>",
        '<p><a href="/x">Status</a>: New</p>',
        "<p><b>Status:</b></p>",
        "<p><b>Note</b> that it is new</p>",
        "<table><tr><th></th><td>New</td></tr></table><dl><dt> </dt><dd>New</dd></dl>",
    ],
)
def test_a_field_a_link_and_an_empty_label_give_no_fact(element):
    assert read(f"<h1>Bug 7</h1>{element}").facts == ()


def test_a_number_sign_within_a_heading_stays_and_marks_after_it_go():
    page = read(
        '<h1>Bug #29</h1><h2>Install<a href="#i">#</a></h2><h2>Use <a href="#u">§</a></h2>'
        '<h3>Rocks<span>[<a href="/e">edit</a>]</span></h3><h3>List [draft]</h3>'
    )
    assert [text for _, text in page.headings] == ["Bug #29", "Install", "Use", "Rocks", "List [draft]"]


def test_headings_name_sections_and_not_the_entries_of_a_list_of_pages():
    page = read(
        '<h1><a href="/">Shop</a></h1><h2>News</h2><h3><a href="/post">A post</a></h3>'
        '<a href="/lamp"><h3>A lamp</h3></a>'
        '<h3><a href="#top">Back</a></h3><h3><a href="/x">Part</a> two</h3>'
    )
    sections = [text for level, text in page.headings if level != ENTRY]
    assert sections == ["Shop", "News", "Back", "Part two"]
    assert [text for level, text in page.headings if level == ENTRY] == ["A post", "A lamp"]


def test_a_zero_width_space_is_no_part_of_a_heading():
    page = read('<h1>Schema <a href="#schema">&#8203;</a></h1>')
    assert page.headings == ((1, "Schema"),)


def test_the_options_of_a_field_are_no_value():
    field = "<select><option>Open</option><option>Closed</option></select>"
    listed = f"<dl><dt>Status</dt><dd>{field}</dd><dt>Owner</dt><dd>Ann</dd></dl>"
    page = read(f"<h1>Fault</h1>{listed}<table><tr><th>State</th><td>{field}</td></tr></table>")
    assert [(each.attribute, each.value) for each in page.facts] == [("Owner", "Ann")]


def test_small_print_is_no_part_of_a_heading():
    page = read("<h1>Invoice <small>#0071</small></h1><h2><small>In small</small></h2>")
    assert [text for _, text in page.headings] == ["Invoice", "In small"]


def test_columns_without_a_name_do_not_hide_the_facts_of_the_others():
    head = '<tr><th><input type="checkbox"></th><th>#</th><th>Subject</th><th>Status</th><th></th></tr>'
    row = (
        '<tr><td><input type="checkbox"></td><td>{0}</td><td>Fault {0}</td><td>New</td><td>Actions</td></tr>'
    )
    rows = (row.format("a"), row.format("b"))
    page = read(f"<h2>Issues</h2><table>{head}{''.join(rows)}</table>")
    assert [(fact.subject, fact.attribute) for fact in page.facts] == [
        ("Fault a", "Status"),
        ("Fault b", "Status"),
    ]


@pytest.mark.parametrize(("links", "paginated"), [("", False), ('<a href="/a/page?n=2">2</a>', True)])
def test_a_list_is_paginated_if_it_has_links_to_other_parts(links, paginated):
    assert read(f'<span class="pagination">(1-9/9) {links}</span>').paginated is paginated


def test_a_main_heading_that_several_pages_share_is_the_name_of_their_section():
    def page(number: int, title: str, section: str) -> tuple[str, SitePage]:
        url = f"https://s.test/{number}"
        html = f"<title>{title} - {section} - Harbour</title><body><h1>{section}</h1>{number}</body>"
        return url, read_page(url, html)

    rows = [
        ("Bug 1: Rust", "Crane"),
        ("Bug 2: Ice", "Crane"),
        ("News", "Crane"),
        ("News", "Pier"),
        ("Wiki", "Pier"),
    ]
    rows += [("Tide", "Tide table"), ("Moon", "Moon table"), ("Sun", "Sun table"), ("Wind", "Wind table")]
    pages = with_subjects(dict(page(number, *row) for number, row in enumerate(rows)))
    assert [each.subject for each in pages.values()][:6] == [
        *("Bug 1: Rust", "Bug 2: Ice", "News - Crane", "News - Pier", "Wiki - Pier", "Tide table"),
    ]


def test_cells_are_facts_if_a_column_names_the_rows():
    table = (
        "<h2>Staff</h2><table><tr><th>No</th><th>Name</th><th>Town</th></tr>"
        "<tr><td>1</td><td>Ann</td><td>Leeds</td></tr><tr><td>2</td><td>{}</td><td>{}</td></tr></table>"
    )
    cells = [fact for fact in read(table.format("Bob", "York")).facts if fact.attribute == "Town"]
    assert cells == [
        SiteFact("Ann", "Town", "Leeds", "cell", "Staff"),
        SiteFact("Bob", "Town", "York", "cell", "Staff"),
    ]
    assert read(table.format("Ann", "Leeds")).facts == ()


def test_a_table_has_the_name_of_the_heading_before_it_with_its_buttons():
    table = "<table><tr><th>Name</th><th>Type</th></tr><tr><td>Ann</td><td>1</td></tr>"
    table += "<tr><td>Bob</td><td>2</td></tr></table>"
    page = read(f"<h2>Import</h2><p>x</p><div><h2>Props</h2><button>View</button></div><div>{table}</div>")
    assert [each.name for each in page.tables] == ["Props"]
    page = read(f"<h2>Staff</h2><div><h3>Note</h3><p>New.</p></div>{table}")
    assert [each.name for each in page.tables] == ["Staff"]


def test_views_of_a_page_have_its_main_heading_as_subject():
    def page(query: str, title: str) -> SitePage:
        return read_page(
            f"https://s.test/t{query}", f"<title>{title}</title><body><h1>burtin</h1>{query}</body>"
        )

    views = [page("", "burtin: 16 rows"), page("?sort=a", "burtin: 16 rows sorted by a")]
    others = [
        read_page(f"https://s.test/{n}", f"<title>{n}</title><body><h1>{n}</h1></body>") for n in "abcdefgh"
    ]
    pages = with_subjects({each.url: each for each in (*views, *others)})
    assert [pages[each.url].subject for each in views] == ["burtin", "burtin"]


def test_cells_of_several_parts_are_left_out():
    page = read(
        "<h2>Sales</h2><table><tr><th>Item</th><th>Sold</th></tr>"
        '<tr><td>Oak lamp <b class="badge">NEW</b></td><td>1</td></tr>'
        "<tr><td>Tin lamp</td><td><small>3%</small> 12 sold</td></tr>"
        "<tr><td>Oak <code>chair</code></td><td>4</td></tr></table>"
    )
    assert [(fact.subject, fact.value) for fact in page.facts] == [("Tin lamp", ""), ("Oak chair", "4")]


def test_an_item_has_one_link_and_one_price():
    page = read(
        '<ul><li class="card"><a href="/lamp">Oak lamp</a> <a href="/lamp"><img alt="x"></a> £1,250.00</li>'
        '<li class="card"><a href="/two">Two prices</a> £2.00 £1.00</li>'
        '<li class="card"><a href="/long" title="The whole name">The whole…</a> £3.00</li></ul>'
    )
    assert page.items == (
        SiteItem("Oak lamp", "https://site.test/lamp", "£1,250.00"),
        SiteItem("The whole name", "https://site.test/long", "£3.00"),
    )


def test_forms_have_accessible_names():
    form = read(
        '<form action="/send" method="post"><label for="a">Name</label><input id="a" name="n" required>'
        '<label>Mail <input name="m" type="email"></label><input name="q" placeholder="Find">'
        '<select name="s" aria-label="Size"><option value="1">One</option><option selected>Two</option>'
        "</select>"
        '<input type="hidden" name="h" value="7"><button>Submit</button></form>'
    ).forms[0]
    assert (form.action, form.method) == ("https://site.test/send", "POST")
    assert [(each.role, each.label, each.name, each.value) for each in form.controls] == [
        ("textbox", "Name", "n", ""),
        ("textbox", "Mail", "m", ""),
        ("textbox", "Find", "q", ""),
        ("combobox", "Size", "s", "Two"),
        ("", "", "h", "7"),
        ("button", "Submit", "", ""),
    ]
    assert form.button
    assert form.button.label == "Submit"


def test_the_subject_has_no_name_of_the_site(site):
    assert site.pages[f"{shop_site.ORIGIN}/oak-lamp"].subject == "Oak lamp"
    assert site.starts == (f"{shop_site.ORIGIN}/",)


@pytest.mark.parametrize("sign", "|•·-")
def test_the_sign_before_the_name_of_the_site_is_no_part_of_a_title(sign):
    titles = [f"{name} {sign} Harbour Server" for name in ("Runs", "Flows", "Blocks")]
    pages = {f"https://s.test/{t}": read_page(f"https://s.test/{t}", f"<title>{t}</title>") for t in titles}
    assert [each.subject for each in with_subjects(pages).values()] == ["Runs", "Flows", "Blocks"]


def linked(*edges: tuple[str, str]) -> SiteMap:
    names = sorted({name for edge in edges for name in edge})
    return SiteMap(
        {
            f"https://s.test/{name}": read(
                f"<p>{name}</p>" + "".join(f'<a href="/{b}">to {b}</a>' for a, b in edges if a == name),
                f"https://s.test/{name}",
            )
            for name in names
        }
    )


def test_a_way_is_the_shortest_one_within_the_given_pages():
    site = linked(("a", "b"), ("b", "c"), ("a", "d"), ("d", "e"), ("e", "c"))
    a, b, c = (f"https://s.test/{name}" for name in "abc")
    way = site.way(a, c, set(site.pages))
    assert way
    assert [(step.name, step.target) for step in way] == [("to b", b), ("to c", c)]
    assert len(site.way(a, c, set(site.pages) - {b}) or ()) == 3
    assert site.way(c, a, set(site.pages)) is None
    assert site.way(a, c, set(site.pages) - {b}, longest=2) is None
    ways = site.ways_to(c, set(site.pages), 2)
    assert {url[-1]: len(steps) for url, steps in ways.items()} == {"a": 2, "b": 1, "c": 0, "d": 2, "e": 1}


def test_a_hidden_link_is_on_no_way():
    site = linked(("a", "b"), ("b", "c"), ("a", "d"), ("d", "c"))
    a, c = (f"https://s.test/{name}" for name in "ac")
    (first, _) = site.way(a, c, set(site.pages)) or ()
    site.forget(first)
    (other, _) = site.way(a, c, set(site.pages)) or ()
    assert other != first
    assert site.ways_to(c, set(site.pages), 2)[a][0] == other


def test_redirects_lead_to_pages_and_end():
    site = linked(("a", "b"))
    a = "https://s.test/a"
    site.redirects = {"https://s.test/old": "https://s.test/older", "https://s.test/older": a, "x": "x"}
    assert site.landing("https://s.test/old") == a
    assert site.landing("x") == ""


def test_parts_cover_all_pages_keep_starts_for_training_and_equal_pages_together():
    site = linked(*((a, b) for a in "abcdefgh" for b in "abcdefgh" if a < b))
    twin = read("<p>a</p>", "https://s.test/twin")
    site.pages = {**site.pages, "https://s.test/twin": twin, "https://s.test/twin?x": twin}
    site.starts = ("https://s.test/a",)
    for seed in range(20):
        parts = split_pages(site, seed, 0.4)
        assert parts.keys() == site.pages.keys()
        assert parts["https://s.test/a"] == "train"
        assert parts["https://s.test/twin"] == parts["https://s.test/twin?x"]
        assert parts == split_pages(site, seed, 0.4)


def test_forms_know_their_item_and_the_number_of_their_button():
    cards = "".join(
        f'<article><a href="/{name}">{name} cup</a> £{number}.00'
        f'<form action="/add/{name}" method="post"><button>Add to basket</button></form></article>'
        for number, name in enumerate(("red", "blue"), 3)
    )
    page = read_page("https://shop.test/", f"<body>{cards}<form action=/q><button>Go</button></form></body>")
    found = [(form.item, form.number, form.button.label) for form in page.forms]
    assert found == [("red cup", 0, "Add to basket"), ("blue cup", 1, "Add to basket"), ("", 0, "Go")]


def test_marks_of_a_sorted_column_are_no_part_of_its_name():
    rows = "<tr><td>Ann</td><td>4</td></tr><tr><td>Bob</td><td>9</td></tr>"
    page = read_page("https://a.test/", f"<table><tr><th>Name ▼</th><th>Years</th></tr>{rows}</table>")
    assert page.tables[0].columns == ("Name", "Years")


def test_links_know_the_controls_that_open_their_menus():
    page = read(
        '<ul><li><a href="#"><p>Charts</p></a> <ul><li><a href="/pie">Pie</a></li>'
        '<li><a href="#">More</a><ul><li><a href="/line">Line</a></li></ul></li></ul></li></ul>'
        '<button aria-controls="user">Account</button><p>Hello</p>'
        '<div id="user"><a href="/out">Log out</a></div>'
        '<a href="/plain">Plain</a>'
    )
    charts = SiteOpener("link", "Charts")
    assert {link.name: link.opener for link in page.links} == {
        "Pie": charts,
        "Line": SiteOpener("link", "More", 0, charts),
        "Log out": SiteOpener("button", "Account"),
        "Plain": None,
    }


def test_a_control_within_the_element_that_it_names_opens_no_menu():
    page = read('<div id="all"><a href="/pie">Pie</a><a href="#all">Back to top</a></div>')
    assert [link.opener for link in page.links] == [None]


def test_a_link_that_skips_navigation_opens_no_menu():
    body = '<div id="body"><h1>Lamps</h1><ul><li><a href="/oak">Oak</a></ul></div>'
    page = read(f'<a href="#body">Skip</a>{body}')
    assert [link.opener for link in page.links] == [None]


def test_a_link_has_its_title_as_another_name():
    page = read('<a href="/a" title="Show  source [v]">Show source</a><a href="/b" title="Old">old</a>')
    assert [link.title for link in page.links] == ["Show source [v]", ""]


def views(*queries: str, links: str = "") -> dict[str, object]:
    urls = [f"https://site.test/list{query}" for query in queries]
    return {url: read(f"<h1>List</h1><p>{url}</p>{links}", url) for url in urls}


def test_views_of_a_page_are_in_one_part():
    links = "".join(f'<a href="/list?sort={n}">{n}</a>' for n in range(6))
    pages = views("", *(f"?sort={n}" for n in range(6)), links=links)
    others = {
        f"https://site.test/{n}": read(f"<h1>Page {n}</h1>", f"https://site.test/{n}") for n in range(20)
    }
    parts = split_pages(SiteMap(pages | others), 3, 0.1)
    assert {parts[url] for url in pages} == {"test"}


def test_views_of_a_page_are_one_page_of_the_test_part():
    links = "".join(f'<a href="/{n}">Page {n}</a>' for n in range(10))
    pages = views(*(f"?q={n}" for n in range(40)), links=links)
    urls = [f"https://site.test/{n}" for n in range(10)]
    others = {url: read(f"<h1>Page {url[-1]}</h1>{links}", url) for url in urls}
    parts = split_pages(SiteMap(others | pages, starts=(urls[0],)), 3, 0.3)
    assert sum(parts[url] == "test" for url in urls) >= 2


def test_a_site_on_which_every_page_links_to_every_other_has_two_parts():
    links = "".join(f'<a href="/{n}">Page {n}</a>' for n in range(20))
    urls = [f"https://site.test/{n}" for n in range(20)]
    pages = {url: read(f"<h1>Page {url[-2:]}</h1>{links}", url) for url in urls}
    parts = split_pages(SiteMap(pages, starts=(urls[0],)), 3, 0.3)
    assert parts[urls[0]] == "train"
    # The same pages in each program, though the hashes of texts differ between programs.
    assert [url for url in urls if parts[url] == "test"] == urls[2:8]
