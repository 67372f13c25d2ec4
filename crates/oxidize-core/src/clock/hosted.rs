//! The clock that the host of a WebAssembly module supplies. Without one, time stands still: durations are zero, and
//! the date is 1970.

#![allow(unsafe_code, reason = "a symbol that another crate imports")]

use std::ops::Sub;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Functions that read the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time since any fixed moment, such as `performance.now()`. It never runs backwards.
    pub monotonic: fn() -> Duration,
    /// Time since 1970, such as `Date.now()`.
    pub unix: fn() -> Duration,
}

static CLOCK: OnceLock<Clock> = OnceLock::new();

/// Sets the clock of all engines in this module. Only the first call has an effect; make it before a model is loaded.
pub fn set_clock(clock: Clock) {
    let _ = CLOCK.set(clock);
}

/// A moment of the monotonic clock, as [`std::time::Instant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Instant {
        let clock = CLOCK.get();
        Instant(clock.map_or(Duration::ZERO, |clock| (clock.monotonic)()))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Instant::now() - self
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The time of day.
pub(crate) fn time_of_day() -> SystemTime {
    let clock = CLOCK.get();
    UNIX_EPOCH + clock.map_or(Duration::ZERO, |clock| (clock.unix)())
}

/// Milliseconds of the monotonic clock, for the crate `instant` of llguidance: it imports this symbol, and the module
/// would otherwise need it from JavaScript.
// SAFETY: no other function of the module is named `now`; the signature is that of the import.
#[unsafe(no_mangle)]
extern "C" fn now() -> f64 {
    Instant::now().0.as_secs_f64() * 1e3
}
