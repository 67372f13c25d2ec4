//! Ways to feed an input to a session: in one batch, in chunks, beside another sequence, and after a cached
//! prefix.

use oxidize_core::backend::{Batch, KvType, SeqSlice, Session, SessionConfig};
use oxidize_core::kv::BlockId;

pub(crate) const BLOCK_SIZE: usize = 8;

pub(crate) fn config(max_context: usize) -> SessionConfig {
    SessionConfig {
        n_blocks: 64,
        block_size: BLOCK_SIZE,
        max_tokens: 128,
        max_outputs: 128,
        state_slots: 3,
        key_type: KvType::F32,
        value_type: KvType::F32,
        n_threads: Some(2),
        ..SessionConfig::for_context(max_context)
    }
}

/// Feeds `tokens` in chunks of the given sizes and returns the logits of all positions.
///
/// The blocks are not contiguous, so that nothing relies on their order.
pub(crate) fn feed(session: &mut dyn Session, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..tokens.len().div_ceil(BLOCK_SIZE) as u32)
        .map(|i| BlockId(63 - 3 * i))
        .collect();
    feed_from(session, tokens, 0, chunks, &blocks)
}

/// Slot of the sequence of [`feed`].
const SLOT: u32 = 2;

/// Feeds the first half of the blocks and then all of them; then what follows that half once more, into other
/// blocks and from a copy of the state. Returns the logits of that part.
pub(crate) fn feed_after_prefix(session: &mut dyn Session, tokens: &[u32]) -> Vec<f32> {
    let n_blocks = tokens.len().div_ceil(BLOCK_SIZE) as u32;
    let kept = n_blocks / 2;
    let prefix = kept as usize * BLOCK_SIZE;
    feed(session, &tokens[..prefix], &[128]);
    session.copy_states(&[(SLOT, 0)]).unwrap();
    feed(session, tokens, &[128]);
    session.copy_states(&[(0, SLOT)]).unwrap();
    let block = |i: u32| if i < kept { 63 - 3 * i } else { 3 * i };
    let blocks: Vec<BlockId> = (0..n_blocks).map(|i| BlockId(block(i))).collect();
    feed_from(session, tokens, prefix, &[5], &blocks)
}

fn feed_from(
    session: &mut dyn Session,
    tokens: &[u32],
    mut at: usize,
    chunks: &[usize],
    blocks: &[BlockId],
) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut sizes = chunks.iter().cycle();
    while at < tokens.len() {
        let n = (*sizes.next().unwrap()).min(tokens.len() - at);
        let positions: Vec<u32> = (at as u32..(at + n) as u32).collect();
        let outputs: Vec<u32> = (0..n as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: n,
            blocks,
            slot: SLOT,
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens: &tokens[at..at + n],
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        };
        session.run(&batch).unwrap();
        (0..n).for_each(|i| logits.extend_from_slice(session.output(i).unwrap()));
        at += n;
    }
    logits
}

/// Feeds two sequences in the same batches and returns the logits of the first.
pub(crate) fn feed_beside(session: &mut dyn Session, tokens: &[u32], other: &[u32]) -> Vec<f32> {
    let n_blocks = tokens
        .len()
        .div_ceil(BLOCK_SIZE)
        .max(other.len().div_ceil(BLOCK_SIZE)) as u32;
    let blocks: Vec<Vec<BlockId>> = (0..2)
        .map(|s| (0..n_blocks).map(|i| BlockId(2 * i + s)).collect())
        .collect();
    let mut logits = Vec::new();
    let (mut a, mut b) = (0, 0);
    while a < tokens.len() {
        let (n, m) = (3.min(tokens.len() - a), 2.min(other.len() - b));
        let flat: Vec<u32> = other[b..b + m]
            .iter()
            .chain(&tokens[a..a + n])
            .copied()
            .collect();
        let positions: Vec<u32> = (b as u32..(b + m) as u32)
            .chain(a as u32..(a + n) as u32)
            .collect();
        let outputs: Vec<u32> = (m as u32..(m + n) as u32).collect();
        let sequences = [
            SeqSlice {
                n_tokens: m,
                blocks: &blocks[1],
                slot: 0,
                ..SeqSlice::default()
            },
            SeqSlice {
                n_tokens: n,
                blocks: &blocks[0],
                slot: 1,
                ..SeqSlice::default()
            },
        ];
        let sequences = if m == 0 {
            &sequences[1..]
        } else {
            &sequences[..]
        };
        let batch = Batch {
            tokens: &flat,
            positions: &positions,
            sequences,
            outputs: &outputs,
        };
        session.run(&batch).unwrap();
        (0..n).for_each(|i| logits.extend_from_slice(session.output(i).unwrap()));
        (a, b) = (a + n, b + m);
    }
    logits
}

