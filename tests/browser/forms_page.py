"""A page with one of each thing that forms of observation must report, and what the frames in it show."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"

PAGE = """<title>Shop</title>
<header><a href=/>Harbour &amp; Hill</a></header>
<nav aria-label=Main><ul><li><a href=/kitchen>Kitchen</a><li><a href=/garden>Garden <b>new</b></a></ul></nav>
<main>
<h1>Basket<span style="visibility:hidden">¶</span></h1>
<p>Two things &lt;in&gt; the <i>basket</i>,<br>and <code>one_more</code>. Ünïcödé 🧺 عربى</p>
<table><caption>Things</caption><tr><th>Name<th>Price<tr><td>Kettle | blue<td>£3.00<tr><td><a href=/kettle>Pan</a><td>£4.50</table>
<article><h2>Lamp</h2><button>Remove</button></article>
<article><h2>Towel</h2><button>Remove</button></article>
<form name=coupon>
<label for=code>Coupon</label> <input id=code value="SPRING" required>
<label><input type=checkbox checked> Gift</label>
<input type=password aria-label=PIN value=1234>
<select aria-label=Size><option>Small<option selected>Large</select>
<textarea aria-label=Note>line one
line two</textarea>
<button disabled>Apply</button> <input type=submit value=Order>
</form>
<ol><li>First<ul><li>inner</ul><li>Second</ol>
<pre>def f():
    return "x"</pre>
<blockquote>Quoted <a href="https://other.test/">words</a></blockquote>
<div style="cursor:pointer" id=card>Open <span>card</span></div>
<details><summary>More</summary>unseen in details</details>
<p style="display:none">unseen <button>unseen</button></p><p hidden>unseen</p>
<div style="height:0;overflow:hidden"><button>cut off</button></div>
<div id=host><em slot=s>slotted</em></div>
<iframe src=/outer title=Outer style="width:300px;height:120px"></iframe>
<img alt="A picture" width=20 height=20 src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">
</main>
<div style="height:1500px"></div><button>Below</button>
<script>host.attachShadow({ mode: "open" }).innerHTML =
 "<section aria-label=Shadow><button>In shadow</button> <slot name=s></slot></section>";</script>"""

OUTER = """<body style="margin:0"><button>Framed</button>
<iframe src="http://other.test/inner" style="width:200px;height:60px"></iframe><div style="height:800px"></div><button>Deep</button>"""
INNER = "<body style='margin:0'><a href='http://other.test/x'>Other origin</a>"


async def show(visit, page: str = PAGE):
    """Serve the page with its frames and settle on it."""
    visit.site.pages["http://site.test/outer"] = "<!doctype html><meta charset=utf-8>" + OUTER
    visit.site.pages["http://other.test/inner"] = "<!doctype html><meta charset=utf-8>" + INNER
    return await visit.show(page)


def golden(name: str, text: str) -> str:
    """Return the expected content; a missing file is written, and its author has to read it."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").removesuffix("\n")
