//! GBNF, llama.cpp's grammar notation: parsed into a tree ([`parse`]), which `lower` translates to
//! Lark for llguidance.
//!
//! GBNF operates on characters; llguidance first splits text into lexemes, always by longest match.
//! `lower` chooses lexemes for which this makes no difference.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

mod class;
mod lower;

use super::GrammarError;
use crate::limits::LimitExceeded;
use class::Class;
use std::collections::HashMap;

/// Limit on the length of a grammar in bytes.
const MAX_BYTES: u64 = 256 << 10;
/// Limit on nested parentheses.
const MAX_NESTING: u64 = 200;
/// Limit on the total nesting of all rules, which bounds the depth of every chain of rules.
const MAX_DEPTH: u64 = 8192;
/// Limit on characters, groups and references, including inlined rules.
const MAX_NODES: u64 = 100_000;
/// Limit on the number of rules.
const MAX_RULES: u64 = 4096;
/// Limit on the counts in `{m,n}`.
const MAX_REPEATS: u64 = 10_000;

/// Translates a grammar to llguidance's Lark dialect. `tokens` resolves token names.
pub(super) fn to_lark(source: &str, tokens: &dyn FindToken) -> Result<String, GrammarError> {
    lower::lower(parse(source, tokens)?)
}

/// Lookup of tokens that a grammar references.
pub(super) trait FindToken {
    /// Id of the token with this name, which includes the brackets.
    fn named(&self, name: &str) -> Option<u32>;
    /// Number of tokens.
    fn n_tokens(&self) -> usize;
}

type NodeId = usize;
type RuleId = usize;

#[derive(Clone, Debug)]
enum Node {
    /// One character.
    Class(Class),
    /// Concatenation; matches the empty string if there are no items.
    Seq(Vec<NodeId>),
    Alt(Vec<NodeId>),
    Repeat {
        node: NodeId,
        min: u32,
        max: Option<u32>,
    },
    Rule(RuleId),
    /// Token `id`, or any other token if negated.
    Token {
        id: u32,
        negated: bool,
    },
}

impl Node {
    fn children(&self) -> &[NodeId] {
        match self {
            Node::Seq(nodes) | Node::Alt(nodes) => nodes,
            Node::Repeat { node, .. } => std::slice::from_ref(node),
            Node::Class(_) | Node::Rule(_) | Node::Token { .. } => &[],
        }
    }
}

#[derive(Debug, Default)]
struct Rule {
    name: String,
    /// `None` until the rule is defined.
    body: Option<NodeId>,
    /// Line of the first use, for error messages.
    line: usize,
}

#[derive(Debug, Default)]
struct Tree {
    rules: Vec<Rule>,
    nodes: Vec<Node>,
    root: RuleId,
}

impl Tree {
    fn add(&mut self, node: Node) -> Result<NodeId, LimitExceeded> {
        let id = self.nodes.len();
        LimitExceeded::check("characters and groups in a grammar", id as u64, MAX_NODES)?;
        self.nodes.push(node);
        Ok(id)
    }

    fn node(&self, id: NodeId) -> &Node {
        static EMPTY: Node = Node::Seq(Vec::new());
        self.nodes.get(id).unwrap_or(&EMPTY)
    }

    fn body(&self, rule: RuleId) -> NodeId {
        // The parser has checked that every rule has a body.
        self.rules.get(rule).and_then(|rule| rule.body).unwrap_or(0)
    }

    fn rule_name(&self, rule: RuleId) -> &str {
        self.rules.get(rule).map_or("", |rule| &rule.name)
    }
}

fn parse(source: &str, tokens: &dyn FindToken) -> Result<Tree, GrammarError> {
    LimitExceeded::check("bytes of grammar", source.len() as u64, MAX_BYTES)?;
    let mut parser = Parser {
        source,
        tokens,
        at: 0,
        tree: Tree::default(),
        names: HashMap::new(),
        deepest: 0,
        total_depth: 0,
    };
    parser.space(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    let Parser {
        mut tree, names, ..
    } = parser;
    if let Some(rule) = tree.rules.iter().find(|rule| rule.body.is_none()) {
        return Err(GrammarError::Gbnf {
            line: rule.line,
            problem: format!("rule `{}` is used but not defined", rule.name),
        });
    }
    tree.root = *names.get("root").ok_or(GrammarError::Gbnf {
        line: 1,
        problem: "there is no rule `root`".into(),
    })?;
    Ok(tree)
}

struct Parser<'a> {
    source: &'a str,
    tokens: &'a dyn FindToken,
    at: usize,
    tree: Tree,
    names: HashMap<&'a str, RuleId>,
    /// Deepest nesting in the current rule.
    deepest: u64,
    total_depth: u64,
}

