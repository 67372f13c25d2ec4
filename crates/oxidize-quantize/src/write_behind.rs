//! [`WriteBehind`]: buffered writing in a thread, so that the next tensor is quantized while the disk writes.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;
/// Maximum number of full buffers in the queue; the writer blocks beyond that.
const WAITING: usize = 16;

/// A writer that passes full buffers to a thread.
pub(crate) struct WriteBehind<'scope> {
    buffer: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    /// `None` after its error was returned.
    thread: Option<ScopedJoinHandle<'scope, io::Result<()>>>,
}

impl<'scope> WriteBehind<'scope> {
    /// Starts the thread that writes to `out`.
    pub(crate) fn new(
        scope: &'scope Scope<'scope, '_>,
        out: &'scope mut (impl Write + Send),
    ) -> WriteBehind<'scope> {
        let (full, to_write) = sync_channel(WAITING);
        let (written, empty) = channel();
        WriteBehind {
            buffer: Vec::with_capacity(BUFFER),
            full,
            empty,
            thread: Some(scope.spawn(move || write_all(out, to_write, written))),
        }
    }

    /// Waits until everything is written.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.send_buffer()?;
        let WriteBehind { full, thread, .. } = self;
        // Closing the channel ends the thread.
        drop(full);
        result(thread)
    }

    /// Sends the buffer to the thread and takes an empty one.
    fn send_buffer(&mut self) -> io::Result<()> {
        let next = self.empty.try_recv();
        let mut next = next.unwrap_or_else(|_| Vec::with_capacity(BUFFER));
        next.clear();
        let buffer = std::mem::replace(&mut self.buffer, next);
        match self.full.send(buffer) {
            Ok(()) => Ok(()),
            // The thread ended early, so it failed.
            Err(_) => result(self.thread.take()).and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl Write for WriteBehind<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(BUFFER - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..n]);
        if self.buffer.len() == BUFFER {
            self.send_buffer()?;
        }
        Ok(n)
    }

    /// Does nothing; [`finish`](WriteBehind::finish) writes the rest.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The body of the thread: writes buffers and returns them for reuse.
fn write_all(
    out: &mut impl Write,
    full: Receiver<Vec<u8>>,
    empty: Sender<Vec<u8>>,
) -> io::Result<()> {
    for buffer in full {
        out.write_all(&buffer)?;
        // A send error means that the writer is gone and needs no more buffers.
        let _ = empty.send(buffer);
    }
    out.flush()
}

fn result(thread: Option<ScopedJoinHandle<'_, io::Result<()>>>) -> io::Result<()> {
    match thread.map(ScopedJoinHandle::join) {
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_order() {
        let bytes: Vec<u8> = (0..3 * BUFFER + 17).map(|i| (i / 251) as u8).collect();
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            let mut behind = WriteBehind::new(scope, &mut out);
            for piece in bytes.chunks(70_001) {
                behind.write_all(piece).unwrap();
            }
            behind.finish().unwrap();
        });
        assert!(out == bytes);
    }

    /// A writer that fails as a full disk does after some bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn write_errors_are_returned() {
        for room in [0, 5 * BUFFER] {
            let mut out = Full(room);
            let error = std::thread::scope(|scope| {
                let mut behind = WriteBehind::new(scope, &mut out);
                let piece = vec![0; BUFFER];
                (0..1000).try_for_each(|_| behind.write_all(&piece))
            });
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        let mut out = Full(3);
        let error = std::thread::scope(|scope| {
            let mut behind = WriteBehind::new(scope, &mut out);
            behind.write_all(b"four").unwrap();
            behind.finish()
        });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
