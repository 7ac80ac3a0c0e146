r"""Finding the one number that a text states as its answer. Parsing only: nothing is evaluated.

Where the answer stands, first rule that applies
1. in the last `\boxed{…}`, and nowhere else: `\boxed{}` is no answer, whatever else the text holds;
2. behind the last "answer is", "answer:", "answer =" or `####` (a line of `####` and a number, as in GSM8K), to the end
   of that sentence;
3. in the last line that is not empty.

The number must be alone there: two different numbers ("12 or 13"), an expression ("3 + 4", "9**9", "2\pi"), a date or
a version make the answer ambiguous, and an ambiguous answer earns nothing. So no text can name several values and be
paid for one of them. The same number said twice ("7, that is 7.0") is one answer.

Every pattern below takes linear time, and texts, digits and exponents are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_TEXT_CHARS = 20_000
"""Only the end of a longer text is read; the answer stands at the end."""
MAX_REGION_CHARS = 2000
"""An answer that is longer is none."""
MAX_MARKERS = 20
"""How many of them are looked at, from the end."""
MAX_DIGITS = 400
MAX_EXPONENT = 400
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Word behind a number → power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number as it was written."""

    text: str
    """The characters."""
    value: Fraction
    """Its value, exactly; of "50 %" it is 50."""
    percent: bool
    """It carries a percent sign or the word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was found in a text."""

    status: str
    """`ok`, `no_answer` or `ambiguous`."""
    region: str
    """The part of the text that was read."""
    number: Number | None = None
    """The number, where the status is `ok`."""


def read_answer(text: str) -> Reading:
    """Find the number that `text` gives as its answer."""
    region = answer_region(text[-MAX_TEXT_CHARS:])
    if len(region) > MAX_REGION_CHARS:
        return Reading(status="ambiguous", region=region[:MAX_REGION_CHARS])
    return read_region(region)


def read_region(region: str) -> Reading:
    """Find the one number of a text that is nothing but the answer."""
    plain = plain_text(region)
    numbers = _numbers(plain)
    if numbers is None or _has_symbols(plain):
        return Reading(status="ambiguous", region=region)
    if not numbers:
        return Reading(status="no_answer", region=region)
    if len({(number.value, number.percent) for number in numbers}) > 1:
        return Reading(status="ambiguous", region=region)
    return Reading(status="ok", region=region, number=numbers[-1])


# ── where the answer stands ──────────────────────────────────────────────────────────────────────────────────────────

