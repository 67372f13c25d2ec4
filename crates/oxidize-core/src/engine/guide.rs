//! [`Guide`]: the tokens that a request allows next, by its grammar and the state of its reasoning.

use super::reasoning::ReasoningTracker;
use super::request::EngineError;
use crate::chat::Reasoning;
use crate::error::Result;
use crate::grammar::{Constraint, Grammar, GrammarError, Grammars};
use crate::model::Model;
use crate::sampling::TokenMask;
use crate::tokenizer::Tokenizer;
use std::sync::{Arc, OnceLock};

/// Constraints on the output of one request. A grammar applies to the answer, after the reasoning.
#[derive(Clone)]
pub(super) struct Guide {
    constraint: Option<Constraint>,
    reasoning: Option<ReasoningTracker>,
    /// Tokens of a marker that may or must come next.
    markers: TokenMask,
}

/// Factory of guides for one model. The shared tables are built with the first grammar.
#[derive(Clone, Default)]
pub(super) struct Guides(Arc<OnceLock<Result<Grammars, GrammarError>>>);

impl Guides {
    /// Compiles the grammar of a request. Runs on the thread that submits the request.
    pub(super) fn guide(
        &self,
        model: &Model,
        grammar: Option<&Grammar>,
        reasoning: Option<Reasoning>,
    ) -> Result<Guide> {
        let constraint = grammar
            .map(|grammar| self.compile(model, grammar))
            .transpose()?;
        let reasoning = reasoning.map(ReasoningTracker::new);
        Ok(Guide {
            constraint,
            markers: TokenMask::none(reasoning.as_ref().map_or(0, |_| model.n_vocab())),
            reasoning,
        })
    }

    fn compile(&self, model: &Model, grammar: &Grammar) -> Result<Constraint> {
        let tokenizer = model.tokenizer()?;
        let grammars = self
            .0
            .get_or_init(|| Grammars::new(tokenizer, model.n_vocab()));
        let constraint = match grammars {
            Ok(grammars) => grammars.compile(grammar),
            Err(error) => Err(error.clone()),
        };
        Ok(constraint.map_err(EngineError::Grammar)?)
    }
}

impl Guide {
    /// True if there is a grammar.
    pub(super) fn has_grammar(&self) -> bool {
        self.constraint.is_some()
    }

    /// Number of tokens of reasoning so far.
    pub(super) fn reasoning_tokens(&self) -> usize {
        self.reasoning
            .as_ref()
            .map_or(0, ReasoningTracker::n_tokens)
    }

    /// Tokens that are allowed next; `None` allows all.
    pub(super) fn mask(&mut self) -> Result<Option<&TokenMask>, EngineError> {
        let reasoning = self.reasoning.as_ref();
        if let Some(token) = reasoning.and_then(ReasoningTracker::forced) {
            self.markers.words_mut().fill(0);
            self.markers.allow(token);
            return Ok(Some(&self.markers));
        }
        let Some(constraint) = &mut self.constraint else {
            return Ok(None);
        };
        if reasoning.is_some_and(ReasoningTracker::precedes_answer) {
            return Ok(None);
        }
        let allowed = constraint.mask()?;
        let Some(token) = reasoning.and_then(ReasoningTracker::opening_token) else {
            return Ok(Some(allowed));
        };
        self.markers.clone_from(allowed);
        self.markers.allow(token);
        Ok(Some(&self.markers))
    }

    /// Closes the reasoning if the model is about to end its output there, although an answer that matches the
    /// grammar has to follow. The next tokens are then those of the closing marker.
    pub(super) fn close_reasoning(&mut self) -> bool {
        match &mut self.reasoning {
            Some(reasoning) if self.constraint.is_some() && reasoning.precedes_answer() => {
                reasoning.close();
                true
            }
            _ => false,
        }
    }

    /// Appends a token; returns true if the output is complete with it.
    pub(super) fn accept(
        &mut self,
        token: u32,
        tokenizer: &Tokenizer,
    ) -> Result<bool, EngineError> {
        if let Some(reasoning) = &mut self.reasoning {
            if reasoning.precedes_answer() || self.constraint.is_none() {
                reasoning.accept(tokenizer.piece(token).unwrap_or_default());
                return Ok(false);
            }
            if reasoning.opening_token() == Some(token) && !self.grammar_allows(token)? {
                self.reasoning.iter_mut().for_each(ReasoningTracker::open);
                return Ok(false);
            }
            self.reasoning.iter_mut().for_each(ReasoningTracker::skip);
        }
        let Some(constraint) = &mut self.constraint else {
            return Ok(false);
        };
        constraint.accept(token)?;
        Ok(constraint.is_complete())
    }

    fn grammar_allows(&mut self, token: u32) -> Result<bool, EngineError> {
        match &mut self.constraint {
            Some(constraint) => Ok(constraint.mask()?.allows(token)),
            None => Ok(true),
        }
    }
}
