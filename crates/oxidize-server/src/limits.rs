//! How much may be going on: [`Admission`] bounds the requests of a model, [`Bucket`] the rate of a key.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::ApiError;

/// The door of a model: as many requests as may run and wait are inside, the others are told to come back.
#[derive(Debug)]
pub struct Admission {
    slots: usize,
    limit: usize,
    inside: AtomicUsize,
    /// A running mean of how long requests take, in milliseconds.
    mean_ms: AtomicUsize,
}

/// A place inside; leaving gives it back.
#[derive(Debug)]
pub struct Ticket {
    door: Arc<Admission>,
    places: usize,
    since: Instant,
}

impl Admission {
    /// A door for `slots` requests that run and `queue` that wait.
    pub fn new(slots: usize, queue: usize) -> Arc<Admission> {
        Arc::new(Admission {
            slots: slots.max(1),
            limit: slots.max(1).saturating_add(queue),
            inside: AtomicUsize::new(0),
            mean_ms: AtomicUsize::new(1000),
        })
    }

    /// Takes `places` at once, or says when to try again.
    pub fn enter(self: &Arc<Admission>, places: usize) -> Result<Ticket, ApiError> {
        let taken = self
            .inside
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |inside| {
                inside.checked_add(places).filter(|&n| n <= self.limit)
            });
        match taken {
            Ok(_) => Ok(Ticket {
                door: self.clone(),
                places,
                since: Instant::now(),
            }),
            Err(inside) => {
                let rounds = (inside - inside.min(self.slots)) / self.slots + 1;
                let wait_ms = rounds.saturating_mul(self.mean_ms.load(Ordering::Relaxed));
                let seconds = (wait_ms as u64).div_ceil(1000).clamp(1, 60);
                let message = format!(
                    "the queue is full: {inside} requests are running or waiting, the limit is {}",
                    self.limit
                );
                Err(ApiError::too_many("queue_full", message, seconds))
            }
        }
    }

    /// Requests that run or wait.
    pub fn inside(&self) -> usize {
        self.inside.load(Ordering::Acquire)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.door.inside.fetch_sub(self.places, Ordering::AcqRel);
        let took = self.since.elapsed().as_millis().min(600_000) as usize;
        let mean = &self.door.mean_ms;
        // Two that leave at once may lose one of the two: it is an estimate.
        mean.store(
            (7 * mean.load(Ordering::Relaxed) + took) / 8,
            Ordering::Relaxed,
        );
    }
}

/// A token bucket: `capacity` at once, and as many again in each period.
#[derive(Debug)]
pub struct Bucket {
    capacity: f64,
    per_second: f64,
    level: Mutex<(f64, Instant)>,
}

impl Bucket {
    /// A full one.
    pub fn new(capacity: u32, period: Duration) -> Bucket {
        let capacity = f64::from(capacity);
        Bucket {
            capacity,
            per_second: capacity / period.as_secs_f64(),
            level: Mutex::new((capacity, Instant::now())),
        }
    }

    /// Takes `n` out, or says how long to wait until they are there.
    pub fn take(&self, n: u64) -> Result<(), Duration> {
        self.with_level(|level| {
            let missing = n as f64 - *level;
            if missing > 0.0 {
                return Err(missing);
            }
            *level -= n as f64;
            Ok(())
        })
    }

    /// Whether there is anything in it, or how long to wait until there is.
    pub fn check(&self) -> Result<(), Duration> {
        self.with_level(|level| {
            if *level > 0.0 {
                Ok(())
            } else {
                Err(-*level + 1.0)
            }
        })
    }

    /// Takes `n` out even where that leaves less than nothing.
    pub fn spend(&self, n: u64) {
        let _ = self.with_level(|level| {
            *level -= n as f64;
            Ok(())
        });
    }

    fn with_level(&self, f: impl FnOnce(&mut f64) -> Result<(), f64>) -> Result<(), Duration> {
        let mut state = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let (level, since) = &mut *state;
        let now = Instant::now();
        let gained = now.duration_since(*since).as_secs_f64() * self.per_second;
        *level = (*level + gained).min(self.capacity);
        *since = now;
        f(level).map_err(|missing| {
            let seconds = missing / self.per_second;
            // With a rate of nothing, there is no time to wait.
            Duration::try_from_secs_f64(seconds).map_or(Duration::from_secs(3600), |wait| {
                wait.min(Duration::from_secs(3600))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_house_says_when_to_come_back() {
        let door = Admission::new(2, 1);
        let first = door.enter(2).unwrap();
        let _second = door.enter(1).unwrap();
        let error = door.enter(1).unwrap_err();
        assert_eq!(error.status, 429);
        assert!(error.retry_after.is_some_and(|s| (1..=60).contains(&s)));
        drop(first);
        assert_eq!(door.inside(), 1);
        door.enter(2).unwrap();
        assert!(door.enter(usize::MAX).is_err());
    }

    #[test]
    fn a_bucket_fills_again() {
        let bucket = Bucket::new(2, Duration::from_millis(40));
        bucket.take(2).unwrap();
        assert!(bucket.take(1).unwrap_err() <= Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(30));
        bucket.take(1).unwrap();
        bucket.spend(100);
        assert!(bucket.check().unwrap_err() > Duration::from_secs(1));
        assert!(Bucket::new(0, Duration::from_secs(60)).take(1).is_err());
    }
}
