//! Output of subcommands: [`outln!`] writes to standard output, [`status!`] to standard error.
//!
//! `println!` of the standard library panics if the reader has closed the pipe, as `| head` does, or the disk
//! is full.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Prints a line of the result; returns an error if it cannot be written.
macro_rules! outln {
    ($($argument:tt)*) => {
        $crate::console::print_result(format_args!($($argument)*))
    };
}

/// Prints a line that is not part of the result, such as progress, and ignores write errors.
macro_rules! status {
    ($($argument:tt)*) => {
        $crate::console::print_status(format_args!($($argument)*))
    };
}

pub(crate) use {outln, status};

/// Prints a line on standard output.
pub(crate) fn print_result(line: Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}

/// Prints a line on standard error and ignores write errors.
pub(crate) fn print_status(line: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// True if the error is a closed pipe: the reader, such as `head`, needs no more output.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
