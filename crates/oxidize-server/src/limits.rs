//! Limits: [`Admission`] bounds the requests of a model, [`Bucket`] the rate of an API key.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::ApiError;

/// Admission control of a model: a bounded number of requests run or wait; more are refused with a retry
/// time.
#[derive(Debug)]
pub struct Admission {
    slots: usize,
    limit: usize,
    /// Requests that run or wait.
    admitted: AtomicUsize,
    /// Exponential moving average of the duration of requests, in milliseconds.
    mean_ms: AtomicUsize,
}

/// Places that a request holds until it is dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    places: usize,
    since: Instant,
}

impl Admission {
    /// Admits `slots` running and `queue` waiting requests.
    pub fn new(slots: usize, queue: usize) -> Arc<Admission> {
        Arc::new(Admission {
            slots: slots.max(1),
            limit: slots.max(1).saturating_add(queue),
            admitted: AtomicUsize::new(0),
            mean_ms: AtomicUsize::new(1000),
        })
    }

    /// Takes `places` at once, or fails with the time after which to retry.
    pub fn enter(self: &Arc<Admission>, places: usize) -> Result<Permit, ApiError> {
        let taken = self
            .admitted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |admitted| {
                admitted.checked_add(places).filter(|&n| n <= self.limit)
            });
        match taken {
            Ok(_) => Ok(Permit {
                admission: self.clone(),
                places,
                since: Instant::now(),
            }),
            Err(admitted) => {
                let rounds = (admitted - admitted.min(self.slots)) / self.slots + 1;
                let wait_ms = rounds.saturating_mul(self.mean_ms.load(Ordering::Relaxed));
                let seconds = (wait_ms as u64).div_ceil(1000).clamp(1, 60);
                let message = format!(
                    "the queue is full: {admitted} requests are running or waiting; the limit is {}",
                    self.limit
                );
                Err(ApiError::too_many("queue_full", message, seconds))
            }
        }
    }

    /// Number of requests that run or wait.
    pub fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Acquire)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission
            .admitted
            .fetch_sub(self.places, Ordering::AcqRel);
        let took = self.since.elapsed().as_millis().min(600_000) as usize;
        let mean = &self.admission.mean_ms;
        // A concurrent update may be lost, which is fine for an estimate.
        mean.store(
            (7 * mean.load(Ordering::Relaxed) + took) / 8,
            Ordering::Relaxed,
        );
    }
}

/// A token bucket: up to `capacity` at once, refilled at `capacity` per period.
#[derive(Debug)]
pub struct Bucket {
    capacity: f64,
    per_second: f64,
    level: Mutex<(f64, Instant)>,
}

impl Bucket {
    /// A full bucket.
    pub fn new(capacity: u32, period: Duration) -> Bucket {
        let capacity = f64::from(capacity);
        Bucket {
            capacity,
            per_second: capacity / period.as_secs_f64(),
            level: Mutex::new((capacity, Instant::now())),
        }
    }

    /// Takes `n` tokens, or fails with the time until they are available.
    pub fn take(&self, n: u64) -> Result<(), Duration> {
        self.take_at(Instant::now(), n)
    }

    fn take_at(&self, now: Instant, n: u64) -> Result<(), Duration> {
        self.with_level(now, |level| {
            let missing = n as f64 - *level;
            if missing > 0.0 {
                return Err(missing);
            }
            *level -= n as f64;
            Ok(())
        })
    }

    /// Fails with the time until the level is positive, if it is not.
    pub fn check(&self) -> Result<(), Duration> {
        self.with_level(Instant::now(), |level| {
            if *level > 0.0 {
                Ok(())
            } else {
                Err(-*level + 1.0)
            }
        })
    }

    /// Takes `n` tokens, even if the level becomes negative.
    pub fn spend(&self, n: u64) {
        let _ = self.with_level(Instant::now(), |level| {
            *level -= n as f64;
            Ok(())
        });
    }

    fn with_level(
        &self,
        now: Instant,
        f: impl FnOnce(&mut f64) -> Result<(), f64>,
    ) -> Result<(), Duration> {
        let mut state = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let (level, since) = &mut *state;
        let gained = now.duration_since(*since).as_secs_f64() * self.per_second;
        *level = (*level + gained).min(self.capacity);
        *since = now;
        f(level).map_err(|missing| {
            let seconds = missing / self.per_second;
            // With a rate of 0, the division has no finite result.
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
    fn a_full_queue_has_a_retry_time() {
        let admission = Admission::new(2, 1);
        let first = admission.enter(2).unwrap();
        let _second = admission.enter(1).unwrap();
        let error = admission.enter(1).unwrap_err();
        assert_eq!(error.status, 429);
        assert!(error.retry_after.is_some_and(|s| (1..=60).contains(&s)));
        drop(first);
        assert_eq!(admission.admitted(), 1);
        admission.enter(2).unwrap();
        assert!(admission.enter(usize::MAX).is_err());
    }

    #[test]
    fn a_bucket_refills() {
        let bucket = Bucket::new(2, Duration::from_secs(4000));
        let start = bucket.level.lock().unwrap().1;
        let after = |seconds| start + Duration::from_secs(seconds);
        bucket.take_at(start, 2).unwrap();
        assert_eq!(bucket.take_at(start, 1), Err(Duration::from_secs(2000)));
        assert_eq!(
            bucket.take_at(after(500), 1),
            Err(Duration::from_secs(1500))
        );
        bucket.take_at(after(2100), 1).unwrap();
        // It holds no more than its capacity.
        assert!(bucket.take_at(after(100_000), 3).is_err());
        bucket.take_at(after(100_000), 2).unwrap();
        // The longest wait that is named is an hour.
        assert_eq!(bucket.check(), Err(Duration::from_secs(2000)));
        bucket.spend(100);
        assert_eq!(bucket.check(), Err(Duration::from_secs(3600)));
        assert!(Bucket::new(0, Duration::from_secs(60)).take(1).is_err());
    }
}
