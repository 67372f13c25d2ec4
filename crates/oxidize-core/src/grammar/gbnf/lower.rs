//! Translation of a GBNF tree to Lark: turns parts of the tree into lexemes where possible and the
//! rest into rules.
//!
//! llguidance matches a lexeme as far as possible and never backtracks to a shorter match. A part
//! of the grammar may therefore be a lexeme only if no match of it (or of another lexeme) can be
//! extended, within some lexeme, by a byte that may also follow it. Lexemes start as large as
//! possible: a grammar without recursion is a single lexeme. Those that violate the condition are
//! split, level by level, until none does; single characters always satisfy it.

use super::class::ByteSet;
use super::{GrammarError, Node, NodeId, RuleId, Tree};
use llguidance::derivre::raw::{ExprSet, RelevanceCache};
use llguidance::derivre::{ExprRef, RegexBuilder};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Limit on rounds of splitting lexemes; after that, all become single characters.
const MAX_ROUNDS: usize = 64;
/// Limit on compared pairs of lexemes; after that, all become single characters.
const MAX_CHECKS: usize = 20_000;
/// Limit on the work of one comparison, in units of the regex engine (about 20 µs).
const CHECK_FUEL: u64 = 2_000;

pub(super) fn lower(mut tree: Tree) -> Result<String, GrammarError> {
    tail_calls_to_loops(&mut tree)?;
    let rules = RuleFacts::new(&tree);
    rules.check_termination(&tree)?;
    let mut lowering = Lowering::new(tree, rules)?;
    for _ in 0..MAX_ROUNDS {
        let cfg = lowering.cfg()?;
        match lowering.find_overlong(&cfg) {
            Some(found) if found.is_empty() => return Ok(lowering.lark(&cfg)),
            Some(found) => lowering.split_lexemes(&cfg, &found)?,
            None => break,
        }
    }
    lowering.characters_only = true;
    let cfg = lowering.cfg()?;
    Ok(lowering.lark(&cfg))
}

/// Rewrites `ws ::= [ \t] ws | ""` as `ws ::= [ \t]* ""`: a loop can be part of a lexeme.
fn tail_calls_to_loops(tree: &mut Tree) -> Result<(), GrammarError> {
    for rule in 0..tree.rules.len() {
        let body = tree.body(rule);
        if !references(tree, body, rule) {
            continue;
        }
        let Some((Some(again), Some(last))) = split_tail(tree, body, rule)? else {
            continue;
        };
        let repeat = tree.add(Node::Repeat {
            node: again,
            min: 0,
            max: None,
        })?;
        let body = tree.add(Node::Seq(vec![repeat, last]))?;
        if let Some(rule) = tree.rules.get_mut(rule) {
            rule.body = Some(body);
        }
    }
    Ok(())
}

fn references(tree: &Tree, node: NodeId, rule: RuleId) -> bool {
    let mut todo = vec![node];
    while let Some(id) = todo.pop() {
        match tree.node(id) {
            Node::Rule(other) if *other == rule => return true,
            node => todo.extend(node.children()),
        }
    }
    false
}

/// Tail-recursive rule: the part before the recursive call, and the alternative without it. `None`
/// if the rule also recurses elsewhere than at its end.
type Tail = Option<(Option<NodeId>, Option<NodeId>)>;

