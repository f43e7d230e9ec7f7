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
from collections.abc import Callable
from typing import Any, NoReturn, Self, cast

import torch
from torch import Tensor, nn

# oneDNN chooses an order for about so many rows of x. One of a few rows serves all: it
# is as fast for a prompt's hundreds.
NUM_ROWS = 32


class PackedLinear(nn.Module):
    """As the nn.Linear that it is made from, which must be packable.

    For inference, here, in float32, and nothing else. Nobody else can read the weight
    (see `_Watched`), and what would have to move or change it is refused: left to
    nn.Module, a checkpoint would be saved without it, and one that is loaded would not
    reach it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        # No parameter: nobody but oneDNN can read what it holds.
        self._weight: Tensor = _onednn()._reorder_linear_weight(
            linear.weight.detach(), NUM_ROWS
        )
        self._bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_state_dict_pre_hook(_refuse("saved"))
        self.register_load_state_dict_pre_hook(_refuse("loaded into"))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] float32 -> [..., out_features]"""
        return _onednn()._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # What .to(…), .half() and so on would make of a tensor: may it stay?
        example = fn(torch.empty(0))
        if example.device.type != "cpu" or example.dtype != torch.float32:
            _refuse("moved or converted")()
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse("copied")()


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise RuntimeError(
            f"this model's linear layers are packed for an Engine and cannot be {what}:"
            " load another copy"
        )

    return refuse


def can_pack(module: nn.Module) -> bool:
    """A plain linear layer in float32 on a CPU with oneDNN.

    Plain: no subclass, and nobody has hung anything on it.
    """
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


class _Watched(nn.Linear):
    """An nn.Linear, for a while, that notices who reads its parameters beside itself.

    A router of experts, for one, may take the weight and do the product on its own.
    """

    def __getattr__(self, name: str) -> Any:
        # nn.Module keeps parameters where only this method finds them.
        if name in self._parameters:
            self.__dict__["is_read"] = True
        return super().__getattr__(name)

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(
            input, cast("Tensor", self._parameters["weight"]), self._parameters["bias"]
        )


def pack_linear_layers(
    model: nn.Module, run: Callable[[], object] = lambda: None
) -> int:
    """Replace, in place, each linear layer that can be packed; returns how many.

    run calls the model once: a layer whose weight somebody else reads meanwhile is left
    as it is.
    Packing copies. So that the model takes no more memory than before (a tied output
    layer apart), the old weights must not stay: each goes when its layer is replaced,
    and what else lies in the checkpoint's mapped file is moved out of it. For a moment
    there are both. Not wanted? torch.backends.mkldnn.enabled = False, before this.
    """
    kept = _read_elsewhere(model, run)
    places = [
        (parent, name)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if can_pack(layer) and id(layer) not in kept
    ]
    for parent, name in places:
        setattr(parent, name, PackedLinear(getattr(parent, name)))
    if places:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()
    return len(places)


def _read_elsewhere(model: nn.Module, run: Callable[[], object]) -> set[int]:
    """The ids of the linear layers whose parameters others read during run."""
    layers = [module for module in model.modules() if can_pack(module)]
    try:
        for layer in layers:
            layer.__class__ = _Watched
        run()
    finally:
        read = {id(layer) for layer in layers if vars(layer).pop("is_read", False)}
        for layer in layers:
            layer.__class__ = nn.Linear
    return read


def _onednn() -> Any:
    """The operators that torch's own compiler puts in the place of linear layers."""
    return torch.ops.mkldnn
