"""The paged layouts, against hand-built blocks and against the wheel's own cache-writing operator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from producer.engine.layout import pack, require_known, unpack  # noqa: E402
from receipts.errors import InputError  # noqa: E402

pytestmark = pytest.mark.vllm

HEADS, SIZE, DIM = 2, 4, 3
"""Small enough to place every element by hand."""


def numbered(tokens: int, start: int) -> torch.Tensor:
    """``[tokens, HEADS, DIM]``, every element another number."""
    return torch.arange(start, start + tokens * HEADS * DIM, dtype=torch.float32).view(tokens, HEADS, DIM)


def vec_cache_by_hand(keys: torch.Tensor, values: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    """Element by element from the description: K at d·N + slot, V at N·D + slot·D + d of a (block, head)."""
    cache = torch.full((6, HEADS, SIZE * 2 * DIM), -1.0)
    for token in range(keys.shape[0]):
        block, slot = blocks[token // SIZE], token % SIZE
        for head in range(HEADS):
            for d in range(DIM):
                cache[block, head, d * SIZE + slot] = keys[token, head, d]
                cache[block, head, SIZE * DIM + slot * DIM + d] = values[token, head, d]
    return cache.view(6, HEADS, SIZE, 2 * DIM)


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("isa", ["vec", "vec16"])
def test_a_vec_block_holds_a_key_column_and_a_value_row_per_token(isa: str, tokens: int) -> None:
    keys, values, blocks = numbered(tokens, 0), numbered(tokens, 1000), [4, 1, 5]
    cache = vec_cache_by_hand(keys, values, blocks)
    got_keys, got_values = unpack(isa, cache, torch.tensor(blocks), tokens)
    assert torch.equal(got_keys, keys) and torch.equal(got_values, values)
    assert got_keys.is_contiguous() and got_values.is_contiguous()


@pytest.mark.parametrize("strides", ["NHD", "HND"])
def test_a_flash_attention_slot_holds_the_key_then_the_value_whatever_the_strides(strides: str) -> None:
    keys, values, blocks = numbered(7, 0), numbered(7, 1000), [2, 0]
    shape = (3, SIZE, HEADS, 2 * DIM) if strides == "NHD" else (3, HEADS, SIZE, 2 * DIM)
    memory = torch.full(shape, -1.0)
    cache = memory.transpose(1, 2) if strides == "NHD" else memory
    for token in range(7):
        cache[blocks[token // SIZE], :, token % SIZE, :DIM] = keys[token]
        cache[blocks[token // SIZE], :, token % SIZE, DIM:] = values[token]
    got_keys, got_values = unpack("flash_attn", cache, torch.tensor(blocks), 7)
    assert torch.equal(got_keys, keys) and torch.equal(got_values, values)


@pytest.mark.parametrize("isa", ["vec", "vec16", "flash_attn"])
@pytest.mark.parametrize("tokens", [1, 4, 7])
def test_what_is_packed_comes_out_again_and_other_blocks_are_left_alone(isa: str, tokens: int) -> None:
    cache = torch.full((6, HEADS, SIZE, 2 * DIM), -1.0)
    blocks = torch.tensor([5, 2])[: -(-tokens // SIZE)]
    pack(isa, cache, blocks, numbered(tokens, 0), numbered(tokens, 1000))
    keys, values = unpack(isa, cache, blocks, tokens)
    assert torch.equal(keys, numbered(tokens, 0)) and torch.equal(values, numbered(tokens, 1000))
    untouched = [block for block in range(6) if block not in blocks.tolist()]
    assert torch.all(cache[untouched] == -1.0)


def test_the_order_of_block_ids_decides_not_their_numbers() -> None:
    keys, values = numbered(8, 0), numbered(8, 1000)
    cache = vec_cache_by_hand(keys, values, [3, 0])
    swapped, _ = unpack("vec", cache, torch.tensor([0, 3]), 8)
    assert torch.equal(swapped[:4], keys[4:]) and torch.equal(swapped[4:], keys[:4])


@pytest.mark.parametrize(("isa", "head_size"), [("vec", 64), ("vec", 128), ("vec16", 80)])
def test_the_operator_of_the_wheel_writes_what_is_unpacked_here(isa: str, head_size: int) -> None:
    ops = pytest.importorskip("vllm._custom_ops")
    from vllm.platforms import current_platform

    if current_platform.device_type != "cpu":
        pytest.skip("the operator is the CPU wheel's")
    current_platform.import_kernels()
    tokens, size, blocks = 300, 128, [3, 1, 4]
    keys = torch.randn(tokens, HEADS, head_size).to(torch.bfloat16)
    values = torch.randn(tokens, HEADS, head_size).to(torch.bfloat16)
    cache = torch.zeros(5, HEADS, size, 2 * head_size, dtype=torch.bfloat16)
    key_half, value_half = cache.view(5, HEADS, 2 * size, head_size).chunk(2, dim=2)
    slots = torch.tensor([blocks[token // size] * size + token % size for token in range(tokens)])
    ops.cpu_attn_reshape_and_cache(
        keys, values, key_half, value_half, slots, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
    )
    got_keys, got_values = unpack(isa, cache, torch.tensor(blocks), tokens)
    assert torch.equal(got_keys, keys) and torch.equal(got_values, values)


@pytest.mark.parametrize("isa", ["amx", "neon", "rvv", "", "VEC"])
def test_a_layout_that_nobody_proved_is_refused_by_name(isa: str) -> None:
    with pytest.raises(InputError, match=f"'{isa}' is not known"):
        require_known(isa)