fn split_tail(tree: &mut Tree, node: NodeId, rule: RuleId) -> Result<Tail, GrammarError> {
    if !references(tree, node, rule) {
        return Ok(Some((None, Some(node))));
    }
    match tree.node(node).clone() {
        Node::Rule(_) => {
            let nothing = tree.add(Node::Seq(Vec::new()))?;
            Ok(Some((Some(nothing), None)))
        }
        Node::Seq(items) => {
            let Some((&last, before)) = items.split_last() else {
                return Ok(None);
            };
            if before.iter().any(|&item| references(tree, item, rule)) {
                return Ok(None);
            }
            let Some((again, end)) = split_tail(tree, last, rule)? else {
                return Ok(None);
            };
            let mut behind = |tail: Option<NodeId>| {
                let joined = tail.map(|tail| before.iter().copied().chain([tail]).collect());
                joined.map(|items| tree.add(Node::Seq(items))).transpose()
            };
            Ok(Some((behind(again)?, behind(end)?)))
        }
        Node::Alt(options) => {
            let (mut again, mut end) = (Vec::new(), Vec::new());
            for option in options {
                let Some(parts) = split_tail(tree, option, rule)? else {
                    return Ok(None);
                };
                again.extend(parts.0);
                end.extend(parts.1);
            }
            let mut any = |options: Vec<NodeId>| match options.as_slice() {
                [] => Ok(None),
                &[only] => Ok(Some(only)),
                _ => tree.add(Node::Alt(options)).map(Some),
            };
            Ok(Some((any(again)?, any(end)?)))
        }
        Node::Repeat {
            node,
            min: 0,
            max: Some(1),
        } => {
            let Some((again, end)) = split_tail(tree, node, rule)? else {
                return Ok(None);
            };
            let nothing = tree.add(Node::Seq(Vec::new()))?;
            let options = end.into_iter().chain([nothing]).collect();
            Ok(Some((again, Some(tree.add(Node::Alt(options))?))))
        }
        Node::Repeat { .. } | Node::Class(_) | Node::Token { .. } => Ok(None),
    }
}

/// Dependencies between rules.
struct RuleFacts {
    used_by: Vec<Vec<RuleId>>,
    /// Non-recursive rules, each after the rules that it uses.
    regular: Vec<RuleId>,
}

impl RuleFacts {
    fn new(tree: &Tree) -> RuleFacts {
        let n = tree.rules.len();
        let (mut uses, mut used_by) = (vec![BTreeSet::new(); n], vec![Vec::new(); n]);
        // A rule that contains a token cannot be a regex.
        let mut has_token = vec![0; n];
        for ((rule, uses), has_token) in uses.iter_mut().enumerate().zip(&mut has_token) {
            let mut todo = vec![tree.body(rule)];
            while let Some(id) = todo.pop() {
                match tree.node(id) {
                    &Node::Rule(other) => {
                        if uses.insert(other)
                            && let Some(users) = used_by.get_mut(other)
                        {
                            users.push(rule);
                        }
                    }
                    Node::Token { .. } => *has_token = 1,
                    node => todo.extend(node.children()),
                }
            }
        }
        let n_pending = uses.iter().zip(has_token);
        let mut n_pending: Vec<usize> = n_pending.map(|(uses, token)| uses.len() + token).collect();
        let mut regular: Vec<RuleId> = (0..n)
            .filter(|&rule| n_pending.get(rule) == Some(&0))
            .collect();
        let mut at = 0;
        while let Some(&rule) = regular.get(at) {
            at += 1;
            for &user in used_by.get(rule).into_iter().flatten() {
                if let Some(pending) = n_pending.get_mut(user) {
                    *pending -= 1;
                    if *pending == 0 {
                        regular.push(user);
                    }
                }
            }
        }
        RuleFacts { used_by, regular }
    }

    /// Rejects rules that always recurse, under which an answer would never end.
    fn check_termination(&self, tree: &Tree) -> Result<(), GrammarError> {
        let mut terminating = vec![false; tree.rules.len()];
        let recursive = (0..tree.rules.len()).rev();
        let mut todo: Vec<RuleId> = recursive
            .chain(self.regular.iter().rev().copied())
            .collect();
        while let Some(rule) = todo.pop() {
            if terminating.get(rule) == Some(&false)
                && terminates(tree, tree.body(rule), &terminating)
            {
                if let Some(end) = terminating.get_mut(rule) {
                    *end = true;
                }
                todo.extend(self.used_by.get(rule).into_iter().flatten());
            }
        }
        match terminating.iter().position(|end| !end) {
            None => Ok(()),
            Some(rule) => Err(GrammarError::NeverEnds {
                rule: tree.rule_name(rule).to_owned(),
            }),
        }
    }
}

