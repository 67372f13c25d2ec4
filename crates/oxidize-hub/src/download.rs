//! [`Download`]: fetches one file over several ranged connections, resumes, verifies and renames it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::client::{Answer, Client, Request, is_passing, retry_after};
use crate::disk::{beside, free_space, is_full, remove, write_at};
use crate::error::{Error, Result};
use crate::pieces::{MAX_PIECES, PieceMap};
use crate::progress::{Progress, Stage, Tally};
use crate::settings::Token;
use crate::url::{Origin, Url};

/// Longest range of one request, in pieces.
const MAX_RUN: usize = 64;

/// Bytes read at once.
const BUFFER: usize = 1 << 16;

/// The announced checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// SHA-256 in hexadecimal digits.
    Sha256(String),
    /// SHA-1 of git: of `blob LENGTH\0` and the bytes.
    GitSha1(String),
}

/// A file to fetch.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a Client,
    /// Name of the model.
    pub(crate) name: &'a str,
    /// Name of the file, for messages.
    pub(crate) file: &'a str,
    pub(crate) url: Url,
    pub(crate) token: Option<(&'a Token, &'a Origin)>,
    pub(crate) size: u64,
    pub(crate) checksum: Option<Checksum>,
    /// Identity of the bytes: the checksum, or an ETag that makes resuming safe.
    pub(crate) identity: String,
    /// Strong validator of the server for `If-Range`.
    pub(crate) validator: Option<String>,
    /// Turns the answer to the first address into an error.
    pub(crate) failure: &'a (dyn Fn(Answer) -> Error + Sync),
    pub(crate) tally: &'a Tally<'a>,
}

/// A problem of one request.
enum Problem {
    /// The next try may succeed, after this time if one is given.
    Passing(Box<Error>, Option<std::time::Duration>),
    /// The server ignores ranges: it sent the whole file.
    NoRanges,
    Final(Box<Error>),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match error.is_unreachable() {
            true => Problem::Passing(Box::new(error), None),
            false => Problem::Final(Box::new(error)),
        }
    }
}

/// State that the connections share.
struct Shared {
    map: Mutex<PieceMap>,
    partial: File,
    path: PathBuf,
    /// Address after redirects, which expires.
    location: Mutex<Option<Url>>,
    stop: AtomicBool,
    no_ranges: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Download<'_> {
    /// Fetches the file to `destination`. A partial file beside `work`, in the same file system, is resumed. The caller
    /// holds the lock of the file.
    pub(crate) fn run(&self, work: &Path, destination: &Path) -> Result<()> {
        let partial = beside(work, ".oxidize.incomplete");
        let state = beside(work, ".oxidize.state");
        let result = self
            .fetch(&partial, &state)
            .and_then(|()| self.verify(&partial));
        match &result {
            // Nothing of these bytes can be kept.
            Err(Error::WrongChecksum { .. } | Error::TooLong { .. }) => {
                remove(&partial)?;
                remove(&state)?;
            }
            Err(_) => {}
            Ok(()) => {
                std::fs::rename(&partial, destination).map_err(Error::file(destination))?;
                remove(&state)?;
            }
        }
        result
    }

