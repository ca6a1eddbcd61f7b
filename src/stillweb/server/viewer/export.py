"""One or two episodes as a single HTML file: it needs no server, no network and no other file.

It is the page of the viewer with its style, its script, the films, and all pictures and texts that they name.
A content security policy allows only that script, so that text of replayed pages cannot run.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from stillweb.diff.report.html import content_policy, picture_uri
from stillweb.errors import TaskError
from stillweb.server.viewer.film import PICTURES, TEXTS, film_of, first_difference, stored_file


def export(folders: dict[str, Path]) -> str:
    """Return the HTML file of one episode, or of two side by side.

    Args:
        folders: folder of each episode by its id.

    Raises:
        TaskError: if a trajectory cannot be read.
    """
    films = {episode: film_of(folder) for episode, folder in folders.items()}
    stored: dict[str, str] = {}
    for episode, film in films.items():
        for step in film["steps"]:
            _add(stored, folders[episode], step.get("digests") or {})
    data: dict[str, Any] = {"films": films, "files": stored}
    if len(films) == 2:
        data["difference"] = first_difference(*films.values())
    return _page(data)


def _add(stored: dict[str, str], folder: Path, digests: dict[str, str]) -> None:
    picture = next((form for form in PICTURES if form in digests), "")
    for form, digest in digests.items():
        if digest in stored or (form != picture and form not in TEXTS):
            continue
        try:
            body = stored_file(folder, digest, "png" if form == picture else "txt")
        except TaskError as error:
            stored[digest] = "" if form == picture else str(error)
            continue
        stored[digest] = picture_uri(body) if form == picture else body.decode("utf-8", "replace")


def _page(data: dict[str, Any]) -> str:
    web = files("stillweb.server.viewer").joinpath("web")
    html, style, script = (
        web.joinpath(f"viewer.{each}").read_text("utf-8") for each in ("html", "css", "js")
    )
    # In a script element only `<` can end or change the text (HTML, 4.12.1.3).
    embedded = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(script)}">'
    html = html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}', 1)
    html = html.replace('<link rel="stylesheet" href="viewer.css">', f"<style>\n{style}</style>", 1)
    head, _, tail = html.partition('<script src="viewer.js"></script>')
    data_element = f'<script type="application/json" id="embedded">{embedded}</script>'
    return f"{head}{data_element}\n<script>{script}</script>{tail}"