fn terminates(tree: &Tree, node: NodeId, rules: &[bool]) -> bool {
    match tree.node(node) {
        Node::Class(_) | Node::Token { .. } => true,
        Node::Seq(items) => items.iter().all(|&item| terminates(tree, item, rules)),
        Node::Alt(options) => options.iter().any(|&item| terminates(tree, item, rules)),
        &Node::Repeat { node, min, .. } => min == 0 || terminates(tree, node, rules),
        Node::Rule(rule) => rules.get(*rule).copied().unwrap_or(false),
    }
}

/// Symbol of the generated grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Lexeme(usize),
    Rule(usize),
    Token { id: u32, negated: bool },
}

/// Part of the tree that became a lexeme.
#[derive(Clone, Debug)]
struct Piece {
    /// Adjacent children that were joined.
    parts: Vec<NodeId>,
    /// True if the parts form a sequence, false if they are alternatives.
    sequence: bool,
    /// Parent node of the parts.
    owner: NodeId,
}

struct Lexeme {
    /// All occurrences.
    pieces: Vec<Piece>,
    regex: ExprRef,
    first: ByteSet,
    is_character: bool,
}

#[derive(Default)]
struct CfgRule {
    options: Vec<Vec<Symbol>>,
    /// Repetition of the rule.
    repeat: Option<(u32, Option<u32>)>,
}

#[derive(Default)]
struct Cfg {
    lexemes: Vec<Lexeme>,
    by_regex: HashMap<ExprRef, usize>,
    rules: Vec<CfgRule>,
    /// Rules of the tree and their index in `rules`.
    from_tree: HashMap<RuleId, usize>,
    /// Rules whose body is not built yet.
    todo: Vec<RuleId>,
    start: Vec<Symbol>,
}

struct Lowering {
    tree: Tree,
    regular: HashSet<RuleId>,
    exprs: ExprSet,
    relevance: RelevanceCache,
    /// Regexes of nodes; those of classes are parsed, the others are built from them.
    node_regex: HashMap<NodeId, ExprRef>,
    rule_regex: HashMap<RuleId, ExprRef>,
    /// First bytes, and whether the node can be empty.
    node_first: HashMap<NodeId, (ByteSet, bool)>,
    rule_first: HashMap<RuleId, (ByteSet, bool)>,
    /// Nodes that may neither be a lexeme nor have joined children.
    split_nodes: HashSet<NodeId>,
    characters_only: bool,
    compared: HashMap<(ExprRef, ByteSet, ExprRef), bool>,
}

impl Lowering {
    fn new(tree: Tree, rules: RuleFacts) -> Result<Lowering, GrammarError> {
        let mut builder = RegexBuilder::new();
        let mut node_regex = HashMap::new();
        let mut known: HashMap<String, ExprRef> = HashMap::new();
        for (id, node) in tree.nodes.iter().enumerate() {
            let Node::Class(class) = node else { continue };
            let text = class.regex();
            let regex = match known.get(&text) {
                Some(&regex) => regex,
                None => {
                    let regex = builder
                        .mk_regex(&text)
                        .map_err(|error| GrammarError::Engine(error.to_string()))?;
                    *known.entry(text).or_insert(regex)
                }
            };
            node_regex.insert(id, regex);
        }
        let mut lowering = Lowering {
            tree,
            regular: rules.regular.iter().copied().collect(),
            exprs: builder.into_exprset(),
            relevance: RelevanceCache::new(),
            node_regex,
            rule_regex: HashMap::new(),
            node_first: HashMap::new(),
            rule_first: HashMap::new(),
            split_nodes: HashSet::new(),
            characters_only: false,
            compared: HashMap::new(),
        };
        for &rule in &rules.regular {
            let body = lowering.tree.body(rule);
            let regex = lowering.regex(body);
            lowering.rule_regex.insert(rule, regex);
            let first = lowering.first(body);
            lowering.rule_first.insert(rule, first);
        }
        Ok(lowering)
    }

