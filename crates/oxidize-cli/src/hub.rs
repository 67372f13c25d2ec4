//! Models of hubs and registries on the command line: settings, progress and the memory estimate of `:auto`.

use std::cell::OnceCell;
use std::io::{IsTerminal, Seek, Write};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use oxidize_core::backend::CacheSize;
use oxidize_core::engine::EngineConfig;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::graph::OutputKind;
use oxidize_core::io::available_memory;
use oxidize_core::model::Model;
use oxidize_hub::{
    Candidate, Hub, Memory, ModelRef, Observer, Progress, PullOptions, Pulled, Settings, Stage,
};

use crate::console::status;
use crate::style;

/// Context size whose cache counts as needed memory.
const CONTEXT: usize = 4096;

static OFFLINE: OnceLock<bool> = OnceLock::new();

/// Sets whether the network is off; called once, with the value of `--offline`.
pub(crate) fn set_offline(offline: bool) {
    // The first value stays: one process has one command line.
    let _ = OFFLINE.set(offline);
}

/// The settings of the environment and of `--offline`.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::from_environment();
    settings.offline |= OFFLINE.get().copied().unwrap_or(false);
    settings
}

/// A hub with these settings.
pub(crate) fn hub() -> anyhow::Result<Hub> {
    Ok(Hub::new(settings(), None)?)
}

/// Fetches a model, with progress on standard error.
pub(crate) fn pull(model: &ModelRef) -> anyhow::Result<Pulled> {
    with_options(|options| Ok(hub()?.pull(model, options)?))
}

/// The model of a name: from the cache, or fetched.
pub(crate) fn open(model: &ModelRef) -> anyhow::Result<Pulled> {
    with_options(|options| Ok(hub()?.open(model, options)?))
}

fn with_options<T>(work: impl Fn(&PullOptions<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let progress = PullProgress::new();
    let cache = OnceCell::new();
    let needed = |model: &Candidate, start: &[u8]| {
        // All quantizations have the same hyper-parameters, hence the same cache.
        let cache = cache.get_or_init(|| cache_bytes(model.size, start));
        model.size.saturating_add(cache.unwrap_or(model.size / 5))
    };
    let memory = available_memory().map(|available| Memory {
        available,
        needed: &needed,
    });
    let options = PullOptions {
        observer: &progress,
        memory,
    };
    let result = work(&options);
    progress.finish();
    result
}

/// Bytes of the KV cache, as `oxidize inspect` shows them, of a GGUF file of `size` bytes with this start.
fn cache_bytes(size: u64, start: &[u8]) -> Option<u64> {
    // A file with a hole in place of the weights.
    let mut file = ScratchFile::new()?;
    file.file.write_all(start).ok()?;
    file.file.rewind().ok()?;
    file.file.set_len(size.max(start.len() as u64)).ok()?;
    let model = ModelFile::open(&file.path, &OpenOptions::default()).ok()?;
    let model = Model::from_file(model).ok()?;
    if model.plan().output != OutputKind::Logits {
        return Some(0);
    }
    let config = EngineConfig {
        n_ctx: Some(CONTEXT.min(model.hparams().n_ctx_train.max(1))),
        max_sequences: 1,
        ..EngineConfig::default()
    };
    Some(CacheSize::new(model.plan(), &config.session(&model)).total())
}

/// A temporary file, removed when dropped.
struct ScratchFile {
    path: PathBuf,
    file: std::fs::File,
}

impl ScratchFile {
    fn new() -> Option<ScratchFile> {
        let name = format!("oxidize-{}-start.gguf", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::OpenOptions::new();
        // Nobody else's file or link is written.
        let file = options.write(true).create_new(true).open(&path).ok()?;
        Some(ScratchFile { path, file })
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Shows a pull: a bar with rate and time left on a terminal, notes everywhere.
struct PullProgress {
    bar: Option<ProgressBar>,
    stage: Mutex<Option<Stage>>,
}

impl PullProgress {
    fn new() -> PullProgress {
        let is_terminal = std::io::stderr().is_terminal();
        PullProgress {
            bar: is_terminal.then(ProgressBar::hidden),
            stage: Mutex::new(None),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Observer for PullProgress {
    fn progress(&self, at: Progress<'_>) {
        let Some(bar) = &self.bar else {
            return;
        };
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.replace(at.stage) != Some(at.stage) {
            if bar.is_hidden() {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            bar.set_style(bar_style(at.stage));
            bar.reset_eta();
        }
        drop(stage);
        bar.set_length(at.total);
        bar.set_position(at.done);
        let name = at.file.rsplit('/').next().unwrap_or(at.file);
        bar.set_message(name.to_owned());
    }

    fn note(&self, text: &str) {
        let dim = style::for_stderr().dim;
        match &self.bar {
            Some(bar) => bar.suspend(|| status!("{dim}{text}{dim:#}")),
            None => status!("{text}"),
        }
    }
}

fn bar_style(stage: Stage) -> ProgressStyle {
    let template = match stage {
        Stage::Downloading => {
            "{bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} ({eta} left) {wide_msg}"
        }
        Stage::Verifying => "{bar:30} verifying {wide_msg}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
