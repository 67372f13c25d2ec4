//! [`Client`]: HTTP with the rules of this crate. Redirects are limited, a token stays with its origin, waiting is
//! bounded, and failures that pass are tried again.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{HeaderMap, Response, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::error::{Error, Result, printable};
use crate::settings::{Settings, Token};
use crate::url::{Origin, Url};

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 5;

/// Maximum size of a listing.
const MAX_LISTING: u64 = 64 << 20;

/// Maximum size of the body of an error.
const MAX_MESSAGE: u64 = 1 << 14;

/// Tells whether to stop.
pub type Cancel = Arc<dyn Fn() -> bool + Send + Sync>;

/// A client of one pull.
pub(crate) struct Client {
    agent: Agent,
    pub(crate) settings: Settings,
    pub(crate) cancel: Cancel,
}

/// A request.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    /// Name of the model, for messages.
    pub(crate) name: &'a str,
    pub(crate) url: Url,
    pub(crate) is_head: bool,
    /// First and last byte.
    pub(crate) range: Option<(u64, u64)>,
    /// Validator of the bytes that are there already.
    pub(crate) if_range: Option<&'a str>,
    pub(crate) accept: Option<&'static str>,
    /// Token, and the origin that may see it.
    pub(crate) token: Option<(&'a Token, &'a Origin)>,
    /// Stops at a redirect to another host and returns it.
    pub(crate) same_host: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn get(name: &'a str, url: Url) -> Request<'a> {
        Request {
            name,
            url,
            is_head: false,
            range: None,
            if_range: None,
            accept: None,
            token: None,
            same_host: false,
        }
    }
}

/// An answer, of any status.
pub(crate) struct Answer {
    pub(crate) url: Url,
    pub(crate) status: u16,
    response: Response<ureq::Body>,
}

impl Answer {
    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Length of the body, if announced.
    pub(crate) fn length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// True if the status is 200 to 299.
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn into_reader(self) -> impl Read {
        self.response
            .into_body()
            .into_with_config()
            .limit(u64::MAX)
            .reader()
    }

    /// The start of the body as text, for a message.
    fn message(self) -> String {
        if let Some(message) = self.header("x-error-message") {
            return printable(message);
        }
        let is_json = self
            .header("content-type")
            .is_some_and(|kind| kind.contains("json"));
        let mut body = Vec::new();
        let _ = self.into_reader().take(MAX_MESSAGE).read_to_end(&mut body);
        let text = String::from_utf8_lossy(&body);
        if !is_json {
            return match text.trim_start().starts_with('<') {
                true => String::new(),
                false => printable(&text),
            };
        }
        let json: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let found = json.as_ref().and_then(|json| {
            ["error", "message", "Message"]
                .iter()
                .find_map(|key| json.get(key)?.as_str())
        });
        printable(found.unwrap_or(&text))
    }
}

