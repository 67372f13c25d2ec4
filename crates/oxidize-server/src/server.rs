//! [`Server`]: accepts connections up to a limit, disconnects inactive ones, and lets requests finish at
//! shutdown.

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
use crate::config::{ConfigError, LogConfig, LogFormat, ModelSpec, ServerConfig};
use crate::error::ApiError;
use crate::state::AppState;

/// Maximum size of the headers of a request, in bytes.
const MAX_HEADER_SIZE: usize = 64 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 100;
/// Size of the socket's send buffer, in bytes. A larger one would hide clients that do not read.
const SEND_BUFFER: u32 = 128 << 10;
/// Interval of the search for idle models.
const IDLE_CHECK: Duration = Duration::from_millis(250);
/// Time for writing the prefix cache to disk at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// An error that prevents or ends the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The arguments are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The async runtime cannot be started.
    #[error("cannot start the async runtime: {0}")]
    Runtime(io::Error),
    /// The first model cannot be loaded.
    #[error("{0}")]
    Model(ApiError),
}

/// A server that listens but does not accept connections yet.
pub struct Server {
    state: AppState,
    router: Router,
    listener: TcpListener,
}

/// Runs a server until SIGTERM or Ctrl-C: the whole of `oxidize serve`.
pub fn run(
    config: ServerConfig,
    specs: Vec<ModelSpec>,
    backend: Arc<dyn Backend>,
) -> Result<(), ServeError> {
    log_to_stderr(&config.log)?;
    raise_file_limit();
    let state = AppState::new(config, specs, backend)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(ServeError::Runtime)?;
    let result = runtime.block_on(async {
        let server = Server::bind(state)?;
        // Scripts read the address from stdout, which may also be closed; the log goes to stderr.
        let _ = writeln!(io::stdout(), "listening on http://{}", server.address());
        server.serve(stop_signal()).await
    });
    // Does not wait for blocking threads, which may be loading a model.
    runtime.shutdown_background();
    result
}

impl Server {
    /// Listens on the address of the arguments.
    pub fn bind(state: AppState) -> Result<Server, ServeError> {
        let router = app(state.clone());
        Server::with_router(state, router)
    }

    /// Like [`Server::bind`], with another router; for tests.
    pub fn with_router(state: AppState, router: Router) -> Result<Server, ServeError> {
        let address = state.config().network.address();
        let listener = listen(address).map_err(|error| ServeError::Bind { address, error })?;
        Ok(Server {
            state,
            router,
            listener,
        })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        let address = self.state.config().network.address();
        self.listener.local_addr().unwrap_or(address)
    }

    /// The state of the server.
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Serves requests until `stop` completes, and lets the running ones finish.
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

/// Waits for running requests, up to `--drain`.
async fn drain(graceful: GracefulShutdown, state: &AppState) {
    let timeout = Duration::from_secs(state.config().limits.drain);
    tracing::info!(
        seconds = timeout.as_secs(),
        "shutting down; waiting for running requests"
    );
    tokio::select! {
        () = graceful.shutdown() => tracing::info!("all requests finished"),
        () = tokio::time::sleep(timeout) => tracing::warn!("the time limit for running requests is over"),
    }
    state.models().shut_down(FLUSH_TIMEOUT).await;
}

async fn unload_idle(state: AppState) {
    let default = state.config().idle_unload;
    let default = (default > 0).then(|| Duration::from_secs(default));
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        state.models().unload_idle(default).await;
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
    // Accepted sockets inherit the size.
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
    let places = Arc::new(Semaphore::new(state.config().limits.max_connections.max(1)));
    let timeout = state.config().limits.io_timeout();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_SIZE);
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The client is gone already, or there are no file descriptors left: try again later.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        // Each token is a small packet and must not be delayed.
        let _ = stream.set_nodelay(true);
        state.metrics().connections.increase();
        let io = TokioIo::new(WriteTimeout::new(stream, timeout, state.clone()));
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(io, service));
        let state = state.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection failed");
            }
            state.metrics().connections_closed.increase();
            drop(place);
        });
    }
}

/// A connection that fails if the client does not read for `timeout`.
struct WriteTimeout {
    stream: TcpStream,
    timeout: Duration,
    /// Runs while a write is pending.
    timer: Option<Pin<Box<Sleep>>>,
    state: AppState,
}

impl WriteTimeout {
    fn new(stream: TcpStream, timeout: Duration, state: AppState) -> WriteTimeout {
        WriteTimeout {
            stream,
            timeout,
            timer: None,
            state,
        }
    }

    /// Fails a pending write once the timer has run out.
    fn check_timer<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let deadline = Instant::now() + self.timeout;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.state.metrics().stalled_clients.increase();
        tracing::info!("disconnecting a client that does not read");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, data);
        self.check_timer(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.check_timer(context, polled)
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

/// Completes on SIGTERM or Ctrl-C.
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

fn log_to_stderr(log: &LogConfig) -> Result<(), ConfigError> {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(&log.filter).map_err(|error| ConfigError::Option {
        option: "--log",
        problem: error.to_string(),
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // Fails only if a subscriber is set already, which is used then.
    let _ = match log.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_target(false)
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            .try_init(),
    };
    Ok(())
}
