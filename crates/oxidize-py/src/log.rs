//! Messages of the engine for Python's `logging`.
//!
//! Threads of the engine never call Python: they queue their messages, and Python takes them when it is there.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Messages kept until Python takes them; older ones are dropped.
const MAX_MESSAGES: usize = 1_000;

/// A message: Python's level, the module, and the text.
type Message = (u8, String, String);

static MESSAGES: Mutex<VecDeque<Message>> = Mutex::new(VecDeque::new());
/// The lowest level of Python's that is kept.
static LEVEL: AtomicU8 = AtomicU8::new(30);

/// Keeps messages of at least `level`, a number of Python's `logging`.
#[pyfunction]
pub(crate) fn log_from(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
    // Fails if there is a subscriber already: this one, or that of a server.
    let _ = tracing::subscriber::set_global_default(Queue);
}

/// Takes the messages.
#[pyfunction]
pub(crate) fn take_log() -> Vec<Message> {
    let mut messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
    messages.drain(..).collect()
}

struct Queue;

impl Subscriber for Queue {
    fn register_callsite(&self, _: &Metadata<'_>) -> tracing::subscriber::Interest {
        // The level may change.
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("oxidize")
            && level_number(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let module = metadata
            .target()
            .replace("::", ".")
            .replace("oxidize_", "oxidize.");
        let message = (level_number(*metadata.level()), module, text.0);
        let mut messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.len() >= MAX_MESSAGES {
            messages.pop_front();
        }
        messages.push_back(message);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level_number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// The message, then the fields.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
