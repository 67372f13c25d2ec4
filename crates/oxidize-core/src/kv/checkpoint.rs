//! Copies of recurrent state beside the blocks: which block's end each of them belongs to. A model
//! that keeps state instead of keys and values can go on only from where such a copy was made. The
//! bytes live in the backend's session; here is only the number of the place.

use std::collections::{BTreeMap, BTreeSet};

use super::BlockId;

/// The places for copies. A copy that belongs to a block is found again through it, and is given
/// up when its place is needed and it was used longest ago.
#[derive(Debug, Default)]
pub struct Checkpoints {
    free: Vec<u32>,
    kept: BTreeMap<BlockId, Kept>,
    /// When each kept one was last used.
    order: BTreeSet<(u64, BlockId)>,
    /// Places that a sequence holds for itself.
    held: BTreeSet<u32>,
    time: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    place: u32,
    used: u64,
}

impl Checkpoints {
    /// Books for `n_places`, all free.
    pub fn new(n_places: u32) -> Self {
        Self {
            free: (0..n_places).rev().collect(),
            ..Self::default()
        }
    }

    /// Whether there is a copy of the state at the end of `block`.
    pub fn contains(&self, block: BlockId) -> bool {
        self.kept.contains_key(&block)
    }

    /// The copy of the state at the end of `block`, which is thereby used.
    pub fn find(&mut self, block: BlockId) -> Option<u32> {
        let kept = self.kept.get_mut(&block)?;
        self.time += 1;
        self.order.remove(&(kept.used, block));
        kept.used = self.time;
        self.order.insert((kept.used, block));
        Some(kept.place)
    }

    /// The place to which the state at the end of `block` is to be copied; `None` when a copy is
    /// there already, or no place is to be had. Only with `evict` is another copy given up for it.
    pub fn keep(&mut self, block: BlockId, evict: bool) -> Option<u32> {
        if self.find(block).is_some() {
            return None;
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if evict => self.evict()?,
            None => return None,
        };
        self.time += 1;
        let used = self.time;
        self.kept.insert(block, Kept { place, used });
        self.order.insert((used, block));
        Some(place)
    }

    /// Gives up the copy that belongs to `block`, if there is one.
    pub fn forget(&mut self, block: BlockId) {
        if let Some(kept) = self.kept.remove(&block) {
            self.order.remove(&(kept.used, block));
            self.free.push(kept.place);
        }
    }

    /// Gives up the copy at `place`, if one is kept there.
    pub fn forget_place(&mut self, place: u32) {
        let found = self.kept.iter().find(|(_, kept)| kept.place == place);
        if let Some(block) = found.map(|(&block, _)| block) {
            self.forget(block);
        }
    }

    /// A place for a sequence to go back to, until it is [given back](Self::give_back).
    pub fn take(&mut self) -> Option<u32> {
        let place = self.free.pop().or_else(|| self.evict())?;
        self.held.insert(place);
        Some(place)
    }

    /// Ends what [`take`](Self::take) began.
    pub fn give_back(&mut self, place: u32) {
        if self.held.remove(&place) {
            self.free.push(place);
        }
    }

    /// The blocks that have a copy.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.kept.keys().copied()
    }

    /// Checks that each of `n_places` is exactly one of free, kept and held.
    pub fn check_integrity(&self, n_places: u32) -> Result<(), String> {
        let kept = self.kept.values().map(|kept| kept.place);
        let mut places: Vec<u32> = self.free.iter().chain(&self.held).copied().collect();
        places.extend(kept);
        places.sort_unstable();
        if !places.iter().copied().eq(0..n_places) {
            return Err(format!("the places of checkpoints are {places:?}"));
        }
        let mut order: Vec<(u64, BlockId)> = self.kept.iter().map(|(&b, k)| (k.used, b)).collect();
        order.sort_unstable();
        match self.order.iter().eq(&order) {
            true => Ok(()),
            false => Err("checkpoints are not in order".into()),
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.order.pop_first()?;
        self.kept.remove(&block).map(|kept| kept.place)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_used_longest_ago_makes_way() {
        let mut checkpoints = Checkpoints::new(2);
        let (a, b, c) = (BlockId(4), BlockId(5), BlockId(6));
        let place = checkpoints.keep(a, false).unwrap();
        checkpoints.keep(b, false).unwrap();
        assert_eq!(checkpoints.keep(a, true), None, "it is there already");
        assert_eq!(checkpoints.keep(c, false), None, "nothing is free");
        assert_eq!(checkpoints.find(b), Some(1 - place));
        assert_eq!(checkpoints.keep(c, true), Some(place));
        assert!(!checkpoints.contains(a));
        checkpoints.check_integrity(2).unwrap();
    }

    #[test]
    fn what_a_sequence_holds_is_not_given_away() {
        let mut checkpoints = Checkpoints::new(1);
        checkpoints.keep(BlockId(0), true).unwrap();
        let place = checkpoints.take().unwrap();
        assert!(!checkpoints.contains(BlockId(0)));
        assert_eq!(checkpoints.take(), None);
        assert_eq!(checkpoints.keep(BlockId(1), true), None);
        checkpoints.give_back(place);
        checkpoints.give_back(place);
        checkpoints.check_integrity(1).unwrap();
        checkpoints.keep(BlockId(1), false).unwrap();
        checkpoints.forget_place(place);
        checkpoints.forget(BlockId(1));
        checkpoints.check_integrity(1).unwrap();
    }
}
