//! [`recommend`]: models for a task that fit in memory, from the table `recommend.tsv`.

/// A task that models are recommended for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Conversation and general questions.
    Chat,
    /// Programming.
    Code,
    /// Problems that need several steps.
    Reasoning,
    /// Embeddings for search.
    Embed,
}

impl Task {
    /// All tasks.
    pub const ALL: [Task; 4] = [Task::Chat, Task::Code, Task::Reasoning, Task::Embed];

    /// Name of the task.
    pub fn name(self) -> &'static str {
        match self {
            Task::Chat => "chat",
            Task::Code => "code",
            Task::Reasoning => "reasoning",
            Task::Embed => "embed",
        }
    }
}

/// A recommended model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Name for `oxidize pull`.
    pub model: &'static str,
    /// Approximate size of the file in bytes.
    pub size: u64,
    /// Approximate memory in bytes: the weights, and a cache for some thousand tokens of context.
    pub memory: u64,
    /// License.
    pub license: &'static str,
    /// Reason.
    pub reason: &'static str,
}

/// Task, name, size in MB, license and reason, by rising quality.
const TABLE: &str = include_str!("recommend.tsv");

/// Up to `limit` models for a task that fit in `memory` bytes, the best first.
pub fn recommend(task: Task, memory: u64, limit: usize) -> Vec<Recommendation> {
    let fitting = rows().filter(|(row_task, row)| *row_task == task && row.memory <= memory);
    let mut fitting: Vec<Recommendation> = fitting.map(|(_, row)| row).collect();
    fitting.reverse();
    fitting.truncate(limit);
    fitting
}

fn rows() -> impl Iterator<Item = (Task, Recommendation)> {
    TABLE.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let task = fields.next()?;
        let task = Task::ALL.into_iter().find(|known| known.name() == task)?;
        let model = fields.next()?;
        let size = fields.next()?.parse::<u64>().ok()?.checked_mul(1_000_000)?;
        // A tenth and 300 MB: buffers, and the cache of a few thousand tokens.
        let memory = size + size / 10 + 300_000_000;
        Some((
            task,
            Recommendation {
                model,
                size,
                memory,
                license: fields.next()?,
                reason: fields.next()?,
            },
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ModelRef;

    #[test]
    fn every_row_is_a_model() {
        assert_eq!(rows().count(), TABLE.lines().count());
        for (_, row) in rows() {
            assert!(ModelRef::parse(row.model).unwrap().is_ok(), "{}", row.model);
        }
        for task in Task::ALL {
            let sizes: Vec<u64> = rows()
                .filter(|(row, _)| *row == task)
                .map(|(_, row)| row.size)
                .collect();
            assert!(sizes.len() >= 3 && sizes.is_sorted(), "{}", task.name());
        }
    }

    #[test]
    fn what_fits_is_recommended_best_first() {
        let few = recommend(Task::Chat, 4_000_000_000, 3);
        assert!(few.len() == 3 && few.iter().all(|row| row.memory <= 4_000_000_000));
        assert!(few[0].size > few[1].size);
        assert!(recommend(Task::Chat, 1 << 20, 3).is_empty());
        assert!(recommend(Task::Code, u64::MAX, 1)[0].model.contains("30B"));
    }
}
