"""Keyed 128-bit hashes of ids and versions. An id is never stored, so it cannot leak and costs 16 bytes."""

import hashlib
from collections.abc import Callable
from itertools import repeat

import numpy as np
import xxhash
from numpy.typing import NDArray

from monitor.core.events import U64x2

HASHES = ("xxh3", "blake2b")


class Hasher:
    """Hash with the key of this installation; `name` and `key` (16 bytes) are in the store's meta and never change there."""

    def __init__(self, name: str, key: bytes) -> None:
        self.name, self.key = name, key
        seed = int.from_bytes(key[:8], "little")
        self._digests: Callable[[list[bytes]], bytes]
        if name == "xxh3":
            self._digests = lambda texts: b"".join(map(xxhash.xxh3_128_digest, texts, repeat(seed)))
        else:
            self._digests = lambda texts: b"".join(hashlib.blake2b(t, key=key, digest_size=16).digest() for t in texts)

    def ids(self, model: str, ids: list[bytes]) -> U64x2:
        """Return the hashes of model, a zero byte, and id, shape (n, 2)."""
        prefix = model.encode() + b"\0"
        return np.frombuffer(self._digests([prefix + i for i in ids]), "<u8").reshape(-1, 2)

    def clusters(self, model: str, clusters: list[bytes]) -> NDArray[np.uint32]:
        """Return 32-bit hashes of model and cluster, shape (n,); never 0, which means no cluster."""
        prefix = b"\2" + model.encode() + b"\0"
        digests = np.frombuffer(self._digests([prefix + c for c in clusters]), "<u4")
        hashes: NDArray[np.uint32] = np.maximum(digests[::4], np.uint32(1))
        return hashes

    def version(self, model: str, version: str) -> U64x2:
        """Return the mask of a version, shape (2,); id hash XOR mask is the key of a stored row.

        So one look at an id serves every version of its model: a label needs no second hash. A lone surrogate, which a label
        may name and no prediction has, makes a mask like any other.
        """
        name = f"{model}\0{version}".encode("utf-8", "surrogatepass")
        return np.frombuffer(self._digests([b"\1" + name]), "<u8").copy()