    fn regex(&mut self, id: NodeId) -> ExprRef {
        if let Some(&regex) = self.node_regex.get(&id) {
            return regex;
        }
        let children = self.tree.node(id).children().to_vec();
        let mut parts: Vec<ExprRef> = children.iter().map(|&child| self.regex(child)).collect();
        let regex = match self.tree.node(id) {
            Node::Rule(rule) => self.rule_regex.get(rule).copied(),
            Node::Alt(_) => Some(self.exprs.mk_or(&mut parts)),
            Node::Repeat { min, max, .. } => parts.first().map(|&part| {
                let max = max.unwrap_or(u32::MAX);
                self.exprs.mk_repeat(part, *min, max)
            }),
            Node::Seq(_) | Node::Class(_) => Some(self.exprs.mk_concat_vec(&parts)),
            // Never part of a lexeme.
            Node::Token { .. } => None,
        };
        let regex = regex.unwrap_or(ExprRef::EMPTY_STRING);
        self.node_regex.insert(id, regex);
        regex
    }

    fn first(&mut self, id: NodeId) -> (ByteSet, bool) {
        if let Some(&first) = self.node_first.get(&id) {
            return first;
        }
        let first = match self.tree.node(id).clone() {
            Node::Class(class) => (class.first_bytes(), false),
            Node::Token { .. } => (ByteSet::default(), false),
            Node::Rule(rule) => self.rule_first.get(&rule).copied().unwrap_or_default(),
            Node::Seq(items) => self.first_of_sequence(&items),
            Node::Alt(options) => self.first_of_any(&options),
            Node::Repeat { node, min, .. } => {
                let (first, empty) = self.first(node);
                (first, empty || min == 0)
            }
        };
        self.node_first.insert(id, first);
        first
    }

    fn first_of_sequence(&mut self, items: &[NodeId]) -> (ByteSet, bool) {
        let mut bytes = ByteSet::default();
        for &item in items {
            let (first, empty) = self.first(item);
            bytes.add(first);
            if !empty {
                return (bytes, false);
            }
        }
        (bytes, true)
    }

    fn first_of_any(&mut self, options: &[NodeId]) -> (ByteSet, bool) {
        let (mut bytes, mut empty) = (ByteSet::default(), false);
        for &option in options {
            let (first, option_empty) = self.first(option);
            bytes.add(first);
            empty |= option_empty;
        }
        (bytes, empty)
    }

    /// Builds the grammar with the largest lexemes allowed so far.
    fn cfg(&mut self) -> Result<Cfg, GrammarError> {
        let mut cfg = Cfg::default();
        let mut lexical = HashMap::new();
        let root = self.tree.add(Node::Rule(self.tree.root))?;
        cfg.start = self.symbols(&mut cfg, &mut lexical, root);
        while let Some(rule) = cfg.todo.pop() {
            let symbols = self.symbols(&mut cfg, &mut lexical, self.tree.body(rule));
            if let Some(&at) = cfg.from_tree.get(&rule)
                && let Some(rule) = cfg.rules.get_mut(at)
            {
                rule.options = vec![symbols];
            }
        }
        Ok(cfg)
    }

    /// True if a node can be a lexeme or part of one.
    fn is_lexical(&self, known: &mut HashMap<NodeId, bool>, id: NodeId) -> bool {
        if let Some(&lexical) = known.get(&id) {
            return lexical;
        }
        let node = self.tree.node(id);
        let lexical = match node {
            Node::Class(_) => true,
            Node::Token { .. } => false,
            _ if self.characters_only || self.split_nodes.contains(&id) => false,
            Node::Rule(rule) => self.regular.contains(rule),
            node => node
                .children()
                .iter()
                .all(|&child| self.is_lexical(known, child)),
        };
        known.insert(id, lexical);
        lexical
    }

