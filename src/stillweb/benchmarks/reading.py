"""Candidates of tasks solved by reading and following links: report, open, compare, sort, filter, chain.

The family `impossible` requests what the site does not say. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise

from stillweb.benchmarks.candidates import (
    NOT_FOUND,
    NOT_SAID,
    WRONG_ANSWERS,
    SiteFacts,
    TaskCandidate,
    answer_evaluator,
    in_turn,
    is_attribute,
    is_heading,
    is_name,
    is_state,
    is_title,
    is_value,
    noun_of,
)
from stillweb.benchmarks.pages import PRICE, SiteFact, SiteItem, SitePage, SiteTable, fold, same_path
from stillweb.benchmarks.states import impossible_shown, report_effects, report_entries, report_shown
from stillweb.env.tasks.evaluators import AnswerEvaluator, UrlEvaluator

_PERSON = r"\b(author|editor|maintainer|owner|director|artist|writer|manager|speaker|translator)s?$"
_SUMMARY = re.compile(r"(?:sub|grand )?totals?\b|(?:sum|average|mean|overall|all)$", re.IGNORECASE)
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")
_INVENTED = 6  # words of a subject from which another one is invented


# --- find and report a value -----------------------------------------------------------------------


def report_values(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for a value of a table, a definition list or a product card."""
    found = [(page, fact) for page in facts.pages for fact in page.facts]
    for page, fact in facts.shuffled(found, "report"):
        clear = is_value(fact.value) and is_attribute(fact.attribute) and is_name(fact.subject)
        if not clear or not facts.is_clear(fact) or (fact.shape == "cell" and page.paginated):
            continue
        number = len(fact.subject) % 2
        template, goal = _goal_of(facts, page, fact, number)
        if fold(fact.value) in fold(goal) or facts.is_guessed(fact):
            continue  # the question gives the answer away, or the other subjects do
        yield TaskCandidate(
            "report",
            template,
            (fact.subject, fact.attribute, fact.context),
            f"{goal} {NOT_SAID}",
            answer_evaluator(fact.value),
            (page.url,),
            answer=fact.value,
            wrong=facts.others(fact),
            shows=(fact.value,),
        )


def _goal_of(
    facts: SiteFacts, page: SitePage, fact: SiteFact, number: int, subject: str = ""
) -> tuple[str, str]:
    """Return template and goal of the question for a fact, possibly about another subject."""
    subject = subject or fact.subject
    if fact.shape == "price":
        goals = (f"How much does “{subject}” cost?", f"What is the price of “{subject}”?")
        return f"report/price/{number}", goals[number]
    if fact.shape == "cell":
        column = page_column(page, fact)
        place = _place_of(facts, page, fact.context)
        goals = (
            f"{place}, look up “{subject}” {column}. What is in the same row under “{fact.attribute}”?",
            f"{place}, what is under “{fact.attribute}” in the row of “{subject}”?",
        )
        return f"report/cell/{number}", goals[number]
    noun = noun_of(fact.attribute)
    if re.match(r"(number|count) of ", noun):
        counted = noun.partition(" of ")[2]
        return "report/number", f"How many {counted} does “{subject}” have?"
    if re.search(_PERSON, noun):
        verb = "Who are" if noun.endswith("s") else "Who is"
        return "report/person", f"{verb} the {noun} of “{subject}”?"
    verb = "are" if re.search(r"[^s]s$", noun) and not noun.endswith(("us", "is", "ss")) else "is"
    goals = (
        f"What {verb} the {noun} of “{subject}”?",
        f"Find the page “{subject}”. What does it give under “{fact.attribute}”?",
    )
    return f"report/pair/{number}", goals[number]


def _place_of(facts: SiteFacts, page: SitePage, table: str) -> str:
    """Return where a table is. The heading before it, such as a company's name, is said if it must be."""
    alone = len(page.tables) == 1 and is_name(page.subject) and facts.is_only(page)
    if table == page.subject or alone:
        return f"On the page “{page.subject}”"
    return f"In the table “{table}”" + (f" on the page “{page.subject}”" if is_name(page.subject) else "")


