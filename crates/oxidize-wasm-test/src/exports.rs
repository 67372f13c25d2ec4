//! Imports and exports of the module; `scripts/wasm_host.mjs` is the other side.

use crate::{Host, load};
use oxidize_core::clock::{Clock, set_clock};
use std::cell::RefCell;
use std::time::Duration;

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Milliseconds since a fixed moment.
    safe fn monotonic() -> f64;
    /// Milliseconds since 1970.
    safe fn unix() -> f64;
    /// Fills memory with random bytes.
    fn random(to: *mut u8, len: usize);
    /// Prints UTF-8 text.
    fn print(text: *const u8, len: usize);
}

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

fn milliseconds(time: f64) -> Duration {
    Duration::from_secs_f64(time / 1e3)
}

fn log(text: &str) {
    // SAFETY: the host reads `len` bytes from the address, which are those of `text`, and keeps no reference.
    unsafe { print(text.as_ptr(), text.len()) }
}

/// Backend of the crate getrandom, which links to this symbol.
// SAFETY: the name and the signature are those that getrandom 0.3 documents for custom backends.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    to: *mut u8,
    len: usize,
) -> Result<(), getrandom::Error> {
    // SAFETY: getrandom passes `len` bytes that may be written; the host writes exactly these.
    unsafe { random(to, len) };
    Ok(())
}

/// Memory for a model file of `len` bytes, which `start` takes.
// SAFETY: no other symbol of the module has this name.
#[unsafe(no_mangle)]
extern "C" fn allocate(len: usize) -> *mut u8 {
    Box::leak(vec![0; len].into_boxed_slice()).as_mut_ptr()
}

/// Loads the model file at an address that `allocate` has returned for this length, once, and submits the requests.
/// Returns false after an error.
// SAFETY: no other symbol of the module has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn start(file: *mut u8, len: usize) -> bool {
    std::panic::set_hook(Box::new(|panic| log(&panic.to_string())));
    set_clock(Clock {
        monotonic: || milliseconds(monotonic()),
        unix: || milliseconds(unix()),
    });
    // SAFETY: `allocate` has leaked a boxed slice of `len` bytes at this address, and the host passes it once.
    let bytes = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(file, len)) };
    let host = load(bytes.into_vec()).and_then(Host::new);
    match host {
        Ok(host) => HOST.set(Some(host)),
        Err(error) => {
            log(&error.to_string());
            return false;
        }
    }
    true
}

/// Makes a step: 1 if there is more to compute, 0 at the end, -1 after an error.
// SAFETY: no other symbol of the module has this name.
#[unsafe(no_mangle)]
extern "C" fn step() -> i32 {
    HOST.with_borrow_mut(|host| match host.as_mut().map(Host::step) {
        Some(Ok(more)) => i32::from(more),
        Some(Err(error)) => {
            log(&error.to_string());
            -1
        }
        None => -1,
    })
}

/// Prints the answers. Returns false after an error, or if the clock did not run.
// SAFETY: no other symbol of the module has this name.
#[unsafe(no_mangle)]
extern "C" fn finish() -> bool {
    HOST.take().is_some_and(|host| match host.answers() {
        Ok(answers) => {
            answers.iter().for_each(|answer| log(answer));
            host.has_timings()
        }
        Err(error) => {
            log(&error.to_string());
            false
        }
    })
}
