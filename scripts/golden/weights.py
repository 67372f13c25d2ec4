"""Weights of golden models, from the names of their tensors alone.

`crates/oxidize-golden/src/weights.rs` has the same function; both are tested with `TEST_VECTOR`.
"""

import numpy as np

# The first elements of the tensor `model.norm.weight` with center 1 and spread 0.5.
TEST_VECTOR = [0.546875, 0.640625, 0.8984375, 1.140625]


def weights(name, count, center, spread):
    """Elements of the tensor `name`: `center + spread × u` in bf16, with u evenly distributed in (-1, 1).

    Element i takes the top byte of the output i of splitmix64, seeded with FNV-1a of the name.
    """
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = ((z >> np.uint64(56)).astype(np.float32) * 2 - 255) / 256
    return rounded_to_bf16(np.float32(center) + np.float32(spread) * u)


def rounded_to_bf16(x):
    """`x` rounded to the nearest bf16, ties to even, as f32."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def check():
    """Fails if the generator does not give the test vector."""
    found = weights("model.norm.weight", 4, 1, 0.5).tolist()
    assert found == TEST_VECTOR, found


if __name__ == "__main__":
    check()
