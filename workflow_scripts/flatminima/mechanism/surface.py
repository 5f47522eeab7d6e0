"""The loss around a checkpoint: gradient and exact Hessian-vector products.

Products are taken by differentiating twice in reverse mode, in float32 with sums over
batches in float64. Forward mode twice would be cheaper per sequence, but torch's layer
norm gives a wrong second derivative there.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flatminima.scoring import batches
from flatminima.training.gradients import next_token_loss

Vector = Mapping[str, Tensor]


class LossSurface:
    """Mean NLL (nats per token) of fixed tokens as a function of some of a model's weights.

    ``tokens`` is ``[sequences, length]``, ``names`` the parameters that may move; all
    batches must be of one size, so that every token weighs the same. The graph of every
    batch's gradient is kept, so that a product costs one backward pass: memory grows with
    the number of sequences.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: np.ndarray,
        names: Sequence[str],
        *,
        batch_size: int,
        device: str = "cpu",
    ) -> None:
        if len(tokens) % batch_size:
            raise ValueError(f"{len(tokens)} sequences: a multiple of the batch size {batch_size}")
        # The fused attention kernels have no second derivative.
        if hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation("eager")
        parameters = dict(model.named_parameters())
        self.model = model.eval()
        self.weights = {n: parameters[n].detach().clone().requires_grad_() for n in names}
        self.ids = list(batches(tokens, batch_size, device))
        self._gradients: list[tuple[Tensor, ...]] | None = None

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.ids)

    def _loss(self, ids: Tensor, weights: Vector) -> Tensor:
        def moved(input_ids: Tensor, use_cache: bool) -> object:
            arguments = {"input_ids": input_ids, "use_cache": use_cache}
            return functional_call(self.model, dict(weights), (), arguments)

        return next_token_loss(moved, ids)

    @torch.no_grad()
    def losses(self, shift: Vector | None = None) -> np.ndarray:
        """Loss of each batch with the weights moved by ``shift``, ``[batches]``."""
        moved = {n: w + shift[n] if shift else w for n, w in self.weights.items()}
        return np.array([self._loss(ids, moved).item() for ids in self.ids])

    def _graphs(self) -> list[tuple[Tensor, ...]]:
        if self._gradients is None:
            weights = list(self.weights.values())
            self._gradients = [
                torch.autograd.grad(self._loss(ids, self.weights), weights, create_graph=True)
                for ids in self.ids
            ]
        return self._gradients

    def slopes(self, direction: Vector) -> np.ndarray:
        """Derivative of each batch's loss along ``direction``, ``[batches]``."""
        return np.array([_dot(gradient, direction) for gradient in self._graphs()])

    def products(self, direction: Vector) -> list[dict[str, Tensor]]:
        """Hessian times ``direction`` for each batch, by parameter name."""
        weights, along = list(self.weights.values()), [direction[n] for n in self.weights]
        return [
            dict(
                zip(
                    self.weights,
                    torch.autograd.grad(gradient, weights, along, retain_graph=True),
                    strict=True,
                )
            )
            for gradient in self._graphs()
        ]

    def product(self, direction: Vector) -> dict[str, Tensor]:
        """Hessian of the mean loss times ``direction``, by parameter name, in float64."""
        total = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in self.weights.items()}
        for product in self.products(direction):
            for name, value in product.items():
                total[name] += value
        return {name: value / len(self) for name, value in total.items()}

    def flat_product(self, direction: np.ndarray) -> np.ndarray:
        """``product`` for all parameters as one float64 vector, as scipy's solvers take it."""
        product = self.product(self.unflatten(direction))
        return np.concatenate([value.reshape(-1).cpu().numpy() for value in product.values()])

    def unflatten(self, direction: np.ndarray) -> dict[str, Tensor]:
        """A flat vector as tensors by parameter name, in float32."""
        found, start = {}, 0
        for name, weight in self.weights.items():
            part = np.asarray(direction[start : start + weight.numel()], dtype=np.float32)
            found[name] = torch.from_numpy(part.copy()).reshape(weight.shape).to(weight.device)
            start += weight.numel()
        return found

    @property
    def size(self) -> int:
        """Number of weights that may move."""
        return sum(weight.numel() for weight in self.weights.values())


def _dot(gradient: Sequence[Tensor], direction: Vector) -> float:
    pairs = zip(gradient, direction.values(), strict=True)
    return sum(float((g.detach().double() * d.double()).sum()) for g, d in pairs)


def inner(first: Vector, second: Vector) -> dict[str, float]:
    """Inner product of two vectors, parameter by parameter."""
    return {n: float((first[n].double() * second[n].double()).sum()) for n in first}