    fn symbols(
        &mut self,
        cfg: &mut Cfg,
        lexical: &mut HashMap<NodeId, bool>,
        id: NodeId,
    ) -> Vec<Symbol> {
        if self.is_lexical(lexical, id) {
            let piece = Piece {
                parts: vec![id],
                sequence: true,
                owner: id,
            };
            return self.lexeme(cfg, piece).into_iter().collect();
        }
        match self.tree.node(id).clone() {
            Node::Rule(rule) => {
                let next = cfg.rules.len();
                let at = *cfg.from_tree.entry(rule).or_insert(next);
                if at == next {
                    cfg.rules.push(CfgRule::default());
                    cfg.todo.push(rule);
                }
                vec![Symbol::Rule(at)]
            }
            Node::Seq(items) => {
                let mut symbols = Vec::new();
                let may_join = !self.split_nodes.contains(&id) && !self.characters_only;
                let together = |&a: &NodeId, &b: &NodeId| {
                    let mut lexical = |id| self.is_lexical(lexical, id);
                    may_join && lexical(a) && lexical(b)
                };
                let groups: Vec<Vec<NodeId>> =
                    items.chunk_by(together).map(<[NodeId]>::to_vec).collect();
                for group in groups {
                    if let &[only] = group.as_slice() {
                        symbols.extend(self.symbols(cfg, lexical, only));
                    } else {
                        let piece = Piece {
                            parts: group,
                            sequence: true,
                            owner: id,
                        };
                        symbols.extend(self.lexeme(cfg, piece));
                    }
                }
                symbols
            }
            Node::Alt(options) => {
                let together = !self.split_nodes.contains(&id) && !self.characters_only;
                let (words, others): (Vec<NodeId>, Vec<NodeId>) = options
                    .iter()
                    .partition(|&&option| together && self.is_lexical(lexical, option));
                let mut options = Vec::new();
                if let &[only] = words.as_slice() {
                    options.push(self.symbols(cfg, lexical, only));
                } else if !words.is_empty() {
                    let piece = Piece {
                        parts: words,
                        sequence: false,
                        owner: id,
                    };
                    options.push(self.lexeme(cfg, piece).into_iter().collect());
                }
                for option in others {
                    options.push(self.symbols(cfg, lexical, option));
                }
                cfg.add_rule(options, None)
            }
            Node::Repeat { node, min, max } => {
                let inner = self.symbols(cfg, lexical, node);
                cfg.add_rule(vec![inner], Some((min, max)))
            }
            Node::Token { id, negated } => vec![Symbol::Token { id, negated }],
            // Always lexical.
            Node::Class(_) => Vec::new(),
        }
    }

    /// Lexeme of a piece; `None` if it can only be empty.
    fn lexeme(&mut self, cfg: &mut Cfg, piece: Piece) -> Option<Symbol> {
        let mut parts: Vec<ExprRef> = piece.parts.iter().map(|&part| self.regex(part)).collect();
        let (regex, (first, _)) = if piece.sequence {
            let first = self.first_of_sequence(&piece.parts);
            (self.exprs.mk_concat_vec(&parts), first)
        } else {
            let first = self.first_of_any(&piece.parts);
            (self.exprs.mk_or(&mut parts), first)
        };
        if regex == ExprRef::EMPTY_STRING {
            return None;
        }
        let at = *cfg.by_regex.entry(regex).or_insert(cfg.lexemes.len());
        if at == cfg.lexemes.len() {
            cfg.lexemes.push(Lexeme {
                pieces: Vec::new(),
                regex,
                first,
                is_character: true,
            });
        }
        if let Some(lexeme) = cfg.lexemes.get_mut(at) {
            let is_class = |&part: &NodeId| matches!(self.tree.node(part), Node::Class(_));
            let single = piece.parts.len() == 1 || !piece.sequence;
            lexeme.is_character &= single && piece.parts.iter().all(is_class);
            lexeme.pieces.push(piece);
        }
        Some(Symbol::Lexeme(at))
    }

