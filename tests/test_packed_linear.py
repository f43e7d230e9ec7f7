"""A packed linear layer computes what the plain one did, and that is let go."""

import copy
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from tiny_models import make_model
from torch import nn

from paged_attention import packed_linear
from paged_attention.packed_linear import PackedLinear, can_pack, pack_linear_layers

needs_onednn = pytest.mark.skipif(
    not can_pack(nn.Linear(2, 2)), reason="this CPU's linear layers are not packed"
)


@needs_onednn
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("in_features", "out_features"), [(1, 1), (7, 13), (65, 192)])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (601,), (0,)])
def test_results_are_those_of_the_plain_layer(
    shape: tuple[int, ...], in_features: int, out_features: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(in_features, out_features, bias=has_bias)
    x = torch.randn(*shape, in_features)
    with torch.inference_mode():
        found, expected = PackedLinear(layer)(x), layer.double()(x.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@needs_onednn
def test_rows_that_do_not_lie_side_by_side_are_read_right() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    x = torch.randn(9, 12)[::2, ::2]
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(layer)(x), layer(x))


def test_what_is_no_plain_float32_layer_is_left_alone() -> None:
    class Adapted(nn.Linear):
        pass

    model = nn.Sequential(
        Adapted(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16), nn.Embedding(3, 2)
    )
    layers = list(model)
    assert pack_linear_layers(model) == 0
    assert list(model) == layers


class Router(nn.Module):
    """Does a linear layer's work on its own, as some routers of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.Linear(3, 2, bias=False)
        self.then = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.choose.weight
        return self.then(nn.functional.linear(x.to(weight.dtype), weight))


@needs_onednn
def test_a_layer_whose_weight_others_read_is_left_alone() -> None:
    model, x = Router(), torch.randn(4, 3)
    with torch.inference_mode():
        expected = model(x)
        assert pack_linear_layers(model, lambda: model(x)) == 1
        assert type(model.choose) is nn.Linear
        torch.testing.assert_close(model(x), expected)


@needs_onednn
def test_a_model_that_fails_while_it_is_watched_is_left_as_it_was() -> None:
    model = Router()
    with pytest.raises(RuntimeError):
        pack_linear_layers(model, lambda: model(torch.randn(4, 9)))
    assert type(model.choose) is type(model.then) is nn.Linear
    assert "is_read" not in vars(model.choose)


@needs_onednn
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_model_lets_its_old_weights_go(is_tied: bool) -> None:
    model = make_model(tie_word_embeddings=is_tied)
    num_layers = sum(type(module) is nn.Linear for module in model.modules())
    old = [weakref.ref(m) for m in model.modules() if type(m) is nn.Linear]
    at = {name: p.data_ptr() for name, p in model.named_parameters()}
    with torch.inference_mode():
        expected = model(torch.tensor([[5, 7, 9]])).logits
        assert pack_linear_layers(model) == num_layers > 0
        found = model(torch.tensor([[5, 7, 9]])).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert [layer for layer in old if layer() is not None] == []
    moved = {name: p.data_ptr() != at[name] for name, p in model.named_parameters()}
    assert moved and all(moved.values())
    assert pack_linear_layers(model) == 0  # nothing is left to pack


@pytest.mark.parametrize("reason", ["another CPU", "switched off"])
def test_where_nothing_can_be_packed_the_model_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "another CPU":
        monkeypatch.setattr(packed_linear.platform, "machine", lambda: "arm64")
    else:
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = make_model()
    weights = {name: p.data_ptr() for name, p in model.named_parameters()}
    assert pack_linear_layers(model) == 0
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == weights


@needs_onednn
@pytest.mark.parametrize("how", ["hook", "pre-hook", "forward"])
def test_a_layer_that_somebody_has_hung_something_on_is_left_alone(how: str) -> None:
    layer = nn.Linear(2, 2)
    if how == "hook":
        layer.register_forward_hook(lambda *_: None)
    elif how == "pre-hook":
        layer.register_forward_pre_hook(lambda *_: None)
    else:
        layer.forward = lambda input: input
    model = nn.Sequential(layer)
    assert pack_linear_layers(model) == 0
    assert model[0] is layer


@needs_onednn
@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda model: model.state_dict(), "saved"),
        (lambda model: model.load_state_dict({}, strict=False), "loaded into"),
        (lambda model: model.to(torch.bfloat16), "moved or converted"),
        (lambda model: model.double(), "moved or converted"),
        (lambda model: model.to("meta"), "moved or converted"),
        (copy.deepcopy, "copied"),
        (pickle.dumps, "copied"),
    ],
)
def test_what_would_lose_or_miss_a_packed_weight_is_refused(
    use: Callable[[nn.Module], object], what: str
) -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    pack_linear_layers(model)
    with pytest.raises(RuntimeError, match=f"cannot be {what}"):
        use(model)


@needs_onednn
def test_a_move_that_changes_nothing_is_no_error() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    pack_linear_layers(model)
    x = torch.ones(1, 2)
    expected = model(x)
    assert torch.equal(model.to("cpu").float()(x), expected)
