//! States that were handed out to be saved: kept until they are written, and used again.
//!
//! The update after a checkpoint's step makes a new state beside the one that is being written. The
//! writer drops its reference when it is done, and then the memory of the old state is free for a
//! later update. So a run with checkpoints holds the states of its primary shards twice, and once
//! more while another part waits for the writer.

use std::sync::Arc;

use everstep_kernels::optimizer::ShardState;

/// States that their shards have left. A state is free once nothing else refers to it.
#[derive(Debug, Default)]
pub(super) struct SavedStates(Vec<Arc<ShardState>>);

impl SavedStates {
    /// A state of the size of `like`, for an update to fill.
    pub fn take_free(&mut self, like: &ShardState) -> ShardState {
        let fits = |state: &Arc<ShardState>| {
            Arc::strong_count(state) == 1
                && state.master.len() == like.master.len()
                && state.moments.len() == like.moments.len()
        };
        let free = self.0.iter().position(fits).map(|place| self.0.swap_remove(place));
        free.and_then(Arc::into_inner).unwrap_or_else(|| {
            let empty = || vec![0.0; like.master.len()];
            ShardState { master: empty(), moments: like.moments.iter().map(|_| empty()).collect() }
        })
    }

    /// Keeps a state that its shard has left.
    pub fn keep(&mut self, state: Arc<ShardState>) {
        self.0.push(state);
    }

    /// Gives the memory of free states back.
    pub fn free(&mut self) {
        self.0.retain(|state| Arc::strong_count(state) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(length: usize) -> Arc<ShardState> {
        Arc::new(ShardState { master: vec![1.0; length], moments: vec![vec![2.0; length]] })
    }

    #[test]
    fn a_state_is_used_again_once_nobody_writes_it() {
        let mut saved = SavedStates::default();
        let (written, under_way) = (state(4), state(4));
        let (address, writer) = (written.master.as_ptr(), under_way.clone());
        saved.keep(under_way);
        assert_ne!(saved.take_free(&state(4)).master.as_ptr(), writer.master.as_ptr());
        saved.keep(written);
        assert_ne!(saved.take_free(&state(8)).master.as_ptr(), address, "another length");
        assert_eq!(saved.take_free(&state(4)).master.as_ptr(), address);
        assert_eq!(saved.0.len(), 1);
        saved.free();
        assert_eq!(saved.0.len(), 1, "it is being written");
        drop(writer);
        saved.free();
        assert!(saved.0.is_empty());
    }
}