    /// Finds lexemes that can extend a match of some lexeme by a byte that may also follow that
    /// match. Returns `None` if the search takes too long.
    fn find_overlong(&mut self, cfg: &Cfg) -> Option<Vec<usize>> {
        let follow = cfg.follow_sets(self);
        let mut found = BTreeSet::new();
        for (shorter, &follow) in cfg.lexemes.iter().zip(&follow) {
            for (at, longer) in cfg.lexemes.iter().enumerate() {
                let disjoint = follow.is_empty() || !shorter.first.intersects(longer.first);
                if longer.is_character || disjoint || found.contains(&at) {
                    continue;
                }
                if self.compared.len() > MAX_CHECKS {
                    return None;
                }
                if self.can_extend(shorter.regex, follow, longer.regex) {
                    found.insert(at);
                }
            }
        }
        Some(found.into_iter().collect())
    }

    /// True if a match of `shorter` and a byte of `follow` are a prefix of a match of `longer`.
    fn can_extend(&mut self, shorter: ExprRef, follow: ByteSet, longer: ExprRef) -> bool {
        let key = (shorter, follow, longer);
        if let Some(&known) = self.compared.get(&key) {
            return known;
        }
        let word = self
            .exprs
            .mk_and(&mut vec![shorter, ExprRef::NON_EMPTY_BYTE_STRING]);
        let next = self.exprs.mk_byte_set(&follow.words());
        let extended = self
            .exprs
            .mk_concat_vec(&[word, next, ExprRef::ANY_BYTE_STRING]);
        let both = self.exprs.mk_and(&mut vec![extended, longer]);
        // If this is too expensive to decide, the lexeme is split: correct, but slower.
        let can_extend = self
            .relevance
            .is_non_empty_limited(&mut self.exprs, both, CHECK_FUEL)
            .unwrap_or(true);
        self.compared.insert(key, can_extend);
        can_extend
    }

    fn split_lexemes(&mut self, cfg: &Cfg, found: &[usize]) -> Result<(), GrammarError> {
        let lexemes = found.iter().filter_map(|&at| cfg.lexemes.get(at));
        for piece in lexemes.flat_map(|lexeme| &lexeme.pieces) {
            let &[only] = piece.parts.as_slice() else {
                self.split_nodes.insert(piece.owner);
                continue;
            };
            match *self.tree.node(only) {
                Node::Rule(rule) if self.regular.contains(&rule) => {
                    // Inline this use of the rule; other uses may remain lexemes.
                    let copy = self.copy(self.tree.body(rule))?;
                    let copy = self.tree.node(copy).clone();
                    if let Some(node) = self.tree.nodes.get_mut(only) {
                        *node = copy;
                    }
                }
                Node::Class(_) => {}
                _ => {
                    self.split_nodes.insert(only);
                }
            }
        }
        Ok(())
    }

    fn copy(&mut self, id: NodeId) -> Result<NodeId, GrammarError> {
        let node = match self.tree.node(id).clone() {
            Node::Seq(items) => Node::Seq(self.copy_all(&items)?),
            Node::Alt(options) => Node::Alt(self.copy_all(&options)?),
            Node::Repeat { node, min, max } => Node::Repeat {
                node: self.copy(node)?,
                min,
                max,
            },
            node @ (Node::Class(_) | Node::Rule(_) | Node::Token { .. }) => node,
        };
        let copy = self.tree.add(node)?;
        let regex = self.regex(id);
        self.node_regex.insert(copy, regex);
        Ok(copy)
    }

    fn copy_all(&mut self, nodes: &[NodeId]) -> Result<Vec<NodeId>, GrammarError> {
        nodes.iter().map(|&node| self.copy(node)).collect()
    }

    /// Lark source. Lexemes are named `L`, rules `r`, and the nodes and rules that lexemes refer to
    /// `N` and `R`.
    fn lark(&self, cfg: &Cfg) -> String {
        let mut text = Writer {
            tree: &self.tree,
            text: String::new(),
            todo: Vec::new(),
            seen: HashSet::new(),
        };
        text.line("start", &cfg.sequence(&cfg.start));
        for (at, rule) in cfg.rules.iter().enumerate() {
            let options = rule.options.iter().map(|option| cfg.sequence(option));
            let mut body = options.collect::<Vec<_>>().join(" | ");
            if let Some((min, max)) = rule.repeat {
                body = format!("({body}){}", repeat(min, max));
            }
            text.line(&format!("r{at}"), &body);
        }
        for (at, lexeme) in cfg.lexemes.iter().enumerate() {
            if let Some(piece) = lexeme.pieces.first() {
                let separator = if piece.sequence { " " } else { " | " };
                let body = text.atoms(&piece.parts, separator);
                text.line(&format!("L{at}"), &body);
            }
        }
        text.finish()
    }
}

