"""All policies: the modules of this package with a ``SPEC``. There is no other list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from .spec import PolicySpec


@cache
def all_specs() -> Mapping[str, PolicySpec]:
    """The policies by name, in display order."""
    package = import_module(__package__)
    modules = [import_module(f"{__package__}.{module.name}") for module in iter_modules(package.__path__)]
    specs = sorted((m.SPEC for m in modules if hasattr(m, "SPEC")), key=lambda spec: (spec.order, spec.name))
    twice = [name for name, count in Counter(spec.name for spec in specs).items() if count > 1]
    assert not twice, f"several policies are called {', '.join(twice)}: every SPEC needs a name of its own"
    return MappingProxyType({spec.name: spec for spec in specs})


def learned_policies() -> tuple[str, ...]:
    """Names of the policies that ``fit`` trains."""
    return tuple(name for name, spec in all_specs().items() if spec.learned)


def offered_lanes() -> list[str]:
    """The lanes in the form's list, in display order."""
    return [lane for spec in all_specs().values() for lane in spec.offered]


def evaluated_lanes() -> list[str]:
    """The default lanes of an evaluation, in display order."""
    return [lane for spec in all_specs().values() for lane in spec.evaluated]
