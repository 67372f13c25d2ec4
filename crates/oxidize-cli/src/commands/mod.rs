//! The subcommands. To add one, write a file with a `clap::Args` struct that has a `run` method, and add its
//! `mod` line and its line in `subcommands!`.

mod archs;
mod bench;
mod chat;
mod compare;
mod completions;
mod convert;
mod cp;
mod embed;
mod eval;
mod imatrix;
mod inspect;
mod list;
mod logits;
mod perplexity;
mod pull;
mod quantize;
mod recommend;
mod rm;
mod run;
mod search;
mod serve;
mod split;
mod synth;
mod tokenize;

macro_rules! subcommands {
    ($($name:ident($args:path)),* $(,)?) => {
        /// A subcommand with its arguments.
        #[derive(clap::Subcommand)]
        pub(crate) enum Command {
            $(#[allow(missing_docs, reason = "the help text is on the arguments")] $name($args),)*
        }

        impl Command {
            pub(crate) fn run(self) -> anyhow::Result<()> {
                match self {
                    $(Command::$name(args) => args.run(),)*
                }
            }
        }
    };
}

subcommands! {
    Run(run::Run),
    Chat(chat::Chat),
    Serve(serve::Serve),
    Pull(pull::Pull),
    List(list::List),
    Rm(rm::Rm),
    Cp(cp::Cp),
    Search(search::Search),
    Recommend(recommend::Recommend),
    Inspect(inspect::Inspect),
    Archs(archs::Archs),
    Bench(bench::Bench),
    Perplexity(perplexity::Perplexity),
    Eval(eval::Eval),
    Compare(compare::Compare),
    Convert(convert::Convert),
    Quantize(quantize::Quantize),
    Split(split::Split),
    Merge(split::Merge),
    Imatrix(imatrix::Imatrix),
    Logits(logits::Logits),
    Tokenize(tokenize::Tokenize),
    Embed(embed::Embed),
    Synth(synth::Synth),
    Completions(completions::Completions),
}
