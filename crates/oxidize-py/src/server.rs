//! The Python class `Server`: the HTTP server on threads of its own.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oxidize_core::backend::cpu::Cpu;
use oxidize_server::{AppState, ModelSpec, ServerConfig};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::runtime_error;
use crate::owned::Owned;

/// Time between checks for signals while the server runs.
const SLICE: Duration = Duration::from_millis(50);

/// A running server.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Server {
    running: Owned<Running>,
    address: String,
}

struct Running {
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<(), oxidize_server::ServeError>>>,
}

#[pymethods]
impl Server {
    /// Starts a server for models, pairs of a name and a path. Port 0 is any free one.
    #[new]
    #[pyo3(signature = (models, host, port, *, api_keys=Vec::new(), n_ctx=None, n_parallel=None, n_threads=None))]
    fn new(
        py: Python<'_>,
        models: Vec<(String, PathBuf)>,
        host: &str,
        port: u16,
        api_keys: Vec<String>,
        n_ctx: Option<usize>,
        n_parallel: Option<usize>,
        n_threads: Option<usize>,
    ) -> PyResult<Server> {
        let host: IpAddr = host
            .parse()
            .map_err(|_| PyValueError::new_err(format!("host {host:?} is not an IP address")))?;
        let mut config = ServerConfig::default();
        config.network.host = host;
        config.network.port = port;
        config.network.api_key = api_keys;
        config.engine.ctx_size = n_ctx;
        config.engine.parallel = n_parallel.unwrap_or(config.engine.parallel);
        config.engine.threads = n_threads;
        let specs = models.into_iter();
        let specs = specs.map(|(name, path)| ModelSpec { name, path }).collect();
        py.detach(|| {
            let state = AppState::new(config, specs, Arc::new(Cpu::default()))
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| runtime_error(format!("cannot start the server: {error}")))?;
            let server = {
                let _inside = runtime.enter();
                oxidize_server::Server::bind(state)
            };
            let server = server.map_err(|error| PyOSError::new_err(error.to_string()))?;
            let address = server.address().to_string();
            let (stop, stopped) = oneshot::channel();
            let task = runtime.spawn(server.serve(async {
                // An error means that the sender is gone, which is a stop, too.
                let _ = stopped.await;
            }));
            let running = Running {
                runtime: Some(runtime),
                stop: Some(stop),
                task: Some(task),
            };
            Ok(Server {
                running: Owned::new("server", running),
                address,
            })
        })
    }

    /// Host and port.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Waits until the server ends, at most `timeout` seconds; true if it has ended. An error that ended it is raised.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let start = std::time::Instant::now();
        loop {
            let ended = py.detach(|| {
                self.running.with(|running| {
                    let (Some(task), Some(runtime)) = (&mut running.task, &running.runtime) else {
                        return Ok(true);
                    };
                    let waited =
                        runtime.block_on(async { tokio::time::timeout(SLICE, task).await });
                    match waited {
                        Err(_) => Ok(false),
                        Ok(result) => {
                            running.task = None;
                            match result {
                                Ok(Ok(())) => Ok(true),
                                Ok(Err(error)) => Err(runtime_error(error.to_string())),
                                Err(error) => Err(runtime_error(error.to_string())),
                            }
                        }
                    }
                })
            })?;
            py.check_signals()?;
            if ended {
                return Ok(true);
            }
            if timeout.is_some_and(|timeout| start.elapsed().as_secs_f64() >= timeout) {
                return Ok(false);
            }
        }
    }

    /// Lets running requests finish and ends the server.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let stopped = self.running.with(|running| {
            drop(running.stop.take());
            Ok(())
        });
        if stopped.is_err() {
            return self.running.check_process();
        }
        let result = self.wait(py, None).map(|_| ());
        let running = self.running.close();
        py.detach(|| drop(running));
        result
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Dropping the runtime would wait for its blocking threads, which may be loading a model.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