type Parsed<T> = Result<T, GrammarError>;

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or("")
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn line(&self) -> usize {
        let read = self.source.get(..self.at).unwrap_or(self.source);
        1 + read.bytes().filter(|&byte| byte == b'\n').count()
    }

    fn error<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(GrammarError::Gbnf {
            line: self.line(),
            problem: problem.into(),
        })
    }

    /// Description of the next input, for error messages.
    fn here(&self) -> String {
        match self.peek() {
            Some('\n' | '\r') => "the end of the line".into(),
            Some(other) => format!("{other:?}"),
            None => "the end of the grammar".into(),
        }
    }

    /// Skips spaces and comments, and line breaks if `lines` is true.
    fn space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' => {}
                '\n' | '\r' if lines => {}
                '#' => {
                    let rest = self.rest();
                    self.at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let name = rest.get(..end).filter(|name| !name.is_empty())?;
        self.at += end;
        Some(name)
    }

    fn rule_id(&mut self, name: &'a str) -> Parsed<RuleId> {
        if let Some(&id) = self.names.get(name) {
            return Ok(id);
        }
        let id = self.tree.rules.len();
        LimitExceeded::check("rules", id as u64 + 1, MAX_RULES)?;
        self.tree.rules.push(Rule {
            name: name.to_owned(),
            body: None,
            line: self.line(),
        });
        self.names.insert(name, id);
        Ok(id)
    }

    fn rule(&mut self) -> Parsed<()> {
        let Some(name) = self.name() else {
            return self.error(format!(
                "expected the name of a rule, found {}",
                self.here()
            ));
        };
        let id = self.rule_id(name)?;
        self.space(false);
        if !self.eat("::=") {
            return self.error(format!(
                "expected `::=` after `{name}`, found {}",
                self.here()
            ));
        }
        self.space(true);
        self.deepest = 0;
        let body = self.alternatives(0)?;
        self.total_depth += self.deepest + 1;
        LimitExceeded::check(
            "levels of nesting in all rules",
            self.total_depth,
            MAX_DEPTH,
        )?;
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return self.error(format!("rule `{name}`: unexpected {}", self.here()));
        }
        self.space(true);
        match self.tree.rules.get_mut(id) {
            Some(rule) if rule.body.is_none() => rule.body = Some(body),
            _ => return self.error(format!("rule `{name}` is defined twice")),
        }
        Ok(())
    }

    fn alternatives(&mut self, depth: u64) -> Parsed<NodeId> {
        LimitExceeded::check("nested parentheses", depth, MAX_NESTING)?;
        self.deepest = self.deepest.max(depth);
        let mut options = vec![self.sequence(depth)?];
        loop {
            // A line may also start with the bar.
            let end = self.at;
            self.space(true);
            if !self.eat("|") {
                if depth == 0 {
                    self.at = end;
                }
                break;
            }
            self.space(true);
            options.push(self.sequence(depth)?);
        }
        match options.as_slice() {
            &[only] => Ok(only),
            _ => Ok(self.tree.add(Node::Alt(options))?),
        }
    }

    fn sequence(&mut self, depth: u64) -> Parsed<NodeId> {
        let mut items = Vec::new();
        while let Some(next) = self.peek() {
            let item = match next {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    self.tree.add(Node::Class(Class::any()))?
                }
                '(' => {
                    self.at += 1;
                    self.space(true);
                    let group = self.alternatives(depth + 1)?;
                    self.space(true);
                    if !self.eat(")") {
                        return self.error(format!("expected `)`, found {}", self.here()));
                    }
                    group
                }
                '<' | '!' => self.token()?,
                '*' | '+' | '?' | '{' => {
                    return self.error(format!("nothing to repeat before {next:?}"));
                }
                _ => match self.name() {
                    Some(name) => {
                        let rule = self.rule_id(name)?;
                        self.tree.add(Node::Rule(rule))?
                    }
                    None => break,
                },
            };
            let item = self.repeats(item)?;
            items.push(item);
            self.space(depth > 0);
        }
        match items.as_slice() {
            &[only] => Ok(only),
            _ => Ok(self.tree.add(Node::Seq(items))?),
        }
    }

    /// Parses the repetition operators after an item.
    fn repeats(&mut self, mut node: NodeId) -> Parsed<NodeId> {
        let mut operators = 0;
        loop {
            let before = self.at;
            self.space(false);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    self.counts()?
                }
                _ => {
                    self.at = before;
                    return Ok(node);
                }
            };
            self.at += 1;
            operators += 1;
            LimitExceeded::check("repetitions of repetitions", operators, 16)?;
            if max == Some(0) {
                node = self.tree.add(Node::Seq(Vec::new()))?;
            } else if (min, max) != (1, Some(1)) {
                node = self.tree.add(Node::Repeat { node, min, max })?;
            }
        }
    }

    /// Parses `m}`, `m,}` or `m,n}` up to the brace.
    fn counts(&mut self) -> Parsed<(u32, Option<u32>)> {
        self.space(false);
        let min = self.count()?;
        self.space(false);
        let mut max = Some(min);
        if self.eat(",") {
            self.space(false);
            max = match self.peek() {
                Some('}') => None,
                _ => Some(self.count()?),
            };
            self.space(false);
        }
        if self.peek() != Some('}') {
            return self.error(format!("expected `}}`, found {}", self.here()));
        }
        if max.is_some_and(|max| max < min) {
            return self.error("the minimum count exceeds the maximum");
        }
        Ok((min, max))
    }

    fn count(&mut self) -> Parsed<u32> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let digits = rest.get(..end).unwrap_or("");
        if digits.is_empty() {
            return self.error(format!("expected a count, found {}", self.here()));
        }
        // A number that overflows exceeds the limit, too.
        let count: u64 = digits.parse().unwrap_or(u64::MAX);
        LimitExceeded::check("repetitions", count, MAX_REPEATS)?;
        self.at += end;
        Ok(count as u32)
    }

    fn literal(&mut self) -> Parsed<NodeId> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            match self.peek() {
                None => return self.error("unterminated string"),
                Some('"') => break,
                Some(_) => {
                    let character = self.character()?;
                    let node = Node::Class(Class::one(character));
                    items.push(self.tree.add(node)?);
                }
            }
        }
        self.at += 1;
        match items.as_slice() {
            &[only] => Ok(only),
            _ => Ok(self.tree.add(Node::Seq(items))?),
        }
    }

    /// Parses `<name>` or `<[number]>`, or with `!` before it any other token.
    fn token(&mut self) -> Parsed<NodeId> {
        let negated = self.eat("!");
        let rest = self.rest();
        let end = rest.find(['>', '\n', '\r', ' ']);
        let name = end.and_then(|end| rest.get(..=end)).unwrap_or("");
        let Some(inner) = name.strip_prefix('<').and_then(|n| n.strip_suffix('>')) else {
            return self.error("expected a token, `<name>` or `<[number]>`");
        };
        let number = inner.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        let found = match number {
            Some(digits) => digits.parse().ok(),
            None => self.tokens.named(name),
        };
        let exists = |&id: &u32| (id as usize) < self.tokens.n_tokens();
        let Some(id) = found.filter(exists) else {
            let name: String = name.chars().take(64).collect();
            return self.error(format!("the vocabulary has no token {name}"));
        };
        self.at += name.len();
        Ok(self.tree.add(Node::Token { id, negated })?)
    }

    fn class(&mut self) -> Parsed<NodeId> {
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => return self.error("unterminated character class"),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let mut last = first;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            if is_range {
                self.at += 1;
                last = self.character()?;
            }
            if last < first {
                return self.error(format!("the range {first:?}-{last:?} is reversed"));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let class = Class::new(ranges, negated);
        if class.is_empty() {
            return self.error("the character class is empty");
        }
        Ok(self.tree.add(Node::Class(class))?)
    }

    /// Parses a character of a string or class, which may be escaped.
    fn character(&mut self) -> Parsed<char> {
        let next = self.next();
        if next != Some('\\') {
            return match next {
                Some(character) => Ok(character),
                None => self.error("the grammar ends inside a string or class"),
            };
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(same @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(same),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(other) => return self.error(format!("unknown escape `\\{other}`")),
            None => return self.error("the grammar ends inside an escape"),
        };
        let code = self
            .rest()
            .get(..digits)
            .filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(code) = code else {
            return self.error(format!("expected {digits} hex digits in an escape"));
        };
        self.at += digits;
        match char::from_u32(code) {
            Some(character) => Ok(character),
            None => self.error(format!("{code:#x} is not a character")),
        }
    }
}
