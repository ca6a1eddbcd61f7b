"""Similarity of two element trees, and the elements that moved: pure functions on outlines.

An outline (`stillweb.browser.observe.snapshot`) is first made **canonical**: parts that vary per response or
per build are removed (nonces, ids and references to them, hashes in class names, tokens in hidden fields).
Trees are then compared by their Euler tours: one token when a node opens, one when it closes. The edit
distance of the tours is at most twice that of the trees. rapidfuzz computes it bit-parallel, so 30,000
nodes take a fraction of a second. A wrapper around half the page costs two tokens, not half the page.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

from rapidfuzz.distance import Indel

from stillweb.diff.compare.metrics import multiset_f1

# Attributes without meaning for the page: they name its nodes or hold a token of one response.
_DROPPED = (
    "id|nonce|integrity|for|form|list|headers|aria-(?:labelledby|describedby|controls|owns|details|flowto|activedescendant)"
    "|data-(?:reactid|react-checksum|emotion|styled|style-id|nonce|csrf[\\w-]*|v-[\\w-]+|s-[\\w-]+)|_ng(?:content|host)-[\\w-]+"
)
_ATTRIBUTE = re.compile(rf' (?:{_DROPPED})="(?:[^"\\]|\\.)*"')
_CLASS = re.compile(r' class="((?:[^"\\]|\\.)*)"')
# css-1x2y3z, sc-bdVaJa, jsx-1234567, Button_root__x7Gh2: a suffix of at least five characters with a digit,
# or any suffix after a prefix that CSS generators use.
_HASHED = re.compile(
    r"(?:(?<=[-_])|^)(?=[A-Za-z]*\d)[A-Za-z0-9]{5,}$|(?<=^sc-)\w+$|(?<=^css-)\w+$|(?<=^svelte-)\w+$"
)
_SECRET = re.compile(
    r'(?i)^(?:input|meta)\b(?=.*\b(?:name|id|property)="[^"]*(?:csrf|xsrf|nonce|token|authenticity)[^"]*")'
)
_VALUE = re.compile(r' (?:value|content)="(?:[^"\\]|\\.)*"')
_FEW = 5
_LARGEST = 4_000_000_000  # tokens by tokens: about half a second


@dataclass(frozen=True, slots=True)
class OutlineNode:
    """A line of an outline: depth, box ((0, 0, 0, 0) if not rendered) and canonical label."""

    depth: int
    box: tuple[int, int, int, int]
    label: str


@dataclass(frozen=True, slots=True)
class MovedElement:
    """An element whose position changed. Boxes are left, top, width, height."""

    path: str
    before: tuple[int, int, int, int]
    after: tuple[int, int, int, int]


def parse(outline: str) -> list[OutlineNode]:
    """Parse an outline. Malformed lines are skipped."""
    nodes = []
    labels: dict[str, str] = {}
    for line in outline.split("\n"):
        depth, _, rest = line.partition("\t")
        box, tab, label = rest.partition("\t")
        if tab and depth.isdecimal():
            if label not in labels:
                labels[label] = canonical(label)
            nodes.append(OutlineNode(int(depth), _box(box), labels[label]))
    return nodes


def _box(text: str) -> tuple[int, int, int, int]:
    numbers = text.split(",")
    if len(numbers) != 4:
        return (0, 0, 0, 0)
    left, top, width, height = map(int, numbers)
    return (left, top, width, height)


def canonical(label: str) -> str:
    """Return the label of a node without nonces, ids, style hashes and tokens."""
    if '="' not in label or label.startswith("#"):
        return label
    if _SECRET.match(label):
        label = _VALUE.sub("", label)
    label = _ATTRIBUTE.sub("", label)
    return _CLASS.sub(lambda found: f' class="{_classes(found[1])}"', label)


def _classes(names: str) -> str:
    return " ".join(sorted(_HASHED.sub("*", name) for name in names.split()))


def tree_hash(nodes: list[OutlineNode]) -> str:
    """Return the digest of a canonical tree, independent of the positions of its elements."""
    return sha256("\n".join(f"{node.depth} {node.label}" for node in nodes).encode()).hexdigest()


def similarity(recorded: list[OutlineNode], replayed: list[OutlineNode]) -> float:
    """Return 1 - distance / size of the Euler tours of two trees; 1.0 for equal trees.

    Trees of far more than 30,000 nodes are compared by their (parent, child) pairs only.
    """
    names: dict[str, int] = {}
    tours = _tour(recorded, names), _tour(replayed, names)
    if len(tours[0]) * len(tours[1]) > _LARGEST and tours[0] != tours[1]:
        return multiset_f1(_pairs(recorded), _pairs(replayed))
    return float(Indel.normalized_similarity(*tours))


def _pairs(nodes: list[OutlineNode]) -> list[tuple[str, str]]:
    path: list[str] = []
    pairs = []
    for node in nodes:
        del path[node.depth :]
        pairs.append((path[-1] if path else "", node.label))
        path.append(node.label)
    return pairs


def _tour(nodes: list[OutlineNode], names: dict[str, int]) -> list[int]:
    """Return a positive number for each opening of a node and 0 for each closing."""
    tour: list[int] = []
    for node, after in pairwise([*nodes, OutlineNode(0, (0, 0, 0, 0), "")]):
        tour.append(names.setdefault(node.label, len(names) + 1))
        tour += [0] * max(0, node.depth - after.depth + 1)
    return tour


def lines(nodes: list[OutlineNode]) -> str:
    """Return a canonical tree as text for a line diff."""
    return "\n".join("  " * min(node.depth, 40) + node.label for node in nodes)


def moved(recorded: list[OutlineNode], replayed: list[OutlineNode]) -> tuple[float, list[MovedElement]]:
    """Return the share of elements whose box is unchanged, and the outermost elements that moved.

    Elements are paired by path (tags, and index among equal siblings). Elements that only one tree has are
    ignored. If an element moves with its descendants, only the outermost is returned.
    """
    before, after = _boxes(recorded), _boxes(replayed)
    shared = [path for path in before if path in after]
    off = [path for path in shared if before[path] != after[path]]
    share = 1 - len(off) / len(shared) if shared else 1.0
    found: list[MovedElement] = []
    named: set[str] = set()
    for path in sorted(off, key=lambda path: path.count(" > ")):
        # An element that only grew or shrank with its content has not moved.
        if not _has_ancestor(path, named) and before[path][:2] != after[path][:2]:
            named.add(path)
            found.append(MovedElement(path, before[path], after[path]))
    return share, found


def _has_ancestor(path: str, named: set[str]) -> bool:
    while path := path.rpartition(" > ")[0]:
        if path in named:
            return True
    return False


def _boxes(nodes: list[OutlineNode]) -> dict[str, tuple[int, int, int, int]]:
    """Return the box of each rendered element by its path."""
    boxes: dict[str, tuple[int, int, int, int]] = {}
    path: list[str] = []
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        tag = node.label.partition(" ")[0]
        if tag in ("#text", "#code"):
            continue
        del path[node.depth :]
        path += ["?"] * (node.depth - len(path))
        counts[node.depth][tag] += 1
        number = counts[node.depth][tag]
        counts[node.depth + 1] = Counter()
        path.append(f"{tag}{_class_of(node.label)}" + (f":nth({number})" if number > 1 else ""))
        if node.box != (0, 0, 0, 0):
            boxes[" > ".join(path)] = node.box
    return boxes


def _class_of(label: str) -> str:
    found = _CLASS.search(label)
    first = found[1].split()[:1] if found else []
    return f".{first[0]}" if first and "*" not in first[0] else ""


def at(nodes: list[OutlineNode], box: tuple[int, int, int, int]) -> str:
    """Return the path of the smallest element that covers a box (left, top, right, bottom), or ""."""
    left, top, right, bottom = box
    best, size = "", 0
    for path, (x, y, width, height) in _boxes(nodes).items():
        covers = x <= left and y <= top and x + width >= right and y + height >= bottom
        if covers and (not best or width * height <= size):
            best, size = path, width * height
    return best


def short(path: str) -> str:
    """Return the last elements of a path."""
    parts = path.split(" > ")
    return " > ".join(parts[-_FEW:])