impl Client {
    pub(crate) fn new(settings: Settings, cancel: Cancel) -> Result<Client> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &settings.certificates {
            let pem = std::fs::read(path).map_err(Error::file(path))?;
            let certificates = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            tls = tls.root_certs(RootCerts::Specific(Arc::new(certificates.collect())));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls.build())
            .user_agent(concat!("oxidize/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(settings.answer_timeout))
            .timeout_connect(Some(settings.answer_timeout))
            .timeout_recv_response(Some(settings.answer_timeout))
            .max_idle_connections_per_host(settings.connections)
            .timeout_per_read(Some(settings.download_timeout))
            .timeout_per_write(Some(settings.download_timeout))
            .build();
        Ok(Client {
            agent: config.new_agent(),
            settings,
            cancel,
        })
    }

    /// The answer to a request. Connections that fail, and the statuses 408, 429 and 5xx, are tried again.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Answer> {
        let mut wait = self.settings.first_wait;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let last = attempt >= self.settings.tries.max(1);
            let result = self.send_once(request);
            let pause = match &result {
                Ok(answer) if is_passing(answer.status) => {
                    retry_after(answer.headers()).unwrap_or(wait)
                }
                Err(error) if error.is_unreachable() => wait,
                _ => return result,
            };
            if last || pause > self.settings.longest_wait {
                return result;
            }
            self.sleep(request.name, pause)?;
            wait *= 2;
        }
    }

    /// The answer to a request, after redirects.
    pub(crate) fn send_once(&self, request: &Request<'_>) -> Result<Answer> {
        let mut url = request.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            self.check_canceled(request.name)?;
            let answer = self.send_to(request, &url)?;
            let location = match answer.status {
                301 | 302 | 303 | 307 | 308 => answer.header("location").map(str::to_owned),
                _ => None,
            };
            let Some(location) = location else {
                return Ok(answer);
            };
            let refuse = |problem| {
                let location = printable(location.split('?').next().unwrap_or_default());
                Error::BadRedirect {
                    name: request.name.into(),
                    host: url.origin.host.clone(),
                    location,
                    problem,
                }
            };
            let next = url.join(&location).map_err(refuse)?;
            if url.origin.is_https && !next.origin.is_https {
                return Err(refuse("a redirect from https to http is not followed"));
            }
            if request.same_host && next.origin != url.origin {
                return Ok(answer);
            }
            url = next;
        }
        Err(Error::BadRedirect {
            name: request.name.into(),
            host: request.url.origin.host.clone(),
            location: printable(url.path.split('?').next().unwrap_or_default()),
            problem: "more than 5 redirects",
        })
    }

    /// The answer of one address, which may be a redirect.
    fn send_to(&self, request: &Request<'_>, url: &Url) -> Result<Answer> {
        let address = url.to_string();
        let mut builder = match request.is_head {
            true => self.agent.head(address.as_str()),
            false => self.agent.get(address.as_str()),
        };
        if let Some(kind) = request.accept {
            builder = builder.header(header::ACCEPT, kind);
        }
        if let Some((first, last)) = request.range {
            builder = builder.header(header::RANGE, format!("bytes={first}-{last}"));
        }
        if let Some(validator) = request.if_range {
            builder = builder.header(header::IF_RANGE, validator);
        }
        if let Some((token, origin)) = request.token
            && *origin == url.origin
        {
            builder = builder.header(header::AUTHORIZATION, format!("Bearer {}", token.secret));
        }
        let response = builder.call().map_err(|error| match (self.cancel)() {
            true => Error::Canceled {
                name: request.name.into(),
            },
            false => unreachable(request.name, &url.origin, &error),
        })?;
        Ok(Answer {
            url: url.clone(),
            status: response.status().as_u16(),
            response,
        })
    }

    /// The JSON of an answer, of bounded size.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str, answer: Answer) -> Result<T> {
        let host = answer.url.origin.host.clone();
        let bad = |problem: String| Error::BadAnswer {
            name: name.into(),
            host: host.clone(),
            problem,
        };
        let mut body = Vec::new();
        let announced = answer.length();
        let read = answer
            .into_reader()
            .take(MAX_LISTING + 1)
            .read_to_end(&mut body);
        read.map_err(|error| bad(error.to_string()))?;
        if body.len() as u64 > MAX_LISTING {
            return Err(bad(format!(
                "the listing exceeds the limit of {MAX_LISTING} bytes"
            )));
        }
        if announced.is_some_and(|announced| announced != body.len() as u64) {
            return Err(bad("the listing ends early".into()));
        }
        serde_json::from_slice(&body).map_err(|error| bad(format!("invalid JSON: {error}")))
    }

    /// The error of a status that is no success, where no better one is known.
    pub(crate) fn failure(&self, name: &str, answer: Answer) -> Error {
        let (status, host) = (answer.status, answer.url.origin.host.clone());
        if status == 429 {
            let wait = retry_after(answer.headers()).map(|wait| wait.as_secs());
            return Error::RateLimited {
                name: name.into(),
                host,
                wait,
            };
        }
        Error::Status {
            name: name.into(),
            host,
            status,
            message: answer.message(),
        }
    }

    /// Waits, unless the work is canceled.
    pub(crate) fn sleep(&self, name: &str, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check_canceled(name)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Fails if the work is canceled.
    pub(crate) fn check_canceled(&self, name: &str) -> Result<()> {
        match (self.cancel)() {
            true => Err(Error::Canceled { name: name.into() }),
            false => Ok(()),
        }
    }
}

/// An error of a connection.
fn unreachable(name: &str, origin: &Origin, error: &ureq::Error) -> Error {
    let problem = match error {
        ureq::Error::HostNotFound => "no such host".to_owned(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        error => printable(&error.to_string()),
    };
    Error::Unreachable {
        name: name.into(),
        host: origin.to_string(),
        problem,
    }
}

/// True for statuses that pass: the same request may succeed later.
pub(crate) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// The time that the host asks to wait: `Retry-After`, or `RateLimit: "api";r=0;t=55`.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    if let Some(after) = text("retry-after") {
        if let Ok(seconds) = after.trim().parse() {
            return Some(Duration::from_secs(seconds));
        }
        let date = httpdate::parse_http_date(after.trim()).ok()?;
        return Some(date.duration_since(SystemTime::now()).unwrap_or_default());
    }
    let limit = text("ratelimit")?;
    let field = |key| {
        limit
            .split(';')
            .find_map(|part| part.trim().strip_prefix(key)?.parse::<u64>().ok())
    };
    (field("r=")? == 0).then(|| field("t=").map(Duration::from_secs))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &'static str, value: &str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        retry_after(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn waits_are_read_from_both_headers() {
        assert_eq!(asked("retry-after", "7"), Some(7));
        assert_eq!(
            asked("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT"),
            Some(0)
        );
        assert_eq!(asked("retry-after", "soon"), None);
        assert_eq!(asked("ratelimit", "\"api\";r=0;t=55"), Some(55));
        assert_eq!(asked("ratelimit", "\"api\";r=3;t=55"), None);
    }
}
