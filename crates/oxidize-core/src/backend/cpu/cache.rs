//! The bytes of the KV cache. Which sequence owns which block is decided by the scheduler.

use crate::backend::{BackendError, KvType, SessionConfig};
use crate::graph::{CacheInfo, Plan};
use oxidize_kernels::PagedKv;
use std::ops::Range;

/// Keys and values of one layer.
pub(super) struct KvCache {
    /// Group of layers whose blocks and block tables apply.
    pub(super) group: usize,
    k: Plane,
    /// `None` if values are the first elements of the keys (MLA).
    v: Option<Plane>,
    value_dim: usize,
}

/// The keys or the values of a layer, `[head][block][position][element]`. Where the blocks of a sequence are
/// neighbors, attention reads a head as one stream, which is what memory is fastest at.
pub(super) struct Plane {
    pub(super) ty: KvType,
    pub(super) dim: usize,
    pub(super) n_heads: usize,
    row_bytes: usize,
    /// Bytes of a block of one head.
    block_bytes: usize,
    /// The bytes of all heads.
    pub(super) data: Vec<u8>,
}

/// Allocates the caches of `plan`.
pub(super) fn caches(plan: &Plan, config: &SessionConfig) -> Result<Vec<KvCache>, BackendError> {
    let n_blocks: Vec<usize> = config.group_blocks().collect();
    let caches = plan.caches.iter().zip(config.groups(plan));
    caches
        .map(|(info, group)| KvCache::new(info, group, n_blocks[group], config))
        .collect()
}

impl KvCache {
    fn new(
        info: &CacheInfo,
        group: usize,
        n_blocks: usize,
        config: &SessionConfig,
    ) -> Result<KvCache, BackendError> {
        if info.values_in_keys {
            // Values must be whole blocks of the type of the keys.
            row_bytes_of(config.key_type, info.value_dim)?;
        }
        let plane = |dim, ty| Plane::new(info.n_kv_heads, dim, ty, n_blocks, config.block_size);
        Ok(KvCache {
            group,
            k: plane(info.key_dim, config.key_type)?,
            v: (!info.values_in_keys)
                .then(|| plane(info.value_dim, config.value_type))
                .transpose()?,
            value_dim: info.value_dim,
        })
    }

    /// Keys, then values if they are stored separately.
    pub(super) fn planes(&self) -> impl Iterator<Item = &Plane> {
        std::iter::once(&self.k).chain(&self.v)
    }

    /// Keys, then values if they are stored separately.
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
        let (k, v) = (&self.k, self.v.as_ref().unwrap_or(&self.k));
        PagedKv {
            k_ty: k.ty,
            v_ty: v.ty,
            k: k.head(head),
            v: v.head(head),
            table,
            block_size,
            k_block_stride: k.block_bytes,
            v_block_stride: v.block_bytes,
            k_row_stride: k.row_bytes,
            v_row_stride: v.row_bytes,
            k_dim: k.dim,
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
        let block_bytes = row_bytes.checked_mul(block_size);
        let size = block_bytes
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
        Ok(Plane {
            ty,
            dim,
            n_heads,
            row_bytes,
            block_bytes: block_bytes.unwrap_or(usize::MAX),
            // The system zeroes a page when it is first used. Pages are small, so that a short sequence touches
            // little of the cache of a long context.
            data: vec![0; bytes],
        })
    }

    /// Byte range of a position of a block within a head.
    pub(super) fn row(&self, (block, position): (usize, usize)) -> Range<usize> {
        let start = block * self.block_bytes + position * self.row_bytes;
        start..start + self.row_bytes
    }

    fn head(&self, head: usize) -> &[u8] {
        let bytes = self.data.len() / self.n_heads;
        &self.data[head * bytes..(head + 1) * bytes]
    }

    /// Bytes of a block of all heads.
    pub(super) fn block_len(&self) -> usize {
        self.n_heads * self.block_bytes
    }

    /// A block, head by head.
    pub(super) fn block(&self, block: usize) -> impl Iterator<Item = &[u8]> {
        let range = block * self.block_bytes..(block + 1) * self.block_bytes;
        (0..self.n_heads).map(move |head| &self.head(head)[range.clone()])
    }

    /// Replaces a block by [`Plane::block_len`] bytes in the order of [`Plane::block`].
    pub(super) fn write_block(&mut self, block: usize, from: &[u8]) {
        let head_bytes = self.data.len() / self.n_heads;
        let heads = self.data.chunks_exact_mut(head_bytes);
        for (head, from) in heads.zip(from.chunks_exact(self.block_bytes)) {
            head[block * self.block_bytes..][..self.block_bytes].copy_from_slice(from);
        }
    }

    pub(super) fn copy_block(&mut self, from: usize, to: usize) {
        let head_bytes = self.data.len() / self.n_heads;
        let from = from * self.block_bytes..(from + 1) * self.block_bytes;
        for head in self.data.chunks_exact_mut(head_bytes) {
            head.copy_within(from.clone(), to * self.block_bytes);
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
