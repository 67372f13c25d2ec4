//! [`Guide`]: constrains the output of a request to its grammar, if it has one.

use super::request::EngineError;
use crate::error::Result;
use crate::grammar::{Grammar, GrammarError};
use crate::model::Model;
use crate::sampling::TokenMask;
use std::sync::{Arc, OnceLock};

#[cfg(not(target_arch = "wasm32"))]
use crate::grammar::{Constraint, Grammars};

/// llguidance does not build for browsers, where no output is constrained.
#[cfg(target_arch = "wasm32")]
type Constraint = std::convert::Infallible;
#[cfg(target_arch = "wasm32")]
type Grammars = std::convert::Infallible;

/// Grammar state of one request; `None` if its output is not constrained.
#[derive(Clone, Default)]
pub(super) struct Guide(Option<Constraint>);

/// Factory of guides for one model. The shared tables are built with the first guide.
#[derive(Clone, Default)]
#[cfg_attr(target_arch = "wasm32", expect(dead_code))]
pub(super) struct Guides(Arc<OnceLock<Result<Grammars, GrammarError>>>);

#[cfg(not(target_arch = "wasm32"))]
impl Guides {
    /// Compiles the grammar of a request. Runs on the thread that submits the request.
    pub(super) fn guide(&self, model: &Model, grammar: Option<&Grammar>) -> Result<Guide> {
        let Some(grammar) = grammar else {
            return Ok(Guide(None));
        };
        let tokenizer = model.tokenizer()?;
        let grammars = self
            .0
            .get_or_init(|| Grammars::new(tokenizer, model.n_vocab()));
        let constraint = match grammars {
            Ok(grammars) => grammars.compile(grammar),
            Err(error) => Err(error.clone()),
        };
        Ok(Guide(Some(constraint.map_err(EngineError::Grammar)?)))
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Guide {
    /// True if there is a grammar.
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Tokens that are allowed next; `None` allows all.
    pub(super) fn mask(&mut self) -> Result<Option<&TokenMask>, EngineError> {
        Ok(self.0.as_mut().map(Constraint::mask).transpose()?)
    }

    /// Appends a token; returns true if the output is complete with it.
    pub(super) fn accept(&mut self, token: u32) -> Result<bool, EngineError> {
        let Some(constraint) = &mut self.0 else {
            return Ok(false);
        };
        constraint.accept(token)?;
        Ok(constraint.is_complete())
    }
}

#[cfg(target_arch = "wasm32")]
impl Guides {
    pub(super) fn guide(&self, _: &Model, grammar: Option<&Grammar>) -> Result<Guide> {
        match grammar {
            None => Ok(Guide(None)),
            Some(_) => {
                let problem = "constrained output is not available in browsers".to_owned();
                Err(EngineError::Grammar(GrammarError::Engine(problem)).into())
            }
        }
    }
}

#[cfg(target_arch = "wasm32")]
impl Guide {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn mask(&mut self) -> Result<Option<&TokenMask>, EngineError> {
        Ok(None)
    }

    pub(super) fn accept(&mut self, _: u32) -> Result<bool, EngineError> {
        Ok(false)
    }
}
