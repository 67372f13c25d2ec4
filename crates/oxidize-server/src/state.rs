//! [`AppState`]: the state that all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use oxidize_core::backend::Backend;

use crate::auth::Keys;
use crate::config::{ConfigError, ModelSpec, ServerConfig};
use crate::error::ApiResult;
use crate::metrics::Metrics;
use crate::models::Registry;

/// The state of a server; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    config: Arc<ServerConfig>,
    keys: Keys,
    models: Registry,
    metrics: Metrics,
    start: Instant,
    next_id: AtomicU64,
    /// Start time in microseconds, which makes ids of this process differ from those of earlier ones.
    epoch: u64,
    draining: AtomicBool,
    /// True once the default model was loaded, even if it was unloaded since.
    ready: AtomicBool,
}

impl AppState {
    /// The state of a server of `specs` on `backend`.
    pub fn new(
        config: ServerConfig,
        specs: Vec<ModelSpec>,
        backend: Arc<dyn Backend>,
    ) -> Result<AppState, ConfigError> {
        let keys = config.check(&specs)?;
        let config = Arc::new(config);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(AppState(Arc::new(Inner {
            models: Registry::new(specs, config.clone(), backend),
            config,
            keys,
            metrics: Metrics::default(),
            start: Instant::now(),
            next_id: AtomicU64::new(1),
            epoch: now.map_or(0, |since| since.as_micros() as u64),
            draining: AtomicBool::new(false),
            ready: AtomicBool::new(false),
        })))
    }

    /// The command-line arguments.
    pub fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// The API keys.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The models.
    pub fn models(&self) -> &Registry {
        &self.0.models
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Time since the server started.
    pub fn uptime(&self) -> std::time::Duration {
        self.0.start.elapsed()
    }

    /// A number that is unique in this process.
    pub fn next_number(&self) -> u64 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A unique id with a prefix, such as `chatcmpl-…`.
    pub fn new_id(&self, prefix: &str) -> String {
        format!("{prefix}{:x}{:06x}", self.0.epoch, self.next_number())
    }

    /// Marks the server as shutting down: `/health` and new requests fail from now on.
    pub fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// True if the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Loads the default model; the server is ready from then on.
    pub async fn preload(&self) -> ApiResult<()> {
        self.models().get(None).await?;
        self.0.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// True if the default model was loaded and the server is not shutting down.
    pub fn is_ready(&self) -> bool {
        !self.is_draining() && self.0.ready.load(Ordering::Acquire)
    }
}

/// Unix time in seconds.
pub(crate) fn unix_time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}