impl Cfg {
    fn add_rule(
        &mut self,
        options: Vec<Vec<Symbol>>,
        repeat: Option<(u32, Option<u32>)>,
    ) -> Vec<Symbol> {
        self.rules.push(CfgRule { options, repeat });
        vec![Symbol::Rule(self.rules.len() - 1)]
    }

    fn sequence(&self, symbols: &[Symbol]) -> String {
        if symbols.is_empty() {
            return "\"\"".into();
        }
        let names = symbols.iter().map(|symbol| match symbol {
            Symbol::Lexeme(at) => format!("L{at}"),
            Symbol::Rule(at) => format!("r{at}"),
            Symbol::Token { id, negated: false } => format!("<[{id}]>"),
            Symbol::Token { id, negated: true } => format!("<[^{id}]>"),
        });
        names.collect::<Vec<_>>().join(" ")
    }

    /// First bytes of what can follow each lexeme.
    fn follow_sets(&self, lowering: &mut Lowering) -> Vec<ByteSet> {
        let lexemes: Vec<(ByteSet, bool)> = self
            .lexemes
            .iter()
            .map(|lexeme| (lexeme.first, self.can_be_empty(lexeme, lowering)))
            .collect();
        let mut sets = FollowSets {
            cfg: self,
            rule_first: vec![Default::default(); self.rules.len()],
            rule_follow: vec![ByteSet::default(); self.rules.len()],
            lexeme_follow: vec![ByteSet::default(); lexemes.len()],
            lexemes,
        };
        // Dependencies run in both directions, so rules are visited both ways in turn.
        while (0..self.rules.len())
            .rev()
            .fold(false, |grew, rule| sets.update_first(rule) | grew)
            | (0..self.rules.len()).fold(false, |grew, rule| sets.update_first(rule) | grew)
        {
        }
        sets.propagate(&self.start, ByteSet::default());
        while (0..self.rules.len()).fold(false, |grew, rule| sets.update_follow(rule) | grew)
            | (0..self.rules.len())
                .rev()
                .fold(false, |grew, rule| sets.update_follow(rule) | grew)
        {}
        sets.lexeme_follow
    }

    fn can_be_empty(&self, lexeme: &Lexeme, lowering: &mut Lowering) -> bool {
        lexeme.pieces.first().is_some_and(|piece| {
            if piece.sequence {
                lowering.first_of_sequence(&piece.parts).1
            } else {
                lowering.first_of_any(&piece.parts).1
            }
        })
    }
}

/// Computation of FIRST and FOLLOW sets by fixed-point iteration.
struct FollowSets<'a> {
    cfg: &'a Cfg,
    lexemes: Vec<(ByteSet, bool)>,
    rule_first: Vec<(ByteSet, bool)>,
    rule_follow: Vec<ByteSet>,
    lexeme_follow: Vec<ByteSet>,
}

