"""Linear layers for a CPU, each weight laid out once as the matrix product reads it.

A small batch of decodes spends most of its time in linear layers, and there not with
arithmetic: torch gets a weight as it lies in the checkpoint, and brings it into the
order of the CPU's vector registers anew in each call. oneDNN, which is part of torch,
can be handed a weight that lies in this order already. The results are equal but for
rounding, since the sums run in another order.

vLLM does the same on a CPU: `dispatch_cpu_unquantized_gemm` in
model_executor/layers/utils.py.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn

# oneDNN chooses an order for about so many rows of x. One of a few rows serves all: it
# is as fast for a prompt's hundreds.
NUM_ROWS = 32


class PackedLinear(nn.Module):
    """As the nn.Linear that it is made from, which must be packable; inference only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        # No parameter: nobody but oneDNN can read what it holds.
        self._weight: Tensor = _onednn()._reorder_linear_weight(
            linear.weight.detach(), NUM_ROWS
        )
        self._bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] float32 -> [..., out_features]"""
        return _onednn()._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def can_pack(module: nn.Module) -> bool:
    """A plain linear layer, no subclass of one, in float32 on a CPU with oneDNN."""
    return (
        type(module) is nn.Linear
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()
    )


def pack_linear_layers(model: nn.Module) -> int:
    """Replace, in place, each linear layer that can be packed; returns how many.

    Packing copies. So that the model takes no more memory than before (a tied output
    layer apart), the old weights must not stay: each goes when its layer is replaced,
    and what else lies in the checkpoint's mapped file is moved out of it.
    """
    places = [
        (parent, name)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if can_pack(layer)
    ]
    for parent, name in places:
        setattr(parent, name, PackedLinear(getattr(parent, name)))
    if places:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()
    return len(places)


def _onednn() -> Any:
    """The operators that torch's own compiler puts in the place of linear layers."""
    return torch.ops.mkldnn
