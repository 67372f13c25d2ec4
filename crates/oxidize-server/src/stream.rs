//! Streamed responses: server-sent events, or lines of JSON for Ollama. A [`Writer`] serializes the updates
//! of a generation in an API's format; pings keep quiet connections open.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::generate::{Generation, PANICKED, Update};

/// Interval of pings while a generation yields nothing.
const PING: Duration = Duration::from_secs(10);

/// Serializes a generation in the format of an API.
pub trait Writer: Send + Unpin + 'static {
    /// Writes the start of the response.
    fn start(&mut self, _out: &mut Frames) {}
    /// Writes an update.
    fn update(&mut self, update: Update, out: &mut Frames);
    /// Writes the end of a response without errors.
    fn end(&mut self, out: &mut Frames);
    /// Writes the error that ends the response.
    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        out.json(&error.body());
        out.done();
    }
    /// Writes something that clients ignore.
    fn ping(&mut self, out: &mut Frames) {
        out.comment("ping");
    }
}

/// A server-sent event, for the OpenAPI document.
#[derive(Serialize, ToSchema)]
pub struct StreamEvent {
    /// Name of the event, in APIs that name events.
    pub event: Option<String>,
    /// JSON, or `[DONE]` at the end of OpenAI's streams.
    pub data: String,
}

/// Format of a streamed response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON object per line.
    Lines,
    /// Frames are dropped.
    Discard,
}

/// Frames that wait to be sent.
#[derive(Debug)]
pub struct Frames {
    framing: Framing,
    queue: VecDeque<Bytes>,
}

impl Frames {
    /// Frames that are dropped, for responses that are not streamed.
    pub fn discard() -> Frames {
        Frames {
            framing: Framing::Discard,
            queue: VecDeque::new(),
        }
    }

    /// Adds a JSON value.
    pub fn json(&mut self, value: &impl Serialize) {
        self.event(None, value);
    }

    /// Adds a JSON value with the name of its event.
    pub fn event(&mut self, name: Option<&str>, value: &impl Serialize) {
        if self.framing == Framing::Discard {
            return;
        }
        // Serialization cannot fail: all keys are strings and all numbers are finite.
        let data = serde_json::to_string(value)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
        self.queue.push_back(match (self.framing, name) {
            (Framing::Sse, Some(name)) => format!("event: {name}\ndata: {data}\n\n").into(),
            (Framing::Sse, None) => format!("data: {data}\n\n").into(),
            _ => format!("{data}\n").into(),
        });
    }

    /// Adds the end marker of OpenAI's streams.
    pub fn done(&mut self) {
        if self.framing == Framing::Sse {
            self.queue
                .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
    }

    /// Adds a comment, which clients ignore.
    pub fn comment(&mut self, text: &str) {
        if self.framing == Framing::Sse {
            self.queue.push_back(format!(": {text}\n\n").into());
        }
    }
}

/// Streams a generation as a response.
pub async fn respond(
    generation: Generation,
    framing: Framing,
    writer: impl Writer,
) -> Result<Response, ApiError> {
    let generation = generation.peek_first().await?;
    let mut frames = Frames {
        framing,
        queue: VecDeque::new(),
    };
    let mut writer = writer;
    writer.start(&mut frames);
    let stream = Framed {
        generation: Some(generation),
        writer,
        frames,
        ping: Box::pin(tokio::time::sleep(PING)),
    };
    let kind = match framing {
        Framing::Sse => "text/event-stream; charset=utf-8",
        Framing::Lines | Framing::Discard => "application/x-ndjson",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        // Turns off the buffering of proxies, which would delay events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

struct Framed<W> {
    /// `None` once the response has ended.
    generation: Option<Generation>,
    writer: W,
    frames: Frames,
    ping: Pin<Box<tokio::time::Sleep>>,
}

impl<W: Writer> Stream for Framed<W> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if !this.frames.queue.is_empty() {
                this.ping.as_mut().reset(tokio::time::Instant::now() + PING);
                return Poll::Ready(Some(Ok(this.take())));
            }
            let Some(generation) = &mut this.generation else {
                return Poll::Ready(None);
            };
            let polled = Pin::new(generation).poll_next(context);
            let pending = polled.is_pending();
            if pending && this.ping.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let (writer, frames) = (&mut this.writer, &mut this.frames);
            let work = || match polled {
                Poll::Pending => {
                    writer.ping(frames);
                    false
                }
                Poll::Ready(Some(Ok(update))) => {
                    writer.update(update, frames);
                    false
                }
                Poll::Ready(Some(Err(error))) => {
                    writer.error(&error, frames);
                    true
                }
                Poll::Ready(None) => {
                    writer.end(frames);
                    true
                }
            };
            let over = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                this.frames.json(&ApiError::internal(PANICKED).body());
                true
            });
            if over {
                this.generation = None;
            }
            if pending {
                this.ping.as_mut().reset(tokio::time::Instant::now() + PING);
            }
        }
    }
}

impl<W> Framed<W> {
    /// Takes all waiting frames at once: fewer writes where several tokens came together.
    fn take(&mut self) -> Bytes {
        let queue = &mut self.frames.queue;
        match queue.len() {
            1 => queue.pop_front().unwrap_or_default(),
            _ => queue
                .drain(..)
                .fold(Vec::new(), |mut all, frame| {
                    all.extend_from_slice(&frame);
                    all
                })
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_formatted_as_clients_expect() {
        let frames = |framing, fill: fn(&mut Frames)| {
            let mut frames = Frames {
                framing,
                queue: VecDeque::new(),
            };
            fill(&mut frames);
            let all: Vec<u8> = frames.queue.into_iter().flatten().collect();
            String::from_utf8(all).unwrap()
        };
        let fill: fn(&mut Frames) = |out| {
            out.json(&serde_json::json!({"text": "a\nb"}));
            out.event(Some("stop"), &1);
            out.comment("ping");
            out.done();
        };
        assert_eq!(
            frames(Framing::Sse, fill),
            "data: {\"text\":\"a\\nb\"}\n\nevent: stop\ndata: 1\n\n: ping\n\ndata: [DONE]\n\n"
        );
        assert_eq!(frames(Framing::Lines, fill), "{\"text\":\"a\\nb\"}\n1\n");
    }
}
