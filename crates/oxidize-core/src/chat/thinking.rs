//! [`Thinking`]: reasoning before the answer, on or off, and the template variables that switch it.

use serde_json::{Map, Value as Json};

use super::reasoning::{HARMONY_ANSWER, PromptEnd};
use super::{ChatError, ChatTemplate, Reasoning};
use crate::tokenizer::Tokenizer;

/// Reasoning before an answer, for models that can reason.
///
/// ```
/// use oxidize_core::{Conversation, Thinking};
///
/// let quick = Conversation::from("2 + 2?").thinking(Thinking::Off);
/// let careful = Conversation::from("Is 91 prime?").thinking_budget(500);
/// assert_eq!("on".parse(), Ok(Thinking::On));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// As the chat template does by default.
    #[default]
    Auto,
    /// The model reasons before it answers, if its template can ask for that.
    On,
    /// The model answers at once.
    Off,
}

impl std::str::FromStr for Thinking {
    type Err = String;

    fn from_str(text: &str) -> Result<Thinking, String> {
        match text {
            "auto" => Ok(Thinking::Auto),
            "on" | "true" | "1" | "yes" => Ok(Thinking::On),
            "off" | "false" | "0" | "no" => Ok(Thinking::Off),
            _ => Err("expected on, off or auto".to_owned()),
        }
    }
}

impl std::fmt::Display for Thinking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Thinking::Auto => "auto",
            Thinking::On => "on",
            Thinking::Off => "off",
        })
    }
}

/// Thinking of a conversation, with its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThinkingControl {
    thinking: Thinking,
    budget: Option<usize>,
}

impl ThinkingControl {
    /// A budget of 0 turns thinking off.
    pub(super) fn new(thinking: Thinking, budget: Option<usize>) -> ThinkingControl {
        let thinking = match budget {
            Some(0) => Thinking::Off,
            _ => thinking,
        };
        ThinkingControl { thinking, budget }
    }

    /// Adds the template's own variables for these settings to `args`, without changing those that are set.
    pub(super) fn set_variables(self, template: &ChatTemplate, args: &mut Map<String, Json>) {
        let source = template.source();
        let mut set = |name: &str, value: Json| {
            if mentions(source, name) && !args.contains_key(name) {
                args.insert(name.to_owned(), value);
            }
        };
        if let Some(budget) = self.budget {
            set("thinking_budget", budget.into());
        }
        let on = match self.thinking {
            Thinking::Auto => return,
            Thinking::On => true,
            Thinking::Off => false,
        };
        for name in [
            "enable_thinking",
            "thinking",
            "enable_reasoning",
            "reasoning",
        ] {
            set(name, on.into());
        }
        set(
            "thinking_mode",
            if on { "enabled" } else { "disabled" }.into(),
        );
        if !on {
            set("thinking_budget", 0.into());
            // Efforts differ: other values than the template's own would become text of the prompt.
            let efforts = ["none", "no_think"];
            let quoted = |effort: &&str| {
                source.contains(&format!("'{effort}'")) || source.contains(&format!("\"{effort}\""))
            };
            if let Some(effort) = efforts.into_iter().find(quoted) {
                set("reasoning_effort", effort.into());
            }
        }
    }

    /// Adapts the end of a rendered prompt to these settings and describes the reasoning that may follow.
    /// `is_continued` tells that the prompt ends in a message of the assistant; `render_on` renders the prompt
    /// with thinking turned on.
    pub(super) fn finish_prompt(
        self,
        text: &mut String,
        is_continued: bool,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        render_on: impl FnOnce() -> Result<String, ChatError>,
    ) -> Result<Option<Reasoning>, ChatError> {
        let format = template.format();
        let off = self.thinking == Thinking::Off;
        if format.is_harmony() {
            return Ok(match (is_continued, off) {
                (true, _) => None,
                (false, false) => Some(Reasoning::harmony(self.budget, tokenizer)),
                (false, true) => {
                    text.push_str(HARMONY_ANSWER);
                    None
                }
            });
        }
        let tags = format.reasoning_tags();
        let end = text.trim_end();
        let place = if end.ends_with(tags.open) {
            PromptEnd::Inside
        } else if is_continued || end.ends_with(tags.close) || !format.declares_reasoning() {
            return Ok(None);
        } else {
            PromptEnd::Before
        };
        if !off {
            return Ok(Some(Reasoning::tagged(tags, place, self.budget, tokenizer)));
        }
        match place {
            PromptEnd::Inside => {
                text.truncate(end.len());
                text.push_str(&tags.closing_text());
            }
            // The template has no switch, so the model is shown that it has nothing to think about.
            PromptEnd::Before if render_on()? == *text => text.push_str(&tags.empty_block()),
            PromptEnd::Before => {}
        }
        Ok(None)
    }
}

