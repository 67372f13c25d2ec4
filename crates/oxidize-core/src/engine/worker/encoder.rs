//! Steps of encoder-decoder models. The scheduler sees one sequence, prompt and answer; here the prompt goes to the
//! encoder in one step, and the rest to the decoder.

use super::{Worker, adapters};
use crate::backend::{Batch, SeqSlice};
use crate::error::Result;
use crate::scheduler::{Step, StepSequence};

impl Worker {
    /// Runs the decoder over the rows of a step that follow prompts, and before it the encoder over
    /// the prompts that are complete now. Pieces of prompts wait for the last.
    pub(super) fn compute_encoded(&mut self, step: &Step) -> Result<()> {
        for part in &step.sequences {
            let n_prompt = self.n_prompt(part);
            let end = part.start + part.rows.len();
            if part.start <= n_prompt && n_prompt < end {
                self.read_prompt(step, part)?;
            }
        }
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        let (mut sequences, mut outputs) = (Vec::new(), Vec::new());
        for part in &step.sequences {
            let n_read = self.n_prompt(part).saturating_sub(part.start);
            if n_read >= part.rows.len() {
                continue;
            }
            let first = part.rows.start + n_read;
            let shift = first - tokens.len();
            tokens.extend_from_slice(&step.tokens[first..part.rows.end]);
            positions.extend_from_slice(&step.positions[first..part.rows.end]);
            let wanted = step.outputs_of(part).iter();
            outputs.extend(wanted.map(|&row| row - shift as u32));
            sequences.push(SeqSlice {
                n_tokens: part.rows.len() - n_read,
                blocks: step.blocks_of(part),
                slot: part.slot,
                adapters: adapters(&self.active, &self.model, part.id),
                ..SeqSlice::default()
            });
        }
        if tokens.is_empty() {
            return Ok(());
        }
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        };
        Ok(self.session.run(&batch)?)
    }

    fn read_prompt(&mut self, step: &Step, part: &StepSequence) -> Result<()> {
        let Some(active) = self.active.get(&part.id) else {
            return Ok(());
        };
        let prompt = &active.tokens;
        let positions: Vec<u32> = (0..prompt.len() as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: prompt.len(),
            blocks: step.blocks_of(part),
            slot: part.slot,
            adapters: adapters(&self.active, &self.model, part.id),
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens: prompt,
            positions: &positions,
            sequences: &sequences,
            outputs: &[],
        };
        Ok(self.session.encode(&batch)?)
    }

    fn n_prompt(&self, part: &StepSequence) -> usize {
        let active = self.active.get(&part.id);
        active.map_or(0, |active| active.tokens.len())
    }
}
