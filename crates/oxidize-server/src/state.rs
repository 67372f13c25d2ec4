//! [`AppState`]: what every handler can reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use oxidize_core::backend::Backend;

use crate::auth::Keys;
use crate::config::{ConfigError, ModelSpec, ServeArgs};
use crate::error::ApiResult;
use crate::metrics::Metrics;
use crate::models::Registry;

/// The state of a server; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    args: Arc<ServeArgs>,
    keys: Keys,
    models: Registry,
    metrics: Metrics,
    start: Instant,
    next_id: AtomicU64,
    /// Makes ids of this process differ from those of the last.
    epoch: u64,
    draining: AtomicBool,
    /// The default model has been loaded, even if it was let go of since.
    ready: AtomicBool,
}

impl AppState {
    /// A server of `specs` with these settings, on `backend`.
    pub fn new(
        args: ServeArgs,
        specs: Vec<ModelSpec>,
        backend: Arc<dyn Backend>,
    ) -> Result<AppState, ConfigError> {
        let keys = args.check(&specs)?;
        let args = Arc::new(args);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(AppState(Arc::new(Inner {
            models: Registry::new(specs, args.clone(), backend),
            args,
            keys,
            metrics: Metrics::default(),
            start: Instant::now(),
            next_id: AtomicU64::new(1),
            epoch: now.map_or(0, |since| since.as_micros() as u64),
            draining: AtomicBool::new(false),
            ready: AtomicBool::new(false),
        })))
    }

    /// The settings.
    pub fn args(&self) -> &ServeArgs {
        &self.0.args
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The models.
    pub fn models(&self) -> &Registry {
        &self.0.models
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// How long the server has been there.
    pub fn uptime(&self) -> std::time::Duration {
        self.0.start.elapsed()
    }

    /// A number that no other request has.
    pub fn next_number(&self) -> u64 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// An id that no other answer has: `chatcmpl-…`.
    pub fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{:x}{:06x}", self.0.epoch, self.next_number())
    }

    /// From now on, `/health` says that the server is about to stop.
    pub fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// Whether the server is about to stop.
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Loads the default model; requests are welcome from then on.
    pub async fn preload(&self) -> ApiResult<()> {
        self.models().get(None).await?;
        self.0.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the default model could be loaded and requests are taken.
    pub fn is_ready(&self) -> bool {
        !self.is_draining() && self.0.ready.load(Ordering::Acquire)
    }
}

/// The time for clients: seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}