impl FollowSets<'_> {
    fn first(&self, symbol: Symbol) -> (ByteSet, bool) {
        let first = match symbol {
            Symbol::Lexeme(at) => self.lexemes.get(at),
            Symbol::Rule(at) => self.rule_first.get(at),
            // A token is not text: no byte can be mistaken for it.
            Symbol::Token { .. } => None,
        };
        first.copied().unwrap_or_default()
    }

    fn update_first(&mut self, at: usize) -> bool {
        let Some(rule) = self.cfg.rules.get(at) else {
            return false;
        };
        let mut bytes = ByteSet::default();
        let mut empty = rule.repeat.is_some_and(|(min, _)| min == 0);
        for option in &rule.options {
            let mut option_empty = true;
            for &symbol in option {
                let (first, symbol_empty) = self.first(symbol);
                bytes.add(first);
                if !symbol_empty {
                    option_empty = false;
                    break;
                }
            }
            empty |= option_empty;
        }
        let Some(known) = self.rule_first.get_mut(at) else {
            return false;
        };
        let grew = empty && !known.1;
        known.1 |= empty;
        known.0.add(bytes) | grew
    }

    fn update_follow(&mut self, at: usize) -> bool {
        let cfg = self.cfg;
        let Some(rule) = cfg.rules.get(at) else {
            return false;
        };
        let mut after = self.rule_follow.get(at).copied().unwrap_or_default();
        if rule.repeat.is_some() {
            // The next repetition can follow, too.
            after.add(self.first(Symbol::Rule(at)).0);
        }
        let mut grew = false;
        for option in &rule.options {
            grew |= self.propagate(option, after);
        }
        grew
    }

    /// Propagates `after`, the FOLLOW set of a sequence, to its symbols. Returns true if a set
    /// grew.
    fn propagate(&mut self, symbols: &[Symbol], mut after: ByteSet) -> bool {
        let mut grew = false;
        for &symbol in symbols.iter().rev() {
            let follow = match symbol {
                Symbol::Lexeme(at) => self.lexeme_follow.get_mut(at),
                Symbol::Rule(at) => self.rule_follow.get_mut(at),
                Symbol::Token { .. } => None,
            };
            grew |= follow.is_some_and(|follow| follow.add(after));
            let (first, empty) = self.first(symbol);
            if !empty {
                after = ByteSet::default();
            }
            after.add(first);
        }
        grew
    }
}

/// Writer of Lark terminals. Every group gets its own name, so nothing is nested.
struct Writer<'a> {
    tree: &'a Tree,
    text: String,
    todo: Vec<(String, NodeId)>,
    seen: HashSet<String>,
}

impl Writer<'_> {
    fn line(&mut self, name: &str, body: &str) {
        for part in [name, ": ", body, "\n"] {
            self.text.push_str(part);
        }
    }

    fn finish(mut self) -> String {
        while let Some((name, id)) = self.todo.pop() {
            let body = match self.tree.node(id) {
                Node::Alt(options) => self.atoms(options, " | "),
                &Node::Repeat { node, min, max } => self.atom(node) + &repeat(min, max),
                Node::Seq(items) => self.atoms(items, " "),
                Node::Class(_) | Node::Rule(_) | Node::Token { .. } => self.atom(id),
            };
            self.line(&name, &body);
        }
        self.text
    }

    fn atoms(&mut self, ids: &[NodeId], separator: &str) -> String {
        if ids.is_empty() {
            return "\"\"".into();
        }
        let atoms: Vec<String> = ids.iter().map(|&id| self.atom(id)).collect();
        atoms.join(separator)
    }

    fn atom(&mut self, id: NodeId) -> String {
        match self.tree.node(id) {
            Node::Class(class) => format!("/{}/", class.regex()),
            &Node::Rule(rule) => self.reference(format!("R{rule}"), self.tree.body(rule)),
            // Never part of a lexeme.
            Node::Token { .. } => "\"\"".into(),
            Node::Seq(items) if items.is_empty() => "\"\"".into(),
            Node::Seq(items) => {
                let classes = items.iter().map(|&item| match self.tree.node(item) {
                    Node::Class(class) => Some(class.regex()),
                    _ => None,
                });
                match classes.collect::<Option<String>>() {
                    Some(string) => format!("/{string}/"),
                    None => self.reference(format!("N{id}"), id),
                }
            }
            Node::Alt(_) | Node::Repeat { .. } => self.reference(format!("N{id}"), id),
        }
    }

    fn reference(&mut self, name: String, id: NodeId) -> String {
        if self.seen.insert(name.clone()) {
            self.todo.push((name.clone(), id));
        }
        name
    }
}

fn repeat(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}
