//! Random grammars compared with their formal definition: the set of words that they generate.

use crate::{TINY, step};
use oxidize_core::grammar::{Constraint, Grammar, GrammarError};
use oxidize_core::sampling::Rng;
use std::collections::BTreeSet;

/// Longest word that is compared.
const MAX_WORD: usize = 5;

enum Expr {
    Word(&'static str),
    Class(&'static str),
    Rule(usize),
    Seq(Vec<Expr>),
    Alt(Vec<Expr>),
    Repeat(Box<Expr>, usize, Option<usize>),
}

type Words = BTreeSet<String>;

impl Expr {
    fn random(rng: &mut Rng, depth: usize) -> Expr {
        let mut below = |n: usize| (rng.next_u64() % n as u64) as usize;
        match below(if depth == 0 { 5 } else { 9 }) {
            0 | 1 => Expr::Word(["a", "b", "ab", "ba", "c", "", "aab"][below(7)]),
            2 => Expr::Class(["ab", "bc", "c"][below(3)]),
            3 | 4 => Expr::Rule(below(3)),
            5 | 6 => {
                let n = 2 + below(2);
                Expr::Seq((0..n).map(|_| Expr::random(rng, depth - 1)).collect())
            }
            7 => {
                let n = 2 + below(2);
                Expr::Alt((0..n).map(|_| Expr::random(rng, depth - 1)).collect())
            }
            _ => {
                let (min, max) =
                    [(0, None), (1, None), (0, Some(1)), (1, Some(2)), (2, None)][below(5)];
                Expr::Repeat(Box::new(Expr::random(rng, depth - 1)), min, max)
            }
        }
    }

    fn gbnf(&self) -> String {
        let all = |list: &[Expr], separator: &str| {
            let list: Vec<String> = list.iter().map(Expr::gbnf).collect();
            format!("({})", list.join(separator))
        };
        match self {
            Expr::Word(word) => format!("\"{word}\""),
            Expr::Class(class) => format!("[{class}]"),
            Expr::Rule(rule) => NAMES[*rule].into(),
            Expr::Seq(list) => all(list, " "),
            Expr::Alt(list) => all(list, " | "),
            Expr::Repeat(inner, min, None) => format!("({}){{{min},}}", inner.gbnf()),
            Expr::Repeat(inner, min, Some(max)) => format!("({}){{{min},{max}}}", inner.gbnf()),
        }
    }

    fn words(&self, rules: &[Words]) -> Words {
        match self {
            Expr::Word(word) => [(*word).to_owned()].into(),
            Expr::Class(class) => class.chars().map(String::from).collect(),
            Expr::Rule(rule) => rules[*rule].clone(),
            Expr::Seq(list) => list.iter().fold([String::new()].into(), |before, next| {
                join(&before, &next.words(rules))
            }),
            Expr::Alt(list) => list.iter().flat_map(|expr| expr.words(rules)).collect(),
            Expr::Repeat(inner, min, max) => {
                let inner = inner.words(rules);
                let (mut round, mut all) = (Words::from([String::new()]), Words::new());
                for n in 0..=max.unwrap_or(min + MAX_WORD) {
                    if n >= *min {
                        all.extend(round.iter().cloned());
                    }
                    round = join(&round, &inner);
                }
                all
            }
        }
    }
}

const NAMES: [&str; 3] = ["root", "x", "y"];

fn join(first: &Words, second: &Words) -> Words {
    let pairs = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| a.clone() + b));
    pairs.filter(|word| word.len() <= MAX_WORD).collect()
}

/// Compares all continuations of `text` over the letters `abc`.
fn compare(mut constraint: Constraint, text: &str, words: &Words, source: &str) {
    let context = || format!("{source}behind {text:?}");
    assert_eq!(constraint.may_end(), words.contains(text), "{}", context());
    for letter in ["a", "b", "c"] {
        let longer = text.to_owned() + letter;
        let token = TINY.bytes[usize::from(letter.as_bytes()[0])].unwrap();
        let mut next = constraint.clone();
        if step(&mut next, token) {
            if longer.len() <= MAX_WORD {
                compare(next, &longer, words, source);
            }
        } else {
            let lost = words.iter().find(|word| word.starts_with(&longer));
            assert_eq!(lost, None, "{}", context());
        }
    }
}

pub(crate) fn grammar_accepts_exactly_its_words() {
    let mut rng = Rng::new(7);
    let (mut checked, mut never_end) = (0, 0);
    while checked < 150 {
        let rules: Vec<Expr> = (0..3).map(|_| Expr::random(&mut rng, 3)).collect();
        let lines = rules
            .iter()
            .zip(NAMES)
            .map(|(rule, name)| format!("{name} ::= {}\n", rule.gbnf()));
        let source: String = lines.collect();
        let mut words = vec![Words::new(); 3];
        loop {
            let next: Vec<Words> = rules.iter().map(|rule| rule.words(&words)).collect();
            if next == words {
                break;
            }
            words = next;
        }
        let grammar = Grammar::Gbnf(source.clone());
        match TINY.grammars.compile(&grammar) {
            Ok(constraint) => compare(constraint, "", &words[0], &source),
            Err(GrammarError::NeverEnds { .. }) => {
                never_end += 1;
                continue;
            }
            Err(error) => panic!("{source}: {error}"),
        }
        checked += 1;
    }
    eprintln!("{checked} grammars compared, {never_end} do not terminate");
}
