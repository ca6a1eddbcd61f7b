"""`stillweb collections reachability`: the map of an exploration, and its verification in the replay."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import print_json, print_table
from stillweb.cli.options import certs_option, collections_option, json_option
from stillweb.cli.progress import counting
from stillweb.collections.layout import Collection
from stillweb.collections.reachability import FILE, ReachabilityMap, TriedAction, read_reachability
from stillweb.errors import CollectionError


@click.command("reachability")
@click.argument("name")
@click.option("--verify", is_flag=True, help="Take actions of the map in the replay, and compare.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of actions that --verify takes.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the sample of actions that --verify takes."
)
@click.option("--unanswered", is_flag=True, help="List the actions without an answer instead of the states.")
@json_option
@collections_option
@certs_option
@click.pass_context
def reachability(ctx: click.Context, /, name: str, **given: Any) -> None:
    """Show the actions of each state that have an answer in the archive.

    With --verify: exit status 1 if an action that had an answer in the recording misses in the replay.

    \b
    Example:
      stillweb collections reachability site
      stillweb collections reachability site --verify --limit 50
    """
    collection = Collection.open(given["root"], name)
    if not (collection.path / FILE).exists():
        raise CollectionError(
            f"{name} has no exploration", path=collection.path / FILE, hint=f"stillweb record explore {name}"
        )
    reach = read_reachability(collection.path / FILE)
    if given["verify"]:
        checked = asyncio.run(_verified(collection, reach, given["certs_dir"], given["limit"], given["seed"]))
        _print_checked(name, checked, as_json=given["as_json"])
        ctx.exit(0 if all(each["holds"] for each in checked) else 1)
    if given["as_json"]:
        states = [
            {**asdict(state), "actions": [_as_dict(each) for each in reach.of(state.state)]}
            for state in reach.states.values()
        ]
        print_json({"collection": name, "summary": reach.summary(), "states": states})
        return
    _print_map(name, reach, unanswered=given["unanswered"])


def _as_dict(tried: TriedAction) -> dict[str, Any]:
    return {**asdict(tried), "answered": tried.answered}


def _print_map(name: str, reach: ReachabilityMap, *, unanswered: bool) -> None:
    totals = reach.summary()
    share = totals["share_answered"]
    hows = ", ".join(f"{count} {how}" for how, count in totals["by_how"].items())
    title = (
        f"{name}: {totals['states']} states, {totals['actions']} actions ({hows}); "
        f"{'-' if share is None else f'{100 * share:.1f} %'} of the tried actions have an answer, "
        f"{totals['dead_ends']} dead ends"
    )
    if unanswered:
        rows = [
            (reach.states[each.state].url if each.state in reach.states else "", each.description, each.how)
            for each in reach.actions.values()
            if not each.answered
        ]
        print_table(("page", "action", "why"), rows, title=title)
        return
    by_state: dict[str, list[TriedAction]] = {}
    for each in reach.actions.values():
        by_state.setdefault(each.state, []).append(each)
    table = []
    for state in reach.states.values():
        found = Counter(each.answered for each in by_state.get(state.state, ()))
        row = (state.state[:12], state.url, len(state.path), state.controls)
        table.append((*row, found.total(), found[True], found[False], found[None]))
    columns = ("state", "page", "#acts", "#controls", "#actions", "#answered", "#unanswered", "#not tried")
    print_table(columns, table, title=title)


async def _verified(
    collection: Collection, reach: ReachabilityMap, certs: Path, limit: int, seed: int
) -> list[dict[str, Any]]:
    from stillweb.browser.launch import launch  # Playwright is slow to import
    from stillweb.cli.replay.shared import replayed
    from stillweb.env.reachability import check_reachability, sample_actions
    from stillweb.replay.client import ReplayClient

    actions = sample_actions(reach, limit, seed)
    async with replayed(collection, certs) as url, ReplayClient(url) as client:
        info = await client.info()
        async with launch(spki=info.spki) as browser:
            with counting("verifying", len(actions)) as on_checked:
                found = await check_reachability(client, browser, collection.name, reach, actions, on_checked)
    return [{**asdict(each), "holds": each.holds} for each in found]


def _print_checked(name: str, checked: list[dict[str, Any]], *, as_json: bool) -> None:
    holding = sum(each["holds"] for each in checked)
    counts = {
        "actions": len(checked),
        "answered": holding,
        "same_state": sum(each["same_state"] for each in checked),
        "same_next": sum(each["same_next"] for each in checked),
    }
    if as_json:
        print_json({"collection": name, "counts": counts, "checked": checked})
        return
    rows = [
        (each["url"], each["description"], each["error"] or ", ".join(each["missed"][:3]))
        for each in checked
        if not each["holds"]
    ]
    title = (
        f"{name}: {holding} of {len(checked)} actions answered in replay; "
        f"{counts['same_state']} from the same state, {counts['same_next']} to the same"
    )
    print_table(("page", "action", "missed"), rows, title=title)
