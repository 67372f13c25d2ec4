//! Test data, and a harness that reports tests without their data as ignored.
//!
//! Rust's own harness has no way to skip a running test: a test that returns early counts as passed. Test
//! targets that need data beyond the repository therefore have `harness = false`, list their tests in
//! [`main!`](crate::main), and call [`cached`] or [`skip`].
//!
//! With `OXIDIZE_REQUIRE_DATA=1`, missing data that `make setup` fetches is a failure.

#![deny(unsafe_code)]

mod peft;

pub use peft::write_peft;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A test: a name and a function that panics on failure.
pub type Test = (&'static str, fn());

/// The `main` function of a test target with `harness = false`: runs these functions as tests. Those after `large`
/// only run with `--include-ignored`.
#[macro_export]
macro_rules! main {
    ($($test:path),* $(,)? $(; large $($large:path),* $(,)?)?) => {
        fn main() -> std::process::ExitCode {
            $crate::run(
                &[$((stringify!($test), $test as fn())),*],
                &[$($((stringify!($large), $large as fn())),*)?],
            )
        }
    };
}

/// Reason of a skipped test, as the payload of its panic.
struct Skipped(String);

/// Runs tests, with the command line of Rust's own harness. Those in `large` are ignored by default.
pub fn run(tests: &'static [Test], large: &'static [Test]) -> ExitCode {
    let trial = |&(name, test): &Test| Trial::ignorable_test(name, move || outcome(test));
    let tests = tests.iter().map(trial);
    let large = large.iter().map(|test| trial(test).with_ignored_flag(true));
    libtest_mimic::run(&Arguments::from_args(), tests.chain(large).collect()).exit_code()
}

fn outcome(test: fn()) -> Result<Completion, Failed> {
    match catch_unwind(AssertUnwindSafe(test)) {
        Ok(()) => Ok(Completion::Completed),
        Err(payload) => match payload.downcast::<Skipped>() {
            Ok(skipped) => Ok(Completion::ignored_with(skipped.0)),
            Err(payload) => resume_unwind(payload),
        },
    }
}

/// Ends the running test as skipped: it needs something that this machine cannot have, or that is not part of the
/// project.
pub fn skip(reason: impl Into<String>) -> ! {
    // Not a panic for the panic hook, which would print it.
    resume_unwind(Box::new(Skipped(reason.into())))
}

/// Ends the running test as skipped, because data is missing that `make setup` fetches; fails with
/// `OXIDIZE_REQUIRE_DATA=1`.
pub fn missing(what: impl std::fmt::Display) -> ! {
    let reason = format!("{what} is missing; run make setup");
    let required = std::env::var_os("OXIDIZE_REQUIRE_DATA").is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    skip(reason)
}

/// Directory of downloaded test data: `OXIDIZE_TEST_CACHE`, or `~/.cache/oxidize`.
pub fn cache() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match set("OXIDIZE_TEST_CACHE") {
        Some(cache) => cache.into(),
        None => PathBuf::from(set("HOME").unwrap_or_default()).join(".cache/oxidize"),
    }
}

/// Directory with more test data beside the checkout, which need not exist: `OXIDIZE_SHARED`, or `../shared`.
pub fn shared() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    std::env::var_os("OXIDIZE_SHARED").map_or_else(beside, PathBuf::from)
}

/// A file or directory of [`shared`]. The running test is skipped if it is missing.
pub fn beside(path: impl AsRef<Path>) -> PathBuf {
    let path = shared().join(path);
    if !path.exists() {
        skip(format!("{} is not part of the project", path.display()));
    }
    path
}

/// A file or directory of the cache. The running test is skipped if it is [missing].
pub fn cached(path: impl AsRef<Path>) -> PathBuf {
    let path = cache().join(path);
    if !path.exists() {
        missing(path.display());
    }
    path
}

/// Files of a directory of the cache with this extension, by name. The running test is skipped if there are none.
pub fn cached_files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let directory = cached(directory);
    let entries = std::fs::read_dir(&directory).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    if files.is_empty() {
        missing(directory.join("*").with_extension(extension).display());
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_ignored_with_their_reason() {
        let Ok(Completion::Ignored { reason }) = outcome(|| skip("no card")) else {
            panic!("not ignored");
        };
        assert_eq!(reason.as_deref(), Some("no card"));
        assert!(matches!(outcome(|| {}), Ok(Completion::Completed)));
    }

    #[test]
    fn failures_stay_failures() {
        let failed = catch_unwind(|| outcome(|| resume_unwind(Box::new("a failure"))));
        assert!(failed.is_err());
    }
}
