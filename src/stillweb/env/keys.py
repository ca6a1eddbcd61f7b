"""The names of keys: as the browser knows them, and as others write them.

A key is named as in the UI Events specification (`Enter`, `ArrowRight`, `a`), a combination
joins names by `+` (`Control+a`), and a sequence puts spaces between (`Tab Enter`). Models also
write `ctrl+a`, `esc`, `Return` or `page_down`; those are brought into the one spelling here, so
that equal actions are equal.
"""

from __future__ import annotations

__all__ = ["MODIFIERS", "canonical_key"]

MODIFIERS = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")

# Named keys of UI Events KeyboardEvent key Values (w3.org/TR/uievents-key), as far as a keyboard has them.
_NAMED = (
    *("Alt", "AltGraph", "ArrowDown", "ArrowLeft", "ArrowRight", "ArrowUp", "Backspace", "CapsLock"),
    *("ContextMenu", "Control", "ControlOrMeta", "Delete", "End", "Enter", "Escape", "Home", "Insert"),
    *("Meta", "NumLock", "PageDown", "PageUp", "Pause", "PrintScreen", "ScrollLock", "Shift", "Space"),
    *("Tab", *(f"F{number}" for number in range(1, 13))),
    # Playwright's names of single keys, left from right (KeyboardEvent.code).
    *(
        "AltLeft",
        "AltRight",
        "ControlLeft",
        "ControlRight",
        "MetaLeft",
        "MetaRight",
        "ShiftLeft",
        "ShiftRight",
    ),
    *("Backquote", "Backslash", "BracketLeft", "BracketRight", "Comma", "Equal", "Minus", "Period", "Quote"),
    *("Semicolon", "Slash", "NumpadEnter", "NumpadAdd", "NumpadSubtract", "NumpadMultiply", "NumpadDivide"),
    *(f"Key{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    *(f"{row}{digit}" for row in ("Digit", "Numpad") for digit in range(10)),
)
_OTHERS = {
    **{
        "ctrl": "Control",
        "cmd": "Meta",
        "command": "Meta",
        "super": "Meta",
        "win": "Meta",
        "windows": "Meta",
    },
    **{
        "option": "Alt",
        "controlormeta": "ControlOrMeta",
        "esc": "Escape",
        "return": "Enter",
        "del": "Delete",
    },
    **{"ins": "Insert", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"},
    **{"pgup": "PageUp", "pgdn": "PageDown", "prior": "PageUp", "next": "PageDown", "spacebar": "Space"},
    **{"plus": "+", "minus": "-", "comma": ",", "period": ".", "slash": "/"},
}
_SPELLED = {**{name.lower(): name for name in _NAMED}, **_OTHERS}


def canonical_key(text: str, *, modifiers_only: bool = False) -> str | None:
    """Return keys in the one spelling, or None if one of them is no key.

    Args:
        text: combinations with spaces between.
        modifiers_only: whether only modifiers count as keys.
    """
    if text == " ":
        return None if modifiers_only else "Space"
    combinations = [_combination(word, modifiers_only) for word in text.split()]
    return " ".join(map(str, combinations)) if combinations and None not in combinations else None


def _combination(word: str, modifiers_only: bool) -> str | None:
    # "Control++" is Control and the plus key.
    names = [*word[:-2].split("+"), "+"] if word.endswith("++") else word.split("+") if word != "+" else ["+"]
    keys = [_key(name) for name in names]
    if None in keys:
        return None
    held = keys if modifiers_only else keys[:-1]
    return "+".join(map(str, keys)) if all(key in MODIFIERS for key in held) else None


def _key(name: str) -> str | None:
    if len(name) == 1:
        return name if name.isprintable() else None
    return _SPELLED.get(name.lower(), _SPELLED.get(name.lower().replace("_", "").replace("-", "")))
