"""Which optional abilities an engine declares; importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from .base import CachedModel, DeviceModel, FeatureModel, ReducedModel


def is_reduced(model: CachedModel) -> TypeGuard[ReducedModel]:
    """Whether its head holds some rows only."""
    return model.head_ids is not None


def is_on_device(model: CachedModel) -> TypeGuard[DeviceModel]:
    """Whether it offers greedy work that never brings logits to the host."""
    return model.works_on_device


def reads_states(model: CachedModel) -> TypeGuard[FeatureModel]:
    """Whether it is a draft that reads hidden states with each token."""
    return model.projections is not None
