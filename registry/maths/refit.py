"""Refitting linear maps in closed form, so that a composed model gives back what a dense one gave.

A composed model's hidden state drifts from the expert's: the trunk is a compromise between members. A linear map in it
with inputs x (of the composed model) and wanted outputs y (made from the expert's) is solved again, with W here (O, I):

    W = argmin Σ_t w_t ‖W x_t − y_t‖² + r ‖W − W₀‖²    =    (B + r W₀) (G + r I)⁻¹
    G = Σ_t w_t x_t x_tᵀ  (I, I)        B = Σ_t w_t y_t x_tᵀ  (O, I)        r = damping · mean of G's diagonal

Ridge regression towards W₀ rather than 0 (Hoerl & Kennard 1970, eq. 2.1; Tikhonov's general form). G and B are sums
over tokens, members too, and their order of summation is all that decides the last bits. With y = W_e x of every member
e and x the same on both sides it is RegMean (Jin et al. 2022, eq. 2); here x is what the *composed* model gives the
map, after all that was refitted before it, so drift is undone rather than carried on.

What y is, with h the residual stream before a block, ° the dense expert's and unmarked the composed model's own:

    query, key, value; head      y = W_e x°                        `LeastSquares.mapped` spares the wide y
    attention output             y = W_e x° + (h° − h)             = h°_after − h
    down projection of e's MLP   y = h°_after − h                  (on the tokens of e alone)

Activations are float32, and so are the products of at most `RUN` tokens; the sums of these runs are float64. A product
of a run is off by some √RUN · 2⁻²⁴ ≈ 4e-6 of √(G_ii G_jj) at most, less than the rounding of the inputs in the layers
below: products in float64 would be no nearer to the truth, and cost four times as much.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from registry.maths.cholesky import cholesky_factor
from registry.maths.products import filled_up, linear
from registry.maths.threads import one_thread

RIDGE = 1e-2
"""r, times the mean of the Gram's diagonal."""

RUN = 4096
"""Tokens whose products are summed in the dtype of the activations."""

_TILE = 384
"""Rows of the Gram that are computed at once: what is right of its diagonal tile is not."""


class LeastSquares:
    """G, of which only the lower triangle is read, and B of one linear map, float64, summed over tokens.

    (ValueError: they have different inputs.)
    """

    def __init__(self, gram: Float[Tensor, "I I"], cross: Float[Tensor, "O J"]) -> None:
        if cross.shape[1] != len(gram):
            raise ValueError(f"a Gram of shape {list(gram.shape)} does not go with {list(cross.shape)}")
        self._lower, self.cross = gram, cross

    @classmethod
    def zero(cls, inputs: int, outputs: int, device: torch.device | None = None) -> "LeastSquares":
        """Return the sums over no token."""
        return cls(
            torch.zeros((inputs, inputs), dtype=torch.float64, device=device),
            torch.zeros((outputs, inputs), dtype=torch.float64, device=device),
        )

    @property
    def gram(self) -> Float[Tensor, "I I"]:
        """G."""
        return self._lower.tril() + self._lower.tril(-1).T

    def add(self, x: Float[Tensor, "T I"], y: Float[Tensor, "T O"], weight: float = 1.0) -> None:
        """Count tokens, each with weight w, at most `RUN` at a time in the dtype of the activations.

        (ValueError: one is NaN or infinite, a shape does not fit, or the weight is not positive.)
        """
        if x.shape[1] != len(self._lower) or y.shape[1] != len(self.cross) or len(x) != len(y):
            raise ValueError(
                f"activations of shapes {list(x.shape)} and {list(y.shape)} do not go with a map of shape "
                f"{list(self.cross.shape)}"
            )
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"the weight of tokens is {weight}, it must be positive")
        for start in range(0, len(x), RUN):
            # Zeros change no sum.
            columns = filled_up(x[start : start + RUN]).T.contiguous()  # (I, R)
            targets = filled_up(y[start : start + RUN].to(x.dtype)).T.contiguous()  # (O, R)
            if not bool(torch.isfinite(columns.sum() + targets.sum())) and not (
                bool(torch.isfinite(columns).all()) and bool(torch.isfinite(targets).all())
            ):
                raise ValueError("an activation is NaN or infinite")
            with torch.no_grad():
                for first in range(0, len(columns), _TILE):
                    last = first + _TILE
                    tile = linear(columns[first:last], columns[:last])
                    self._lower[first:last, :last].add_(tile, alpha=weight)
                self.cross.add_(linear(targets, columns), alpha=weight)

    def __add__(self, other: "LeastSquares") -> "LeastSquares":
        return LeastSquares(self._lower + other._lower, self.cross + other.cross)

    def cpu(self) -> "LeastSquares":
        """Return the sums on the CPU."""
        return LeastSquares(self._lower.cpu(), self.cross.cpu())

    def mapped(self, weight: Float[Tensor, "P O"]) -> "LeastSquares":
        """Return the sums with W_e y in place of y: those of a map to P outputs, without a product per token."""
        return LeastSquares(self._lower, weight.to(self.cross.device, torch.float64) @ self.cross)

    def solve(self, towards: Float[Tensor, "O I"], damping: float = RIDGE) -> Float[Tensor, "O I"]:
        """Return W in float64, by Cholesky on one thread: the same whatever the number of threads.

        `towards` is W₀, in any floating dtype, which stays where no token shows otherwise; damping as in `Factor`.

        (ValueError: G + r I is not positive definite: no token, or a damping of 0 and inputs that never vary.)
        """
        if towards.shape != self.cross.shape:
            raise ValueError(f"a map of shape {list(towards.shape)} does not go with {list(self.cross.shape)}")
        return Factor(self._lower, damping).solve(self.cross, towards)


class Factor:
    """The Cholesky factor of G + r I, by which any map of these inputs is solved; G's lower triangle is read.

    r is `damping` ≥ 0 times the mean of G's diagonal (ValueError: G + r I is not positive definite).
    """

    def __init__(self, gram: Float[Tensor, "I I"], damping: float = RIDGE) -> None:
        self._r = damping * float(gram.diagonal().mean())
        lower = gram.clone()
        lower.diagonal().add_(self._r)
        with one_thread():
            self._lower, order = cholesky_factor(lower.mT)
        if order:
            raise ValueError(f"the Gram of its inputs is not positive definite (order {order} of {len(gram)})")

    def solve(self, cross: Float[Tensor, "O I"], towards: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        """Return W = (B + r W₀) (G + r I)⁻¹ in float64, on one thread; W₀ is `towards`, in any floating dtype."""
        with one_thread():
            right = towards.to(cross.device, torch.float64, copy=True).mul_(self._r).add_(cross)
            solution: Tensor = torch.cholesky_solve(right.T.contiguous(), self._lower).T.contiguous()
        return solution
