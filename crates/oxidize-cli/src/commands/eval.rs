//! `oxidize eval`: accuracy of a model on multiple-choice questions.

use std::path::PathBuf;

use clap::Args;
use oxidize_quantize::Error;
use oxidize_quantize::multiple_choice::{Options, read_questions, score};
use oxidize_quantize::plural::count;

use crate::console::outln;
use crate::model_args::{MeasureArgs, ModelArgs};
use crate::model_path::find_model;
use crate::progress::{ProgressReporter, Unit};

/// Evaluate a model on multiple-choice questions (HellaSwag, Winogrande, ARC, MMLU)
#[derive(Args)]
#[command(alias = "choice", mut_arg("ctx_size", |ctx_size| ctx_size.help(CTX_SIZE)))]
pub(crate) struct Eval {
    /// Model to evaluate
    #[arg(short = 'm', long, value_name = "MODEL", env = "OXIDIZE_MODEL")]
    model: Option<PathBuf>,
    /// Questions as JSON Lines
    #[arg(short = 'f', long, value_name = "FILE.jsonl")]
    file: PathBuf,
    /// Maximum number of questions [default: all]
    #[arg(long, value_name = "N")]
    questions: Option<usize>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    measure_args: MeasureArgs,
    #[command(flatten)]
    model_args: ModelArgs,
}

const CTX_SIZE: &str = "Maximum number of tokens of a question with an answer; 0 is the trained context [default: the \
   trained context, at most 2048]";

impl Eval {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if self.questions == Some(0) {
            let (flag, requested, least) = ("--questions", 0, 1);
            return Err(Error::TooFew {
                flag,
                requested,
                least,
            }
            .into());
        }
        let mut questions = read_questions(&self.file)?;
        questions
            .list
            .truncate(self.questions.unwrap_or(usize::MAX));
        let model = self.model_args.load(&find_model(self.model)?)?;
        let progress = ProgressReporter::new();
        let options = Options {
            n_ctx: self.model_args.ctx_size,
            settings: self.measure_args.settings(&self.model_args),
        };
        let result = score(&model, &questions, &options, |done, total, accuracy| {
            let state = format!("normalized accuracy {:.2}%", 100.0 * accuracy);
            progress.set(Unit::Items("questions"), done as u64, total as u64, &state);
        })?;
        progress.finish();
        if self.json {
            outln!("{}", serde_json::to_string(&result)?)?;
        } else {
            outln!(
                "normalized accuracy {:.2}% ± {:.2}%, accuracy {:.2}% ({})",
                100.0 * result.accuracy_normalized,
                100.0 * result.stderr,
                100.0 * result.accuracy,
                count(result.questions, "question", "questions")
            )?;
        }
        Ok(())
    }
}
