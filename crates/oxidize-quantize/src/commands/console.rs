//! What verbs print: [`say!`](crate::say) on standard output, [`remark!`](crate::remark) on standard error.
//!
//! The standard library's `println!` panics where nobody reads any more, as after `| head`, or where a disk
//! is full.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Prints a line of a result. An error where it cannot be written.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => {
        $crate::commands::console::say(format_args!($($argument)*))
    };
}

/// Prints a line beside the result, such as progress, if anybody listens.
#[macro_export]
macro_rules! remark {
    ($($argument:tt)*) => {
        $crate::commands::console::remark(format_args!($($argument)*))
    };
}

/// Prints a line on standard output.
pub fn say(line: Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}

/// Prints a line on standard error. Work goes on where it cannot be written.
pub fn remark(line: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether a result was not printed because nobody reads any more. Whoever closes the pipe, as `head` does, has
/// seen enough.
pub fn is_unread(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