_MARKER = re.compile(
    r"\banswer\b[\s*_]{0,8}(?:is|:|=)|^####(?=[ \t]{0,8}[-\u2212+$]{0,2}[0-9][0-9.,]{0,400}[ \t%]{0,8}$)",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")


def answer_region(text: str) -> str:
    """The part of `text` that states the answer, by the three rules above."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    for marker in reversed(list(_MARKER.finditer(text))[-MAX_MARKERS:]):
        behind = text[marker.end() : marker.end() + MAX_REGION_CHARS + 1]
        sentence = _SENTENCE_END.split(behind.lstrip(" :*_\t"), maxsplit=1)[0]
        if re.search(r"[0-9]", sentence):
            return sentence
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` with balanced braces; None where there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for position in range(begin - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return text[begin:]  # cut off by the token limit


# ── to plain characters ──────────────────────────────────────────────────────────────────────────────────────────────

_MINUS_SIGNS = re.compile("[\u2212\ufe63\uff0d]")
_THIN_SPACES = re.compile(r"(?<=[0-9])(?:[\u2009\u202f\u00a0]|\\,|\{,\})(?=[0-9]{3}(?![0-9]))")
_FRACTION = re.compile(r"\\[dt]?frac\s{0,4}\{([^{}]{1,100})\}\s{0,4}\{([^{}]{1,100})\}")
_POWER_OF_TEN = re.compile(
    r"(?<=[0-9])\s{0,4}(?:\\times|\\cdot|[×*x])\s{0,4}10\s{0,4}(?:\^|\*\*)\s{0,4}\{?([+-]?[0-9]{1,4})\}?(?![0-9])"
)
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|mathbf|textbf|operatorname)\s{0,4}\{")
_IGNORED_COMMAND = re.compile(r"\^\{?\\circ\}?|\\(?:left|right|displaystyle|quad|qquad|[,;:!$()\[\]{} ])")


def plain_text(text: str) -> str:
    """`text` without the mark-up around numbers: LaTeX delimiters and fractions, thin spaces, other minus signs."""
    text = _MINUS_SIGNS.sub("-", text)
    text = text.replace("\\%", "%")
    text = _THIN_SPACES.sub(",", text)
    text = _FRACTION.sub(r"\1/\2", text)
    text = _POWER_OF_TEN.sub(r"e\1", text)
    text = _TEXT_COMMAND.sub(" {", text)
    return _IGNORED_COMMAND.sub(" ", text)


_SYMBOLS = re.compile(r"\\[A-Za-z]+|[π√∞±^²³¹½¼¾⅓⅔≤≥<>≈]|\b(?:sqrt|infinity)\b")


def _has_symbols(text: str) -> bool:
    """Whether something beside the numbers changes their value: a root, pi, a power, a bound."""
    return _SYMBOLS.search(text) is not None


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?P<currency>[$€£¥]?)(?P<inner_sign>[-+]?)"
    rf"(?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>[+-]?[0-9]+))?"
    rf"(?:\s?/\s?(?P<denominator>{_DECIMAL}))?"
)
_PERCENT = re.compile(r"\s{0,2}(?:%|per\s?cent\b)", re.IGNORECASE)
_SCALE = re.compile(rf"\s{{1,2}}({'|'.join(SCALES)})\b", re.IGNORECASE)
_OPERATOR_GAP = re.compile(r"[\s(){}$]*[-+*/^×·÷−](?:[\s(){}$]|[-+*/^×·÷−])*")
_GLUED_FACTOR = re.compile(r"[kKMBxyzi](?![A-Za-z])")
_LOOSE_SIGN = re.compile(r"(?<![\w)])[-+]\s+$")


def _numbers(text: str) -> list[Number] | None:
    """All numbers of `text`; None where some of it looks like a number and is none, or where numbers are combined."""
    found: list[Number] = []
    end = 0
    for match in _NUMBER.finditer(text):
        number = _number(text, match)
        gap = text[end : match.start()]
        if number is None or (end and _OPERATOR_GAP.fullmatch(gap)) or _LOOSE_SIGN.search(gap):
            return None
        if number is _NOT_A_NUMBER:
            continue
        end = match.end()
        found.append(number)
    return found


_NOT_A_NUMBER = Number(text="", value=Fraction(0), percent=False)
"""Marks digits that belong to a name, such as the 2 of `H2O` or `x2`."""


def _number(text: str, match: re.Match[str]) -> Number | None:
    before, after = text[: match.start()], text[match.end() :]
    signed = bool(match["sign"])
    if before and (before[-1].isalpha() or before[-1] == "_") and not signed and not match["currency"]:
        return _NOT_A_NUMBER
    if signed and before and (before[-1].isalnum() or before[-1] in ")]}."):
        return None  # a minus between operands: a difference or a range
    if before and (before[-1] in "/:" or re.search(r"[0-9][.,]$", before[-2:])):
        return None  # a date, a time, a version, or digits grouped in no known way
    if re.match(r"[.,:/_][0-9]|/[0-9]|[eE][+-]?[0-9]|\s?\*\s?[A-Za-z(]", after) or _GLUED_FACTOR.match(after):
        return None
    value = _value(match)
    if value is None:
        return None
    scale = _SCALE.match(after)
    if scale is not None:
        value *= 10 ** SCALES[scale[1].lower()]
        after = after[scale.end() :]
    return Number(text=match[0].strip(), value=value, percent=_PERCENT.match(after) is not None)


def _value(match: re.Match[str]) -> Fraction | None:
    """Exact value; None where it is out of bounds, has two signs or a zero denominator."""
    exponent = match["exponent"] or "0"
    if len(match[0]) > MAX_DIGITS or len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    if match["sign"] and match["inner_sign"]:
        return None
    value = Fraction(match["decimal"].replace(",", "")) * Fraction(10) ** int(exponent)
    if match["denominator"] is not None:
        denominator = Fraction(match["denominator"].replace(",", ""))
        if denominator == 0:
            return None
        value /= denominator
    return -value if "-" in (match["sign"], match["inner_sign"]) else value
