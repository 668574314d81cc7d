"""The forward pass of a mask-only adapter in training, with a Llama-, Qwen2- or Qwen3-style model.

The weights are a transformers model's and the update PEFT's; the pass is written out, as the
decoder's is, because transformers' modules under autocast spend two thirds of a step on a CPU
beside the matrix products. Everything is computed in the dtype of the frozen weights.

Clean rows are the frozen model and get no gradient. Mask rows get the update, read the clean rows'
keys and values, and are all that is trained. Tests pin both to the decoder's rows.

Legend: B texts, N rows of a stream, T rows that are attended to, K key/value heads, G query heads
of each, D head size. Knows nothing about losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn

from marslm.core.masks import dense_mask
from marslm.core.streams import Rows, join
from marslm.train.operators import low_rank_linears, rms_norm

_WIDTH = 32
"""Keys come in multiples of this: a softmax takes up to twice as long on a ragged row."""

KeysValues: TypeAlias = tuple[Tensor, Tensor]
"""One layer's, each [B, K, N, D]."""

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Rotated queries [B, K, G, N, D], keys and values [B, K, N, D] -> what each row reads."""


@dataclass(frozen=True)
class _Rotary:
    """cos, sin: [B, N, 1, D], the sine with the sign of the half it is multiplied with."""

    cos: Tensor
    sin: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """Rotate heads [B, N, heads, D] by their rows' positions."""
        return torch.addcmul(heads * self.cos, heads.roll(heads.shape[-1] // 2, -1), self.sin)


class GatedModel:
    """The base model on clean rows, the base model with its adapter on mask rows."""

    def __init__(self, network: PeftModel) -> None:
        """Read the weights where they are in `network`, at each forward."""
        base = network.get_base_model()
        body = base.get_submodule("model")
        self._kv_heads: int = network.config.num_key_value_heads
        self._groups: int = network.config.num_attention_heads // self._kv_heads
        attention = body.get_submodule("layers.0.self_attn")
        self._scale: float = attention.scaling  # type: ignore[assignment]
        self._embedding = body.get_submodule("embed_tokens.token_adapter")
        self._rotary = body.get_submodule("rotary_emb")
        self._layers = [_Layer(layer) for layer in body.get_submodule("layers").children()]
        self._norm = _Norm(body.get_submodule("norm"))
        head = base.get_submodule("lm_head")
        # Tied to the embedding, PEFT gives the head [MASK]'s row too, which no loss reads.
        self._head = getattr(head, "token_adapter", head)

    @property
    def head(self) -> Tensor:
        """The frozen output head [V, H]."""
        return _frozen(self._head)[0]

    @torch.no_grad()
    def run_clean(self, ids: Tensor, rows: Rows) -> tuple[Tensor, list[KeysValues]]:
        """Run the clean stream, ids [B, N]; return last hidden states [B, N, H], and its K/V."""
        x = F.embedding(ids, _frozen(self._embedding)[0])
        mask = self._fold(dense_mask(rows, rows), x.dtype)
        past: list[KeysValues] = []

        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            past.append((keys, values))
            return _attend(query, keys, values, mask, self._scale)

        return self._run(x, rows, attend, gated=False), past

    def run_masks(self, rows: Rows, clean: Rows, past: list[KeysValues]) -> Tensor:
        """Run [MASK]s that follow the clean rows; return their last hidden states [B, N, H]."""
        own = self._embedding.get_parameter("trainable_tokens_delta.default")
        x = own.to(past[0][0].dtype).expand(*rows.position.shape, -1)
        mask = self._fold(dense_mask(rows, join([clean, rows])), x.dtype)
        layers = iter(past)

        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            old_keys, old_values = next(layers)
            keys, values = torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)
            return _attend(query, keys, values, mask, self._scale)

        return self._run(x, rows, attend, gated=True)

    def _fold(self, allowed: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a bool mask [B, 1, N, T] as one to add to scores [B * K, G * N, T].

        T is rounded up to `_WIDTH`.
        """
        allowed = F.pad(allowed, (0, -allowed.shape[-1] % _WIDTH))
        mask = torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)
        heads = (self._kv_heads, self._groups)
        return mask[:, None].expand(-1, *heads, -1, -1).flatten(2, 3).flatten(0, 1)

    def _run(self, x: Tensor, rows: Rows, attend: Attend, *, gated: bool) -> Tensor:
        cos, sin = self._rotary(x, rows.position)
        sign = cos.new_ones(cos.shape[-1])
        sign[: len(sign) // 2] = -1
        rotary = _Rotary(cos.unsqueeze(2), (sin * sign).unsqueeze(2))
        for layer in self._layers:
            x = layer(x, rotary, attend, gated=gated)
        return self._norm(x)


class _Layer:
    """A decoder layer, its weights read from transformers' and PEFT's modules."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
        self._head_dim: int = attention.head_dim  # type: ignore[assignment]
        self._groups: int = attention.num_key_value_groups  # type: ignore[assignment]
        self._attention_norm = _Norm(layer.get_submodule("input_layernorm"))
        self._query_key_value = _Linears(attention, "q_proj", "k_proj", "v_proj")
        has_head_norms = hasattr(attention, "q_norm")
        self._query_norm = _Norm(attention.get_submodule("q_norm")) if has_head_norms else None
        self._key_norm = _Norm(attention.get_submodule("k_norm")) if has_head_norms else None
        self._output = _Linears(attention, "o_proj")
        self._mlp_norm = _Norm(layer.get_submodule("post_attention_layernorm"))
        self._gate_up = _Linears(mlp, "gate_proj", "up_proj")
        self._down = _Linears(mlp, "down_proj")

    def __call__(self, x: Tensor, rotary: _Rotary, attend: Attend, *, gated: bool) -> Tensor:
        x = x + self._attention(self._attention_norm(x), rotary, attend, gated=gated)
        gate, up = self._gate_up(self._mlp_norm(x), gated=gated)
        return x + self._down(F.silu(gate) * up, gated=gated)[0]

    def _attention(self, x: Tensor, rotary: _Rotary, attend: Attend, *, gated: bool) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], part.shape[-1] // self._head_dim, self._head_dim)
            for part in self._query_key_value(x, gated=gated)
        )
        if self._query_norm is not None and self._key_norm is not None:
            query, key = self._query_norm(query), self._key_norm(key)
        # The G query heads of a key/value head become more rows of it, so nothing is repeated.
        query = rotary(query).view(*key.shape[:3], self._groups, self._head_dim)
        mixed = attend(
            query.permute(0, 2, 3, 1, 4), rotary(key).transpose(1, 2), value.transpose(1, 2)
        )
        return self._output(mixed.permute(0, 3, 1, 2, 4).flatten(2), gated=gated)[0]


