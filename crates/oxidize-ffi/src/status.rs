//! [`Status`]: the result of every function, and the message of the last failure on each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use oxidize_core::Error;
use oxidize_core::error::{BackendError, EngineError, ModelError, SubmitError};

/// Result of a function: negative for a failure, whose message `oxidize_last_error` returns.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The function did what it was asked for.
    Ok = 0,
    /// The answer has ended; `oxidize_stream_get_result` has the reason.
    End = 1,
    /// There is nothing yet: no token within the time-out, or no result before the end.
    Pending = 2,
    /// An argument is a null pointer, out of range, or does not fit the model.
    InvalidArgument = -1,
    /// A handle is 0, was freed, was never issued, or belongs to something of another kind.
    InvalidHandle = -2,
    /// A text is not UTF-8.
    InvalidUtf8 = -3,
    /// The caller's buffer is too small; the length that is needed has been written.
    BufferTooSmall = -4,
    /// The model has no such key, template or token.
    NotFound = -5,
    /// A file cannot be read.
    Io = -6,
    /// A model or an adapter is broken, not supported, or unfit for the purpose.
    Model = -7,
    /// There is not enough memory for the model and its caches.
    OutOfMemory = -8,
    /// The prompt does not fit into the context.
    PromptTooLong = -9,
    /// Too many requests are waiting.
    QueueFull = -10,
    /// A callback ended the work.
    Canceled = -11,
    /// Another thread is reading this stream.
    Busy = -12,
    /// The engine was freed, or has stopped after a fault.
    Stopped = -13,
    /// The process is a fork of the one that made the handle, and has none of its threads.
    Forked = -14,
    /// A fault inside the library.
    Internal = -15,
}

impl Status {
    /// All values.
    const ALL: [(Status, &'static CStr); 18] = [
        (Status::Ok, c"ok"),
        (Status::End, c"end of the answer"),
        (Status::Pending, c"nothing yet"),
        (Status::InvalidArgument, c"invalid argument"),
        (Status::InvalidHandle, c"invalid handle"),
        (Status::InvalidUtf8, c"invalid UTF-8"),
        (Status::BufferTooSmall, c"buffer too small"),
        (Status::NotFound, c"not found"),
        (Status::Io, c"input or output error"),
        (Status::Model, c"unusable model"),
        (Status::OutOfMemory, c"out of memory"),
        (Status::PromptTooLong, c"prompt too long"),
        (Status::QueueFull, c"queue full"),
        (Status::Canceled, c"canceled"),
        (Status::Busy, c"busy"),
        (Status::Stopped, c"engine stopped"),
        (Status::Forked, c"forked process"),
        (Status::Internal, c"internal error"),
    ];
}

/// A failure on its way to the caller: its status and its message.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
        }
    }

    /// An argument that cannot be used.
    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::new(Status::InvalidArgument, message)
    }

    /// Keeps the message for this thread.
    pub(crate) fn report(self) -> Status {
        let mut bytes = self.message.into_bytes();
        bytes
            .iter_mut()
            .filter(|byte| **byte == 0)
            .for_each(|byte| *byte = b' ');
        let message = CString::new(bytes).unwrap_or_default();
        // A thread that is ending has no place for it.
        let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = message);
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(status_of(&error), error.to_string())
    }
}

impl From<oxidize_core::error::ChatError> for Failure {
    fn from(error: oxidize_core::error::ChatError) -> Failure {
        Error::from(error).into()
    }
}

fn status_of(error: &Error) -> Status {
    match error {
        Error::Io { .. } | Error::MissingParts { .. } => Status::Io,
        Error::Canceled { .. } => Status::Canceled,
        Error::Model(ModelError::OutOfMemory { .. })
        | Error::Backend(BackendError::OutOfMemory { .. }) => Status::OutOfMemory,
        Error::Chat(_) => Status::InvalidArgument,
        Error::Backend(
            BackendError::KvType { .. }
            | BackendError::NoDevice { .. }
            | BackendError::TooManyThreads { .. }
            | BackendError::TokenOutOfRange { .. },
        ) => Status::InvalidArgument,
        Error::Backend(_) => Status::Internal,
        Error::Engine(error) => match error {
            EngineError::Submit(SubmitError::QueueFull { .. }) => Status::QueueFull,
            EngineError::Submit(SubmitError::TooLong { .. }) => Status::PromptTooLong,
            EngineError::Stopped => Status::Stopped,
            EngineError::Internal(_) | EngineError::Thread(_) => Status::Internal,
            EngineError::NoText(_) | EngineError::NoScores(_) => Status::Model,
            _ => Status::InvalidArgument,
        },
        _ => Status::Model,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function of the interface. Nothing unwinds out of it: a panic is [`Status::Internal`].
pub(crate) fn entry(body: impl FnOnce() -> Result<Status, Failure>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => Failure::new(Status::Internal, panic_message(panic.as_ref())).report(),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}", text.unwrap_or("a panic"))
}

/// Message of the last failure on this thread, in UTF-8. Empty if there was none.
///
/// The library owns the text. It is valid until the next function fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_last_error() -> *const c_char {
    // The string stays where it is while nothing replaces it.
    let pointer = LAST_ERROR.try_with(|last| last.borrow().as_ptr());
    pointer.unwrap_or(c"".as_ptr())
}

/// A few English words for a status, for logs. Never null; the text is static.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_status_text(status: i32) -> *const c_char {
    let known = Status::ALL
        .iter()
        .find(|(known, _)| *known as i32 == status);
    known.map_or(c"unknown status", |(_, text)| text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the pointer is to a string of this thread, which no call replaces before it is copied.
        let text = unsafe { CStr::from_ptr(oxidize_last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        let status = entry(|| panic!("broken {}", "thing"));
        assert_eq!(status, Status::Internal);
        assert_eq!(last_error(), "internal error: broken thing");
    }

    #[test]
    fn messages_belong_to_their_thread() {
        let fail = |text: &'static str| entry(|| Err(Failure::argument(text)));
        assert_eq!(fail("of the first"), Status::InvalidArgument);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(last_error(), "");
                fail("of the second");
                assert_eq!(last_error(), "of the second");
            });
        });
        assert_eq!(last_error(), "of the first");
        assert_eq!(entry(|| Ok(Status::Ok)), Status::Ok);
        assert_eq!(last_error(), "of the first", "a success changes nothing");
    }

    #[test]
    fn a_message_with_nul_is_whole() {
        entry(|| Err(Failure::argument("before\0after")));
        assert_eq!(last_error(), "before after");
    }

    #[test]
    fn every_status_has_a_text() {
        for (status, text) in Status::ALL {
            // SAFETY: the text is static and ends with NUL.
            let found = unsafe { CStr::from_ptr(oxidize_status_text(status as i32)) };
            assert_eq!(found, text);
        }
        // SAFETY: as above.
        let unknown = unsafe { CStr::from_ptr(oxidize_status_text(1234)) };
        assert_eq!(unknown, c"unknown status");
    }
}
