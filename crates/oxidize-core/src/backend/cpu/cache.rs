//! The bytes of the KV cache. Which sequence owns which block is decided by the scheduler.

use crate::backend::{BackendError, KvType, SessionConfig};
use crate::graph::{CacheInfo, Plan};
use oxidize_kernels::PagedKv;
use std::ops::Range;

/// Blocks of the layers of a group. A block contains the keys and values of its positions in all layers,
/// `[layer][keys, values][head][position][element]`, so that a sequence touches only the memory of its own blocks.
pub(super) struct BlockMemory {
    pub(super) data: Vec<u8>,
    pub(super) block_bytes: usize,
}

/// Place of the keys and values of one layer in the blocks of its group.
pub(super) struct KvCache {
    /// Group of layers whose blocks and block tables apply.
    pub(super) group: usize,
    pub(super) k: Plane,
    /// `None` if values are the first elements of the keys (MLA).
    pub(super) v: Option<Plane>,
    value_dim: usize,
}

/// Place of the keys or the values of a layer in a block.
pub(super) struct Plane {
    pub(super) ty: KvType,
    pub(super) dim: usize,
    pub(super) n_heads: usize,
    /// Offset of the first head in the block.
    start: usize,
    row_bytes: usize,
    head_bytes: usize,
}

/// Places the caches of `plan` in blocks, and allocates the blocks of each group of layers.
pub(super) fn caches(
    plan: &Plan,
    config: &SessionConfig,
) -> Result<(Vec<KvCache>, Vec<BlockMemory>), BackendError> {
    let mut block_bytes = vec![0; config.windows.len() + 1];
    let caches = plan.caches.iter().zip(config.groups(plan));
    let caches = caches
        .map(|(info, group)| KvCache::new(info, group, &mut block_bytes[group], config))
        .collect::<Result<_, _>>()?;
    let memory = block_bytes.into_iter().zip(config.group_blocks());
    let memory = memory.map(|(bytes, n_blocks)| BlockMemory::new(bytes, n_blocks));
    Ok((caches, memory.collect::<Result<_, _>>()?))
}

impl KvCache {
    /// Places a cache after the first `block_bytes` of a block, which grow by it.
    fn new(
        info: &CacheInfo,
        group: usize,
        block_bytes: &mut usize,
        config: &SessionConfig,
    ) -> Result<KvCache, BackendError> {
        if info.values_in_keys {
            // Values must be whole blocks of the type of the keys.
            row_bytes_of(config.key_type, info.value_dim)?;
        }
        let mut plane = |dim, ty| Plane::new(info.n_kv_heads, dim, ty, block_bytes, config);
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

    /// One head, as attention reads it.
    pub(super) fn head<'a>(
        &self,
        head: usize,
        memory: &'a BlockMemory,
        table: &'a [u32],
        block_size: usize,
    ) -> PagedKv<'a> {
        let (k, v) = (&self.k, self.v.as_ref().unwrap_or(&self.k));
        PagedKv {
            k_ty: k.ty,
            v_ty: v.ty,
            k: &memory.data[k.start + head * k.head_bytes..],
            v: &memory.data[v.start + head * v.head_bytes..],
            table,
            block_size,
            k_block_stride: memory.block_bytes,
            v_block_stride: memory.block_bytes,
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
        block_bytes: &mut usize,
        config: &SessionConfig,
    ) -> Result<Plane, BackendError> {
        let row_bytes = row_bytes_of(ty, dim)?;
        let start = *block_bytes;
        let head_bytes = row_bytes.checked_mul(config.block_size);
        let end = head_bytes
            .and_then(|bytes| bytes.checked_mul(n_heads))
            .and_then(|bytes| bytes.checked_add(start));
        *block_bytes = end.ok_or_else(|| out_of_memory(usize::MAX))?;
        Ok(Plane {
            ty,
            dim,
            n_heads,
            start,
            row_bytes,
            head_bytes: head_bytes.unwrap_or(usize::MAX),
        })
    }

    /// Byte range of a head and position within a block.
    pub(super) fn row(&self, head: usize, position: usize) -> Range<usize> {
        let start = self.start + head * self.head_bytes + position * self.row_bytes;
        start..start + self.row_bytes
    }
}

impl BlockMemory {
    fn new(block_bytes: usize, n_blocks: usize) -> Result<BlockMemory, BackendError> {
        let size = block_bytes
            .checked_mul(n_blocks)
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = size.unwrap_or(usize::MAX);
        let mut probe = Vec::<u8>::new();
        if size.is_none() || probe.try_reserve_exact(bytes).is_err() {
            return Err(out_of_memory(bytes));
        }
        drop(probe);
        // The system zeroes a page when it is first used.
        #[cfg_attr(target_arch = "wasm32", expect(unused_mut))]
        let mut data = vec![0; bytes];
        #[cfg(not(target_arch = "wasm32"))]
        crate::io::advise_huge_pages(&mut data);
        Ok(BlockMemory { data, block_bytes })
    }

    /// Byte range of a block.
    fn range(&self, block: usize) -> Range<usize> {
        block * self.block_bytes..(block + 1) * self.block_bytes
    }

    pub(super) fn block(&self, block: usize) -> &[u8] {
        &self.data[self.range(block)]
    }

    pub(super) fn block_mut(&mut self, block: usize) -> &mut [u8] {
        let range = self.range(block);
        &mut self.data[range]
    }

    pub(super) fn copy_block(&mut self, from: usize, to: usize) {
        let (from, to) = (self.range(from), self.range(to).start);
        self.data.copy_within(from, to);
    }
}

fn out_of_memory(bytes: usize) -> BackendError {
    BackendError::OutOfMemory {
        bytes,
        what: "the KV cache",
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
