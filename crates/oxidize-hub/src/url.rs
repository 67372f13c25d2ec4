//! [`Url`]: an http or https address, taken apart as far as origins and redirects need.

use std::fmt;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// Scheme, host and port.
    pub(crate) origin: Origin,
    /// Path and query; starts with `/`.
    pub(crate) path: String,
}

/// Scheme, host and port. A token is sent to its own origin only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) is_https: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Url {
    /// Parses an absolute address.
    pub(crate) fn parse(text: &str) -> Result<Url, &'static str> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("not an http or https address")?;
        let is_https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("only http and https are supported"),
        };
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("addresses with a user name are not supported");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_| "the port is not a number")?)
            }
            _ => (authority, if is_https { 443 } else { 80 }),
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        if host.is_empty() || !host.chars().all(allowed) {
            return Err("the host is not valid");
        }
        if path.chars().any(|c| c.is_control() || c == ' ') {
            return Err("the address has spaces or control characters");
        }
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        Ok(Url {
            origin: Origin {
                is_https,
                host: host.to_ascii_lowercase(),
                port,
            },
            path: encode(&path, "%/?:@!$&'()*+,;=-._~[]"),
        })
    }

    /// The address of a `Location` or `Link` of an answer from this address.
    pub(crate) fn join(&self, location: &str) -> Result<Url, &'static str> {
        if let Some(rest) = location.strip_prefix("//") {
            let scheme = if self.origin.is_https {
                "https"
            } else {
                "http"
            };
            return Url::parse(&format!("{scheme}://{rest}"));
        }
        if let Some(colon) = location.find(':')
            && location.find('/').is_none_or(|slash| colon < slash)
        {
            return Url::parse(location);
        }
        let base = self.path.split('?').next().unwrap_or("/");
        let path = match location.starts_with('/') {
            true => location.to_owned(),
            false => format!(
                "{}/{location}",
                base.rsplit_once('/').map_or("", |(start, _)| start)
            ),
        };
        Url::parse(&format!("{}{path}", self.origin))
    }

    /// This address with another path below its own path.
    pub(crate) fn below(&self, path: &str) -> Url {
        Url {
            origin: self.origin.clone(),
            path: format!(
                "{}/{}",
                self.path.trim_end_matches('/'),
                path.trim_start_matches('/')
            ),
        }
    }

    /// Last part of the path, decoded.
    pub(crate) fn file_name(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        decode(path.rsplit('/').next().unwrap_or_default())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, default) = if self.is_https {
            ("https", 443)
        } else {
            ("http", 80)
        };
        match self.port == default {
            true => write!(f, "{scheme}://{}", self.host),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

/// Percent-encodes everything but ASCII letters, digits and `plain`.
fn encode(text: &str, plain: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.as_bytes().contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Percent-encodes a path of a repository; slashes stay.
pub(crate) fn encode_path(path: &str) -> String {
    encode(path, "/-._~")
}

/// Percent-encodes a value of a query, or one part of a path.
pub(crate) fn encode_part(text: &str) -> String {
    encode(text, "-._~")
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn origins_have_scheme_host_and_port() {
        let base = url("https://Hub.example/a");
        assert_eq!(base.origin, url("https://hub.example:443/b?c").origin);
        for other in [
            "http://hub.example",
            "https://hub.example:444",
            "https://hub.example.org",
        ] {
            assert_ne!(base.origin, url(other).origin, "{other}");
        }
        for wrong in [
            "ftp://a/b",
            "file:///etc/passwd",
            "https://",
            "https://a b/",
            "https://u:p@h/",
            "https://h:x/",
            "h",
        ] {
            assert!(Url::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(url("http://[::1]:80/x").origin, url("http://[::1]/").origin);
    }

    #[test]
    fn locations_are_relative_or_absolute() {
        let base = url("https://h/a/b?q=1");
        for (location, expected) in [
            ("/x?y", "https://h/x?y"),
            ("c", "https://h/a/c"),
            ("//other/x", "https://other/x"),
            ("http://h:8/x", "http://h:8/x"),
        ] {
            assert_eq!(base.join(location).unwrap().to_string(), expected);
        }
        assert!(base.join("file:///etc/passwd").is_err());
        assert!(base.join("javascript:1").is_err());
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encode_path("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(url("https://h/x/a%20b.gguf?d=1").file_name(), "a b.gguf");
        assert_eq!(url("https://h/%zz%2").file_name(), "%zz%2");
    }
}
