"""The ``structured`` suite's prompts: records, tables, lists and configuration, made up by a seeded
generator.

Every prompt stops in the middle of its structure, once the pattern is visible.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

NAMES = [
    "alice",
    "bruno",
    "chen",
    "dalia",
    "emeka",
    "farah",
    "goran",
    "hana",
    "ivan",
    "june",
    "kofi",
    "lena",
    "mira",
]
CITIES = [
    "Lisbon",
    "Osaka",
    "Quito",
    "Oslo",
    "Accra",
    "Lyon",
    "Perth",
    "Turin",
    "Cork",
    "Pune",
    "Graz",
    "Lima",
]
FIELDS = [
    "id",
    "name",
    "city",
    "age",
    "score",
    "active",
    "email",
    "count",
    "price",
    "size",
    "status",
    "created",
]
MODULES = [
    "loader",
    "parser",
    "writer",
    "cache",
    "client",
    "server",
    "router",
    "schema",
    "runner",
    "config",
    "logger",
]
OPTIONS = [
    "timeout",
    "retries",
    "verbose",
    "encoding",
    "backend",
    "max_size",
    "workers",
    "strict",
    "prefix",
    "debug",
]


def _value(rng: random.Random, field: str) -> object:
    values: dict[str, Callable[[], object]] = {
        "name": lambda: rng.choice(NAMES),
        "city": lambda: rng.choice(CITIES),
        "email": lambda: f"{rng.choice(NAMES)}@example.org",
        "active": lambda: rng.random() < 0.5,
        "price": lambda: round(rng.uniform(1, 99), 2),
        "status": lambda: rng.choice(["open", "closed", "pending"]),
        "created": lambda: f"20{rng.randint(10, 25)}-0{rng.randint(1, 9)}-{rng.randint(10, 28)}",
    }
    return values.get(field, lambda: rng.randint(1, 99))()


def _fields(rng: random.Random, least: int = 3, most: int = 5) -> list[str]:
    return rng.sample(FIELDS, rng.randint(least, most))


def json_records(rng: random.Random) -> str:
    """A JSON list of objects, cut inside the last one."""
    fields = _fields(rng)
    rows = [{field: _value(rng, field) for field in fields} for _ in range(rng.randint(3, 5))]
    text = json.dumps(rows, indent=rng.choice([2, 4]))
    return text[: text.rindex('"' + fields[1] + '"')]


def markdown_table(rng: random.Random) -> str:
    """A Markdown table, cut after the first cell of a row."""
    fields = _fields(rng)
    rows = [" | ".join(str(_value(rng, field)) for field in fields) for _ in range(rng.randint(4, 7))]
    head = [f"| {' | '.join(fields)} |", "|" + " --- |" * len(fields), *(f"| {row} |" for row in rows)]
    return "\n".join(head) + f"\n| {_value(rng, fields[0])} |"


def csv_rows(rng: random.Random) -> str:
    """Comma-separated rows under a header, cut after a row's first cell."""
    fields = _fields(rng)
    rows = [",".join(str(_value(rng, field)) for field in fields) for _ in range(rng.randint(5, 9))]
    return "\n".join([",".join(fields), *rows]) + f"\n{_value(rng, fields[0])},"


def python_table(rng: random.Random) -> str:
    """A Python list of tuples with a comment on the columns."""
    fields = _fields(rng)
    rows = [f"    ({', '.join(repr(_value(rng, field)) for field in fields)})," for _ in range(rng.randint(4, 7))]
    return f"# {', '.join(fields)}\nROWS = [\n" + "\n".join(rows) + "\n    ("


def python_mapping(rng: random.Random) -> str:
    """A Python dict literal from names to small dicts."""
    fields = _fields(rng, 2, 3)
    rows = [
        f'    "{name}": {json.dumps({f: str(_value(rng, f)) for f in fields})},'
        for name in rng.sample(NAMES, rng.randint(4, 6))
    ]
    return (
        f"{rng.choice(['USERS', 'RECORDS', 'TABLE', 'ENTRIES'])} = {{\n"
        + "\n".join(rows)
        + f'\n    "{rng.choice(NAMES)}": {{'
    )


def yaml_services(rng: random.Random) -> str:
    """A YAML list of services with the same keys."""
    options = rng.sample(OPTIONS, 3)
    rows = [
        f"  - name: {module}\n" + "".join(f"    {option}: {rng.randint(1, 60)}\n" for option in options)
        for module in rng.sample(MODULES, rng.randint(3, 5))
    ]
    return "services:\n" + "".join(rows) + "  - name:"


def ini_sections(rng: random.Random) -> str:
    """Sections of an INI file with the same keys."""
    options = rng.sample(OPTIONS, 4)
    rows = [
        f"[{module}]\n" + "".join(f"{option} = {rng.randint(1, 90)}\n" for option in options)
        for module in rng.sample(MODULES, rng.randint(3, 4))
    ]
    return "\n".join(rows) + f"\n[{rng.choice(MODULES)}]\n{options[0]} ="


def numbered_list(rng: random.Random) -> str:
    """A numbered list of steps in English."""
    verbs = ["Open", "Read", "Check", "Write", "Close", "Start", "Stop", "Update", "Remove", "Restart"]
    rows = [
        f"{number}. {rng.choice(verbs)} the {rng.choice(MODULES)} and set ``{rng.choice(OPTIONS)}``."
        for number in range(1, rng.randint(6, 9))
    ]
    return "Steps:\n\n" + "\n".join(rows) + f"\n{len(rows) + 1}."


def enum_members(rng: random.Random) -> str:
    """A Python enumeration that counts up."""
    names = [*rng.sample(MODULES, 5), *rng.sample(OPTIONS, 4)]
    rows = [f"    {name.upper()} = {number}" for number, name in enumerate(names[: rng.randint(5, 8)], 1)]
    return f"class {rng.choice(MODULES).title()}Kind(IntEnum):\n" + "\n".join(rows) + "\n   "


def imports(rng: random.Random) -> str:
    """An import list with ``__all__`` after it."""
    chosen = rng.sample(MODULES, rng.randint(5, 8))
    lines = [f"from .{module} import {module.title()}, make_{module}" for module in chosen]
    return "\n".join(lines) + "\n\n__all__ = [\n" + f'    "{chosen[0].title()}",\n    "make_{chosen[0]}",\n    "'


FORMS = (
    json_records,
    markdown_table,
    csv_rows,
    python_table,
    python_mapping,
    yaml_services,
    ini_sections,
    numbered_list,
    enum_members,
    imports,
)


def structured_prompts(count: int, seed: int) -> list[tuple[str, str]]:
    """``count`` distinct prompts as (form, text), cycling through the forms."""
    rng = random.Random(seed)
    found: dict[str, str] = {}  # text -> form
    while len(found) < count:
        form = FORMS[len(found) % len(FORMS)]
        found.setdefault(form(rng), form.__name__)
    return [(form, text) for text, form in found.items()]
