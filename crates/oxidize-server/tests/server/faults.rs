//! A fault inside one request ends that request and nothing else, and so does a client that leaves. The server runs
//! inside the test here, on a backend that breaks when it meets certain tokens and stops when it is told to.

use super::tampered::{NAN_OUTPUT, PANIC, PANIC_OUTPUT, Tampered};
use super::*;
use axum::routing::get;
use clap::Parser;
use oxidize_core::backend::Backend;
use oxidize_server::{AppState, ModelSpec, ServeArgs, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

/// A server on a thread of its own, until it is dropped.
struct Inside {
    address: SocketAddr,
    _stop: tokio::sync::oneshot::Sender<()>,
}

fn serve(backend: Arc<dyn Backend>) -> Inside {
    let args = Cli::parse_from(["serve", "--port", "0", "-c", "512"]).args;
    let spec = ModelSpec {
        name: "tiny".into(),
        path: tiny().to_owned(),
    };
    let state = AppState::new(args, vec![spec], backend).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let broken = axum::Router::new().route(
                "/broken",
                get(async || -> &'static str { panic!("a handler") }),
            );
            let whole = oxidize_server::app::app(state.clone());
            let router =
                oxidize_server::app::layered(broken, state.clone()).fallback_service(whole);
            let server = Server::with_router(state, router).unwrap();
            tell.send(server.address()).unwrap();
            server.serve(async { drop(stopped.await) }).await.unwrap();
        });
    });
    let inside = Inside {
        address: told.recv().unwrap(),
        _stop: stop,
    };
    wait_until("the model is loaded", || {
        inside.get("/health").status == 200
    });
    inside
}

impl Inside {
    fn get(&self, path: &str) -> Reply {
        http::request(self.address, "GET", path, &[], "")
    }

    /// Asks for a completion of these tokens that meets no other fault.
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

    fn metrics_say(&self, line: &str) -> bool {
        self.get("/metrics").body.lines().any(|known| known == line)
    }
}

/// The answers, without what differs from time to time.
fn choices(reply: &Reply) -> Value {
    reply.ok()["choices"].clone()
}

/// Panics inside the grammar, where it writes to the log: while one runs, and, when told to, while one is compiled.
struct Saboteur;

static BREAKS_COMPILER: AtomicBool = AtomicBool::new(false);

impl Subscriber for Saboteur {
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
        assert!(!runs && !BREAKS_COMPILER.load(Relaxed), "a grammar");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_fault_ends_one_request() {
    let server = serve(Tampered::faulty());
    let prompt = [5, 6, 7];
    let alone = choices(&server.complete(&prompt, json!({})));
    let constrained = json!({"grammar": "root ::= \"yes\" | \"no\""});
    server.complete(&prompt, constrained.clone()).ok();
    tracing::subscriber::set_global_default(Saboteur).unwrap();
    // While a long answer is written, others break in every way there is.
    let bystander = server.ask(&prompt, json!({}));
    for _ in 0..3 {
        let error = |tokens: &[u32], more| server.complete(tokens, more).error(500);
        assert!(error(&[5, NAN_OUTPUT], json!({})).contains("not usable"));
        assert!(error(&[5, PANIC_OUTPUT], json!({})).contains("deliberate"));
        assert_eq!(
            error(&prompt, constrained.clone()),
            "internal error: a grammar"
        );
        BREAKS_COMPILER.store(true, Relaxed);
        let message = error(&prompt, constrained.clone());
        assert!(message.contains("a fault while it was compiled"));
        BREAKS_COMPILER.store(false, Relaxed);
        let streamed = server.complete(&[5, NAN_OUTPUT], json!({"stream": true}));
        assert_eq!(streamed.status, 500);
        assert_eq!(server.get("/broken").status, 500);
    }
    assert_eq!(choices(&http::read(bystander)), alone);
    assert_eq!(choices(&server.complete(&prompt, json!({}))), alone);
    // They are given back a moment after the answer.
    wait_until("no block is in use", || {
        server.metrics_say("oxidize_used_blocks{model=\"tiny\"} 0")
    });
}

#[test]
fn a_client_that_leaves_is_in_no_further_step() {
    let backend = Tampered::gated();
    let server = serve(backend.clone());
    let alone = choices(&server.complete(&[5, 6, 7], json!({})));
    // From here on, no step is computed that is not allowed.
    backend.allow(0);
    let stays = server.ask(&[5, 6, 7], json!({}));
    let leaves = server.ask(&[5, 6, 8], json!({"stream": true}));
    wait_until("both are in", || {
        let slots = server.get("/slots").ok();
        let busy = |slot: &&Value| slot["is_processing"] == true;
        slots.as_array().unwrap().iter().filter(busy).count() == 2
    });
    backend.allow(4);
    wait_until("both run", || {
        server.metrics_say("oxidize_running{model=\"tiny\"} 2")
    });
    drop(leaves);
    wait_until("the server has noticed", || {
        server.metrics_say("oxidize_cancelled_total 1")
    });
    // The step that was on its way, and one without the client.
    backend.allow(2);
    wait_until("one is left", || {
        server.metrics_say("oxidize_running{model=\"tiny\"} 1")
    });
    backend.allow_all();
    assert_eq!(choices(&http::read(stays)), alone);
    wait_until("all is given back", || {
        server.metrics_say("oxidize_used_blocks{model=\"tiny\"} 0")
    });
}
