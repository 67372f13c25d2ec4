//! Standard input as text.

use std::io::{IsTerminal, Read};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::Context;

use crate::console::status;

/// Time after which a message says that the program waits for input.
const WAIT_NOTICE_DELAY: Duration = Duration::from_secs(2);

/// True if standard input may have text: it is a file, a pipe or a socket, and no terminal or other device such
/// as `/dev/null`.
pub(crate) fn is_connected() -> bool {
    !std::io::stdin().is_terminal() && is_file_or_pipe()
}

#[cfg(unix)]
fn is_file_or_pipe() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let descriptor = std::io::stdin().as_fd().try_clone_to_owned();
    let data = descriptor.and_then(|descriptor| std::fs::File::from(descriptor).metadata());
    data.is_ok_and(|data| {
        let kind = data.file_type();
        kind.is_file() || kind.is_fifo() || kind.is_socket()
    })
}

#[cfg(not(unix))]
fn is_file_or_pipe() -> bool {
    true
}

/// Reads standard input to its end. Prints a notice if no input arrives for two seconds: the program may have
/// inherited a pipe that nobody writes to.
pub(crate) fn read() -> anyhow::Result<String> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        // The receiver waits until the text is there.
        let _ = sender.send(read.map(|_| text));
    });
    let read = match receiver.recv_timeout(WAIT_NOTICE_DELAY) {
        Err(RecvTimeoutError::Timeout) => {
            status!(
                "waiting for the end of standard input; if there is none to read, add < /dev/null"
            );
            receiver.recv()?
        }
        read => read?,
    };
    read.context("standard input")
}
