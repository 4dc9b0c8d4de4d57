"""RFC 6962: the published vectors of certificate-transparency, and pymerkle as a second implementation."""

from __future__ import annotations

import hashlib

import pytest
from pymerkle import InmemoryTree, verify_consistency, verify_inclusion

from ledger import merkle

# github.com/google/certificate-transparency, merkle_tree_test.cc: the leaves and the roots of their prefixes.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
SIZES = range(1, 101)
HASHES = [merkle.leaf_hash(b"entry %d" % number) for number in range(101)]


def test_the_published_roots_come_out() -> None:
    hashes = [merkle.leaf_hash(leaf) for leaf in LEAVES]
    assert [merkle.root_of(hashes[:size]).hex() for size in range(1, 9)] == ROOTS


def test_the_empty_tree_is_the_hash_of_nothing() -> None:
    assert merkle.root_of([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture(scope="module")
def oracle() -> InmemoryTree:
    tree = InmemoryTree(algorithm="sha256")
    for number in range(101):
        tree.append_entry(b"entry %d" % number)
    return tree


@pytest.mark.parametrize("size", SIZES)
def test_roots_and_frontiers_agree_with_pymerkle(oracle: InmemoryTree, size: int) -> None:
    frontier = merkle.Frontier()
    stored: dict[merkle.NodeKey, bytes] = {}
    for index, leaf in enumerate(HASHES[:size]):
        stored[0, index] = leaf
        stored.update(frontier.append(leaf))
    assert frontier.root() == oracle.get_root(size)
    assert merkle.Frontier(size, [stored[key] for key in merkle.frontier_keys(size)]).root() == frontier.root()


@pytest.mark.parametrize("size", SIZES)
def test_inclusion_proofs_agree_with_pymerkle_and_no_other_leaf_passes(oracle: InmemoryTree, size: int) -> None:
    root = merkle.root_of(HASHES[:size])
    subtree = merkle.range_hash(HASHES)
    for index in range(size):
        proof = merkle.inclusion_proof(index, size, subtree)
        assert merkle.verify_inclusion(HASHES[index], index, size, proof, root)
        theirs = oracle.prove_inclusion(index + 1, size)
        verify_inclusion(HASHES[index], root, theirs)
        assert proof == list(theirs.path)[1:]
        assert not merkle.verify_inclusion(HASHES[index + 1], index, size, proof, root)
        assert not merkle.verify_inclusion(HASHES[index], index, size, [*proof, proof[0] if proof else root], root)
        if size > 1:
            assert not merkle.verify_inclusion(HASHES[index], (index + 1) % size, size, proof, root)


@pytest.mark.parametrize("size", SIZES)
def test_consistency_proofs_verify_and_fail_for_another_history(oracle: InmemoryTree, size: int) -> None:
    root = merkle.root_of(HASHES[:size])
    subtree = merkle.range_hash(HASHES)
    for old_size in range(1, size + 1):
        old_root = merkle.root_of(HASHES[:old_size])
        proof = merkle.consistency_proof(old_size, size, subtree)
        assert merkle.verify_consistency(old_size, old_root, size, root, proof)
        assert not merkle.verify_consistency(old_size, hashlib.sha256(old_root).digest(), size, root, proof)
        assert not merkle.verify_consistency(old_size, old_root, size, hashlib.sha256(root).digest(), proof)
        assert not merkle.verify_consistency(old_size, old_root, size, root, [*proof, root])
        verify_consistency(old_root, root, oracle.prove_consistency(old_size, size))


def test_the_published_consistency_proof_from_6_to_8_comes_out() -> None:
    # merkle_tree_test.cc, SHA256_CONSISTENCY_PROOFS: {6, 8, 3, {...}}.
    hashes = [merkle.leaf_hash(leaf) for leaf in LEAVES]
    assert [item.hex() for item in merkle.consistency_proof(6, 8, merkle.range_hash(hashes))] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


def test_a_proof_of_a_wrong_length_or_width_is_refused_before_hashing() -> None:
    root = merkle.root_of(HASHES[:7])
    proof = merkle.inclusion_proof(3, 7, merkle.range_hash(HASHES))
    assert not merkle.verify_inclusion(HASHES[3], 3, 7, proof[:-1], root)
    assert not merkle.verify_inclusion(HASHES[3], 3, 7, [proof[0][:-1], *proof[1:]], root)
    assert not merkle.verify_inclusion(HASHES[3], 7, 7, proof, root)
