//! Multiple-choice evaluation: compares the model's most likely ending with the correct one.
//!
//! Questions are read from JSON Lines files in the layouts of HellaSwag, Winogrande, ARC and MMLU. The score
//! of an ending is the sum of its tokens' log probabilities after the context. The normalized score divides
//! it by the number of characters, so that short endings have no advantage.

use std::path::{Path, PathBuf};

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::evaluate::{Evaluator, Settings, check_predicts, logits_not_finite};

/// A question with its possible endings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Context of each ending; they differ for Winogrande.
    pub contexts: Vec<String>,
    /// The endings.
    pub endings: Vec<String>,
    /// Index of the correct ending.
    pub answer: usize,
}

/// Accuracy on a set of questions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Number of questions.
    pub questions: usize,
    /// Fraction of questions whose most likely ending is correct.
    pub accuracy: f64,
    /// Fraction of questions whose best ending by normalized score is correct.
    pub accuracy_normalized: f64,
    /// Standard error of `accuracy_normalized`.
    pub stderr: f64,
}

/// Questions and the path of their file, for error messages.
#[derive(Clone, Debug)]
pub struct Questions {
    /// The file.
    pub file: PathBuf,
    /// The questions.
    pub list: Vec<Question>,
}

/// Options of an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Maximum tokens of a context with an ending. 0 is the trained context; the default is the trained
    /// context, at most 2048.
    pub n_ctx: Option<usize>,
    /// Settings of the model run.
    pub settings: Settings,
}

/// Reads questions from a JSON Lines file.
pub fn read_questions(path: &Path) -> Result<Questions> {
    let text = std::fs::read_to_string(path).map_err(oxidize_core::Error::io(path))?;
    let wrong = |line: usize, problem: &str| Error::Unfit {
        file: path.to_path_buf(),
        problem: format!("line {}: {problem}", line + 1),
    };
    let mut questions = Vec::new();
    for (n, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let json = serde_json::from_str(line).map_err(|error| wrong(n, &error.to_string()))?;
        let question = question(&json).ok_or_else(|| wrong(n, "unknown question layout"))?;
        if question.answer >= question.endings.len() {
            return Err(wrong(n, "the answer is not one of the choices"));
        }
        if question
            .endings
            .iter()
            .any(|ending| ending.trim().is_empty())
        {
            let problem = "nothing to score: a choice, or the text after the gap `_`, is empty";
            return Err(wrong(n, problem));
        }
        questions.push(question);
    }
    if questions.is_empty() {
        return Err(Error::Unfit {
            file: path.to_path_buf(),
            problem: "the file has no questions".into(),
        });
    }
    Ok(Questions {
        file: path.to_path_buf(),
        list: questions,
    })
}

fn question(json: &Value) -> Option<Question> {
    let text = |name: &str| json.get(name)?.as_str().map(str::to_owned);
    let strings = |value: &Value| -> Option<Vec<String>> {
        let list = value.as_array()?.iter();
        list.map(|item| item.as_str().map(str::to_owned)).collect()
    };
    // HellaSwag: a context, four endings and the index of the correct one.
    if let Some(endings) = json.get("endings").and_then(strings) {
        let answer = number(json.get("label")?)?;
        let context = text("ctx").or_else(|| text("context"))?;
        return Some(same_context(context, endings, answer));
    }
    // Winogrande: a sentence with a gap; the text after the gap is scored.
    if let (Some(first), Some(second)) = (text("option1"), text("option2")) {
        let sentence = text("sentence")?;
        let (before, after) = sentence.split_once('_')?;
        let contexts = vec![format!("{before}{first}"), format!("{before}{second}")];
        return Some(Question {
            contexts,
            endings: vec![after.to_owned(); 2],
            answer: number(json.get("answer")?)?.checked_sub(1)?,
        });
    }
    // ARC: texts and labels of the choices. MMLU: a list of choices and a number.
    let asked = json.get("question")?;
    let stem = asked.get("stem").unwrap_or(asked).as_str()?;
    let context = format!("Question: {stem}\nAnswer:");
    // The original ARC files have the choices in the question.
    let choices = asked.get("choices").or_else(|| json.get("choices"))?;
    let each = |name: &str| -> Option<Vec<String>> {
        let list = choices.as_array()?.iter();
        list.map(|choice| Some(choice.get(name)?.as_str()?.to_owned()))
            .collect()
    };
    let column = |name: &str| choices.get(name).and_then(strings).or_else(|| each(name));
    if let Some(labels) = column("label").filter(|labels| !labels.is_empty()) {
        let key = text("answerKey")?;
        let answer = labels.iter().position(|label| *label == key)?;
        return Some(same_context(context, column("text")?, answer));
    }
    let answer = json.get("answer")?;
    let answer = number(answer).or_else(|| {
        let letter = answer.as_str()?.bytes().next()?;
        letter
            .to_ascii_uppercase()
            .checked_sub(b'A')
            .map(usize::from)
    });
    Some(same_context(context, strings(choices)?, answer?))
}

fn same_context(context: String, endings: Vec<String>, answer: usize) -> Question {
    Question {
        contexts: vec![context; endings.len()],
        endings: endings
            .iter()
            .map(|ending| format!(" {}", ending.trim_start()))
            .collect(),
        answer,
    }
}

/// A number, or a string that contains one.
fn number(value: &Value) -> Option<usize> {
    let n = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    usize::try_from(n).ok()
}

