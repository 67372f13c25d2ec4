//! The verbs of the command line. A verb is a file here with a `clap::Args` struct that has a
//! `run`, its `mod` line, and its line in `verbs!`. Those that make model files are files of
//! `oxidize_quantize::commands`.

mod archs;
mod bench;
mod chat;
mod choice;
mod compare;
mod embed;
mod imatrix;
mod inspect;
mod logits;
mod perplexity;
mod run;
mod serve;
mod synth;
mod tokenize;

macro_rules! verbs {
    ($($verb:ident($args:path)),* $(,)?) => {
        /// What to do.
        #[derive(clap::Subcommand)]
        pub(crate) enum Verb {
            $(#[allow(missing_docs, reason = "the help text is on the arguments")] $verb($args),)*
        }

        impl Verb {
            /// Does it.
            pub(crate) fn run(self) -> anyhow::Result<()> {
                match self {
                    $(Verb::$verb(args) => args.run(),)*
                }
            }
        }
    };
}

verbs! {
    Run(run::Run),
    Chat(chat::Chat),
    Serve(serve::Serve),
    Inspect(inspect::Inspect),
    Archs(archs::Archs),
    Bench(bench::Bench),
    Perplexity(perplexity::Perplexity),
    Choice(choice::Choice),
    Compare(compare::Compare),
    Convert(oxidize_quantize::commands::convert::Convert),
    Quantize(oxidize_quantize::commands::quantize::Quantize),
    Split(oxidize_quantize::commands::split::Split),
    Merge(oxidize_quantize::commands::split::Merge),
    Imatrix(imatrix::Imatrix),
    Logits(logits::Logits),
    Tokenize(tokenize::Tokenize),
    Embed(embed::Embed),
    Synth(synth::Synth),
}