def page_column(page: SitePage, fact: SiteFact) -> str:
    """Return where the names of the rows of a fact's table are; several tables may have one name."""
    tables = [(each.key or 0, each) for each in page.tables if each.name == fact.context]
    if len(tables) > 1:
        named = [(key, each) for key, each in tables if fact.attribute in each.columns]
        tables = [(key, each) for key, each in named if fact.subject in [row[key] for row in each.rows]]
    key, table = tables[0]
    return f"in the column “{table.columns[key]}”" if table.columns[key] else "among the names of the rows"


def report_sections(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the section that follows another one: one of each page, then the next of each."""
    pages = [page for page in facts.pages if is_name(page.subject) and facts.is_only(page)]
    yield from in_turn(*(_next_sections(facts, page) for page in facts.shuffled(pages, "sections")))


def _next_sections(facts: SiteFacts, page: SitePage) -> Iterator[TaskCandidate]:
    texts = Counter(fold(text) for _, text in page.headings)
    for number, ((level, text), (after, answer)) in enumerate(pairwise(page.headings), 1):
        if number in page.parted:
            continue  # possibly beside the heading before it, in another column
        single = texts[fold(text)] == 1 == texts[fold(answer)]
        single = single and facts.headings[fold(text)] == 1 == facts.headings[fold(answer)]
        if level != after or level not in (2, 3) or not single or not is_value(answer):
            continue
        if not is_name(text) or fold(text) in fold(page.subject) or fold(answer) in fold(page.subject):
            continue
        if is_state(text) or is_state(answer):
            continue
        others = [each for _, each in page.headings if each not in (text, answer)]
        yield TaskCandidate(
            "report",
            "report/next-section",
            (page.subject, text),
            f"On the page “{page.subject}”, which heading comes right after “{text}”?",
            AnswerEvaluator(exact=answer),
            (page.url,),
            answer=answer,
            wrong=(*others[:WRONG_ANSWERS], text, page.subject, NOT_FOUND),
            shows=(text, answer),
        )


# --- open a page -----------------------------------------------------------------------------------


def open_pages(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to open a page that its content describes."""
    done: set[str] = set()
    for page in facts.shuffled(facts.pages, "open"):
        urls = facts.site.alike(page.url)
        if page.content in done or not is_title(page.subject) or len(page.text) < 20:
            continue
        done.add(page.content)
        evaluation = UrlEvaluator(regex=f"({'|'.join(map(re.escape, urls))})(#.*)?")
        alone = facts.is_only(page)
        sections = [
            text
            for level, text in page.headings
            if 1 < level < 5 and facts.headings[fold(text)] == 1 and is_heading(text)
        ]
        known = [
            fact
            for fact in page.facts
            if fact.shape == "pair"
            and facts.is_clear(fact)
            and is_value(fact.value)
            and is_attribute(fact.attribute)
            and len(fact.value) > 3
            and sum(fold(fact.value) == fold(v) for v in facts.columns["pair", fold(fact.attribute)]) == 1
            and facts.site.folded_text.count(fold(fact.value)) == 1
        ]
        goals: list[tuple[str, tuple[str, ...], str, str]] = []
        if sections:
            text = facts.shuffled(sections, page.url)[0]
            goals.append(("open/section", (text,), f"Open the page with the heading “{text}”.", text))
        if known:
            fact = facts.shuffled(known, page.url)[0]
            goal = f"Open the page that gives “{fact.value}” under “{fact.attribute}”."
            goals.append(("open/fact", (fact.attribute, fact.value), goal, fact.value))
        if alone and not goals:
            goals.append(("open/title", (page.subject,), f"Open the page “{page.subject}”.", page.subject))
        for template, slots, goal, shown in goals[:1]:
            yield TaskCandidate(
                "open", template, slots, goal, evaluation, (page.url,), shows=(shown,), wrong=(NOT_FOUND,)
            )


def report_pages(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the page that has a heading: one of each page, then the next of each."""
    pages = [page for page in facts.pages if is_title(page.subject) and facts.is_only(page)]
    names = sorted({page.subject for page in pages})
    yield from in_turn(*(_page_of(facts, page, names) for page in facts.shuffled(pages, "pages")))


def _page_of(facts: SiteFacts, page: SitePage, names: Sequence[str]) -> Iterator[TaskCandidate]:
    titles = tuple(dict.fromkeys((page.subject, page.title)))
    others = [each for each in facts.shuffled(names, page.url) if fold(each) not in map(fold, titles)]
    for level, text in facts.shuffled(page.headings, "page", page.url):
        if not 1 < level < 5 or facts.headings[fold(text)] != 1 or not is_heading(text):
            continue
        if set(map(fold, page.subject.split())) & set(map(fold, text.split())):
            continue  # the heading gives the page away
        yield TaskCandidate(
            "report",
            "report/page",
            (text,),
            f"Which page has the heading “{text}”? Answer with the title of the page.",
            AnswerEvaluator(regex=f"(?i)(?:{'|'.join(map(re.escape, titles))})"),
            (page.url,),
            answer=page.subject,
            wrong=(*others[:WRONG_ANSWERS], text, NOT_FOUND),
            shows=(text, page.subject),
        )


# --- compare and sort ------------------------------------------------------------------------------


def compare_items(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the cheapest or most expensive item of a list."""
    for page in facts.shuffled(facts.pages, "compare"):
        items = [item for item in page.items if item.name in facts.prices]
        others = [facts.site.pages[url].items for url in facts.subjects[fold(page.subject)]]
        alone = len({frozenset(each) for each in others if each}) == 1
        if len(items) < 3 or len(items) < len(page.items) or page.paginated or not alone:
            continue
        prices = {item.name: _amount(item.price) for item in items}
        if len(prices) < len(items) or None in prices.values():
            continue
        for least in facts.shuffled([True, False], page.url):
            best = (min if least else max)(prices, key=lambda name: prices[name] or Decimal())
            if sum(amount == prices[best] for amount in prices.values()) != 1:
                continue
            word = "cheapest" if least else "most expensive"
            yield TaskCandidate(
                "compare",
                f"compare/{'least' if least else 'most'}",
                (page.subject, word),
                f"Which of the items that the page “{page.subject}” lists is the {word}? "
                "Answer with its name.",
                AnswerEvaluator(exact=best),
                (page.url,),
                answer=best,
                wrong=(*[name for name in prices if name != best][:WRONG_ANSWERS], page.subject, NOT_FOUND),
                shows=(best,),
            )
            break


def compare_rows(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the row of a table with the highest or lowest number in a column."""
    found = [(page, table) for page in facts.pages for table in page.tables]
    for page, table in facts.shuffled(found, "rows"):
        if not is_name(table.name) or len(facts.tables[fold(table.name)]) != 1 or page.paginated:
            continue
        if not facts.is_on_every_page(table.name):
            continue
        if table.key is None or not is_attribute(table.columns[table.key]):
            continue
        keys = [row[table.key] for row in table.rows]
        if len(keys) < 3 or not all(is_value(key) and not _SUMMARY.match(key) for key in keys):
            continue
        numeric = [
            (column, [_number(row[index]) for row in table.rows])
            for index, column in enumerate(table.columns)
            if is_attribute(column) and all(_number(row[index]) is not None for row in table.rows)
        ]
        for column, numbers in facts.shuffled(numeric, page.url, table.name)[:1]:
            word, pick = facts.shuffled([("highest", max), ("lowest", min)], page.url, column)[0]
            top = pick(numbers)
            best = keys[numbers.index(top)]
            texts = [row[table.columns.index(column)] for row in table.rows]
            if numbers.count(top) != 1 or pick(texts, key=_version) != texts[numbers.index(top)]:
                continue  # 3.10 is a later version than 3.9, and a lower number
            sought = f"{word} number"
            if all(map(_YEAR.fullmatch, texts)):
                sought = "latest year" if pick is max else "earliest year"
            yield TaskCandidate(
                "compare",
                f"compare/{word}",
                (table.name, column),
                f"{_place_of(facts, page, table.name)}, which row has the {sought} under “{column}”? "
                f"Answer with its “{table.columns[table.key]}”.",
                AnswerEvaluator(exact=best),
                (page.url,),
                answer=best,
                wrong=(*[key for key in keys if key != best][:WRONG_ANSWERS], column, NOT_FOUND),
                shows=(best,),
            )


def sort_tables(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to sort a table by a click on the head of a column, and to read its first row."""
    found = [(page, table) for page in facts.pages for table in page.tables if any(table.sorters)]
    for page, table in facts.shuffled(found, "sort"):
        if "?" in page.url:
            continue
        for column, sorter in zip(table.columns, table.sorters, strict=True):
            target = facts.site.landing(sorter)
            if (
                not target
                or target == page.url
                or not same_path(target, page.url)
                or not is_attribute(column)
            ):
                continue
            after = next(
                (t for t in facts.site.pages[target].tables if len(t.columns) == len(table.columns)), None
            )
            if after is None or after.rows[0] == table.rows[0]:
                continue
            yield from _sorted(facts, page, (table, after), column, target)


def _sorted(
    facts: SiteFacts, page: SitePage, tables: tuple[SiteTable, SiteTable], column: str, target: str
) -> Iterator[TaskCandidate]:
    for read, value, others in _new_first_row(*tables, list(enumerate(tables[0].columns)), {column}):
        yield TaskCandidate(
            "sort",
            "sort/table",
            (page.url, column, read),
            f"On the page “{page.subject}”, sort the table by a click on “{column}”. "
            f"What does the first row then have under “{read}”?",
            AnswerEvaluator(exact=value),
            (page.url, target),
            answer=value,
            wrong=(*dict.fromkeys(others[:WRONG_ANSWERS]), column, NOT_FOUND),
            shows=(value,),
        )
        return


def _new_first_row(
    before: SiteTable, after: SiteTable, order: Iterable[tuple[int, str]], known: Container[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the attributes that differ in the first row: column, value after, other values of the column."""
    for index, column in order:
        value, old = after.rows[0][index], before.rows[0][index]
        if column in known or not is_attribute(column) or not is_value(value) or fold(value) == fold(old):
            continue
        others = [row[index] for row in (*before.rows, *after.rows[1:]) if fold(row[index]) != fold(value)]
        yield column, value, others


def filter_rows(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to follow a link that keeps the rows of a table with one value, and to read a row."""
    for page in facts.shuffled(facts.pages, "rows of a filter"):
        counts = Counter(fold(link.name) for link in page.links)
        for link in facts.shuffled(page.links, "filter", page.url):
            target = facts.site.landing(link.url)
            single = counts[fold(link.name)] == 1 and is_value(link.name) and same_path(target, page.url)
            if not single or target == page.url or len(facts.site.alike(page.url)) > 1:
                continue
            candidate = _filtered(facts, page, link.name, facts.site.pages[target])
            if candidate is not None:
                yield candidate
                break


def _filtered(facts: SiteFacts, page: SitePage, name: str, after: SitePage) -> TaskCandidate | None:
    tables = [
        (one, other)
        for one in page.tables
        for other in after.tables
        if one.columns == other.columns and other.rows and set(one.rows) != set(other.rows)
    ]
    if len(tables) != 1 or not is_name(page.subject):
        return None
    before, shown = tables[0]
    columns = [
        column
        for index, column in enumerate(shown.columns)
        if {fold(row[index]) for row in shown.rows}
        == {fold(name)}
        != {fold(row[index]) for row in before.rows}
    ]
    if len(columns) != 1:
        return None
    order = facts.shuffled(list(enumerate(shown.columns)), page.url, name)
    for read, value, others in _new_first_row(before, shown, order, set(columns)):
        return TaskCandidate(
            "filter",
            "filter/rows",
            (page.url, name, read),
            f"On the page “{page.subject}”, follow the link “{name}” to keep only the rows whose "
            f"“{columns[0]}” is “{name}”. What does the first row then have under “{read}”?",
            AnswerEvaluator(exact=value),
            (page.url, after.url),
            answer=value,
            wrong=(*dict.fromkeys(others[:WRONG_ANSWERS]), name, NOT_FOUND),
            shows=(value,),
        )
    return None


# --- chains ----------------------------------------------------------------------------------------


def chain_prices(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions that need the prices of two items from different pages."""
    shown: defaultdict[str, list[str]] = defaultdict(list)
    items: dict[str, SiteItem] = {}
    for page in facts.pages:
        for item in page.items:
            if item.name in facts.prices and _amount(item.price) is not None:
                shown[item.name].append(page.url)
                items[item.name] = item
    names = facts.shuffled(sorted(items), "chain")
    pairs = [(one, other) for turn in (1, 2, 3) for one, other in zip(names, names[turn:], strict=False)]
    for number, (one, other) in enumerate(pairs):
        a, b = _amount(items[one].price), _amount(items[other].price)
        apart = [(p, q) for p in shown[one] for q in shown[other] if p != q and q not in shown[one]]
        sign = _sign(items[one].price)
        if a is None or b is None or not apart or a == b or sign != _sign(items[other].price):
            continue
        total, difference = f"{a + b:.2f}", f"{abs(a - b):.2f}"
        dear, cheap = (one, other) if a > b else (other, one)
        chosen = (
            ("chain/sum", f"What do “{one}” and “{other}” cost together?", total),
            ("chain/difference", f"How much more does “{dear}” cost than “{cheap}”?", difference),
        )[number % 2]
        wrong = [str(a), str(b), items[one].price, items[other].price, NOT_FOUND]
        wrong.append(difference if chosen[2] == total else total)
        yield TaskCandidate(
            "chain",
            chosen[0],
            (one, other),
            f"{chosen[1]} Answer with the amount in {sign}.",
            answer_evaluator(f"{sign}{chosen[2]}"),
            apart[0],
            answer=f"{sign}{chosen[2]}",
            wrong=tuple(each for each in wrong if each.lstrip(sign) != chosen[2]),
            shows=(items[one].price, items[other].price),
        )


def chain_pages(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions whose answer is on the page that a value of another page names."""
    by_subject = {
        subject: urls[0]
        for subject, urls in facts.subjects.items()
        if facts.is_only(facts.site.pages[urls[0]])
    }
    found = [(page, fact) for page in facts.pages for fact in page.facts if fact.shape in ("pair", "cell")]
    for page, fact in facts.shuffled(found, "join"):
        target = by_subject.get(fold(fact.value), "")
        if not target or target == page.url or not facts.is_clear(fact) or not is_attribute(fact.attribute):
            continue
        for last in facts.shuffled(facts.site.pages[target].facts, page.url):
            named = last.shape == "pair" and is_attribute(last.attribute) and is_value(last.value)
            if not named or not facts.is_clear(last) or facts.is_guessed(last) or not is_name(fact.subject):
                continue
            yield TaskCandidate(
                "chain",
                "chain/join",
                (fact.subject, fact.attribute, last.attribute),
                f"Find the {noun_of(fact.attribute)} of “{fact.subject}”. "
                f"What is the {noun_of(last.attribute)} of that {noun_of(fact.attribute)}?",
                answer_evaluator(last.value),
                (page.url, target),
                answer=last.value,
                wrong=(*facts.others(last), fact.value),
                shows=(fact.value, last.value),
            )
            break


def chain_links(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the first section of a page that a link of another page opens."""
    for page in facts.shuffled(facts.pages, "links"):
        if not is_name(page.subject) or not facts.is_only(page):
            continue
        counts = Counter(fold(link.name) for link in page.links)
        for link in facts.shuffled(page.links, "follow", page.url):
            target = facts.site.landing(link.url)
            if not target or counts[fold(link.name)] != 1 or not is_name(link.name):
                continue
            if target in facts.site.alike(page.url):
                continue
            if link.within:
                continue  # the browser scrolls past the first section
            after = facts.site.pages[target]
            sections = [text for level, text in after.headings if level == 2]
            if len(sections) < 2 or not is_value(sections[0]) or facts.headings[fold(sections[0])] != 1:
                continue
            if not is_heading(sections[0]) or fold(sections[0]) in fold(f"{after.subject} {link.name}"):
                continue
            others = [text for text in sections if fold(text) != fold(sections[0])]
            yield TaskCandidate(
                "chain",
                "chain/link",
                (link.name, sections[0]),  # once, although a menu has the link on every page
                f"On the page “{page.subject}”, follow the link “{link.name}”. "
                "Which section comes first on the page that opens? Answer with its heading.",
                AnswerEvaluator(exact=sections[0]),
                (page.url, target),
                answer=sections[0],
                wrong=(*others[:WRONG_ANSWERS], after.subject, page.subject, NOT_FOUND),
                shows=(sections[0],),
            )
            break


# --- impossible ------------------------------------------------------------------------------------


def impossible(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions that no recorded page answers: of an invented subject, or of a missing attribute."""
    alike: defaultdict[tuple[str, ...], list[tuple[SitePage, SiteFact]]] = defaultdict(list)
    found = [(p, f) for p in facts.pages for f in p.facts if f.shape != "cell" or not p.paginated]
    for page, fact in facts.shuffled(found, "impossible"):
        if (
            is_name(fact.subject)
            and _is_short_name(fact.subject)
            and is_attribute(fact.attribute)
            and facts.is_clear(fact)
            and not facts.is_guessed(fact)
        ):
            table = fact.context + page_column(page, fact) if fact.shape == "cell" else ""
            alike[fact.shape, fold(fact.attribute), table].append((page, fact))
    paired = [two for each in alike.values() for two in zip(each[::2], each[1::2], strict=False)]
    for (page, one), (_, other) in facts.shuffled(paired, "invented"):
        first, second = one.subject.split(), other.subject.split()
        invented = " ".join([*first[:-1], second[-1]])
        if len(first) != len(second) or not is_name(invented) or fold(invented) in facts.site.folded_text:
            continue
        if re.search(r"[^\w\s,.'\u2019&-]", invented) or re.search(r",\s\w$", invented):
            continue  # half of a bracket, of a quotation or of two names
        template, goal = _goal_of(facts, page, one, len(invented) % 2, invented)
        yield TaskCandidate(
            "impossible",
            f"impossible/{template.partition('/')[2]}",
            (invented, one.attribute),
            f"{goal} {NOT_SAID}",
            AnswerEvaluator(exact=NOT_FOUND),
            (page.url,),
            answer=NOT_FOUND,
            wrong=tuple(dict.fromkeys((one.value, other.value, invented))),
        )


def _is_short_name(text: str) -> bool:
    """Return whether a part of a text is a part of a name: of two or three words, or with capital letters."""
    words = text.split()
    long = [word for word in words if len(word) > 3]
    return len(words) in (2, 3) or (len(words) <= _INVENTED and all(not word[0].islower() for word in long))


# --- numbers ---------------------------------------------------------------------------------------


def _amount(price: str) -> Decimal | None:
    match = PRICE.fullmatch(price.strip())
    if match is None:
        return None
    if match["number"]:
        return Decimal(match["number"].replace(",", ""))
    return Decimal(match["after"].replace(".", "").replace(",", "."))


def _sign(price: str) -> str:
    match = PRICE.fullmatch(price.strip())
    return (match["before"] or "€") if match else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text.replace(",", "").strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


FAMILIES: Mapping[str, tuple[Callable[[SiteFacts], Iterator[TaskCandidate]], ...]] = {
    "report": (report_values, report_sections, report_pages, report_shown, report_effects, report_entries),
    "open": (open_pages,),
    "compare": (compare_items, compare_rows),
    "sort": (sort_tables,),
    "filter": (filter_rows,),
    "chain": (chain_prices, chain_pages, chain_links),
    "impossible": (impossible, impossible_shown),
}
"""Generators of each family, beside the forms (`benchmarks/forms.py`)."""
