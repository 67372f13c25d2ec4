//! Scan of a template's source before parsing: rejects sources that make the recursive parser or
//! code generator recurse too deeply, and rewrites two constructs that minijinja does not handle.

use std::borrow::Cow;

use crate::chat::ChatError;

/// Limit on the source in bytes. The largest known templates have about 20 kB.
pub(super) const MAX_SOURCE: usize = 256 * 1024;
/// Limit on open brackets inside one tag.
const MAX_BRACKETS: usize = 64;
/// Limit on lexemes inside one tag: a chain `a.b.c…` or `a + b + c…` nests once per element.
const MAX_LEXEMES: usize = 4096;
/// Limit on `elif` branches in a template: each nests in the previous one.
const MAX_ELIF: usize = 1024;

/// Checks the limits. Returns the source with `{% generation %}` blocks made transparent, and with
/// products protected from constant folding, which no budget would bound.
pub(super) fn prepare(source: &str) -> Result<Cow<'_, str>, ChatError> {
    if source.len() > MAX_SOURCE {
        return Err(ChatError::Limit {
            what: "the source in bytes",
            limit: MAX_SOURCE as u64,
        });
    }
    let mut out = Rewriter {
        source,
        copied: 0,
        out: String::new(),
    };
    let mut rest = 0;
    let mut elifs = 0;
    while let Some(open) = find(source, rest, "{") {
        let Some(kind) = source.as_bytes().get(open + 1) else {
            break;
        };
        let (close, is_block) = match kind {
            b'#' => {
                rest = find(source, open + 2, "#}").map_or(source.len(), |end| end + 2);
                continue;
            }
            b'{' => ("}}", false),
            b'%' => ("%}", true),
            _ => {
                rest = open + 1;
                continue;
            }
        };
        let tag = Tag::scan(source, open + 2, close, &mut out)?;
        rest = tag.end;
        if !is_block {
            continue;
        }
        match tag.keyword {
            "raw" => rest = find_endraw(source, rest).unwrap_or(source.len()),
            "elif" => {
                elifs += 1;
                if elifs > MAX_ELIF {
                    return Err(ChatError::Limit {
                        what: "the number of elif branches",
                        limit: MAX_ELIF as u64,
                    });
                }
            }
            "generation" => out.replace(tag.keyword_at, "generation", "if true"),
            "endgeneration" => out.replace(tag.keyword_at, "endgeneration", "endif"),
            _ => {}
        }
    }
    Ok(out.finish())
}

/// Length of the longest plain text between tags, which one instruction can emit.
pub(super) fn longest_text(source: &str) -> usize {
    source
        .split("%}")
        .flat_map(|part| part.split("}}"))
        .map(|part| part.find("{%").unwrap_or(part.len()))
        .max()
        .unwrap_or(0)
}

struct Tag<'a> {
    keyword: &'a str,
    keyword_at: usize,
    end: usize,
}

impl<'a> Tag<'a> {
    /// Scans a tag from just after its opening to just after its closing.
    fn scan(
        source: &'a str,
        start: usize,
        close: &str,
        out: &mut Rewriter<'a>,
    ) -> Result<Self, ChatError> {
        let bytes = source.as_bytes();
        let mut tag = Self {
            keyword: "",
            keyword_at: start,
            end: source.len(),
        };
        let mut at = start;
        let mut lexemes = 0;
        let mut brackets = 0usize;
        let mut previous = b'(';
        // Whitespace control belongs to the opening of the tag.
        if matches!(bytes.get(at), Some(b'-' | b'+')) {
            at += 1;
        }
        while let Some(&byte) = bytes.get(at) {
            if brackets == 0 && source.get(at..).is_some_and(|rest| rest.starts_with(close)) {
                tag.end = at + close.len();
                break;
            }
            if byte.is_ascii_whitespace() {
                at += 1;
                continue;
            }
            lexemes += 1;
            if lexemes > MAX_LEXEMES {
                return Err(ChatError::Limit {
                    what: "the length of an expression",
                    limit: MAX_LEXEMES as u64,
                });
            }
            let begin = at;
            at = match byte {
                b'\'' | b'"' => end_of_string(bytes, at),
                b'(' | b'[' | b'{' => {
                    brackets += 1;
                    at + 1
                }
                b')' | b']' | b'}' => {
                    brackets = brackets.saturating_sub(1);
                    at + 1
                }
                _ if is_word(byte) => end_of_word(bytes, at),
                b'*' if bytes.get(at + 1) == Some(&b'*') => at + 2,
                b'*' => {
                    // After `(` or `,` it unpacks arguments.
                    if !matches!(previous, b'(' | b',') {
                        out.replace(at, "*", "* __one *");
                    }
                    at + 1
                }
                _ => at + 1,
            };
            if brackets > MAX_BRACKETS {
                return Err(ChatError::Limit {
                    what: "the nesting of brackets",
                    limit: MAX_BRACKETS as u64,
                });
            }
            if lexemes == 1 {
                tag.keyword = source.get(begin..at).unwrap_or("");
                tag.keyword_at = begin;
            }
            previous = byte;
        }
        Ok(tag)
    }
}

