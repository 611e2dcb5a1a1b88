"""How a training step is spread over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from policysearch.values import InputError, number, one_of

Gradients = Literal["tensors", "buckets", "combined"]


@dataclass(frozen=True)
class Parallel:
    """How a step is spread over `devices`; nothing of it changes a bit of what is emulated.

    Groups of `tensor` devices split the products of every layer among them; the groups share the
    batch. `zero` is the stage of ZeRO: what the groups divide among them instead of each keeping
    it whole: 1 masters and optimizer state, 2 gradients as well, 3 parameters as well.
    `gradients` are reduced each "tensors" by itself, in "buckets" of `bucket_mib` (counted in
    float32), or "combined" in one buffer after the backward pass. With `overlap` the others are
    reduced while backward goes on.
    """

    devices: int = 1
    tensor: int = 1
    zero: int = 0
    gradients: Gradients = "buckets"
    bucket_mib: float = 25.0
    overlap: bool = True

    def __post_init__(self) -> None:
        number("devices", self.devices, 1, 2**20)
        number("tensor", self.tensor, 1, 2**20)
        number("bucket_mib", self.bucket_mib, 2.0**-20, 2.0**20)
        one_of("gradients", self.gradients, get_args(Gradients))
        number("zero", self.zero, 0, 3)
        if self.devices % self.tensor:
            raise InputError(
                f"tensor: {self.tensor} of {self.devices} devices; expected a divisor of them"
            )

    @property
    def groups(self) -> int:
        """Into how many parts the batch is divided."""
        return self.devices // self.tensor

    def batch(self, whole: int) -> int:
        """Return the batch of a group; InputError where the whole does not divide."""
        if whole % self.groups:
            raise InputError(
                f"batch_size: {whole} over {self.groups} groups of devices; expected a multiple"
            )
        return whole // self.groups

    @property
    def summary(self) -> str:
        """What is not the default, in a few words: "8 devices, ZeRO-2, combined"; "" on one."""
        if self.devices == 1:
            return ""
        words = [f"{self.devices} devices"]
        words += [f"tensor {self.tensor}"] * (self.tensor > 1)
        words += [f"ZeRO-{self.zero}"] * (self.zero > 0)
        words += [self.gradients] * (self.gradients != "buckets" and self.groups > 1)
        words += ["no overlap"] * (not self.overlap and self.groups > 1)
        return ", ".join(words)
