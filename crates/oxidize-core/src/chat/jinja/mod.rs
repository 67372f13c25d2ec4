//! Jinja with the setup of Hugging Face's `apply_chat_template`, based on minijinja, with limits on
//! source nesting, instructions, memory and stack. Used only by `template.rs`.

mod budget;
mod methods;
mod operators;
mod python;
mod scan;
mod time;

pub use time::strftime;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, eval, make_string_output, parse,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::ChatError;
use crate::clock::time_of_day;
use crate::threads;
use budget::Budget;

/// Instruction limit of a rendering: a base, plus an allowance per JSON value of the input. An
/// empty loop runs about 5 million instructions per second, so an endless one stops after less than
/// 50 ms.
const FUEL: u64 = 120_000;
const FUEL_PER_NODE: u64 = 500;
/// Allocation limit of a rendering in bytes: a base, plus an allowance per byte of input.
const BYTES: u64 = 3 << 20;
const BYTES_PER_BYTE: u64 = 256;
/// Limit on the plain text that fuel can emit: a base, plus an allowance per JSON value of the
/// input.
const RAW_BYTES: u64 = 16 << 20;
const RAW_BYTES_PER_NODE: u64 = 64 << 10;
/// Minimum instructions per iteration of a loop that emits text.
const LOOP_INSTRUCTIONS: u64 = 4;
/// Limit on the values in a list or map that a template builds, besides those of the input.
const NODES: usize = 20_000;
/// Stack for the recursion of generated code, macros and nested values; reserved address space, not
/// memory.
const STACK_BYTES: usize = 64 << 20;

/// Validated template. It is compiled for each rendering, which takes a fraction of a millisecond.
#[derive(Debug, Clone)]
pub(super) struct Jinja {
    source: String,
}

impl Jinja {
    pub(super) fn new(source: &str) -> Result<Self, ChatError> {
        let jinja = Self {
            source: scan::prepare(source)?.into_owned(),
        };
        on_deep_stack(|| {
            jinja
                .compile()
                .map(drop)
                .map_err(|error| syntax_error(&error))
        })?;
        Ok(jinja)
    }

    /// Renders the template.
    pub(super) fn render(
        &self,
        variables: &serde_json::Map<String, Json>,
        now: Option<SystemTime>,
        max_output: usize,
    ) -> Result<String, ChatError> {
        let size = InputSize::of(variables);
        let text = on_deep_stack(|| self.render_on_this_stack(variables, now, size))?;
        if text.len() > max_output {
            return Err(ChatError::Limit {
                what: "the rendered text in bytes",
                limit: max_output as u64,
            });
        }
        Ok(text)
    }

    fn render_on_this_stack(
        &self,
        variables: &serde_json::Map<String, Json>,
        now: Option<SystemTime>,
        size: InputSize,
    ) -> Result<String, ChatError> {
        let (instructions, blocks) = self.compile().map_err(|error| syntax_error(&error))?;
        let raised = Arc::new(Mutex::new(None));
        let budget = Budget::new(
            BYTES + size.bytes * BYTES_PER_BYTE,
            NODES + size.nodes as usize * 4,
        );
        let mut env = environment(&budget, &raised, now.unwrap_or_else(time_of_day));
        let longest = scan::longest_text(&self.source).max(1) as u64;
        let raw = RAW_BYTES + size.nodes * RAW_BYTES_PER_NODE;
        let fuel = (FUEL + size.nodes * FUEL_PER_NODE).min(LOOP_INSTRUCTIONS * raw / longest);
        env.set_fuel(Some(fuel));
        let root = Value::from_pairs(
            variables
                .iter()
                .map(|(key, value)| (key.clone(), to_value(value))),
        );
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let result = eval(
            &env,
            &instructions,
            root,
            &blocks,
            &mut output,
            AutoEscape::None,
        )
        .map(drop);
        drop(output);
        match result {
            Ok(()) => Ok(text),
            Err(error) => Err(render_error(&error, &raised, fuel)),
        }
    }

    fn compile(&self) -> Result<(Instructions<'_>, BTreeMap<&str, Instructions<'_>>), Error> {
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?;
        let ast = parse(&self.source, "chat template", syntax)?;
        let mut generator = CodeGenerator::new("chat template", &self.source);
        generator.compile_stmt(&ast);
        let (mut instructions, mut blocks) = generator.finish();
        guard(&mut instructions);
        blocks.values_mut().for_each(guard);
        Ok((instructions, blocks))
    }
}

