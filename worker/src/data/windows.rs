//! How a long row of tokens is cut into samples: one way for `gpt`, one way for `mlp`.

use std::ops::Range;

use everstep_kernels::compute::Batch;

/// Windows of `context + 1` tokens. The first `context` are a sample's tokens, the last ones its
/// targets.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    context: usize,
    /// Tokens from the beginning of one window to the beginning of the next.
    stride: usize,
    /// How many of a window's last tokens the model predicts.
    targets: usize,
}

impl Windows {
    /// Samples that predict each next token. A sample has `context` tokens and as many targets,
    /// which are the same tokens one place later. The tokens of two samples never overlap.
    pub fn gpt(context: u32) -> Self {
        let context = context as usize;
        Self { context, stride: context, targets: context }
    }

    /// Samples that predict the token after `context` tokens. A sample begins at every token.
    pub fn mlp(context: u32) -> Self {
        Self { context: context as usize, stride: 1, targets: 1 }
    }

    /// The tokens of a sample, without the last target.
    pub fn context(self) -> usize {
        self.context
    }

    /// The number of windows in so many tokens.
    pub fn count(self, tokens: u64) -> u64 {
        tokens.saturating_sub(self.context as u64).div_ceil(self.stride as u64)
    }

    /// The place of the window `index`.
    pub fn range(self, index: u64) -> Range<u64> {
        let begin = index * self.stride as u64;
        begin..begin + self.context as u64 + 1
    }

    /// Appends a window as a row.
    pub fn append(self, window: impl ExactSizeIterator<Item = u32> + Clone, batch: &mut Batch) {
        let skipped = window.len() - self.targets;
        batch.tokens.extend(window.clone().take(self.context));
        batch.targets.extend(window.skip(skipped));
        batch.rows += 1;
    }
}
