//! Prefix cache on disk: a thread writes the blocks of finished requests, and blocks of a new request's
//! prompt are read back before the request is queued.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use sha2::{Digest, Sha256};

use super::BLOCK_SIZE;
use crate::backend::{Backend, Session, SessionConfig};
use crate::error::Result;
use crate::kv::{BlockId, BlockName, BlockStore, BlockWriter};
use crate::model::Model;
use crate::scheduler::{BlockSource, Scheduler};
use crate::threads::Thread;

/// Maximum blocks waiting to be written. Further blocks are not stored, to bound the memory.
const MAX_QUEUED: usize = 64;

/// Location and size limit of the prefix cache on disk.
///
/// ```
/// use oxidize::EngineConfig;
/// use oxidize::engine::DiskCache;
///
/// // At most 10 GiB for each model.
/// let config = EngineConfig::default().disk(DiskCache::new("/var/cache/oxidize", 10 << 30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct DiskCache {
    /// Directory; several models can share it.
    pub directory: PathBuf,
    /// Maximum bytes of blocks per model.
    pub limit: u64,
}

impl DiskCache {
    /// A cache in `directory`, of at most `limit` bytes for each model.
    pub fn new(directory: impl Into<PathBuf>, limit: u64) -> DiskCache {
        DiskCache {
            directory: directory.into(),
            limit,
        }
    }
}

/// The engine's access to the prefix cache on disk.
pub(super) struct Disk {
    store: BlockStore,
    /// Blocks to write. `None` ends the writer thread.
    queue: Option<SyncSender<(BlockName, Vec<u8>)>>,
    written: Receiver<(BlockName, Option<u64>)>,
    /// Blocks queued or being written.
    pending: HashSet<BlockName>,
    /// Groups of layers with window blocks.
    n_windows: usize,
    writer: Option<Thread>,
}

impl Disk {
    pub(super) fn open(
        cache: &DiskCache,
        model: &Model,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Disk> {
        let fingerprint = fingerprint(model, backend, config);
        let store = BlockStore::open(&cache.directory, fingerprint, cache.limit)?;
        tracing::info!(blocks = store.len(), "prefix cache on disk");
        let (queue, jobs) = sync_channel(MAX_QUEUED);
        let (done, written) = channel();
        let writer = store.writer();
        let thread = config
            .spawner
            .spawn("oxidize-disk", move || write(&writer, &jobs, &done))
            .map_err(super::EngineError::Thread)?;
        Ok(Disk {
            store,
            queue: Some(queue),
            written,
            pending: HashSet::new(),
            n_windows: config.windows.len(),
            writer: Some(thread),
        })
    }

    /// Restores the blocks of a prompt's beginning that are on disk.
    pub(super) fn restore(
        &mut self,
        salt: u64,
        tokens: &[u32],
        scheduler: &mut Scheduler,
        session: &mut dyn Session,
    ) {
        self.drain();
        // The last token is always computed, for its logits.
        let Some((_, tokens)) = tokens.split_last() else {
            return;
        };
        let mut prompt = StoredPrompt {
            names: self.store.names(salt, tokens, BLOCK_SIZE),
            store: &mut self.store,
            session,
        };
        scheduler.restore(salt, tokens, &mut prompt);
    }

    /// Queues the blocks of a sequence that are not on disk yet for writing.
    pub(super) fn save(
        &mut self,
        salt: u64,
        tokens: &[u32],
        scheduler: &Scheduler,
        session: &dyn Session,
    ) {
        self.drain();
        let known = scheduler.known_prefix(salt, tokens);
        let names = self.store.names(salt, tokens, BLOCK_SIZE);
        for (block, name) in known.into_iter().zip(names) {
            let windows = (1..=self.n_windows).filter_map(|group| {
                let block = scheduler.window_block(group, block)?;
                Some((group, block, self.store.window_name(name, group)))
            });
            let blocks: Vec<_> = windows.chain([(0, block, name)]).collect();
            for (group, block, name) in blocks {
                if !self.save_block(group, block, name, session) {
                    return;
                }
            }
        }
    }

    /// Queues a block for writing unless it is on disk. Returns false if the queue is full because the disk is
    /// slow: blocks after this one are useless without it.
    fn save_block(
        &mut self,
        group: usize,
        block: BlockId,
        name: BlockName,
        session: &dyn Session,
    ) -> bool {
        if self.store.contains(name) || self.pending.contains(&name) {
            return true;
        }
        let mut bytes = Vec::new();
        if session.read_block(group, block, &mut bytes).is_err() {
            return false;
        }
        let queue = self.queue.as_ref();
        let sent = queue.map(|queue| queue.try_send((name, bytes)));
        let is_queued = matches!(sent, Some(Ok(())));
        if is_queued {
            self.pending.insert(name);
        }
        is_queued
    }

    /// Records the blocks that have been written.
    fn drain(&mut self) {
        while let Ok((name, written)) = self.written.try_recv() {
            self.pending.remove(&name);
            if let Some(bytes) = written {
                self.store.add(name, bytes);
            }
        }
    }
}

/// The blocks of a prompt on disk.
struct StoredPrompt<'a> {
    names: Vec<BlockName>,
    store: &'a mut BlockStore,
    session: &'a mut dyn Session,
}