class _Norm:
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._module.get_parameter("weight").detach()
        return rms_norm(x, weight, self._module.variance_epsilon)  # type: ignore[arg-type]


class _Linears:
    """Linears of one input, with the update of each."""

    def __init__(self, parent: nn.Module, *names: str) -> None:
        self._modules = [parent.get_submodule(name) for name in names]

    def __call__(self, x: Tensor, *, gated: bool) -> list[Tensor]:
        """Map x [B, N, in] to [B, N, out] each, with the update if `gated`."""
        frozen = [_frozen(module) for module in self._modules]
        if not gated:
            return [F.linear(x, weight, bias) for weight, bias in frozen]
        weights, biases = zip(*frozen, strict=True)
        downs, ups = zip(*map(_update, self._modules), strict=True)
        outputs = low_rank_linears(x.flatten(0, 1), weights, biases, downs, ups)
        return [output.view(*x.shape[:2], output.shape[-1]) for output in outputs]


def _frozen(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a module that PEFT may have wrapped."""
    module = getattr(module, "base_layer", module)
    bias = getattr(module, "bias", None)
    return module.get_parameter("weight").detach(), None if bias is None else bias.detach()


def _update(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return A and B of the update y += (x A^T) B^T, PEFT's scale in B."""
    down = module.get_parameter("lora_A.default.weight")
    up = module.get_parameter("lora_B.default.weight")
    return down, up * module.scaling["default"]  # type: ignore[index]


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return softmax(scale query keys^T + mask) values [B, K, G, N, D]."""
    missing = (0, 0, 0, mask.shape[-1] - keys.shape[2])
    keys, values = F.pad(keys, missing).flatten(0, 1), F.pad(values, missing).flatten(0, 1)
    folded = query.reshape(*mask.shape[:2], query.shape[-1])
    scores = torch.baddbmm(mask, folded, keys.mT, alpha=scale)
    return torch.bmm(scores.softmax(-1), values).view(query.shape)
