//! Fetches models by name and prints their paths: `cargo run -p oxidize-hub --example pull hf:USER/REPO`.

use oxidize_hub::{Hub, ModelRef, Observer, Progress, PullOptions};

/// Prints notes, and a dot for each tenth.
struct Notes(std::sync::atomic::AtomicU64);

impl Observer for Notes {
    fn progress(&self, at: Progress<'_>) {
        use std::sync::atomic::Ordering::Relaxed;
        let tenth = at.done.saturating_mul(10) / at.total.max(1);
        if self.0.fetch_max(tenth, Relaxed) < tenth {
            eprintln!("{}: {} of {} bytes", at.file, at.done, at.total);
        }
    }

    fn note(&self, text: &str) {
        eprintln!("{text}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hub = Hub::from_environment()?;
    for name in std::env::args().skip(1) {
        let model = ModelRef::parse(&name).ok_or("expected a name such as hf:USER/REPO")??;
        let notes = Notes(0.into());
        let pulled = hub.pull(
            &model,
            &PullOptions {
                observer: &notes,
                memory: None,
            },
        )?;
        println!("{}", pulled.path.display());
    }
    Ok(())
}