/// Evaluates all questions. `progress` receives the questions done, their total number and the normalized
/// accuracy.
pub fn score(
    model: &Model,
    questions: &Questions,
    options: &Options,
    mut progress: impl FnMut(usize, usize, f64),
) -> Result<Score> {
    check_predicts(model)?;
    let trained = model.hparams().n_ctx_train;
    let n_ctx = match options.n_ctx {
        None => trained.min(2048),
        Some(0) => trained,
        Some(n_ctx) => n_ctx,
    };
    let mut evaluator = Evaluator::new(model, &Cpu::default(), &options.settings, n_ctx)?;
    let tokenized = tokenize(model, questions, n_ctx)?;
    let total = tokenized.len();
    let (mut correct, mut correct_normalized) = (0, 0);
    for (done, (question, choices)) in questions.list.iter().zip(&tokenized).enumerate() {
        let mut scores = Vec::new();
        for (choice, ending) in choices.iter().zip(&question.endings) {
            let mut sum = 0.0f64;
            evaluator.for_each_logits(&choice.tokens, choice.before - 1, |position, logits| {
                if let Some(&next) = choice.tokens.get(position + 1) {
                    sum += log_probability(logits, next).ok_or_else(|| logits_not_finite(model))?;
                }
                Ok(())
            })?;
            scores.push((sum, sum / ending.chars().count().max(1) as f64));
        }
        let best = |by: fn(&(f64, f64)) -> f64| {
            let order =
                |a: &(usize, &(f64, f64)), b: &(usize, &(f64, f64))| by(a.1).total_cmp(&by(b.1));
            scores.iter().enumerate().max_by(order).map(|(at, _)| at)
        };
        correct += usize::from(best(|score| score.0) == Some(question.answer));
        correct_normalized += usize::from(best(|score| score.1) == Some(question.answer));
        let accuracy = correct_normalized as f64 / (done + 1) as f64;
        progress(done + 1, total, accuracy);
    }
    let n = total.max(1) as f64;
    let accuracy = correct_normalized as f64 / n;
    Ok(Score {
        questions: total,
        accuracy: correct as f64 / n,
        accuracy_normalized: accuracy,
        stderr: (accuracy * (1.0 - accuracy) / n).sqrt(),
    })
}

/// A tokenized context with an ending.
struct Choice {
    tokens: Vec<u32>,
    /// Number of tokens before the ending, at least 1.
    before: usize,
}

/// Tokenizes every question with each ending. Returns errors before any question is evaluated.
fn tokenize(model: &Model, questions: &Questions, n_ctx: usize) -> Result<Vec<Vec<Choice>>> {
    let tokenizer = model.tokenizer()?;
    let encode = |text: &str| {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        tokenizer.encode(text, options)
    };
    let choice = |number: usize, context: &String, ending: &String| {
        // Tokenized together, so that tokens at the boundary are as in plain text.
        let before = encode(context).len();
        let tokens = encode(&format!("{context}{ending}"));
        let problem = if tokens.len() > n_ctx {
            format!("{} tokens; at most {n_ctx} fit (-c)", tokens.len())
        } else if before == 0 {
            "no context before the choices".to_owned()
        } else if tokens.len() <= before {
            format!("{ending:?} adds no token to the context")
        } else {
            return Ok(Choice { tokens, before });
        };
        Err(Error::Unfit {
            file: questions.file.clone(),
            problem: format!("question {number}: {problem}"),
        })
    };
    let tokenize = |(question, number): (&Question, usize)| {
        let choices = question.contexts.iter().zip(&question.endings);
        choices.map(|(a, b)| choice(number, a, b)).collect()
    };
    questions.list.iter().zip(1..).map(tokenize).collect()
}

/// Log probability of `token`; `None` if the logits are NaN or infinite.
fn log_probability(logits: &[f32], token: u32) -> Option<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from((logit - max).exp()))
        .sum();
    let logit = logits
        .get(token as usize)
        .copied()
        .unwrap_or(f32::NEG_INFINITY);
    let numbers = max.is_finite() && sum.is_finite();
    numbers.then(|| f64::from(logit - max) - sum.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_layouts_are_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("questions.jsonl");
        let lines = [
            r#"{"ctx": "A dog", "endings": ["barks.", "flies."], "label": "0"}"#,
            r#"{"sentence": "The cup did not fit the box as _ was big.", "option1": "the cup", "option2": "the box", "answer": "1"}"#,
            r#"{"question": "2+2?", "choices": {"text": ["3", "4"], "label": ["A", "B"]}, "answerKey": "B"}"#,
            r#"{"question": {"stem": "2+2?", "choices": [{"text": "3", "label": "A"}, {"text": "4", "label": "B"}]}, "answerKey": "B"}"#,
            r#"{"question": {"stem": "2+2?"}, "choices": [{"text": "3", "label": "1"}, {"text": "4", "label": "2"}], "answerKey": "2"}"#,
            r#"{"question": "2+3?", "choices": ["5", "6", "7", "8"], "answer": 0}"#,
            r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#,
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let questions = read_questions(&path).unwrap().list;
        let answers: Vec<usize> = questions.iter().map(|q| q.answer).collect();
        assert_eq!(answers, [0, 0, 1, 1, 1, 0, 1]);
        assert_eq!(questions[0].endings, [" barks.", " flies."]);
        assert_eq!(
            questions[1].contexts[1],
            "The cup did not fit the box as the box"
        );
        assert_eq!(questions[1].endings, [" was big.", " was big."]);
        for question in &questions[2..5] {
            assert_eq!(question.contexts[0], "Question: 2+2?\nAnswer:");
            assert_eq!(question.endings, [" 3", " 4"]);
        }
        for wrong in [
            "{}",
            "[",
            r#"{"question": "?", "choices": ["a"], "answer": 3}"#,
            r#"{"sentence": "It is _", "option1": "a", "option2": "b", "answer": "1"}"#,
            "",
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read_questions(&path).is_err(), "{wrong}");
        }
    }
}
