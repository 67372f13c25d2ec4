//! Searches for the scales and levels of a block.
//!
//! [`scale`] finds the scale of one block, [`scale_x16`] those of sixteen blocks at once, [`block`] the
//! scales and minimums of a super-block, [`grid`] and [`ternary`] the entries of codebooks (IQ2, IQ3 and
//! IQ1). [`ggml_compat`] repeats ggml's search for K-quants without importance, so that files are
//! byte-identical. [`second_moment`] refines levels with the second moment of a layer's inputs.

pub(super) mod block;
pub(super) mod ggml_compat;
pub(super) mod grid;
pub(super) mod scale;
pub(super) mod scale_x16;
pub(super) mod second_moment;
pub(super) mod ternary;