/// True if a template contains `name` as a word.
fn mentions(source: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    source.match_indices(name).any(|(at, _)| {
        let before = source.get(..at).unwrap_or_default();
        let after = source.get(at + name.len()..).unwrap_or_default();
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::chat::{ChatOptions, Conversation};

    fn tokenizer() -> Tokenizer {
        let model = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/tiny/model.gguf"
        );
        Tokenizer::open(model).unwrap()
    }

    /// End of the prompt after `<assistant>`, and the reasoning that may follow.
    fn prompt(end: &str, conversation: Conversation) -> (String, Option<Reasoning>) {
        let source = format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endfor %}}\
             {{% if add_generation_prompt %}}<assistant>{end}{{% endif %}}{{# </think> #}}"
        );
        let template = ChatTemplate::new(&source, ChatOptions::default()).unwrap();
        let prompt = conversation.render(&template, &tokenizer()).unwrap();
        let end = prompt.text.rsplit("<assistant>").next().unwrap();
        (end.to_owned(), prompt.reasoning)
    }

    #[test]
    fn a_prompt_that_opens_reasoning_is_followed_by_it() {
        let (end, reasoning) = prompt("<think>\n", Conversation::from("hi").thinking_budget(9));
        assert_eq!(end, "<think>\n");
        let reasoning = reasoning.unwrap();
        assert_eq!((reasoning.open, reasoning.budget), (None, Some(9)));
        let (end, reasoning) = prompt(
            "<think>\n",
            Conversation::from("hi").thinking(Thinking::Off),
        );
        assert_eq!((end.as_str(), reasoning), ("<think>\n</think>\n\n", None));
        let (_, reasoning) = prompt("<think>\n", Conversation::from("hi").assistant("Hello"));
        assert_eq!(reasoning, None);
    }

    #[test]
    fn a_model_that_opens_reasoning_itself_is_given_an_empty_block() {
        let (_, reasoning) = prompt("", Conversation::from("hi"));
        assert_eq!(reasoning.unwrap().open.unwrap().text, "<think>");
        let off = Conversation::from("hi").thinking_budget(0);
        assert_eq!(prompt("", off).0, "<think>\n</think>\n\n");
    }

    #[test]
    fn the_switch_of_a_template_is_used() {
        let switch = "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}";
        let off = Conversation::from("hi").thinking(Thinking::Off);
        assert_eq!(prompt(switch, off.clone()), ("!".to_owned(), None));
        let (end, reasoning) = prompt(switch, off.template_arg("enable_thinking", true));
        assert_eq!(
            end, "<think>\n</think>\n\n",
            "the variable of the request has precedence"
        );
        assert_eq!(reasoning, None);
        let effort = "{{ reasoning_effort }}{# 'no_think' #}";
        let off = Conversation::from("hi").thinking(Thinking::Off);
        assert_eq!(prompt(effort, off).0, "no_think");
    }

    #[test]
    fn templates_without_reasoning_are_left_alone() {
        let template = ChatTemplate::builtin("chatml", ChatOptions::default()).unwrap();
        let ask = |thinking| Conversation::from("hi").thinking(thinking);
        let prompts = [Thinking::Auto, Thinking::On, Thinking::Off]
            .map(|thinking| ask(thinking).render(&template, &tokenizer()).unwrap());
        assert!(prompts.iter().all(|prompt| *prompt == prompts[0]));
        assert_eq!(prompts[0].reasoning, None);
    }

    #[test]
    fn harmony_answers_at_once_without_analysis() {
        let template = ChatTemplate::builtin("gpt-oss", ChatOptions::default()).unwrap();
        let ask = |thinking| Conversation::from("hi").thinking(thinking);
        let on = ask(Thinking::On).render(&template, &tokenizer()).unwrap();
        assert!(on.reasoning.is_some() && on.text.ends_with("<|start|>assistant"));
        let off = ask(Thinking::Off).render(&template, &tokenizer()).unwrap();
        assert!(off.reasoning.is_none() && off.text.ends_with(HARMONY_ANSWER));
    }

    #[test]
    fn names_are_found_as_words() {
        assert!(mentions("{% if thinking %}", "thinking"));
        assert!(!mentions("{% if enable_thinking %}", "thinking"));
        assert!(!mentions("thinking_budget", "thinking"));
        assert!(!mentions("", "thinking"));
    }
}
