//! [`AnswerPrinter`]: prints an answer while it is generated, and its reasoning apart from it.

use std::io::{self, Write};

use oxidize_core::chat::{
    ChatTemplate, Content, Message, MessageDelta, MessageParser, MessageParserOptions,
    RenderedPrompt,
};

use crate::style;

/// Prints an answer on standard output and its reasoning, dimmed, on standard error.
pub(crate) struct AnswerPrinter {
    /// Separates reasoning from the answer, if the model may reason.
    parser: Option<MessageParser>,
    is_silent: bool,
    reasoning: String,
    text: String,
}

impl AnswerPrinter {
    /// A printer of plain text.
    pub(crate) fn plain() -> AnswerPrinter {
        AnswerPrinter {
            parser: None,
            is_silent: false,
            reasoning: String::new(),
            text: String::new(),
        }
    }

    /// A printer of the answer to a prompt.
    pub(crate) fn new(template: &ChatTemplate, prompt: &RenderedPrompt) -> AnswerPrinter {
        let parser = prompt.reasoning.is_some().then(|| {
            let options = MessageParserOptions {
                reasoning: true,
                prompt: &prompt.text,
                ..MessageParserOptions::default()
            };
            MessageParser::new(template.format(), &options)
        });
        AnswerPrinter {
            parser,
            ..AnswerPrinter::plain()
        }
    }

    /// Collects the answer without printing it.
    pub(crate) fn silent(self) -> AnswerPrinter {
        AnswerPrinter {
            is_silent: true,
            ..self
        }
    }

    /// True if the answer must contain control tokens, because some of them enclose the reasoning.
    pub(crate) fn needs_special(&self) -> bool {
        self.parser.is_some()
    }

    /// Adds generated text.
    pub(crate) fn push(&mut self, text: &str) -> io::Result<()> {
        match &mut self.parser {
            None => self.print_text(text),
            Some(parser) => {
                let deltas = parser.push(text);
                self.print_all(deltas)
            }
        }
    }

    /// Prints what was held back, and ends the line if something was printed.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if let Some(parser) = &mut self.parser {
            let deltas = parser.finish();
            self.print_all(deltas)?;
        }
        if !self.is_silent && !self.text.ends_with('\n') {
            writeln!(io::stdout())?;
        }
        Ok(())
    }

    /// The answer.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The reasoning before the answer.
    pub(crate) fn reasoning(&self) -> &str {
        &self.reasoning
    }

    /// The answer as a message of the assistant. Its template decides whether the reasoning is shown to the
    /// model again.
    pub(crate) fn into_message(self) -> Message {
        Message {
            role: "assistant".to_owned(),
            content: Some(Content::Text(self.text)),
            reasoning_content: Some(self.reasoning).filter(|text| !text.is_empty()),
            ..Message::default()
        }
    }

    fn print_all(&mut self, deltas: Vec<MessageDelta>) -> io::Result<()> {
        for delta in deltas {
            match delta {
                MessageDelta::Reasoning(text) => self.print_reasoning(&text),
                MessageDelta::Content(text) => self.print_text(&text)?,
                // There are no calls without tools.
                _ => {}
            }
        }
        Ok(())
    }

    fn print_reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
        if !self.is_silent {
            let dim = style::for_stderr().dim;
            // Failing to show the reasoning does not lose the answer.
            let _ = write!(io::stderr(), "{dim}{text}{dim:#}");
        }
    }

    fn print_text(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if !self.is_silent {
            if self.text.is_empty() && !self.reasoning.is_empty() {
                let _ = writeln!(io::stderr(), "\n");
            }
            let mut out = io::stdout();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        self.text.push_str(text);
        Ok(())
    }
}
