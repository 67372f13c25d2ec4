//! Multiple choice: which of several endings a model finds the likeliest.
//!
//! Questions come from local files of one JSON object a line, in the layouts of HellaSwag, Winogrande,
//! ARC and MMLU. An ending's score is the sum of its tokens' log probabilities after the question;
//! divided by its length in characters it does not favour short ones.

use std::path::{Path, PathBuf};

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::evaluate::{Evaluator, Settings, check_predicts, not_numbers};

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

/// Questions, and the file that they are from, which is named where one does not do.
#[derive(Clone, Debug)]
pub struct Questions {
    /// The file.
    pub file: PathBuf,
    /// What is in it.
    pub list: Vec<Question>,
}

/// How questions are answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Most tokens of a question with an ending. 0 is the model's own limit; where nothing is said, it is
    /// that limit, at most 2048.
    pub n_ctx: Option<usize>,
    /// How the model is run.
    pub settings: Settings,
}

/// Reads questions, one JSON object a line.
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
        let question =
            question(&json).ok_or_else(|| wrong(n, "not a question of a known layout"))?;
        if question.answer >= question.endings.len() {
            return Err(wrong(n, "the answer is none of the choices"));
        }
        if question
            .endings
            .iter()
            .any(|ending| ending.trim().is_empty())
        {
            let problem =
                "there is nothing to score: a choice, or what follows the gap `_`, is empty";
            return Err(wrong(n, problem));
        }
        questions.push(question);
    }
    if questions.is_empty() {
        return Err(Error::Unfit {
            file: path.to_path_buf(),
            problem: "there are no questions".into(),
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
    let asked = json.get("question")?;
    let stem = asked.get("stem").unwrap_or(asked).as_str()?;
    let context = format!("Question: {stem}\nAnswer:");
    // ARC's own files have them in the question.
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

/// A number, or a string that is one.
fn number(value: &Value) -> Option<usize> {
    let n = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    usize::try_from(n).ok()
}

/// Answers all questions. `progress` hears how many are done and the share that is right.
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
    let (mut right, mut right_normalized) = (0, 0);
    for (done, (question, choices)) in questions.list.iter().zip(&tokenized).enumerate() {
        let mut scores = Vec::new();
        for (choice, ending) in choices.iter().zip(&question.endings) {
            let mut sum = 0.0f64;
            evaluator.each_logits(&choice.tokens, choice.before - 1, |position, logits| {
                if let Some(&next) = choice.tokens.get(position + 1) {
                    sum += log_probability(logits, next).ok_or_else(|| not_numbers(model))?;
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
        let share = right_normalized as f64 / (done + 1) as f64;
        progress(done + 1, total, share);
    }
    let n = total.max(1) as f64;
    let share = right_normalized as f64 / n;
    Ok(Score {
        questions: total,
        accuracy: right as f64 / n,
        accuracy_normalized: share,
        stderr: (share * (1.0 - share) / n).sqrt(),
    })
}

/// A question with one of its endings.
struct Choice {
    tokens: Vec<u32>,
    /// Those before the ending, at least one.
    before: usize,
}

/// The tokens of every question with each ending. One that does not do is found before any is answered.
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
        // Tokenised together, so that the seam is what the model is used to.
        let before = encode(context).len();
        let tokens = encode(&format!("{context}{ending}"));
        let problem = if tokens.len() > n_ctx {
            format!("{} tokens, {n_ctx} fit (-c)", tokens.len())
        } else if before == 0 {
            "nothing comes before the choices".to_owned()
        } else if tokens.len() <= before {
            format!("{ending:?} adds no token to what comes before it")
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

/// The logarithm of the probability that logits give to `token`; `None` where they are not numbers.
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
    fn every_layout_is_read() {
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
