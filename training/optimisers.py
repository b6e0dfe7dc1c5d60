"""Muon for matrices, AdamW for the rest, and the learning rate as a function of the elapsed share of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(gradients: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices by a quintic Newton-Schulz iteration in bf16. Shape (batch, rows,
    columns).

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = NEWTON_SCHULZ
    x = gradients.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT.contiguous()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class BatchedMuon(torch.optim.Optimizer):
    """Muon, batched over matrices of equal shape: torch.optim.Muon's update in a third less time on a CPU."""

    def __init__(
        self, parameters: list[nn.Parameter] | list[dict], lr: float = 0.02, momentum: float = 0.95, decay: float = 0.1
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update: Nesterov momentum, orthogonalised, scaled by sqrt(max(1, rows / columns)).

        ``closure``: computes the gradients first and returns the loss, as for every optimiser of torch.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                self._step_shape(group, shape, parameters)
        return loss

    def _step_shape(self, group: dict, shape: torch.Size, parameters: list[nn.Parameter]) -> None:
        directions = []
        for parameter in parameters:
            state, gradient = self.state[parameter], parameter.grad
            assert gradient is not None, "step leaves out parameters without a gradient"
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(gradient, 1 - group["momentum"])
            directions.append(torch.lerp(gradient, state["momentum"], group["momentum"]))
        updates = orthogonalise(torch.stack(directions)).to(parameters[0].dtype)
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        for parameter, update in zip(parameters, updates):
            parameter.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def make_optimisers(
    model: nn.Module, muon_lr: float, adam_lr: float, projections_lr: float | None = None
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embeddings and head; AdamW for these two and the norms.

    ``projections_lr``: for the matrices outside the layers.
    """
    outer = ("embed_tokens.weight", "lm_head.weight")
    named = [(name, p) for name, p in model.named_parameters() if p.ndim == 2 and not name.endswith(outer)]
    matrices = [p for _, p in named]
    groups = [{"params": [p for name, p in named if ".layers." in name], "lr": muon_lr}]
    others = [p for name, p in named if ".layers." not in name]
    if others:
        groups.append({"params": others, "lr": muon_lr if projections_lr is None else projections_lr})
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [BatchedMuon(groups, lr=muon_lr), adam]


def rate_at(elapsed: float, warmup: float = 0.01, flat_until: float = 0.5, last: float = 0.02) -> float:
    """Factor on the learning rates at the elapsed share of the time: warm-up, flat, then linear to
    ``last``.
    """
    if elapsed < warmup:
        return max(elapsed / warmup, 0.05)
    if elapsed < flat_until:
        return 1.0
    return last + (1.0 - last) * max(0.0, (1.0 - elapsed) / (1.0 - flat_until))


def set_rates(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    """Sets every group's rate to ``factor`` times its first rate."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group.setdefault("first_lr", group["lr"])
            group["lr"] = group["first_lr"] * factor
