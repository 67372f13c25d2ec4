//! Memory read bandwidth, which limits the generation speed of a single sequence.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use serde::Serialize;

/// Read bandwidth of a summing loop.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Bandwidth {
    /// Number of threads, each of which reads its own part.
    pub(crate) threads: usize,
    /// 10⁹ bytes per second, the best of several rounds.
    pub(crate) gigabytes_per_second: f64,
}

/// Number of 64-bit words that the threads read together, much larger than any cache.
const WORDS: usize = 1 << 27;
const ROUNDS: usize = 6;

/// Sums 1 GiB on `threads` threads, several times.
pub(crate) fn measure(threads: usize) -> Bandwidth {
    let threads = threads.max(1);
    // Written, so that the pages are allocated.
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let parts: Vec<&[u64]> = words.chunks(WORDS.div_ceil(threads)).collect();
    let start_line = Barrier::new(parts.len());
    let spans: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let read = |part| {
            let start_line = &start_line;
            scope.spawn(move || {
                let round = |_| {
                    start_line.wait();
                    let start = Instant::now();
                    black_box(sum(part));
                    (start, Instant::now())
                };
                (0..ROUNDS).map(round).collect()
            })
        };
        let readers: Vec<_> = parts.iter().copied().map(read).collect();
        let join = |reader: std::thread::ScopedJoinHandle<'_, _>| reader.join().unwrap_or_default();
        readers.into_iter().map(join).collect()
    });
    let seconds = (0..ROUNDS).filter_map(|round| {
        let of_round = spans.iter().filter_map(|spans| spans.get(round));
        let start = of_round.clone().map(|span| span.0).min()?;
        let end = of_round.map(|span| span.1).max()?;
        Some((end - start).as_secs_f64())
    });
    let best = seconds.fold(f64::INFINITY, f64::min);
    Bandwidth {
        threads,
        gigabytes_per_second: size_of_val(&words[..]) as f64 / best / 1e9,
    }
}

/// Sum in enough partial sums to hide the latency of additions.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    let mut chunks = words.chunks_exact(sums.len());
    for chunk in &mut chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    let rest = chunks.remainder();
    sums.iter()
        .chain(rest)
        .fold(0, |total, &word| total.wrapping_add(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_includes_every_word() {
        let words: Vec<u64> = (1..=1000).collect();
        assert_eq!(sum(&words), 500_500);
    }
}