/// Copies the source with replacements; borrows it if there are none.
struct Rewriter<'a> {
    source: &'a str,
    copied: usize,
    out: String,
}

impl<'a> Rewriter<'a> {
    fn replace(&mut self, at: usize, old: &str, new: &str) {
        // The keyword of a tag is replaced after the rest of the tag; skip it if a replacement
        // inside the tag came first.
        if at >= self.copied {
            self.out
                .push_str(self.source.get(self.copied..at).unwrap_or(""));
            self.out.push_str(new);
            self.copied = at + old.len();
        }
    }

    fn finish(mut self) -> Cow<'a, str> {
        if self.copied == 0 {
            return Cow::Borrowed(self.source);
        }
        self.out
            .push_str(self.source.get(self.copied..).unwrap_or(""));
        Cow::Owned(self.out)
    }
}

fn find(source: &str, from: usize, what: &str) -> Option<usize> {
    source.get(from..)?.find(what).map(|at| from + at)
}

fn find_endraw(source: &str, mut from: usize) -> Option<usize> {
    loop {
        let open = find(source, from, "{%")?;
        let end = find(source, open, "%}")? + 2;
        let inside = source.get(open + 2..end - 2).unwrap_or("");
        if inside.trim_matches(['-', '+', ' ', '\t', '\r', '\n']) == "endraw" {
            return Some(end);
        }
        from = open + 2;
    }
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let quote = bytes.get(start).copied().unwrap_or(b'"');
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn end_of_word(bytes: &[u8], start: usize) -> usize {
    start
        + bytes.get(start..).map_or(0, |rest| {
            rest.iter().take_while(|&&byte| is_word(byte)).count()
        })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_sources_are_unchanged() {
        for source in [
            "",
            "text",
            "{{ a.b['c'] }}",
            "{% if x %}{# {{ #}{% endif %}",
            "{{ '}}' }}",
            "{",
            "{{",
            "{%",
        ] {
            assert!(matches!(prepare(source), Ok(Cow::Borrowed(_))), "{source}");
        }
    }

    #[test]
    fn generation_blocks_become_transparent() {
        let source = "{%- generation -%}x{% endgeneration %}";
        assert_eq!(prepare(source).unwrap(), "{%- if true -%}x{% endif %}");
        assert_eq!(
            prepare("{% raw %}{% generation %}{% endraw %}").unwrap(),
            "{% raw %}{% generation %}{% endraw %}"
        );
    }

    #[test]
    fn products_are_protected_but_unpacking_is_unchanged() {
        assert_eq!(prepare("{{ 'a' * 3 }}").unwrap(), "{{ 'a' * __one * 3 }}");
        assert_eq!(
            prepare("{{ f(*a, **b) ** 2 }}").unwrap(),
            "{{ f(*a, **b) ** 2 }}"
        );
    }

    #[test]
    fn deep_or_long_sources_are_rejected() {
        let cases = [
            format!("{{{{ {} }}}}", "(".repeat(100_000)),
            format!("{{{{ a{} }}}}", ".a".repeat(100_000)),
            format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
            format!("{{{{ {}x }}}}", "not ".repeat(50_000)),
            format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(20_000)),
            "x".repeat(MAX_SOURCE + 1),
        ];
        for source in &cases {
            assert!(
                matches!(prepare(source), Err(ChatError::Limit { .. })),
                "{}",
                &source[..20]
            );
        }
    }
}
