//! The bytes of the KV cache. Which sequence owns which block is decided by the scheduler.

use crate::backend::{BackendError, KvType, SessionConfig};
use crate::graph::CacheInfo;
use oxidize_kernels::PagedKv;

/// Keys and values of one layer, head by head: `[head][block][position][element]`.
pub(super) struct KvCache {
    pub(super) k: Plane,
    /// `None` if values are the first elements of the keys (MLA).
    pub(super) v: Option<Plane>,
    /// Group of layers whose block table applies.
    pub(super) group: usize,
    value_dim: usize,
}

/// The keys or the values of a layer.
pub(super) struct Plane {
    pub(super) ty: KvType,
    pub(super) dim: usize,
    pub(super) data: Vec<u8>,
    n_heads: usize,
    row_bytes: usize,
    block_bytes: usize,
}

impl KvCache {
    pub(super) fn new(
        info: &CacheInfo,
        group: usize,
        config: &SessionConfig,
    ) -> Result<KvCache, BackendError> {
        let n_blocks = config.group_blocks().nth(group).unwrap_or(0);
        let plane = |dim, ty| Plane::new(info.n_kv_heads, dim, ty, n_blocks, config.block_size);
        if info.values_in_keys {
            // Values must be whole blocks of the type of the keys.
            row_bytes_of(config.key_type, info.value_dim)?;
        }
        Ok(KvCache {
            k: plane(info.key_dim, config.key_type)?,
            v: (!info.values_in_keys)
                .then(|| plane(info.value_dim, config.value_type))
                .transpose()?,
            group,
            value_dim: info.value_dim,
        })
    }

    /// Keys, then values if they are stored separately.
    pub(super) fn planes(&self) -> impl Iterator<Item = &Plane> {
        std::iter::once(&self.k).chain(&self.v)
    }

    pub(super) fn planes_mut(&mut self) -> impl Iterator<Item = &mut Plane> {
        std::iter::once(&mut self.k).chain(&mut self.v)
    }

    /// One head, as attention reads it.
    pub(super) fn head<'a>(
        &'a self,
        head: usize,
        table: &'a [u32],
        block_size: usize,
    ) -> PagedKv<'a> {
        let v = self.v.as_ref().unwrap_or(&self.k);
        PagedKv {
            k_ty: self.k.ty,
            v_ty: v.ty,
            k: self.k.head(head),
            v: v.head(head),
            table,
            block_size,
            k_block_stride: self.k.block_bytes,
            v_block_stride: v.block_bytes,
            k_row_stride: self.k.row_bytes,
            v_row_stride: v.row_bytes,
            k_dim: self.k.dim,
            v_dim: self.value_dim,
        }
    }
}

impl Plane {
    fn new(
        n_heads: usize,
        dim: usize,
        ty: KvType,
        n_blocks: usize,
        block_size: usize,
    ) -> Result<Plane, BackendError> {
        let row_bytes = row_bytes_of(ty, dim)?;
        let size = row_bytes
            .checked_mul(block_size)
            .and_then(|bytes| bytes.checked_mul(n_blocks))
            .and_then(|bytes| bytes.checked_mul(n_heads))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = size.unwrap_or(usize::MAX);
        let mut probe = Vec::<u8>::new();
        if size.is_none() || probe.try_reserve_exact(bytes).is_err() {
            return Err(BackendError::OutOfMemory {
                bytes,
                what: "the KV cache",
            });
        }
        drop(probe);
        // The system zeroes a page when it is first used.
        #[cfg_attr(target_arch = "wasm32", expect(unused_mut))]
        let mut data = vec![0; bytes];
        #[cfg(not(target_arch = "wasm32"))]
        crate::io::advise_huge_pages(&mut data);
        Ok(Plane {
            ty,
            dim,
            data,
            n_heads,
            row_bytes,
            block_bytes: row_bytes * block_size,
        })
    }

    fn head(&self, head: usize) -> &[u8] {
        let bytes = self.data.len() / self.n_heads;
        &self.data[head * bytes..(head + 1) * bytes]
    }

    /// Byte range of a slot (block · block_size + offset) within a head.
    pub(super) fn row(&self, slot: usize) -> std::ops::Range<usize> {
        slot * self.row_bytes..(slot + 1) * self.row_bytes
    }

    /// Bytes of one block, of all heads.
    pub(super) fn block_len(&self) -> usize {
        self.n_heads * self.block_bytes
    }

    /// The bytes of a block, head by head.
    pub(super) fn block(&self, block: usize) -> impl Iterator<Item = &[u8]> {
        let bytes = self.block_bytes;
        (0..self.n_heads).map(move |head| &self.head(head)[block * bytes..(block + 1) * bytes])
    }

    pub(super) fn write_block(&mut self, block: usize, from: &[u8]) {
        let (bytes, head_bytes) = (self.block_bytes, self.data.len() / self.n_heads);
        for (head, from) in from.chunks_exact(bytes).enumerate() {
            let at = head * head_bytes + block * bytes;
            self.data[at..at + bytes].copy_from_slice(from);
        }
    }

    pub(super) fn copy_block(&mut self, from: usize, to: usize) {
        let (bytes, head_bytes) = (self.block_bytes, self.data.len() / self.n_heads);
        for head in 0..self.n_heads {
            let start = head * head_bytes + from * bytes;
            self.data
                .copy_within(start..start + bytes, head * head_bytes + to * bytes);
        }
    }
}

/// Bytes of `dim` elements, which must be whole blocks of the type.
fn row_bytes_of(ty: KvType, dim: usize) -> Result<usize, BackendError> {
    ty.row_bytes(dim).ok_or(BackendError::KvType {
        dim,
        ty: ty.tensor_type(),
        block: ty.tensor_type().block_len(),
    })
}
