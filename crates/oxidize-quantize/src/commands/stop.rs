//! Being asked to stop: Ctrl-C, a closed terminal or `kill` end the work in good order, and the
//! program with the status that shells expect.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::Error;

/// A flag that a signal sets, so that work ends in good order. A second one does not wait for that.
pub fn interrupted() -> &'static AtomicBool {
    &asked().flag
}

/// What the program ends with after an error: 128 and the signal if it was asked to stop, else 1.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let stopped = error
        .chain()
        .any(|cause| matches!(cause.downcast_ref(), Some(Error::Interrupted { .. })));
    let signal = asked().signal.load(Ordering::Relaxed);
    match u8::try_from(128 + signal) {
        Ok(code) if stopped && signal != 0 => code.into(),
        _ => ExitCode::FAILURE,
    }
}

/// Who asked to stop.
#[derive(Default)]
struct Asked {
    flag: Arc<AtomicBool>,
    /// The signal's number; 0 until there is one.
    signal: Arc<AtomicUsize>,
}

fn asked() -> &'static Asked {
    static ASKED: OnceLock<Asked> = OnceLock::new();
    ASKED.get_or_init(|| {
        let asked = Asked::default();
        for &signal in SIGNALS.iter().filter(|signal| !is_ignored(**signal)) {
            let number = signal.unsigned_abs() as usize;
            // In this order, since the first looks whether the last has happened before. Where a
            // signal cannot be caught, it ends the program as ever.
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, asked.flag.clone())
                .and_then(|_| flag::register_usize(signal, asked.signal.clone(), number))
                .and_then(|_| flag::register(signal, asked.flag.clone()));
        }
        asked
    })
}

#[cfg(unix)]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM];

/// Whether whoever started the program wanted it deaf to a signal, as `nohup` does.
pub fn is_ignored(signal: i32) -> bool {
    // Elsewhere there is no such file, and nothing is ignored.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
