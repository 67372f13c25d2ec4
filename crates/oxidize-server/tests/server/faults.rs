//! A fault inside one request ends that request and nothing else. The server runs inside the test here, on a backend
//! that breaks when it meets certain tokens.

use super::*;
use axum::routing::get;
use clap::Parser;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Backend, BackendError, Batch, Device, Session, SessionConfig};
use oxidize_core::graph::{Op, Plan};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Weights;
use oxidize_server::{AppState, ModelSpec, ServeArgs, Server};
use std::sync::Arc;

/// Logits at this token are no numbers.
const NAN: u32 = 300;
/// Reading the logits at this token panics, as a fault in sampling would.
const PANIC: u32 = 301;

struct Faulty;

struct FaultySession {
    inner: Box<dyn Session>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn devices(&self) -> Vec<Device> {
        Cpu::default().devices()
    }

    fn supports(&self, op: &Op) -> bool {
        Cpu::default().supports(op)
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(FaultySession {
            inner: Cpu::default().compile(plan, weights, config)?,
            tokens: Vec::new(),
            logits: Vec::new(),
        }))
    }
}

impl Session for FaultySession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.tokens = batch
            .outputs
            .iter()
            .map(|&row| batch.tokens[row as usize])
            .collect();
        self.inner.run(batch)
    }

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        match self.tokens[index] {
            PANIC => panic!("a fault that the test wanted"),
            NAN => {
                let n = self.inner.output(index)?.len();
                self.logits = vec![f32::NAN; n];
                Ok(&self.logits)
            }
            _ => self.inner.output(index),
        }
    }

    fn copy_blocks(&mut self, moves: &[(BlockId, BlockId)]) -> Result<(), BackendError> {
        self.inner.copy_blocks(moves)
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.inner.read_block(block, out)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_block(block, bytes)
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

/// Serves on a thread of its own; gives the address and what stops it.
fn serve() -> (SocketAddr, tokio::sync::oneshot::Sender<()>) {
    let args = Cli::parse_from(["serve", "--port", "0", "-c", "512"]).args;
    let spec = ModelSpec {
        name: "tiny".into(),
        path: tiny().to_owned(),
    };
    let state = AppState::new(args, vec![spec], Arc::new(Faulty)).unwrap();
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
    let address = told.recv().unwrap();
    wait_until("the model is loaded", || {
        http::request(address, "GET", "/health", &[], "").status == 200
    });
    (address, stop)
}

fn complete(address: SocketAddr, prompt: Value, stream: bool) -> Reply {
    let body = json!({
        "prompt": prompt, "max_tokens": 300, "temperature": 0, "ignore_eos": true, "stream": stream,
        "logit_bias": {"300": -100, "301": -100},
    });
    http::request(address, "POST", "/v1/completions", &[], &body.to_string())
}

#[test]
fn a_fault_ends_one_request() {
    let (address, _stop) = serve();
    let alone = complete(address, json!([5, 6, 7]), false).ok()["choices"].clone();
    // While a long answer is written, others break in every way there is.
    let bystander = std::thread::spawn(move || {
        complete(address, json!([5, 6, 7]), false).ok()["choices"].clone()
    });
    for _ in 0..3 {
        assert!(
            complete(address, json!([5, NAN]), false)
                .error(500)
                .contains("not usable")
        );
        assert!(
            complete(address, json!([5, PANIC]), false)
                .error(500)
                .contains("wanted")
        );
        assert_eq!(complete(address, json!([5, NAN]), true).status, 500);
        assert_eq!(
            http::request(address, "GET", "/broken", &[], "").status,
            500
        );
    }
    assert_eq!(bystander.join().unwrap(), alone);
    assert_eq!(
        complete(address, json!([5, 6, 7]), false).ok()["choices"],
        alone
    );
    let metrics = http::request(address, "GET", "/metrics", &[], "").body;
    assert!(
        metrics.contains("oxidize_used_blocks{model=\"tiny\"} 0"),
        "{metrics}"
    );
}
