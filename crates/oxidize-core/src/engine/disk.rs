//! What the engine keeps of its KV cache on disk: blocks of finished requests are written by a thread of their own,
//! and blocks of a new request's prompt are read back before it is queued.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use sha2::{Digest, Sha256};

use super::BLOCK_SIZE;
use crate::backend::{Backend, Session, SessionConfig};
use crate::error::Result;
use crate::kv::{BlockName, BlockStore, BlockWriter};
use crate::model::Model;
use crate::scheduler::Scheduler;

/// Blocks that may wait to be written; more are not worth the memory.
const QUEUE: usize = 64;

/// Where blocks are kept, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The folder; blocks of several models can share it.
    pub folder: PathBuf,
    /// Most bytes of one model's blocks.
    pub limit: u64,
}

/// The engine's side of it.
pub(super) struct Disk {
    store: BlockStore,
    /// Gone when the engine ends.
    queue: Option<SyncSender<(BlockName, Vec<u8>)>>,
    written: Receiver<(BlockName, bool)>,
    /// On their way to the disk.
    pending: HashSet<BlockName>,
    writer: Option<JoinHandle<()>>,
}

impl Disk {
    pub(super) fn open(
        cache: &DiskCache,
        model: &Model,
        backend: &dyn Backend,
        config: &SessionConfig,
        session: &dyn Session,
    ) -> Result<Disk> {
        let fingerprint = fingerprint(model, backend, config);
        let store = BlockStore::open(
            &cache.folder,
            fingerprint,
            session.block_bytes(),
            cache.limit,
        )?;
        tracing::info!(blocks = store.len(), "prefix cache on disk");
        let (queue, jobs) = sync_channel(QUEUE);
        let (tell, written) = channel();
        let writer = store.writer();
        let thread = std::thread::Builder::new()
            .name("oxidize-disk".into())
            .spawn(move || write(&writer, &jobs, &tell))
            .map_err(super::EngineError::Thread)?;
        Ok(Disk {
            store,
            queue: Some(queue),
            written,
            pending: HashSet::new(),
            writer: Some(thread),
        })
    }

    /// Brings back what is on disk of a prompt's beginning.
    pub(super) fn restore(
        &mut self,
        salt: u64,
        tokens: &[u32],
        scheduler: &mut Scheduler,
        session: &mut dyn Session,
    ) {
        self.settle();
        // The last token is always computed, for its logits.
        let Some((_, tokens)) = tokens.split_last() else {
            return;
        };
        let names = self.store.names(salt, tokens, BLOCK_SIZE);
        let store = &mut self.store;
        scheduler.restore(salt, tokens, |index, block| {
            let bytes = names.get(index).and_then(|&name| store.load(name));
            bytes.is_some_and(|bytes| session.write_block(block, &bytes).is_ok())
        });
    }

    /// Has the blocks of a sequence written that are not there yet.
    pub(super) fn keep(
        &mut self,
        salt: u64,
        tokens: &[u32],
        scheduler: &Scheduler,
        session: &dyn Session,
    ) {
        self.settle();
        let known = scheduler.known_prefix(salt, tokens);
        let names = self.store.names(salt, tokens, BLOCK_SIZE);
        for (block, name) in known.into_iter().zip(names) {
            if self.store.contains(name) || self.pending.contains(&name) {
                continue;
            }
            let mut bytes = Vec::new();
            if session.read_block(block, &mut bytes).is_err() {
                return;
            }
            let sent = self
                .queue
                .as_ref()
                .map(|queue| queue.try_send((name, bytes)));
            if !matches!(sent, Some(Ok(()))) {
                // The disk is slow. A later block is of no use without this one.
                return;
            }
            self.pending.insert(name);
        }
    }

    /// Takes note of what has been written.
    fn settle(&mut self) {
        while let Ok((name, good)) = self.written.try_recv() {
            self.pending.remove(&name);
            if good {
                self.store.add(name);
            }
        }
    }
}

/// Waits for what is on its way.
impl Drop for Disk {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has written all it could.
            let _ = writer.join();
        }
    }
}

/// Writes until the engine is gone.
fn write(
    writer: &BlockWriter,
    jobs: &Receiver<(BlockName, Vec<u8>)>,
    tell: &Sender<(BlockName, bool)>,
) {
    while let Ok((name, bytes)) = jobs.recv() {
        let result = writer.write(name, &bytes);
        if let Err(error) = &result {
            tracing::warn!(%error, "a block of the prefix cache could not be written");
        }
        if tell.send((name, result.is_ok())).is_err() {
            return;
        }
    }
}

/// Stands for all that the content of a block depends on besides tokens: the weights, adapters among
/// them, by their shapes and a sample of each; the layout of the cache; and the code that fills it.
fn fingerprint(model: &Model, backend: &dyn Backend, config: &SessionConfig) -> [u8; 32] {
    const SAMPLE: usize = 4096;
    let mut hash = Sha256::new();
    let layout = format!(
        "{} {} {} {:?} {:?} {BLOCK_SIZE} {} {:?}",
        env!("CARGO_PKG_VERSION"),
        backend.name(),
        model.arch().name,
        config.key_type,
        config.value_type,
        config.max_context,
        model.adapter_strengths(),
    );
    hash.update(layout);
    for weight in model.weights().iter() {
        let (name, ty) = (&weight.name, weight.ty);
        let (rows, cols, n) = (weight.rows, weight.cols, weight.n_experts);
        hash.update(format!("\n{name} {ty:?} {rows} {cols} {n} "));
        let bytes = weight.expert(0);
        for start in [0, bytes.len() / 2] {
            let end = bytes.len().min(start + SAMPLE);
            hash.update(bytes.get(start..end).unwrap_or_default());
        }
    }
    hash.finalize().into()
}
