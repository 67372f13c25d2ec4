//! Time: the clock of the operating system or, in WebAssembly without one, a clock of the host.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
mod system {
    pub(crate) use std::time::Instant;
    use std::time::SystemTime;

    /// The time of day.
    pub(crate) fn time_of_day() -> SystemTime {
        SystemTime::now()
    }
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod hosted;

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub use hosted::{Clock, set_clock};
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub(crate) use hosted::{Instant, time_of_day};
#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub(crate) use system::{Instant, time_of_day};
