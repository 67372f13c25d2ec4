//! Connections: accepted up to a limit, cut off when they do nothing, and let finish when the server is told to stop.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use oxidize_core::backend::Backend;
use oxidize_core::io::raise_file_limit;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};

use crate::app::app;
use crate::config::{ConfigError, LogArgs, LogFormat, ModelSpec, ServeArgs};
use crate::error::ApiError;
use crate::state::AppState;

/// Bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;
/// Headers of a request.
const MAX_HEADERS: usize = 100;
/// Bytes that wait in the system for a client to read them. More would hide that it does not.
const SEND_BUFFER: u32 = 128 << 10;
/// How long the cache on disk may take to be complete when the server stops.
const FLUSH: Duration = Duration::from_secs(5);
/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 4096;

/// Why the server could not be started, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The settings do not make sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    /// The first model cannot be loaded.
    #[error("{0}")]
    Model(ApiError),
}

/// A server that listens and does not answer yet.
pub struct Server {
    state: AppState,
    router: Router,
    listener: TcpListener,
}

/// Serves until told to stop by SIGTERM or Ctrl-C: the whole of `oxidize serve`.
pub fn run(
    args: ServeArgs,
    specs: Vec<ModelSpec>,
    backend: Arc<dyn Backend>,
) -> Result<(), ServeError> {
    log_to_stderr(&args.log)?;
    raise_file_limit();
    let state = AppState::new(args, specs, backend)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(ServeError::Runtime)?;
    let result = runtime.block_on(async {
        let server = Server::bind(state)?;
        // Scripts read the port from here; the log goes elsewhere.
        // Nobody need listen to this.
        let _ = writeln!(io::stdout(), "listening on http://{}", server.address());
        server.serve(stop_signal()).await
    });
    // Threads that load or embed are not waited for.
    runtime.shutdown_background();
    result
}

impl Server {
    /// Listens at the address that the settings name.
    pub fn bind(state: AppState) -> Result<Server, ServeError> {
        let router = app(state.clone());
        Server::with_router(state, router)
    }

    /// The same with other routes, for tests.
    pub fn with_router(state: AppState, router: Router) -> Result<Server, ServeError> {
        let address = state.args().network.address();
        let listener = listen(address).map_err(|error| ServeError::Bind { address, error })?;
        Ok(Server {
            state,
            router,
            listener,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        let asked = self.state.args().network.address();
        self.listener.local_addr().unwrap_or(asked)
    }

    /// What it serves.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Answers requests until `stop`, and then finishes those that it has begun.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Server {
            state,
            router,
            listener,
        } = self;
        let preload = tokio::spawn({
            let state = state.clone();
            async move { state.preload().await }
        });
        let janitor = tokio::spawn(unload_idle(state.clone()));
        let graceful = GracefulShutdown::new();
        let accepting = accept(&listener, &state, router, &graceful);
        let failed = async {
            match preload.await {
                Ok(Err(error)) => error,
                _ => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            () = accepting => Ok(()),
            error = failed => Err(ServeError::Model(error)),
            () = stop => Ok(()),
        };
        state.start_draining();
        drop(listener);
        janitor.abort();
        if result.is_ok() {
            drain(graceful, &state).await;
        }
        result
    }
}

/// Waits for what has begun, as long as it may take.
async fn drain(graceful: GracefulShutdown, state: &AppState) {
    let patience = Duration::from_secs(state.args().limits.drain);
    tracing::info!(
        seconds = patience.as_secs(),
        "shutting down: running requests may finish"
    );
    tokio::select! {
        () = graceful.shutdown() => tracing::info!("all requests have finished"),
        () = tokio::time::sleep(patience) => tracing::warn!("some requests did not finish in time"),
    }
    state.models().shut_down(FLUSH).await;
}

async fn unload_idle(state: AppState) {
    let patience = state.args().idle_unload;
    if patience == 0 {
        return;
    }
    let patience = Duration::from_secs(patience);
    loop {
        tokio::time::sleep(
            (patience / 4).clamp(Duration::from_millis(250), Duration::from_secs(30)),
        )
        .await;
        state.models().unload_idle(patience).await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    // Sockets that are accepted take it over.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(
    listener: &TcpListener,
    state: &AppState,
    router: Router,
    graceful: &GracefulShutdown,
) {
    let places = Arc::new(Semaphore::new(state.args().limits.max_connections.max(1)));
    let patience = state.args().limits.io_patience();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD);
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // A client that has gone already, or no more files: the next may be better.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        // Tokens are small and each one matters.
        let _ = stream.set_nodelay(true);
        state.metrics().connections.increase();
        let io = TokioIo::new(Patient::new(stream, patience, state.clone()));
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(io, service));
        let state = state.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            state.metrics().connections_closed.increase();
            drop(place);
        });
    }
}

/// A connection whose other side must read what it is sent.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while a write waits.
    alarm: Option<Pin<Box<Sleep>>>,
    state: AppState,
}

impl Patient {
    fn new(stream: TcpStream, patience: Duration, state: AppState) -> Patient {
        Patient {
            stream,
            patience,
            alarm: None,
            state,
        }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.alarm = None;
            return polled;
        }
        let deadline = Instant::now() + self.patience;
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if alarm.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.state.metrics().cut_off.increase();
        tracing::info!("a client does not read what it asked for and is cut off");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, data);
        self.watch(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.watch(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Comes when the process is told to stop.
async fn stop_signal() {
    let ctrl_c = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending();
    tokio::select! {
        () = ctrl_c => {}
        () = terminate => {}
    }
}

fn log_to_stderr(args: &LogArgs) -> Result<(), ConfigError> {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(&args.filter).map_err(|error| ConfigError::Option {
        option: "--log",
        problem: error.to_string(),
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // Fails only where a log is set up already, and then that one is used.
    let _ = match args.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_target(false)
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .try_init(),
    };
    Ok(())
}
