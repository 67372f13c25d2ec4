//! Backends with devices of their own: sessions on several devices, and weights that are copied to a device and then
//! released on the host.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{
    Backend, BackendError, Batch, Device, SeqSlice, Session, SessionConfig,
};
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::error::Error;
use oxidize_core::file::{OpenOptions, TensorBytes};
use oxidize_core::graph::Plan;
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_core::recipe::QuantRecipe;
use oxidize_core::synth::{Shape, Synthesis};
use oxidize_core::weights::{PreparedWeights, Weight, Weights};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A backend with two devices. Each has a copy of the weights, which its sessions share; the copies are computed with
/// by another backend.
struct TwoDevices<B> {
    inner: B,
    /// Sessions that were compiled for each device.
    n_compiled: [AtomicUsize; 2],
}

impl<B> TwoDevices<B> {
    fn new(inner: B) -> TwoDevices<B> {
        TwoDevices {
            inner,
            n_compiled: Default::default(),
        }
    }
}

/// The weights in the memory of a device.
#[derive(Default)]
struct Uploaded(Mutex<Option<Weights>>);

impl PreparedWeights for Uploaded {
    fn own_size(&self) -> u64 {
        0
    }
}

/// Copies weights one at a time, and releases each on the host.
fn upload(weights: &Weights) -> Weights {
    let mut copies = Weights::default();
    for weight in weights.iter() {
        let loaded = weight.loaded().unwrap();
        push_copy(&mut copies, &loaded);
        drop(loaded);
        weight.release();
    }
    copies
}

fn push_copy(copies: &mut Weights, weight: &Weight) {
    let floats = weight.as_f32();
    if !floats.is_empty() {
        copies.push_stack(&weight.name, floats.to_vec(), weight.n_experts);
        return;
    }
    let matrices = (0..weight.n_experts).map(|matrix| {
        let bytes = TensorBytes::from(weight.expert(matrix).to_vec());
        bytes.aligned(64).unwrap()
    });
    let pieces = matrices.collect();
    let (ty, rows, cols) = (weight.ty, weight.rows, weight.cols);
    copies.push_matrix(&weight.name, ty, rows, cols, pieces, weight.n_experts);
}

impl<B: Backend> Backend for TwoDevices<B> {
    fn name(&self) -> &'static str {
        "two-devices"
    }

    fn devices(&self) -> Vec<Device> {
        let device = |index| Device {
            name: format!("device {index}"),
            memory: None,
        };
        [0, 1].map(device).into()
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        config.check_device(self)?;
        self.n_compiled[config.device].fetch_add(1, Ordering::Relaxed);
        let uploaded = weights.prepared::<Uploaded>(config.device);
        let mut uploaded = uploaded.0.lock().unwrap();
        let uploaded = uploaded.get_or_insert_with(|| upload(weights));
        let own = SessionConfig {
            device: 0,
            ..config.clone()
        };
        self.inner.compile(plan, uploaded, &own)
    }
}

fn config(device: usize) -> SessionConfig {
    SessionConfig {
        device,
        n_threads: Some(2),
        ..SessionConfig::for_context(64)
    }
}

/// Runs a token of a sequence; returns the bits of the logits.
fn step(session: &mut dyn Session, token: u32, position: u32) -> Vec<u32> {
    session
        .run(&Batch {
            tokens: &[token],
            positions: &[position],
            sequences: &[SeqSlice {
                n_tokens: 1,
                blocks: &[BlockId(0)],
                slot: 0,
                ..SeqSlice::default()
            }],
            outputs: &[0],
        })
        .unwrap();
    let logits = session.output(0).unwrap();
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Runs two sessions by turns; returns the results of both.
fn by_turns(sessions: [&mut dyn Session; 2]) -> [Vec<Vec<u32>>; 2] {
    let mut results = [Vec::new(), Vec::new()];
    let mut sessions = sessions;
    for (position, token) in (0..).zip([1, 20, 300, 7, 45]) {
        for (session, results) in sessions.iter_mut().zip(&mut results) {
            results.push(step(*session, token, position));
        }
    }
    results
}

fn tiny() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf")
}

fn load(path: &Path, mmap: bool) -> Model {
    let options = OpenOptions {
        mmap,
        ..OpenOptions::default()
    };
    Model::load_with(path, &options).unwrap()
}

fn check_two_sessions<B: Backend>(inner: impl Fn() -> B) {
    let model = load(&tiny(), true);
    let mut plain = model.session(&inner(), &config(0)).unwrap();
    let mut again = model.session(&inner(), &config(0)).unwrap();
    let [expected, _] = by_turns([plain.as_mut(), again.as_mut()]);

    let backend = TwoDevices::new(inner());
    let [mut first, mut second] =
        [0, 1].map(|device| model.session(&backend, &config(device)).unwrap());
    let [on_first, on_second] = by_turns([first.as_mut(), second.as_mut()]);
    assert_eq!(on_first, expected);
    assert_eq!(on_second, expected);
    assert_eq!(backend.n_compiled.map(AtomicUsize::into_inner), [1, 1]);
}

