//! Responses that come bit by bit: server-sent events, or one line of JSON each as Ollama has it. A [`Writer`] puts
//! the pieces of a generation into an API's words; a quiet stretch is bridged by pings.

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
use crate::generate::{Generation, Piece};

/// How long a client hears nothing before it is told that the server still works.
const PING: Duration = Duration::from_secs(10);

/// Puts a generation into the words of an API.
pub trait Writer: Send + Unpin + 'static {
    /// What is sent first.
    fn start(&mut self, _out: &mut Frames) {}
    /// What is sent for a piece.
    fn piece(&mut self, piece: Piece, out: &mut Frames);
    /// What is sent when all is well and over.
    fn end(&mut self, out: &mut Frames);
    /// What is sent when all is over and not well.
    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        out.json(&error.body());
        out.done();
    }
    /// What is sent when there is nothing to send.
    fn ping(&mut self, out: &mut Frames) {
        out.comment("ping");
    }
}

/// A server-sent event, for the OpenAPI document.
#[derive(Serialize, ToSchema)]
pub struct StreamEvent {
    /// Its name, in APIs that name events.
    pub event: Option<String>,
    /// JSON, or `[DONE]`.
    pub data: String,
}

/// How frames are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// A line each.
    Lines,
    /// Nobody listens.
    Unheard,
}

/// What waits to be sent.
#[derive(Debug)]
pub struct Frames {
    framing: Framing,
    queue: VecDeque<Bytes>,
}

impl Frames {
    /// Frames that are dropped, for answers that are sent as a whole.
    pub fn discard() -> Frames {
        Frames {
            framing: Framing::Unheard,
            queue: VecDeque::new(),
        }
    }

    /// Adds a value.
    pub fn json(&mut self, value: &impl Serialize) {
        self.event(None, value);
    }

    /// Adds a value that has a name.
    pub fn event(&mut self, name: Option<&str>, value: &impl Serialize) {
        if self.framing == Framing::Unheard {
            return;
        }
        // What we serialise has string keys and finite numbers: it cannot fail.
        let data = serde_json::to_string(value)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
        self.queue.push_back(match (self.framing, name) {
            (Framing::Sse, Some(name)) => format!("event: {name}\ndata: {data}\n\n").into(),
            (Framing::Sse, None) => format!("data: {data}\n\n").into(),
            _ => format!("{data}\n").into(),
        });
    }

    /// Adds OpenAI's last word.
    pub fn done(&mut self) {
        if self.framing == Framing::Sse {
            self.queue
                .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
    }

    /// Adds what clients pass over.
    pub fn comment(&mut self, text: &str) {
        if self.framing == Framing::Sse {
            self.queue.push_back(format!(": {text}\n\n").into());
        }
    }
}

/// The response to a generation, as it comes.
pub async fn respond(
    generation: Generation,
    framing: Framing,
    writer: impl Writer,
) -> Result<Response, ApiError> {
    let generation = generation.settle().await?;
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
        Framing::Lines | Framing::Unheard => "application/x-ndjson",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that buffer would hold back what is meant to be seen at once.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

struct Framed<W> {
    /// Gone when it is over.
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
                Poll::Ready(Some(Ok(piece))) => {
                    writer.piece(piece, frames);
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
                let fault = ApiError::internal("a fault inside the server ended this request");
                this.frames.json(&fault.body());
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
    /// All that waits, in one piece: fewer writes where several tokens came at once.
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
    fn frames_look_as_clients_expect() {
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