/// Replaces operators that can create or search large values by functions that charge the budget.
fn guard(instructions: &mut Instructions<'_>) {
    let mut at = 0;
    while let Some(instruction) = instructions.get_mut(at) {
        // These names are not valid identifiers, so templates cannot redefine them.
        let function = match instruction {
            Instruction::StringConcat => Some((operators::CONCAT, 2)),
            Instruction::Add => Some((operators::ADD, 2)),
            Instruction::Mul => Some((operators::MULTIPLY, 2)),
            Instruction::Rem => Some((operators::REMAINDER, 2)),
            Instruction::In => Some((operators::IN, 2)),
            Instruction::BuildList(Some(n)) => u16::try_from(*n).ok().map(|n| (operators::LIST, n)),
            _ => None,
        };
        if let Some((name, n_args)) = function {
            *instruction = Instruction::CallFunction(name, Some(n_args));
        }
        at += 1;
    }
}

fn environment<'a>(
    budget: &Budget,
    raised: &Arc<Mutex<Option<String>>>,
    now: SystemTime,
) -> Environment<'a> {
    let mut env = Environment::new();
    env.set_debug(false);
    for name in [
        "debug", "pprint", "lines", "chain", "zip", "escape", "e", "bool", "split",
    ] {
        env.remove_filter(name);
        env.remove_global(name);
    }
    operators::register(&mut env, budget);
    methods::register(&mut env, budget);
    let raised = raised.clone();
    let on_raise = budget.clone();
    env.add_function(
        "raise_exception",
        move |message: Value| -> Result<Value, Error> {
            let message = python::to_str(&message, &on_raise)?;
            if let Ok(mut slot) = raised.lock() {
                *slot = Some(message.clone());
            }
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    env.add_function("strftime_now", move |format: Cow<'_, str>| {
        time::strftime(now, &format)
    });
    env.add_global("__one", 1);
    env
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(
            map.iter()
                .map(|(key, value)| (key.clone(), to_value(value))),
        ),
    }
}

/// Size of the input, which the limits scale with.
#[derive(Debug, Clone, Copy, Default)]
struct InputSize {
    nodes: u64,
    bytes: u64,
}

impl InputSize {
    fn of(variables: &serde_json::Map<String, Json>) -> Self {
        let mut size = Self::default();
        variables.values().for_each(|value| size.add(value));
        size
    }

    /// Recursion is bounded: serde_json limits nesting to 128 levels.
    fn add(&mut self, json: &Json) {
        self.nodes += 1;
        match json {
            Json::String(text) => self.bytes += text.len() as u64,
            Json::Array(items) => items.iter().for_each(|item| self.add(item)),
            Json::Object(map) => map.iter().for_each(|(key, item)| {
                self.bytes += key.len() as u64;
                self.add(item);
            }),
            _ => {}
        }
    }
}

/// Runs `work` on a thread with enough stack for the recursion that the limits allow. A panic
/// becomes an error.
fn on_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, ChatError> + Send,
) -> Result<T, ChatError> {
    let failed = |message: &str| {
        Err(ChatError::Render {
            line: 0,
            message: message.to_owned(),
        })
    };
    match threads::on_deep_stack("chat-template", STACK_BYTES, work) {
        Ok(Some(result)) => result,
        Ok(None) => failed("the template engine failed"),
        Err(_) => failed("no thread could be started"),
    }
}

fn syntax_error(error: &Error) -> ChatError {
    ChatError::Syntax {
        line: error.line().unwrap_or(0),
        message: describe(error),
    }
}

fn render_error(error: &Error, raised: &Mutex<Option<String>>, fuel: u64) -> ChatError {
    if let Some(message) = raised.lock().ok().and_then(|mut slot| slot.take()) {
        return ChatError::Refused(message);
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return match error.detail() {
            Some(_) => ChatError::Limit {
                what: "the memory of a rendering in bytes",
                limit: BYTES,
            },
            None => ChatError::Limit {
                what: "the number of instructions",
                limit: fuel,
            },
        };
    }
    ChatError::Render {
        line: error.line().unwrap_or(0),
        message: describe(error),
    }
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
