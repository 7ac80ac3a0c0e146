"""Text that comes from tasks or policies, made harmless; numbers, made short."""

from __future__ import annotations

import unicodedata

NOTHING = "-"
"""What stands where a number is not known."""
BREAKS = "\t\n\v\f\r\x85\u2028\u2029"
REMOVED_CATEGORIES = ("Cc", "Cf", "Cs")
"""Control characters, invisible formatting such as bidirectional overrides, lone surrogates."""


def plain(text: str) -> str:
    """The text on one line, without anything that a terminal or a browser would act upon instead of showing it."""
    if text.isprintable():
        return text
    spaced = (" " if character in BREAKS else character for character in text)
    return "".join(character for character in spaced if unicodedata.category(character) not in REMOVED_CATEGORIES)


def visible(text: str, *, lines: bool = True) -> str:
    """Characters that a terminal would act upon, as escapes; with `lines` new lines and tabs stay as they are."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        character if character in kept or character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def code_span(text: str) -> str:
    """`plain`, as a Markdown code span that may stand in a table: no markup, mention, link or HTML acts in it."""
    return "`" + (plain(text).replace("`", "'").replace("|", "\\|").strip() or " ") + "`"


def rate(value: float | None) -> str:
    """Three digits after the point."""
    return NOTHING if value is None else f"{value:.3f}"


def change(value: float | None) -> str:
    """With its sign."""
    return NOTHING if value is None else f"{value:+.3f}"


def interval(low: float | None, high: float | None) -> str:
    """Both bounds."""
    return NOTHING if low is None or high is None else f"{low:.3f}-{high:.3f}"


def signed_interval(low: float | None, high: float | None) -> str:
    """Both bounds with their signs."""
    return NOTHING if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


def p_value(value: float | None) -> str:
    """Three digits; small ones as a bound."""
    if value is None:
        return NOTHING
    return "<.001" if value < 0.001 else f"{value:.3f}"


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def seconds(value: float | None) -> str:
    """Seconds."""
    return NOTHING if value is None else f"{number(value)} s"
