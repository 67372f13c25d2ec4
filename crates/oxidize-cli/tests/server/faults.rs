//! Faults and disconnects end one request and nothing else. The server runs inside the test, on a backend
//! that panics or returns NaN for certain tokens and pauses on demand.

use super::faulty_backend::{FaultyBackend, NAN_OUTPUT, PANIC, PANIC_OUTPUT};
use super::*;
use axum::routing::get;
use oxidize_core::backend::Backend;
use oxidize_server::{AppState, ModelSpec, Server, ServerConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A server on a thread of the test, stopped when it is dropped.
pub(crate) struct LocalServer {
    pub(crate) address: SocketAddr,
    _stop: tokio::sync::oneshot::Sender<()>,
}

fn serve(backend: Arc<dyn Backend>) -> LocalServer {
    serve_with(ServerConfig::default(), backend)
}

/// Starts a server with these settings on a free port.
pub(crate) fn serve_with(mut config: ServerConfig, backend: Arc<dyn Backend>) -> LocalServer {
    config.network.port = 0;
    config.engine.ctx_size = Some(512);
    let spec = ModelSpec {
        name: "tiny".into(),
        path: tiny().to_owned(),
    };
    let state = AppState::new(config, vec![spec], backend).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let panics = axum::Router::new().route(
                "/panics",
                get(async || -> &'static str { panic!("a handler") }),
            );
            let app = oxidize_server::app::app(state.clone());
            let router = oxidize_server::app::layered(panics, state.clone()).fallback_service(app);
            let server = Server::with_router(state, router).unwrap();
            sender.send(server.address()).unwrap();
            server.serve(async { drop(stopped.await) }).await.unwrap();
        });
    });
    let server = LocalServer {
        address: address.recv().unwrap(),
        _stop: stop,
    };
    wait_until("the model is loaded", || {
        server.get("/health").status == 200
    });
    server
}

impl LocalServer {
    fn get(&self, path: &str) -> Reply {
        http::request(self.address, "GET", path, &[], "")
    }

    /// Requests a completion of these tokens; the answer contains none of the tokens that cause faults.
    fn ask(&self, tokens: &[u32], more: Value) -> std::net::TcpStream {
        let mut body = json!({
            "prompt": tokens, "max_tokens": 300, "temperature": 0, "ignore_eos": true,
            "logit_bias": (PANIC..=NAN_OUTPUT).map(|token| json!([token, false])).collect::<Vec<_>>(),
        });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        http::open(
            self.address,
            "POST",
            "/v1/completions",
            &[],
            &body.to_string(),
        )
    }

    fn complete(&self, tokens: &[u32], more: Value) -> Reply {
        http::read(self.ask(tokens, more))
    }

    fn has_metric(&self, line: &str) -> bool {
        self.get("/metrics").body.lines().any(|known| known == line)
    }
}

/// The answers without ids and timings.
fn choices(reply: &Reply) -> Value {
    reply.ok()["choices"].clone()
}

/// A log subscriber that panics inside the grammar: on each token, and on compilation if `PANICS_IN_COMPILER`
/// is set.
struct PanickingSubscriber;

static PANICS_IN_COMPILER: AtomicBool = AtomicBool::new(false);

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("oxidize_core::grammar")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let runs = event.metadata().fields().field("token").is_some();
        assert!(!runs && !PANICS_IN_COMPILER.load(Relaxed), "a grammar");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_panic_ends_one_request() {
    let server = serve(FaultyBackend::faulty());
    let prompt = [5, 6, 7];
    let alone = choices(&server.complete(&prompt, json!({})));
    let constrained = json!({"grammar": "root ::= \"yes\" | \"no\""});
    server.complete(&prompt, constrained.clone()).ok();
    tracing::subscriber::set_global_default(PanickingSubscriber).unwrap();
    // While a long answer is generated, other requests fail in every way.
    let bystander = server.ask(&prompt, json!({}));
    for _ in 0..3 {
        let error = |tokens: &[u32], more| server.complete(tokens, more).error(500);
        assert!(error(&[5, NAN_OUTPUT], json!({})).contains("not usable"));
        assert!(error(&[5, PANIC_OUTPUT], json!({})).contains("deliberate"));
        assert_eq!(
            error(&prompt, constrained.clone()),
            "internal error: a grammar"
        );
        PANICS_IN_COMPILER.store(true, Relaxed);
        let message = error(&prompt, constrained.clone());
        assert!(message.contains("internal error during compilation"));
        PANICS_IN_COMPILER.store(false, Relaxed);
        let streamed = server.complete(&[5, NAN_OUTPUT], json!({"stream": true}));
        assert_eq!(streamed.status, 500);
        assert_eq!(server.get("/panics").status, 500);
    }
    assert_eq!(choices(&http::read(bystander)), alone);
    assert_eq!(choices(&server.complete(&prompt, json!({}))), alone);
    // Blocks are freed a moment after the answer.
    wait_until("no block is in use", || {
        server.has_metric("oxidize_used_blocks{model=\"tiny\"} 0")
    });
}

#[test]
fn disconnected_clients_are_removed_from_the_batch() {
    let backend = FaultyBackend::gated();
    let server = serve(backend.clone());
    let alone = choices(&server.complete(&[5, 6, 7], json!({})));
    // From here on, the backend waits for each step to be allowed.
    backend.allow(0);
    let stays = server.ask(&[5, 6, 7], json!({}));
    let leaves = server.ask(&[5, 6, 8], json!({"stream": true}));
    wait_until("both were admitted", || {
        let slots = server.get("/slots").ok();
        let busy = |slot: &&Value| slot["is_processing"] == true;
        slots.as_array().unwrap().iter().filter(busy).count() == 2
    });
    backend.allow(4);
    wait_until("both run", || {
        server.has_metric("oxidize_requests_running{model=\"tiny\"} 2")
    });
    drop(leaves);
    wait_until("the server has noticed", || {
        server.has_metric("oxidize_cancelled_total 1")
    });
    // The step in progress, and one without the client.
    backend.allow(2);
    wait_until("one is left", || {
        server.has_metric("oxidize_requests_running{model=\"tiny\"} 1")
    });
    backend.allow_all();
    assert_eq!(choices(&http::read(stays)), alone);
    wait_until("all blocks are free", || {
        server.has_metric("oxidize_used_blocks{model=\"tiny\"} 0")
    });
}
