//! [`Metrics`] of the server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oxidize_core::engine::Completion;

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds 1.
    pub fn increase(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the buckets of a histogram, in seconds.
const BOUNDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS.len()],
    total: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        for (count, bound) in self.counts.iter().zip(BOUNDS) {
            if seconds <= bound {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.total.fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        heading(out, name, help, "histogram");
        for (count, bound) in self.counts.iter().zip(BOUNDS) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let total = self.total.load(Ordering::Relaxed);
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {total}");
    }
}

/// Metrics of the server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Requests by endpoint and status.
    responses: Mutex<BTreeMap<(String, u16), u64>>,
    /// Requests without a valid API key.
    pub unauthorized: Counter,
    /// Requests refused because of a full queue or a rate limit.
    pub rejected: Counter,
    /// Requests whose client disconnected.
    pub cancelled: Counter,
    /// Clients disconnected because they did not read.
    pub stalled_clients: Counter,
    /// Connections accepted.
    pub connections: Counter,
    /// Connections closed.
    pub connections_closed: Counter,
    /// Requests that failed with an internal error.
    pub internal_errors: Counter,
    /// Prompt tokens.
    pub prompt_tokens: Counter,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: Counter,
    /// Generated tokens.
    pub generated_tokens: Counter,
    /// Draft tokens verified.
    pub drafted_tokens: Counter,
    /// Draft tokens accepted.
    pub accepted_drafts: Counter,
    /// Prompt processing time, in microseconds.
    prompt_us: Counter,
    /// Generation time, in microseconds.
    generation_us: Counter,
    queue_time: Histogram,
    time_to_first_token: Histogram,
    request_time: Histogram,
}

impl Metrics {
    /// Records a response.
    pub fn response(&self, endpoint: &str, status: u16, took: Duration) {
        let mut responses = self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *responses.entry((endpoint.to_owned(), status)).or_default() += 1;
        drop(responses);
        self.request_time.record(took);
        if status == 429 {
            self.rejected.increase();
        }
        if status == 500 {
            self.internal_errors.increase();
        }
    }

    /// Records a finished answer.
    pub fn finished(&self, finished: &Completion) {
        let timings = &finished.timings;
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.prompt_tokens.add(finished.prompt_tokens as u64);
        self.cached_tokens.add(finished.cached_tokens as u64);
        self.generated_tokens.add(finished.generated_tokens as u64);
        self.drafted_tokens.add(finished.drafts.drafted as u64);
        self.accepted_drafts.add(finished.drafts.accepted as u64);
        self.prompt_us.add(us(timings.prompt));
        self.generation_us.add(us(timings.generation));
        self.queue_time.record(timings.queued);
        self.time_to_first_token
            .record(timings.queued + timings.prompt);
    }

    /// Renders all metrics; `gauges` are those of the models.
    pub fn render(&self, gauges: &[Gauge]) -> String {
        let mut out = String::new();
        let name = "oxidize_requests_total";
        heading(
            &mut out,
            name,
            "Requests by endpoint and status.",
            "counter",
        );
        for ((endpoint, status), count) in self
            .responses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            let endpoint = escape(endpoint);
            let _ = writeln!(
                out,
                "{name}{{endpoint=\"{endpoint}\",status=\"{status}\"}} {count}"
            );
        }
        let counters = [
            (
                "unauthorized_total",
                "Requests without a valid API key.",
                &self.unauthorized,
            ),
            (
                "rejected_total",
                "Requests refused with status 429.",
                &self.rejected,
            ),
            (
                "cancelled_total",
                "Requests whose client disconnected.",
                &self.cancelled,
            ),
            (
                "stalled_clients_total",
                "Clients disconnected because they did not read.",
                &self.stalled_clients,
            ),
            (
                "internal_errors_total",
                "Requests that failed with status 500.",
                &self.internal_errors,
            ),
            (
                "connections_total",
                "Connections accepted.",
                &self.connections,
            ),
            ("prompt_tokens_total", "Prompt tokens.", &self.prompt_tokens),
            (
                "cached_prompt_tokens_total",
                "Prompt tokens found in the prefix cache.",
                &self.cached_tokens,
            ),
            (
                "generated_tokens_total",
                "Generated tokens.",
                &self.generated_tokens,
            ),
            (
                "drafted_tokens_total",
                "Draft tokens of speculative decoding that were verified.",
                &self.drafted_tokens,
            ),
            (
                "accepted_drafts_total",
                "Draft tokens of speculative decoding that were accepted.",
                &self.accepted_drafts,
            ),
        ];
        for (name, help, counter) in counters {
            let name = format!("oxidize_{name}");
            heading(&mut out, &name, help, "counter");
            let _ = writeln!(out, "{name} {}", counter.get());
        }
        let seconds = [
            (
                "prompt_seconds_total",
                "Prompt processing time.",
                &self.prompt_us,
            ),
            (
                "generation_seconds_total",
                "Generation time.",
                &self.generation_us,
            ),
        ];
        for (name, help, counter) in seconds {
            let name = format!("oxidize_{name}");
            heading(&mut out, &name, help, "counter");
            let _ = writeln!(out, "{name} {}", counter.get() as f64 / 1e6);
        }
        let open =
            self.connections.get() - self.connections_closed.get().min(self.connections.get());
        heading(
            &mut out,
            "oxidize_connections",
            "Open connections.",
            "gauge",
        );
        let _ = writeln!(out, "oxidize_connections {open}");
        self.queue_time.write(
            &mut out,
            "oxidize_queue_seconds",
            "Time from the arrival of a request to its first step.",
        );
        self.time_to_first_token.write(
            &mut out,
            "oxidize_time_to_first_token_seconds",
            "Time from the arrival of a request to its first token.",
        );
        self.request_time.write(
            &mut out,
            "oxidize_response_seconds",
            "Time from the arrival of a request to the headers of its response.",
        );
        let mut last = "";
        for gauge in gauges {
            let name = gauge.name;
            if name != last {
                let kind = if name.ends_with("_total") {
                    "counter"
                } else {
                    "gauge"
                };
                heading(&mut out, name, gauge.help, kind);
                last = name;
            }
            let _ = writeln!(
                out,
                "{name}{{model=\"{}\"}} {}",
                escape(&gauge.model),
                gauge.value
            );
        }
        out
    }
}

/// A metric of a model. Gauges of the same name must be adjacent.
#[derive(Debug)]
pub struct Gauge {
    /// Name of the metric.
    pub name: &'static str,
    /// Description.
    pub help: &'static str,
    /// Name of the model.
    pub model: String,
    /// Value.
    pub value: f64,
}

fn heading(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_format_of_prometheus() {
        let metrics = Metrics::default();
        metrics.response("/v1/chat/completions", 200, Duration::from_millis(20));
        metrics.response("/v1/chat/completions", 429, Duration::from_millis(1));
        let gauges = [Gauge {
            name: "oxidize_requests_running",
            help: "Running requests.",
            model: "a\"b".into(),
            value: 2.0,
        }];
        let text = metrics.render(&gauges);
        for line in [
            r#"oxidize_requests_total{endpoint="/v1/chat/completions",status="429"} 1"#,
            "oxidize_rejected_total 1",
            r#"oxidize_response_seconds_bucket{le="0.025"} 2"#,
            r#"oxidize_response_seconds_bucket{le="0.01"} 1"#,
            "oxidize_response_seconds_count 2",
            r#"oxidize_requests_running{model="a\"b"} 2"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(
                line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(),
                "{line}"
            );
        }
    }
}
