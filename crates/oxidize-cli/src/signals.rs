//! Graceful stop: Ctrl-C, a closed terminal or `kill` set a flag that long work checks, and the program exits
//! with the status that shells expect.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use oxidize_quantize::Error;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The flag that a signal sets, so that work can stop cleanly. A second signal ends the program at once.
pub(crate) fn interrupted() -> &'static AtomicBool {
    &handlers().flag
}

/// Exit status after an error.
pub(crate) const FAILURE: u8 = 1;

/// The exit status after an error: 128 plus the signal if a signal stopped the work, else [`FAILURE`].
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let stopped = error
        .chain()
        .any(|cause| matches!(cause.downcast_ref(), Some(Error::Interrupted { .. })));
    let signal = handlers().signal.load(Ordering::Relaxed);
    match u8::try_from(128 + signal) {
        Ok(code) if stopped && signal != 0 => code,
        _ => FAILURE,
    }
}

/// The state that the signal handlers set.
#[derive(Default)]
struct Handlers {
    flag: Arc<AtomicBool>,
    /// Number of the received signal; 0 before that.
    signal: Arc<AtomicUsize>,
}

fn handlers() -> &'static Handlers {
    static HANDLERS: OnceLock<Handlers> = OnceLock::new();
    HANDLERS.get_or_init(|| {
        let handlers = Handlers::default();
        for &signal in SIGNALS.iter().filter(|signal| !is_ignored(**signal)) {
            let number = signal.unsigned_abs() as usize;
            // The order matters: the conditional shutdown tests the flag that the last handler sets. A signal
            // that cannot be caught keeps its default action.
            let _ =
                flag::register_conditional_shutdown(signal, 128 + signal, handlers.flag.clone())
                    .and_then(|_| flag::register_usize(signal, handlers.signal.clone(), number))
                    .and_then(|_| flag::register(signal, handlers.flag.clone()));
        }
        handlers
    })
}

#[cfg(unix)]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM];

/// True if the parent process ignores the signal for this program, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    // Only Linux has this file; elsewhere no signal counts as ignored.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
