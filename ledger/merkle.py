"""The Merkle tree of RFC 6962, section 2.1, over SHA-256. Pure: bytes in, bytes out.

Hashes are 32 raw bytes. A *node* (level, index) is the root of the complete subtree over the leaves
``index · 2^level … (index + 1) · 2^level − 1``; the *frontier* of a tree of ``size`` leaves is the list of
its complete subtrees from the largest to the smallest, one for each bit set in ``size``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
"""Root of the tree without leaves (RFC 6962 section 2.1)."""

NodeKey = tuple[int, int]
"""(level, index)."""


def leaf_hash(body: bytes) -> bytes:
    """SHA-256(0x00 ‖ body)."""
    return hashlib.sha256(b"\x00" + body).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 ‖ left ‖ right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def frontier_keys(size: int) -> list[NodeKey]:
    """The nodes that make up the frontier of a tree of ``size`` leaves, largest first."""
    return [(level, (size >> level) - 1) for level in range(size.bit_length() - 1, -1, -1) if size >> level & 1]


def fold(frontier: Sequence[bytes]) -> bytes:
    """The root over a frontier given largest first."""
    if not frontier:
        return EMPTY_ROOT
    root = frontier[-1]
    for left in reversed(frontier[:-1]):
        root = node_hash(left, root)
    return root


class Frontier:
    """The growing edge of a tree: log₂(size) hashes, enough to append leaves and to know the root."""

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """``hashes`` are the nodes of ``frontier_keys(size)`` in that order. Raises ValueError on a wrong count."""
        if len(hashes) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} frontier nodes, not {len(hashes)}")
        self._size = size
        self._hashes = list(hashes)

    @property
    def size(self) -> int:
        return self._size

    def append(self, leaf: bytes) -> list[tuple[NodeKey, bytes]]:
        """Add a leaf hash; returns the inner nodes (level ≥ 1) that became complete, lowest first."""
        completed: list[tuple[NodeKey, bytes]] = []
        node, level, index = leaf, 0, self._size
        while index & 1:
            node = node_hash(self._hashes.pop(), node)
            level, index = level + 1, index >> 1
            completed.append(((level, index), node))
        self._hashes.append(node)
        self._size += 1
        return completed

    def root(self) -> bytes:
        return fold(self._hashes)

    def copy(self) -> Frontier:
        return Frontier(self._size, self._hashes)


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Root of the tree over ``leaves``, given as leaf hashes."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier.root()


RangeHash = Callable[[int, int], bytes]
"""Root of the subtree over the leaves ``first … end − 1``."""


def range_hash(leaves: Sequence[bytes]) -> RangeHash:
    """A RangeHash over leaf hashes held in memory."""
    return lambda first, end: root_of(leaves[first:end])


def inclusion_proof(index: int, size: int, subtree: RangeHash) -> list[bytes]:
    """The audit path of leaf ``index`` in the tree of ``size`` leaves (RFC 6962 section 2.1.1), lowest first."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    path: list[bytes] = []
    first, end = 0, size
    while end - first > 1:
        middle = first + _split(end - first)
        if index < middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(first, middle))
            first = middle
    return path[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether ``proof`` shows that leaf hash ``leaf`` stands at ``index`` of the tree ``size``, ``root``."""
    if not 0 <= index < size or len(proof) != _inclusion_length(index, size) or not _hashes(proof):
        return False
    node, position, last = leaf, index, size - 1
    for sibling in proof:
        # A right child, or the last node of its level that has no right sibling: skip up to where it is one.
        while not position & 1 and position == last:
            position, last = position >> 1, last >> 1
        node = node_hash(sibling, node) if position & 1 else node_hash(node, sibling)
        position, last = position >> 1, last >> 1
    return node == root


def consistency_proof(old_size: int, size: int, subtree: RangeHash) -> list[bytes]:
    """The proof that the tree of ``old_size`` is a prefix of that of ``size`` (RFC 6962 section 2.1.2)."""
    if not 0 <= old_size <= size:
        raise ValueError(f"a tree of {old_size} is no prefix of one of {size}")
    if old_size in (0, size):
        return []
    path: list[bytes] = []
    first, end, whole = 0, size, True
    while end != old_size:
        middle = first + _split(end - first)
        if old_size <= middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(first, middle))
            first, whole = middle, False
    # The old tree itself is known to the verifier only while it starts at leaf 0.
    return ([] if whole else [subtree(first, end)]) + path[::-1]


def verify_consistency(old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether ``proof`` shows that the tree ``size``, ``root`` begins with the tree ``old_size``, ``old_root``."""
    if not 0 <= old_size <= size or not _hashes(proof):
        return False
    if old_size == size:
        return not proof and old_root == root
    if old_size == 0:
        return not proof and old_root == EMPTY_ROOT
    return _replay_consistency(old_size, old_root, size, root, list(proof))


def _replay_consistency(old_size: int, old_root: bytes, size: int, root: bytes, proof: list[bytes]) -> bool:
    # RFC 9162 section 2.1.4.2, which words the check that RFC 6962 leaves to the reader.
    if old_size & (old_size - 1) == 0:
        proof.insert(0, old_root)
    if not proof:
        return False
    position, last = old_size - 1, size - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    old_node = node = proof[0]
    for sibling in proof[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_node, node = node_hash(sibling, old_node), node_hash(sibling, node)
            while not position & 1 and position != 0:
                position, last = position >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        position, last = position >> 1, last >> 1
    return old_node == old_root and node == root and last == 0


def _split(count: int) -> int:
    """The largest power of two smaller than ``count`` (≥ 2)."""
    return 1 << (count - 1).bit_length() - 1


def _inclusion_length(index: int, size: int) -> int:
    # Levels on which the paths of this leaf and of the last one differ, then the left siblings above.
    inner = (index ^ (size - 1)).bit_length()
    return inner + (index >> inner).bit_count()


def _hashes(proof: Sequence[bytes]) -> bool:
    return all(len(item) == HASH_BYTES for item in proof)
