"""Dates and times of day: two texts enter, whether they are the same date or time leaves. Nothing is computed from them.

`March 5`, `5 March` and `the 5th of March` are one date, `2021-1-1` and `January 1, 2021` another; `3:30 PM`, `3:30 p.m.` and `15:30` are
one time.
"""

import re

_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = rf"(?P<name>{'|'.join(rf'{month[:3]}(?:{month[3:]}|t)?' for month in _MONTHS)})\.?"
_DAY = r"(?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?"
_DATES = [
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"{_MONTH} {_DAY}(?:,? (?P<y>\d{{4}}))?",
        rf"{_DAY}(?: of)? {_MONTH}(?:,? (?P<y>\d{{4}}))?",
        rf"{_MONTH},? (?P<y>\d{{4}})",
        "(?P<y>[12]\\d{3})(?P<mark>[-/.年])(?P<m>\\d{1,2})(?:(?P=mark)|月)(?P<d>\\d{1,2})日?",
        r"(?P<m>\d{1,2})(?P<mark>[-/.])(?P<d>\d{1,2})(?P=mark)(?P<y>[12]\d{3})",
    )
]
_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?:\s?:\s?(?P<minute>[0-5]\d))?(?:\s?:\s?(?P<second>[0-5]\d))?\s?(?P<half>[ap]\.?\s?m\.?|o'clock)?", re.IGNORECASE
)
_NAMED = {"noon": "12:00 pm", "midnight": "12:00 am"}


Moment = tuple[int | None, ...]
"""Month, day and year of a date; hour, minute, second and half of the day of a time. What was not said is None."""


def same_moment(a: str, b: str) -> bool | None:
    """True if two texts are the same date or time, where each says as much as the other or leaves out the year, or whether it is morning;
    None where neither is a date, and not both are times."""
    mine, theirs = moment(a), moment(b)
    if mine is None or theirs is None:
        return False if 3 in (len(mine or ()), len(theirs or ())) else None
    return mine[:-1] == theirs[:-1] and (mine[-1] == theirs[-1] or None in (mine[-1], theirs[-1]))


def moment(text: str) -> Moment | None:
    """The date or the time of day that a whole text is."""
    text = " ".join(re.sub(r"\\unit|[{}]", " ", text).split()).strip(" ,")
    if found := next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None):
        said = found.groupdict()
        month = int(said["m"]) if said.get("m") else 1 + [each[:3] for each in _MONTHS].index(said["name"][:3].casefold())
        day, year = (int(said[part]) if said.get(part) else None for part in ("d", "y"))
        if day is not None and month > 12 and text[-4:].isdigit():
            month, day = day, month
        return (month, day, year) if month <= 12 and (day or 1) <= 31 else None
    found = _TIME.fullmatch(_NAMED.get(text.casefold(), text))
    if found is None or not (found["minute"] or found["half"]) or int(found["hour"]) > 23:
        return None
    hour, half = int(found["hour"]), (found["half"] or "o")[0].casefold()
    morning = hour < 12 if half == "o" and hour > 12 else None if half == "o" else half == "a"
    return hour % 12, int(found["minute"] or 0), int(found["second"] or 0), morning
