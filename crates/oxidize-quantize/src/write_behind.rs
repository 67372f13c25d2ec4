//! [`WriteBehind`]: writing that does not wait for the disk, so that the next tensor is computed
//! while one is written.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;
/// Full buffers that may wait; the writer of a seventeenth does.
const WAITING: usize = 16;

/// Hands what it is given to a thread that writes it.
pub(crate) struct WriteBehind<'scope> {
    buffer: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    /// Until an error has been reported.
    thread: Option<ScopedJoinHandle<'scope, io::Result<()>>>,
}

impl<'scope> WriteBehind<'scope> {
    /// Begins to write to `out`.
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

    /// Waits until all is written.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.hand_over()?;
        let WriteBehind { full, thread, .. } = self;
        // Tells the thread that nothing more comes.
        drop(full);
        result(thread)
    }

    /// Gives the buffer to the thread, and takes an empty one.
    fn hand_over(&mut self) -> io::Result<()> {
        let next = self.empty.try_recv();
        let mut next = next.unwrap_or_else(|_| Vec::with_capacity(BUFFER));
        next.clear();
        let buffer = std::mem::replace(&mut self.buffer, next);
        match self.full.send(buffer) {
            Ok(()) => Ok(()),
            // It has ended, so it failed.
            Err(_) => result(self.thread.take()).and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl Write for WriteBehind<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(BUFFER - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..n]);
        if self.buffer.len() == BUFFER {
            self.hand_over()?;
        }
        Ok(n)
    }

    /// What is left is written by [`finish`](WriteBehind::finish).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread: writes what comes, and gives the buffers back.
fn write_all(
    out: &mut impl Write,
    full: Receiver<Vec<u8>>,
    empty: Sender<Vec<u8>>,
) -> io::Result<()> {
    for buffer in full {
        out.write_all(&buffer)?;
        // Nobody needs it any more if it cannot be sent.
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
    fn everything_arrives_in_order() {
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

    /// A disk that is full after some bytes.
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
    fn errors_come_back() {
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