    fn fetch(&self, partial: &Path, state: &Path) -> Result<()> {
        let settings = &self.client.settings;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(partial).map_err(Error::file(partial))?;
        let length = file.metadata().map_err(Error::file(partial))?.len();
        self.check_space(partial.parent().unwrap_or(partial), &file)?;
        let map = PieceMap::open(state, self.size, settings.piece, &self.identity, length)?;
        let there = map.bytes_there();
        if there == 0 {
            file.set_len(0)
                .map_err(|error| self.write_error(partial, error))?;
        }
        file.set_len(self.size)
            .map_err(|error| self.write_error(partial, error))?;
        self.tally.add(self.file, self.digest(), there);
        let connections = settings.connections.clamp(1, 64).min(map.missing());
        let shared = Shared {
            map: Mutex::new(map),
            partial: file,
            path: partial.to_owned(),
            location: Mutex::new(None),
            stop: AtomicBool::new(false),
            no_ranges: AtomicBool::new(false),
            error: Mutex::new(None),
        };
        std::thread::scope(|scope| {
            // One of the connections is this thread.
            for _ in 1..connections {
                scope.spawn(|| self.work(&shared));
            }
            if connections > 0 {
                self.work(&shared);
            }
        });
        if shared.no_ranges.load(Ordering::Relaxed) {
            self.tally
                .take_back(self.size.min(locked(&shared.map).bytes_there()));
            // What is there belongs to another answer, perhaps of other bytes.
            remove(state)?;
            return self.fetch_whole(&shared);
        }
        let error = locked(&shared.error).take();
        if error.is_some() && locked(&shared.map).bytes_there() == 0 {
            // A refused download leaves nothing.
            remove(partial)?;
            remove(state)?;
        }
        match error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Fetches runs of pieces until none is missing.
    fn work(&self, shared: &Shared) {
        while !shared.stop.load(Ordering::Relaxed) {
            let run = {
                let mut map = locked(&shared.map);
                // The last runs are short, so that all connections end at about the same time.
                let max = map.missing() / (2 * self.client.settings.connections.max(1));
                map.take(max.clamp(1, MAX_RUN))
            };
            let Some(run) = run else {
                return;
            };
            match self.fetch_run(shared, run) {
                Ok(()) => {}
                Err(Problem::NoRanges) => {
                    shared.no_ranges.store(true, Ordering::Relaxed);
                    shared.stop.store(true, Ordering::Relaxed);
                }
                Err(Problem::Passing(error, _) | Problem::Final(error)) => {
                    shared.stop.store(true, Ordering::Relaxed);
                    locked(&shared.error).get_or_insert(*error);
                }
            }
        }
    }

    /// Fetches the bytes of a run, and goes on at the last byte after a failure.
    fn fetch_run(&self, shared: &Shared, run: Range<u64>) -> Result<(), Problem> {
        let mut at = run.start;
        let mut failures = 0;
        let mut wait = self.client.settings.first_wait;
        while at < run.end {
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let before = at;
            let Err(problem) = self.fetch_range(shared, &mut at, run.end) else {
                break;
            };
            let (error, asked) = match problem {
                Problem::Passing(error, asked) => (error, asked),
                other => return Err(other),
            };
            if at > before {
                (failures, wait) = (0, self.client.settings.first_wait);
            }
            failures += 1;
            let pause = asked.unwrap_or(wait);
            if failures >= self.client.settings.tries || pause > self.client.settings.longest_wait {
                return Err(Problem::Final(error));
            }
            self.client.sleep(self.name, pause)?;
            wait *= 2;
        }
        Ok(())
    }

    /// Fetches bytes from `at` to `end` in one request; `at` follows what is written.
    fn fetch_range(&self, shared: &Shared, at: &mut u64, end: u64) -> Result<(), Problem> {
        let cached = locked(&shared.location).clone();
        let request = Request {
            range: Some((*at, end - 1)),
            if_range: self.validator.as_deref(),
            token: self.token,
            ..Request::get(
                self.name,
                cached.clone().unwrap_or_else(|| self.url.clone()),
            )
        };
        let answer = self.client.send_once(&request)?;
        match answer.status {
            206 => {}
            200 => return Err(Problem::NoRanges),
            status => return Err(self.status_problem(shared, answer, status, cached.is_some())),
        }
        let expected = format!("bytes {}-{}/{}", *at, end - 1, self.size);
        match answer.header("content-range") {
            Some(range)
                if range == expected
                    || range == expected.replace(&format!("/{}", self.size), "/*") => {}
            Some(range)
                if range
                    .rsplit_once('/')
                    .is_some_and(|(_, total)| total.parse().is_ok_and(|n: u64| n > self.size)) =>
            {
                return Err(Problem::Final(Box::new(self.too_long())));
            }
            range => {
                let range = range.unwrap_or("none").to_owned();
                return Err(Problem::Final(Box::new(self.bad_answer(
                    &answer,
                    format!("{}: the range {range:?} instead of {expected:?}", self.file),
                ))));
            }
        }
        if answer.length().is_some_and(|length| length > end - *at) {
            return Err(Problem::Final(Box::new(self.too_long())));
        }
        if answer.url != self.url {
            *locked(&shared.location) = Some(answer.url.clone());
        }
        let host = answer.url.origin.to_string();
        let mut reader = answer.into_reader();
        let mut buffer = vec![0; BUFFER];
        while *at < end {
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let n = self.read(&mut reader, &mut buffer, &host)?;
            let bytes = buffer.get(..n).unwrap_or_default();
            if n as u64 > end - *at {
                return Err(Problem::Final(Box::new(self.too_long())));
            }
            write_at(&shared.partial, bytes, *at)
                .map_err(|error| self.write_error(&shared.path, error))?;
            let written = *at..*at + n as u64;
            *at = written.end;
            let mut map = locked(&shared.map);
            map.mark(written)
                .map_err(|error| self.write_error(&shared.path, error))?;
            drop(map);
            self.tally.add(self.file, self.digest(), n as u64);
        }
        Ok(())
    }

    /// Reads bytes of a body; an early end is an error that passes.
    fn read(
        &self,
        reader: &mut impl Read,
        buffer: &mut [u8],
        host: &str,
    ) -> Result<usize, Problem> {
        let problem = match reader.read(buffer) {
            Ok(0) => "the connection ended early".to_owned(),
            Ok(n) => return Ok(n),
            Err(error) => error.to_string(),
        };
        self.client.check_canceled(self.name)?;
        let error = Error::Unreachable {
            name: self.name.into(),
            host: host.into(),
            problem,
        };
        Err(Problem::Passing(Box::new(error), None))
    }

    /// Fetches the whole file in one answer, for servers without ranges. A cut starts anew.
    fn fetch_whole(&self, shared: &Shared) -> Result<()> {
        let mut longest = 0;
        let mut failures = 0;
        let mut wait = self.client.settings.first_wait;
        loop {
            let mut at = 0;
            let problem = match self.fetch_from_start(shared, &mut at) {
                Ok(()) => return Ok(()),
                Err(problem) => problem,
            };
            self.tally.take_back(at);
            let (error, asked) = match problem {
                Problem::Passing(error, asked) => (error, asked),
                Problem::Final(error) => return Err(*error),
                Problem::NoRanges => return Err(self.too_long()),
            };
            if at > longest {
                (longest, failures, wait) = (at, 0, self.client.settings.first_wait);
            }
            failures += 1;
            let pause = asked.unwrap_or(wait);
            if failures >= self.client.settings.tries || pause > self.client.settings.longest_wait {
                return Err(*error);
            }
            self.client.sleep(self.name, pause)?;
            wait *= 2;
        }
    }

    fn fetch_from_start(&self, shared: &Shared, at: &mut u64) -> Result<(), Problem> {
        let request = Request {
            token: self.token,
            ..Request::get(self.name, self.url.clone())
        };
        let answer = self.client.send_once(&request)?;
        if answer.status != 200 {
            let status = answer.status;
            return Err(self.status_problem(shared, answer, status, false));
        }
        if let Some(length) = answer.length().filter(|length| *length != self.size) {
            if length > self.size {
                return Err(Problem::Final(Box::new(self.too_long())));
            }
            let problem = format!("{}: {length} bytes instead of {}", self.file, self.size);
            return Err(Problem::Final(Box::new(self.bad_answer(&answer, problem))));
        }
        let host = answer.url.origin.to_string();
        let mut reader = answer.into_reader();
        let mut buffer = vec![0; BUFFER];
        while *at < self.size {
            let n = self.read(&mut reader, &mut buffer, &host)?;
            if n as u64 > self.size - *at {
                return Err(Problem::Final(Box::new(self.too_long())));
            }
            let bytes = buffer.get(..n).unwrap_or_default();
            write_at(&shared.partial, bytes, *at)
                .map_err(|error| self.write_error(&shared.path, error))?;
            *at += n as u64;
            self.tally.add(self.file, self.digest(), n as u64);
        }
        match reader.read(&mut buffer) {
            Ok(n) if n > 0 => Err(Problem::Final(Box::new(self.too_long()))),
            _ => Ok(()),
        }
    }

    /// The problem of a status other than 200 and 206.
    fn status_problem(
        &self,
        shared: &Shared,
        answer: Answer,
        status: u16,
        was_cached: bool,
    ) -> Problem {
        if is_passing(status) {
            let wait = retry_after(answer.headers());
            return Problem::Passing(Box::new(self.client.failure(self.name, answer)), wait);
        }
        if was_cached || (answer.url != self.url && matches!(status, 401 | 403 | 404 | 410)) {
            // The address has expired: ask for a new one.
            *locked(&shared.location) = None;
            return Problem::Passing(Box::new(self.client.failure(self.name, answer)), None);
        }
        if status == 416 {
            return Problem::Final(Box::new(self.bad_answer(
                &answer,
                format!("{}: not {} bytes long", self.file, self.size),
            )));
        }
        Problem::Final(Box::new((self.failure)(answer)))
    }

    /// Compares the length and the checksum of the fetched bytes with the announced ones.
    fn verify(&self, partial: &Path) -> Result<()> {
        let mut file = File::open(partial).map_err(Error::file(partial))?;
        let length = file.metadata().map_err(Error::file(partial))?.len();
        if length != self.size {
            return Err(Error::TooLong {
                name: self.name.into(),
                file: self.file.into(),
                announced: self.size,
            });
        }
        if let Some(checksum) = &self.checksum {
            let found = checksum.of(&mut file, length, |done| {
                let (stage, total) = (Stage::Verifying, length);
                let (file, digest) = (self.file, self.digest());
                self.tally.observer.progress(Progress {
                    file,
                    digest,
                    stage,
                    done,
                    total,
                });
                self.client.check_canceled(self.name)
            });
            let found = found.map_err(|error| match error {
                Ok(error) => error,
                Err(error) => Error::file(partial)(error),
            })?;
            let (algorithm, expected) = match checksum {
                Checksum::Sha256(expected) => ("SHA-256", expected),
                Checksum::GitSha1(expected) => ("git SHA-1", expected),
            };
            if !found.eq_ignore_ascii_case(expected) {
                return Err(Error::WrongChecksum {
                    name: self.name.into(),
                    file: self.file.into(),
                    algorithm,
                    expected: expected.clone(),
                    found,
                });
            }
        }
        file.sync_all()
            .map_err(|error| self.write_error(partial, error))
    }

    /// Refuses a file that the disk cannot hold, before anything of it is written.
    fn check_space(&self, directory: &Path, partial: &File) -> Result<()> {
        let needed = self.size.saturating_sub(allocated(partial));
        let free = free_space(directory);
        let is_full = free.is_some_and(|free| free < needed);
        if is_full || self.size.div_ceil(self.client.settings.piece.max(1)) > MAX_PIECES {
            return Err(Error::DiskFull {
                name: self.name.into(),
                directory: directory.to_owned(),
                needed,
                free,
            });
        }
        Ok(())
    }

    /// The error of a write, which may be a full disk.
    fn write_error(&self, path: &Path, error: std::io::Error) -> Error {
        if !is_full(&error) {
            return Error::file(path)(error);
        }
        let directory = path.parent().unwrap_or(path).to_owned();
        let free = free_space(&directory);
        Error::DiskFull {
            name: self.name.into(),
            directory,
            needed: self.size,
            free,
        }
    }

    fn too_long(&self) -> Error {
        Error::TooLong {
            name: self.name.into(),
            file: self.file.into(),
            announced: self.size,
        }
    }

    fn bad_answer(&self, answer: &Answer, problem: String) -> Error {
        Error::BadAnswer {
            name: self.name.into(),
            host: answer.url.origin.host.clone(),
            problem,
        }
    }

    /// The checksum, or the identity of the bytes.
    fn digest(&self) -> &str {
        match &self.checksum {
            Some(Checksum::Sha256(hex) | Checksum::GitSha1(hex)) => hex,
            None => &self.identity,
        }
    }
}

impl Checksum {
    /// The checksum of a file; `progress` may end it.
    fn of(
        &self,
        file: &mut File,
        length: u64,
        progress: impl Fn(u64) -> Result<()>,
    ) -> Result<String, std::result::Result<Error, std::io::Error>> {
        enum Hasher {
            Sha256(Sha256),
            Sha1(Sha1),
        }
        let mut hasher = match self {
            Checksum::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Checksum::GitSha1(_) => Hasher::Sha1(Sha1::new_with_prefix(format!("blob {length}\0"))),
        };
        let mut buffer = vec![0; 1 << 20];
        let mut done = 0;
        loop {
            let n = file.read(&mut buffer).map_err(Err)?;
            let bytes = buffer.get(..n).unwrap_or_default();
            match &mut hasher {
                Hasher::Sha256(hasher) => hasher.update(bytes),
                Hasher::Sha1(hasher) => hasher.update(bytes),
            }
            done += n as u64;
            progress(done).map_err(Ok)?;
            if n == 0 {
                break;
            }
        }
        Ok(match hasher {
            Hasher::Sha256(hasher) => hex(&hasher.finalize()),
            Hasher::Sha1(hasher) => hex(&hasher.finalize()),
        })
    }
}

/// Removes the state of a download that was killed after its file got its name.
pub(crate) fn remove_state(work: &Path) -> Result<()> {
    remove(&beside(work, ".oxidize.state"))
}

/// Bytes of the disk that a file takes; a partial file has holes.
fn allocated(file: &File) -> u64 {
    let Ok(data) = file.metadata() else {
        return 0;
    };
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(&data).saturating_mul(512);
    #[cfg(not(unix))]
    return data.len();
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lock, even if a thread has panicked while it held it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
