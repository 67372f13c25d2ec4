//! `oxidize choice`: how many multiple-choice questions a model answers right.

use std::path::PathBuf;

use clap::Args;
use oxidize_quantize::Error;
use oxidize_quantize::choice::{Options, read_questions, score};
use oxidize_quantize::commands::progress::{Meter, Unit};
use oxidize_quantize::say;
use oxidize_quantize::wording::count;

use crate::model_args::{MeasureArgs, ModelArgs, find_model};

/// Score a model on multiple-choice questions (HellaSwag, Winogrande, ARC, MMLU)
#[derive(Args)]
#[command(mut_arg("ctx_size", |ctx_size| ctx_size.help(CTX_SIZE)))]
pub(crate) struct Choice {
    /// The model
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// The questions, one JSON object a line
    #[arg(short = 'f', long, value_name = "FILE.jsonl")]
    file: PathBuf,
    /// Most questions to answer [default: all]
    #[arg(long, value_name = "N")]
    questions: Option<usize>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measure_args: MeasureArgs,
    #[command(flatten)]
    model_args: ModelArgs,
}

const CTX_SIZE: &str = "Most tokens of a question with an answer; 0 is the model's own limit [default: the \
                        model's limit, at most 2048]";

impl Choice {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if self.questions == Some(0) {
            let (flag, asked, least) = ("--questions", 0, 1);
            return Err(Error::TooFew { flag, asked, least }.into());
        }
        let mut questions = read_questions(&self.file)?;
        questions
            .list
            .truncate(self.questions.unwrap_or(usize::MAX));
        let model = self.model_args.load(&find_model(self.model)?)?;
        let meter = Meter::new();
        let options = Options {
            n_ctx: self.model_args.ctx_size,
            settings: self.measure_args.settings(&self.model_args),
        };
        let result = score(&model, &questions, &options, |done, total, share| {
            let state = format!("{:.2}% right", 100.0 * share);
            meter.set(Unit::Pieces("questions"), done as u64, total as u64, &state);
        })?;
        meter.finish();
        if self.json {
            say!("{}", serde_json::to_string(&result)?)?;
        } else {
            say!(
                "{:.2}% ± {:.2}% right by length, {:.2}% by likelihood, of {}",
                100.0 * result.accuracy_normalized,
                100.0 * result.stderr,
                100.0 * result.accuracy,
                count(result.questions, "question", "questions")
            )?;
        }
        Ok(())
    }
}
