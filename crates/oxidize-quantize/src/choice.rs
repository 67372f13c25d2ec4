//! Multiple choice: which of several endings a model finds the likeliest.
//!
//! Questions come from local files of one JSON object a line, in the layouts of HellaSwag, Winogrande,
//! ARC and MMLU. An ending's score is the sum of its tokens' log probabilities after the question;
//! divided by its length in characters it does not favour short ones.

use std::path::Path;

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::evaluate::{Evaluator, Settings};

/// A question with its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What comes before each ending; Winogrande's endings each have their own.
    pub contexts: Vec<String>,
    /// The endings.
    pub endings: Vec<String>,
    /// Which one is right.
    pub answer: usize,
}

/// How many were right.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Questions.
    pub questions: usize,
    /// Share of the questions whose likeliest ending is right.
    pub accuracy: f64,
    /// The same, with scores divided by the endings' lengths.
    pub accuracy_normalized: f64,
    /// Standard error of the latter.
    pub stderr: f64,
}

/// Reads questions, one JSON object a line.
pub fn read_questions(path: &Path) -> Result<Vec<Question>> {
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
        let question =
            question(&json).ok_or_else(|| wrong(n, "not a question of a known layout"))?;
        if question.answer >= question.endings.len() {
            return Err(wrong(n, "the answer is none of the choices"));
        }
        questions.push(question);
    }
    if questions.is_empty() {
        return Err(Error::Unfit {
            file: path.to_path_buf(),
            problem: "there are no questions".into(),
        });
    }
    Ok(questions)
}

fn question(json: &Value) -> Option<Question> {
    let text = |name: &str| json.get(name)?.as_str().map(str::to_owned);
    let strings = |value: &Value| -> Option<Vec<String>> {
        let list = value.as_array()?.iter();
        list.map(|item| item.as_str().map(str::to_owned)).collect()
    };
    // HellaSwag: a context, four endings, the number of the right one.
    if let Some(endings) = json.get("endings").and_then(strings) {
        let answer = number(json.get("label")?)?;
        let context = text("ctx").or_else(|| text("context"))?;
        return Some(same_context(context, endings, answer));
    }
    // Winogrande: a sentence with a gap; what follows it is scored.
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
    let asked = text("question")?;
    let context = format!("Question: {asked}\nAnswer:");
    let choices = json.get("choices")?;
    if let Some(labels) = choices.get("label").and_then(strings) {
        let key = text("answerKey")?;
        let answer = labels.iter().position(|label| *label == key)?;
        return Some(same_context(
            context,
            strings(choices.get("text")?)?,
            answer,
        ));
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

/// A number, or a string that is one.
fn number(value: &Value) -> Option<usize> {
    let n = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    usize::try_from(n).ok()
}

/// Answers all questions. `progress` hears how many are done and the share that is right.
pub fn score(
    model: &Model,
    questions: &[Question],
    settings: &Settings,
    mut progress: impl FnMut(usize, usize, f64),
) -> Result<Score> {
    let tokenizer = model.tokenizer()?;
    let encode = |text: &str, add_special| {
        let options = EncodeOptions {
            add_special,
            parse_special: false,
        };
        tokenizer.encode(text, options)
    };
    let n_ctx = model.hparams().n_ctx_train.min(2048);
    let mut evaluator = Evaluator::new(model, &Cpu::default(), settings, n_ctx)?;
    let (mut right, mut right_normalized) = (0, 0);
    for (done, question) in questions.iter().enumerate() {
        let mut scores = Vec::new();
        for (context, ending) in question.contexts.iter().zip(&question.endings) {
            // Tokenised together, so that the seam is what the model is used to.
            let before = encode(context, true).len();
            let tokens = encode(&format!("{context}{ending}"), true);
            if tokens.len() > n_ctx || before == 0 || tokens.len() <= before {
                return Err(Error::Unfit {
                    file: model.file().path().to_path_buf(),
                    problem: format!(
                        "question {}: {} tokens, {n_ctx} fit",
                        done + 1,
                        tokens.len()
                    ),
                });
            }
            let mut sum = 0.0f64;
            evaluator.each_logits(&tokens, before - 1, |position, logits| {
                if let Some(&next) = tokens.get(position + 1) {
                    sum += log_probability(logits, next);
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
        right += usize::from(best(|score| score.0) == Some(question.answer));
        right_normalized += usize::from(best(|score| score.1) == Some(question.answer));
        progress(
            done + 1,
            questions.len(),
            right_normalized as f64 / (done + 1) as f64,
        );
    }
    let n = questions.len().max(1) as f64;
    let share = right_normalized as f64 / n;
    Ok(Score {
        questions: questions.len(),
        accuracy: right as f64 / n,
        accuracy_normalized: share,
        stderr: (share * (1.0 - share) / n).sqrt(),
    })
}

fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from((logit - max).exp()))
        .sum();
    let logit = logits
        .get(token as usize)
        .copied()
        .unwrap_or(f32::NEG_INFINITY);
    f64::from(logit - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("questions.jsonl");
        let lines = [
            r#"{"ctx": "A dog", "endings": ["barks.", "flies."], "label": "0"}"#,
            r#"{"sentence": "The cup did not fit the box as _ was big.", "option1": "the cup", "option2": "the box", "answer": "1"}"#,
            r#"{"question": "2+2?", "choices": {"text": ["3", "4"], "label": ["A", "B"]}, "answerKey": "B"}"#,
            r#"{"question": "2+3?", "choices": ["5", "6", "7", "8"], "answer": 0}"#,
            r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#,
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let questions = read_questions(&path).unwrap();
        let answers: Vec<usize> = questions.iter().map(|q| q.answer).collect();
        assert_eq!(answers, [0, 0, 1, 0, 1]);
        assert_eq!(questions[0].endings, [" barks.", " flies."]);
        assert_eq!(
            questions[1].contexts[1],
            "The cup did not fit the box as the box"
        );
        assert_eq!(questions[1].endings, [" was big.", " was big."]);
        assert_eq!(questions[2].contexts[0], "Question: 2+2?\nAnswer:");
        for wrong in [
            "{}",
            "[",
            r#"{"question": "?", "choices": ["a"], "answer": 3}"#,
            "",
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read_questions(&path).is_err(), "{wrong}");
        }
    }
}