#[test]
fn sessions_on_two_devices_have_equal_results() {
    check_two_sessions(|| Reference);
    check_two_sessions(Cpu::default);
}

#[test]
fn sessions_on_one_device_share_its_weights() {
    let model = load(&tiny(), true);
    let backend = TwoDevices::new(Cpu::default());
    let sessions: Vec<_> = [0, 0, 1]
        .into_iter()
        .map(|device| model.session(&backend, &config(device)).unwrap())
        .collect();
    let copies = [0, 1].map(|device| {
        let uploaded = model.weights().prepared::<Uploaded>(device);
        let uploaded = uploaded.0.lock().unwrap();
        let first = uploaded.as_ref().unwrap().iter().next().unwrap().clone();
        first.bytes().as_ptr()
    });
    assert_ne!(copies[0], copies[1]);
    assert_eq!(sessions.len(), 3);
    assert_eq!(backend.n_compiled.map(AtomicUsize::into_inner), [2, 1]);
}

#[test]
fn the_engine_runs_on_the_device_of_its_configuration() {
    let backend = Arc::new(TwoDevices::new(Cpu::default()));
    let config = |device| EngineConfig {
        device,
        n_ctx: Some(64),
        ..EngineConfig::default()
    };
    let text = |device| {
        let engine = Engine::start(load(&tiny(), true), backend.clone(), &config(device)).unwrap();
        let request = Request::new(vec![1, 20, 300, 7]).max_tokens(12);
        let stream = engine
            .submit(request.ignore_eos().temperature(0.0))
            .unwrap();
        stream.text().unwrap()
    };
    assert_eq!(text(1), text(0));
    let compiled = || {
        backend
            .n_compiled
            .each_ref()
            .map(|n| n.load(Ordering::Relaxed))
    };
    assert_eq!(compiled(), [1, 1]);
    let error = Engine::start(load(&tiny(), true), backend.clone(), &config(2));
    match error.map(|_| ()).unwrap_err() {
        Error::Backend(BackendError::NoDevice {
            backend: "two-devices",
            device: 2,
            n_devices: 2,
        }) => {}
        error => panic!("{error}"),
    }
    assert_eq!(compiled(), [1, 1]);
}

/// Bytes of weights that are not in a file as they are: vectors.
fn vectors(model: &Model) -> u64 {
    let vectors = model.weights().iter();
    vectors
        .map(|weight| size_of_val(weight.as_f32()) as u64)
        .sum()
}

/// A backend that copies weights leaves nothing of the matrices on the host, whatever their type, and other backends
/// read them again.
#[test]
fn copied_weights_are_released_on_the_host() {
    for recipe in ["F16", "Q4_K_M", "IQ3_S"] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let synthesis = Synthesis {
            shape: Shape::named("tiny").unwrap(),
            recipe: QuantRecipe::named(recipe).unwrap(),
            seed: 3,
        };
        synthesis.save(file.path(), |_, _| {}).unwrap();
        check_released(file.path(), recipe);
    }
    check_released(&tiny(), "tiny");
}

/// Matrices that share a tensor of the file: queries, keys and values in one.
#[test]
fn parts_of_a_tensor_are_released_together() {
    let golden = oxidize_golden::build("phi3");
    let directory = golden.directory();
    let model = load(directory, false);
    let shared = model.weights().iter();
    let shared = shared.filter(|weight| weight.name.contains("qkv_proj"));
    assert!(shared.count() >= 3);
    check_released(directory, "phi3");
}

fn check_released(path: &Path, what: &str) {
    let mapped = load(path, true);
    let read = load(path, false);
    let mut expected = mapped.session(&Reference, &config(0)).unwrap();
    let before = read.weights().own_size();
    assert!(before > vectors(&read), "{what}");

    let backend = TwoDevices::new(Reference);
    let mut session = read.session(&backend, &config(1)).unwrap();
    assert_eq!(read.weights().own_size(), vectors(&read), "{what}");
    assert_eq!(read.weights().size(), before, "{what}");
    let [results, expected] = by_turns([session.as_mut(), expected.as_mut()]);
    assert_eq!(results, expected, "{what}");

    // Another backend reads them from the file again, and so does another device.
    let mut in_place = read.session(&Reference, &config(0)).unwrap();
    let mut other = read.session(&backend, &config(0)).unwrap();
    let [in_place, other] = by_turns([in_place.as_mut(), other.as_mut()]);
    assert_eq!(in_place, expected, "{what}");
    assert_eq!(other, expected, "{what}");
}