impl StoredPrompt<'_> {
    fn name(&self, group: usize, index: usize) -> Option<BlockName> {
        let &name = self.names.get(index)?;
        Some(match group {
            0 => name,
            _ => self.store.window_name(name, group),
        })
    }
}

impl BlockSource for StoredPrompt<'_> {
    fn contains(&self, group: usize, index: usize) -> bool {
        let name = self.name(group, index);
        name.is_some_and(|name| self.store.contains(name))
    }

    fn fill(&mut self, group: usize, index: usize, block: BlockId) -> bool {
        let name = self.name(group, index);
        let bytes = name.and_then(|name| self.store.load(name));
        bytes.is_some_and(|bytes| self.session.write_block(group, block, &bytes).is_ok())
    }
}

/// Waits until the queued blocks are written.
impl Drop for Disk {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            writer.join();
        }
    }
}

/// Writes blocks until the engine drops the queue.
fn write(
    writer: &BlockWriter,
    jobs: &Receiver<(BlockName, Vec<u8>)>,
    done: &Sender<(BlockName, Option<u64>)>,
) {
    while let Ok((name, bytes)) = jobs.recv() {
        let result = writer.write(name, &bytes);
        if let Err(error) = &result {
            tracing::warn!(%error, "a block of the prefix cache could not be written");
        }
        let written = result.is_ok().then_some(bytes.len() as u64);
        if done.send((name, written)).is_err() {
            return;
        }
    }
}

/// Digest of everything besides tokens that the content of a block depends on: the weights, including
/// adapters, by their shapes and a sample of each; the layout of the cache; and the version of the code that
/// fills it.
fn fingerprint(model: &Model, backend: &dyn Backend, config: &SessionConfig) -> [u8; 32] {
    const SAMPLE: usize = 4096;
    let mut hash = Sha256::new();
    let layout = format!(
        "{} {} {} {:?} {:?} {BLOCK_SIZE} {:?} {} {:?}",
        env!("CARGO_PKG_VERSION"),
        backend.name(),
        model.arch().name,
        config.key_type,
        config.value_type,
        config
            .windows
            .iter()
            .map(|group| group.window)
            .collect::<Vec<_>>(),
        config.max_context,
        model.adapter_scales(),
    );
    hash.update(layout);
    for weight in model.weights().iter() {
        let (name, ty) = (&weight.name, weight.ty);
        let (rows, cols, n) = (weight.rows, weight.cols, weight.n_experts);
        hash.update(format!("\n{name} {ty:?} {rows} {cols} {n} "));
        // Weights that the session has released are loaded again, one at a time.
        let loaded = weight.loaded();
        let bytes = loaded.as_ref().map_or(&[][..], |weight| weight.expert(0));
        for start in [0, bytes.len() / 2] {
            let end = bytes.len().min(start + SAMPLE);
            hash.update(bytes.get(start..end).unwrap_or_default());
        }
    }
    hash.finalize().into()
}