/// Blocks of the sequence with this number.
fn blocks_of(sequence: u32, n_tokens: usize) -> Vec<BlockId> {
    let n_blocks = n_tokens.div_ceil(BLOCK_SIZE) as u32;
    (0..n_blocks).map(|i| BlockId(3 * i + sequence)).collect()
}

/// Feeds several sequences in one batch and returns the outputs of the last.
pub(crate) fn feed_whole(session: &mut dyn Session, inputs: &[&[u32]]) -> Vec<f32> {
    let tokens = inputs.concat();
    let positions: Vec<u32> = inputs.iter().flat_map(|own| 0..own.len() as u32).collect();
    let blocks: Vec<Vec<BlockId>> = (0..)
        .zip(inputs)
        .map(|(i, own)| blocks_of(i, own.len()))
        .collect();
    let sequences: Vec<SeqSlice<'_>> = (0..)
        .zip(inputs.iter().zip(&blocks))
        .map(|(slot, (own, blocks))| SeqSlice {
            slot,
            n_tokens: own.len(),
            blocks,
            ..SeqSlice::default()
        })
        .collect();
    let n_before = tokens.len() - inputs.last().map_or(0, |last| last.len());
    let outputs: Vec<u32> = (n_before as u32..tokens.len() as u32).collect();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &sequences,
        outputs: &outputs,
    };
    session.run(&batch).unwrap();
    let output = |i: usize| session.output(i).unwrap().to_vec();
    (0..outputs.len()).flat_map(output).collect()
}

/// Runs the encoder on a prompt and the decoder on tokens in chunks. Returns the logits of the tokens.
pub(crate) fn feed_encoded(
    session: &mut dyn Session,
    slot: u32,
    prompt: &[u32],
    tokens: &[u32],
    chunks: &[usize],
) -> Vec<f32> {
    let blocks = blocks_of(slot, prompt.len() + tokens.len());
    let mut run = |encode: bool, tokens: &[u32], at: usize| {
        let positions: Vec<u32> = (at as u32..(at + tokens.len()) as u32).collect();
        let n_outputs = if encode { 0 } else { tokens.len() as u32 };
        let outputs: Vec<u32> = (0..n_outputs).collect();
        let sequences = [SeqSlice {
            slot,
            n_tokens: tokens.len(),
            blocks: &blocks,
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        };
        match encode {
            true => session.encode(&batch).unwrap(),
            false => session.run(&batch).unwrap(),
        }
        let output = |i: usize| session.output(i).unwrap().to_vec();
        (0..n_outputs as usize)
            .flat_map(output)
            .collect::<Vec<f32>>()
    };
    run(true, prompt, 0);
    let (mut at, mut logits) = (0, Vec::new());
    for &n in chunks.iter().cycle() {
        let n = n.min(tokens.len() - at);
        logits.extend(run(false, &tokens[at..at + n], prompt.len() + at));
        at += n;
        if at == tokens.len() {
            break;
        }
    }
    logits
}
