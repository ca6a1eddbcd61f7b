"""Transitions at level CLOCK: those of the page end immediately, and no others start."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import pytest

from stillweb.browser import Level, page_text

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PLAIN = """<div id=a style="width: 10px">x</div><p id=o></p><script>
  a.offsetWidth;
  a.style.width = "300px";
  o.textContent = [a.offsetWidth, a.getAnimations().length, getComputedStyle(a).transitionDuration].join(" ");
</script>"""

MANY = """<style>
    .t { transition: left 5s 2s; position: relative; left: 0 } #p::before { content: "b"; transition: opacity 3s; opacity: 0.5 }
  </style>
  <p id=a class=t>a</p> <p id=p>p</p> <div id=host></div>
  <pre id=o></pre><script>
  const say = (text) => { o.textContent += text + "\\n"; };
  const root = host.attachShadow({ mode: "closed" });
  root.innerHTML = "<style>b { transition: left 5s; position: relative; left: 0 }</style><b>s</b>";
  const hear = (node, name) => {
    for (const type of ["transitionrun", "transitionstart", "transitionend"])
      node.addEventListener(type, (event) => say([name, type, event.propertyName, event.elapsedTime, performance.now() < 1000].join(" ")));
  };
  hear(a, "a"); hear(p, "p"); hear(root.querySelector("b"), "s");
  document.body.offsetWidth;
  setTimeout(() => {
    a.style.left = "50px"; root.querySelector("b").style.left = "60px";
    document.head.append(Object.assign(document.createElement("style"), { textContent: "#p::before { opacity: 1 }" }));
  }, 100);
  a.addEventListener("transitionend", () => say("at " + getComputedStyle(a).left), { once: true });
</script>"""

ANSWER = """<div id=a style="width: 10px">x</div> <p id=o>.</p><script>
  const drawn = () => new Promise((resolve) => new IntersectionObserver(resolve).observe(o));
  a.offsetWidth;
  fetch("/answer").then(async () => {
    a.style.width = "300px";
    %s;
    o.textContent = a.offsetWidth;
  });
</script>"""

CHAIN = """<style>i { transition: left 5s; position: relative; left: 0 }</style><i id=a>a</i> <p id=o></p><script>
  a.offsetWidth;
  let turns = 0;
  a.addEventListener("transitionend", () => {
    o.textContent = `${++turns} ${performance.now()}`;
    if (turns < 6) a.style.left = `${turns}0px`;
  });
  a.style.left = "5px";
</script>"""


@pytest.mark.parametrize("level", list(Level))
async def test_a_change_of_style_is_there_at_once_where_the_page_has_no_transition(rig, level):
    async with rig.visit(level) as visit:
        await visit.show(PLAIN)
        assert (await page_text(visit.page)).split("\n")[-1] == "300 0 0s"


async def test_transitions_end_in_their_order_with_the_times_that_the_page_gave_them(rig):
    async with rig.visit() as visit:
        settled = await visit.show(MANY)
        assert settled.settled
        lines = (await visit.page.locator("#o").inner_text()).split("\n")
    for name, about in (("a", "left 5"), ("p", "opacity 3"), ("s", "left 5")):
        kinds = [line.split()[1] for line in lines if line.startswith(name + " ")]
        assert kinds == ["transitionrun", "transitionstart", "transitionend"]
        (end,) = [line for line in lines if line.startswith(f"{name} transitionend")]
        assert end == f"{name} transitionend {about} true"
    assert "at 50px" in lines


@pytest.mark.parametrize("meanwhile", ["", "await drawn()"])
async def test_what_a_script_measures_does_not_depend_on_the_frames_drawn_before(rig, meanwhile):
    rig.site.pages["http://site.test/answer"] = "42"
    async with rig.visit() as visit:
        await visit.show(ANSWER % meanwhile)
        assert (await page_text(visit.page)).split()[-1] == "300"


async def test_transitions_that_follow_upon_each_other_end_at_one_instant(rig):
    async with rig.visit() as visit:
        await visit.show(CHAIN)
        assert (await page_text(visit.page)).split()[-2:] == ["6", "0"]
